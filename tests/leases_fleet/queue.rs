//! The order in which those who wait are served, and waiters that are killed.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Mutex, Store, WaitGroup};

use crate::fleet::{Fleet, LONG, Player, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::setting;
use support::role;

/// How long a grant stands until it is confirmed.
const CLAIM: Duration = Duration::from_millis(1500);
const LIMIT: u32 = 5;

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
    async fn join(&mut self, player: &Player, weight: u32) {
        let visit = format!("{}.{}", player.name, self.visits.len());
        self.fleet.referee.order(&player.name, &format!("{} {} {visit} {weight}", self.kind, self.key)).await;
        self.visits.push(visit);
        self.fleet.lined_up(self.kind, &self.key, self.visits.len()).await;
    }
}

fn waiter(fleet: &Fleet, name: &str) -> Player {
    fleet.spawn("queue::role_waiter", name, &[])
}

#[tokio::test]
async fn who_comes_first_is_served_first() {
    let fleet = Fleet::start().await;
    let players: Vec<_> = (0..4).map(|number| waiter(&fleet, &format!("p{number}"))).collect();
    let store = fleet.store();
    let lock = mutexes(&store).lock("a").await.unwrap();
    // One of the permits remains, so that the next can only enter when the last has left.
    let most = permits(&store).add_n("b", LIMIT - 1).await.unwrap();
    let rest = permits(&store).add("b").await.unwrap();
    let all = permits(&store).add_n("c", LIMIT).await.unwrap();
    let mut lines =
        [("locks", "a"), ("permits", "b"), ("permits", "c")].map(|(kind, key)| Line::new(&fleet, kind, key));
    for number in 0..40 {
        let player = &players[(number * 7 + number / 4) % players.len()];
        let [a, b, c] = &mut lines;
        // Nobody fits beside one with a weight of 3 to 5.
        tokio::join!(a.join(player, LIMIT), b.join(player, 1), c.join(player, 3 + number as u32 % 3));
    }
    assert!(lock.unlock().await.unwrap() && rest.done().await.unwrap() && all.done().await.unwrap());
    for line in &lines {
        fleet.left(&line.key, 40).await;
        assert_eq!(fleet.judge(&line.key, LIMIT).await.unwrap().entered, line.visits, "{}", line.kind);
    }
    assert!(most.done().await.unwrap());
}

#[tokio::test]
async fn killed_waiters_hold_up_nobody_for_long() {
    const KEYS: usize = 5;
    const VICTIMS: usize = 10;
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
        first[0].join(&victims[number], LIMIT).await;
        first[0].join(&survivors[number % 2], LIMIT).await;
    }
    eventually("all to be subscribed", LONG, async || fleet.channels().await == VICTIMS + survivors.len())
        .await;
    for number in 0..VICTIMS {
        join_all(others.iter_mut().map(|line| line.join(&victims[number], LIMIT))).await;
        join_all(others.iter_mut().map(|line| line.join(&survivors[number % 2], LIMIT))).await;
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
        fleet.left(&line.key, VICTIMS as u64).await;
        let verdict = fleet.judge(&line.key, LIMIT).await.unwrap();
        let alive: Vec<_> = line.visits.iter().filter(|visit| visit.starts_with('s')).cloned().collect();
        assert_eq!((verdict.entered, verdict.kills), (alive, VICTIMS));
        // Before each there was one dead waiter at most, so a claim at most that nobody confirms.
        let notes = fleet.notes(&line.key).await;
        let times = notes.iter().filter(|note| ["ask", "enter"].contains(&&*note.verb)).map(|note| note.at);
        let longest = times.collect::<Vec<_>>().windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        let longest = Duration::from_micros(longest.try_into().unwrap());
        assert!(longest < CLAIM * 2, "nobody was served for {longest:?}");
    }
}
