//! Whether two holders ever believe in one lease at once.
//!
//! Several processes lock the same few keys, with times to live from 10 ms to 60 s and with every way to wait, hold and
//! give back, while they are stopped and killed. Each tells the interval in which it believed to hold a key, on a clock
//! that all processes of a machine share. No two of them may overlap.
//!
//! ```text
//! TWO_HOLDERS_SECONDS=600 cargo test --test leases_fleet --all-features -- two_holders --nocapture
//! ```

mod checker;
mod clock;
mod locks;
mod records;
mod role;

use std::cell::Cell;
use std::time::Duration;

use deadpool_redis::redis;
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use self::checker::{Visit, overlaps, stale, untold};
use self::clock::Clock;
use self::locks::span;
use self::records::{Book, Hold};
use crate::fleet::{Fleet, Player};

const PROCESSES: usize = 4;
const SHORTEST_STALL: Duration = Duration::from_millis(5);
const LONGEST_STALL: Duration = Duration::from_secs(2);

/// What must have happened before it counts.
struct Enough {
    holds: usize,
    kills: usize,
    stops: usize,
    late: usize,
    length: Duration,
}

/// What has happened in all processes so far.
struct Tally<'a> {
    fleet: &'a Fleet,
    clock: Clock,
    began: Instant,
    enough: Enough,
    holds: Cell<usize>,
    kills: Cell<usize>,
    stops: Cell<usize>,
    late: Cell<usize>,
}

/// What came of it.
struct Outcome {
    holds: Vec<Hold>,
    visits: Vec<Visit>,
    refused: Vec<String>,
    failed: Vec<String>,
    cancelled: usize,
    kills: usize,
    stops: usize,
}

fn add(count: &Cell<usize>, more: usize) {
    count.set(count.get() + more);
}

impl Tally<'_> {
    fn is_enough(&self) -> bool {
        let Enough { holds, kills, stops, late, length } = self.enough;
        self.holds.get() >= holds
            && self.kills.get() >= kills
            && self.stops.get() >= stops
            && self.late.get() >= late
            && self.began.elapsed() >= length
    }

    /// Listens until the process has got so many more leases.
    async fn follow(&self, player: &mut Player, book: &mut Book, holds: usize) {
        let (mut seen, late) = (0, book.late);
        while seen < holds {
            seen += usize::from(book.read(&player.child.next_line().await));
        }
        add(&self.holds, seen);
        add(&self.late, book.late - late);
    }

    /// Stops a process for a while; whether it is to go on.
    async fn stop(&self, player: &Player) -> bool {
        player.child.pause();
        // How long it stands still is the fault itself; nothing is waited for.
        sleep(span(SHORTEST_STALL, LONGEST_STALL)).await;
        add(&self.stops, 1);
        let goes_on = !rand::random_ratio(1, 6);
        if goes_on {
            player.child.resume();
        }
        goes_on
    }

    /// One process, and another for each that is killed.
    async fn play(&self, number: usize, namespace: &str) -> Book {
        let mut book = Book::default();
        for life in 0.. {
            let name = format!("p{number}x{life}");
            let env = [("NAMESPACE", namespace)];
            let mut player = self.fleet.spawn("two_holders::role::role_holder", &name, &env);
            loop {
                self.follow(&mut player, &mut book, rand::random_range(10..80)).await;
                if self.is_enough() || rand::random_ratio(1, 3) || !self.stop(&player).await {
                    break;
                }
            }
            let killed = self.clock.end(Instant::now());
            player.child.kill9();
            while let Some(line) = player.child.try_next_line().await {
                book.read(&line);
            }
            book.killed(killed);
            if self.is_enough() {
                break;
            }
            add(&self.kills, 1);
        }
        book
    }
}

/// Lets processes with these namespaces lock until it is enough.
async fn run(namespaces: [&str; PROCESSES], enough: Enough) -> Outcome {
    let fleet = &Fleet::start().await;
    let (clock, began) = (Clock::new(), Instant::now());
    let [holds, kills, stops, late] = [0; 4].map(Cell::new);
    let tally = &Tally { fleet, clock, began, enough, holds, kills, stops, late };
    let players = namespaces.into_iter().enumerate();
    let books = join_all(players.map(|(number, namespace)| tally.play(number, namespace))).await;
    Outcome {
        holds: books.iter().flat_map(Book::holds).cloned().collect(),
        visits: visits(fleet).await,
        refused: books.iter().flat_map(|book| book.refused.clone()).collect(),
        failed: books.iter().flat_map(|book| book.failed.clone()).collect(),
        cancelled: books.iter().map(|book| book.cancelled).sum(),
        kills: tally.kills.get(),
        stops: tally.stops.get(),
    }
}

/// All that the resources have seen.
async fn visits(fleet: &Fleet) -> Vec<Visit> {
    const PAGE: usize = 10_000;
    let mut visits: Vec<Visit> = Vec::new();
    loop {
        let mut range = redis::cmd("LRANGE");
        range.arg(role::VISITS).arg(visits.len()).arg(visits.len() + PAGE - 1);
        let page: Vec<String> = fleet.referee.query(&range).await;
        visits.extend(page.iter().map(|visit| Visit::parse(visit)));
        if page.len() < PAGE {
            return visits;
        }
    }
}

#[tokio::test]
async fn no_two_believe_to_hold_one_key() {
    let seconds = std::env::var("TWO_HOLDERS_SECONDS").map_or(0, |text| text.parse().unwrap());
    let length = Duration::from_secs(seconds);
    let enough = Enough { holds: 1500, kills: 8, stops: 16, late: 20, length };
    let Outcome { holds, visits, refused, failed, cancelled, kills, stops } = run(["one"; 4], enough).await;
    let (overlaps, late) = (overlaps(&holds), visits.iter().filter(|visit| visit.late));
    println!(
        "two-holders {}, holds {}, late visits {}, refused {}",
        overlaps.len(),
        holds.len(),
        late.clone().count(),
        late.filter(|visit| !visit.accepted).count(),
    );
    println!("kills {kills}, stops {stops}, waits given up {cancelled}, locks that failed {}", failed.len());
    assert_eq!(overlaps, [], "two believed to hold one key");
    assert_eq!(untold(&holds, &visits), [] as [&Visit; 0], "visits of holds that nobody has told of");
    assert_eq!(stale(&holds, &visits), [] as [&Visit; 0], "accepted after a newer holder's");
    assert_eq!(refused, [] as [&str; 0], "refused though held");
}

/// The test above is about something: the records show who locks something else.
#[tokio::test]
async fn holders_of_different_locks_are_caught() {
    let enough = Enough { holds: 1000, kills: 0, stops: 0, late: 0, length: Duration::ZERO };
    let Outcome { holds, .. } = run(["one", "two", "three", "four"], enough).await;
    assert_ne!(overlaps(&holds), [], "no two at once");
}
