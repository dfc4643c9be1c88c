//! The order in which those who wait are served, and waiters that are killed.

use std::sync::Mutex as StdMutex;
use std::time::Duration;

use futures::future::{join_all, join3};
use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::fleet::{CLAIM, Fleet, LONG, Player, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::setting;
use support::role;

const LIMIT: u32 = 5;
const KEYS: usize = 4;
const VICTIMS: usize = 5;

fn mutexes(store: &Store) -> Mutex {
    Mutex::builder().strict_fifo().build(store, "locks").unwrap()
}

fn permits(store: &Store) -> WaitGroup {
    WaitGroup::new(store, "permits", LIMIT).unwrap()
}

// For each order `kind key visit weight`: lines up, and enters the room of that name when it is its turn.
role!(role_waiter, async {
    let (name, store) = (setting("NAME"), store_of_role());
    let (mutexes, permits) = (mutexes(&store), permits(&store));
    let (orders, referee) = (Referee::of_role().await, Referee::of_role().await);
    loop {
        let order = orders.next_order(&name).await;
        let (referee, mutexes, permits) = (referee.clone(), mutexes.clone(), permits.clone());
        tokio::spawn(async move {
            let words: Vec<_> = order.split(' ').collect();
            let [kind, key, visit, weight] = words[..] else { panic!("{order}") };
            let weight = weight.parse().unwrap();
            let (visit, released) = if kind == "locks" {
                let guard = mutexes.lock(key).await.unwrap();
                let visit = referee.enter(key, visit, weight, &guard).await;
                visit.leave().await;
                (visit, guard.unlock().await)
            } else {
                let permit = permits.add_n(key, weight).await.unwrap();
                let visit = referee.enter(key, visit, weight, &permit).await;
                visit.leave().await;
                (visit, permit.done().await)
            };
            visit.settle(released.unwrap()).await;
        });
    }
});

/// Those who wait for one key, in the order in which they came.
struct Line<'a> {
    fleet: &'a Fleet,
    kind: &'static str,
    key: String,
    visits: Vec<String>,
}

impl<'a> Line<'a> {
    fn new(fleet: &'a Fleet, kind: &'static str, key: &str) -> Self {
        Self { fleet, kind, key: key.to_owned(), visits: Vec::new() }
    }

    /// Makes a process line up, behind all who have before.
    async fn join(&mut self, player: &Player) {
        let number = self.visits.len();
        let visit = format!("{}.{number}", player.name);
        // Nobody fits beside one with a weight of 3 to 5.
        let weight = if self.kind == "locks" { LIMIT } else { 3 + number as u32 % 3 };
        self.fleet.referee.order(&player.name, &format!("{} {} {visit} {weight}", self.kind, self.key)).await;
        self.visits.push(visit);
        self.fleet.lined_up(self.kind, &self.key, self.visits.len()).await;
    }
}

fn waiter(fleet: &Fleet, name: &str) -> Player {
    fleet.spawn("queue::role_waiter", name, &[])
}

/// Who comes first is served first, and each dead waiter costs one claim at most.
#[tokio::test]
async fn killed_waiters_hold_up_nobody_for_long() {
    let fleet = &Fleet::start().await;
    let survivors = ["s0", "s1"].map(|name| waiter(fleet, name));
    let mut victims: Vec<_> = (0..VICTIMS).map(|number| waiter(fleet, &format!("v{number}"))).collect();
    let store = fleet.store();
    let (mutexes, permits) = (mutexes(&store), permits(&store));
    let (mut locks, mut alls, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..KEYS {
        let key = format!("k{number}");
        if number % 2 == 0 {
            locks.push(mutexes.lock(key.as_str()).await.unwrap());
            lines.push(Line::new(fleet, "locks", &key));
        } else {
            alls.push(permits.add_n(key.as_str(), LIMIT).await.unwrap());
            lines.push(Line::new(fleet, "permits", &key));
        }
    }
    // Behind each victim there is a survivor. Those who come to the first key cannot be pushed to yet, so that a grant
    // to them stands until it is not confirmed; those in the other lines can, so it is seen at once that they are gone.
    let (first, others) = lines.split_at_mut(1);
    for number in 0..VICTIMS {
        first[0].join(&victims[number]).await;
        first[0].join(&survivors[number % 2]).await;
    }
    eventually("all to be subscribed", LONG, async || fleet.channels() == VICTIMS + survivors.len()).await;
    for number in 0..VICTIMS {
        join_all(others.iter_mut().map(|line| line.join(&victims[number]))).await;
        join_all(others.iter_mut().map(|line| line.join(&survivors[number % 2]))).await;
    }
    let rooms: Vec<_> = lines.iter().map(|line| line.key.as_str()).collect();
    for victim in &mut victims {
        fleet.kill(victim, &rooms).await;
    }
    for room in &rooms {
        fleet.referee.note(room, "ask", "parent.0").await;
    }
    for lock in locks {
        assert!(lock.unlock().await.unwrap());
    }
    for all in alls {
        assert!(all.done().await.unwrap());
    }
    for line in &lines {
        let what = format!("{} to be left", line.key);
        let left = async || fleet.referee.count(&line.key, "leave").await >= VICTIMS as u64;
        eventually(&what, LONG, left).await;
        let verdict = fleet.judge(&line.key, LIMIT).await.unwrap();
        let alive: Vec<_> = line.visits.iter().filter(|visit| visit.starts_with('s')).cloned().collect();
        assert_eq!((verdict.entered, verdict.kills), (alive, VICTIMS));
        // Before each there was one dead waiter at most, so a claim at most that nobody confirms.
        let mut notes = fleet.notes(&line.key).await;
        notes.retain(|note| ["ask", "enter"].contains(&&*note.verb));
        let longest = notes.windows(2).map(|pair| pair[1].after(&pair[0])).max().unwrap();
        assert!(longest < CLAIM * 2, "nobody was served for {longest:?}");
    }
}

/// Unless another number is set.
#[tokio::test(start_paused = true)]
async fn after_16_writers_in_a_row_the_readers_that_wait_go() {
    let lock = &RwLock::new(&Store::in_memory(), "documents").unwrap();
    let (first, served) = (lock.write("k").await.unwrap(), &StdMutex::new(String::new()));
    let read = async {
        let guard = lock.read("k").await.unwrap();
        served.lock().unwrap().push('r');
        assert!(guard.release().await.unwrap());
    };
    let writes = (0..20).map(async |_| {
        let guard = lock.write("k").await.unwrap();
        served.lock().unwrap().push('w');
        assert!(guard.release().await.unwrap());
    });
    let release = async {
        // By then all wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(first.release().await.unwrap());
    };
    join3(read, join_all(writes), release).await;
    assert_eq!(*served.lock().unwrap(), format!("{}r{}", "w".repeat(16), "w".repeat(4)));
}
