//! How soon followers in other processes have their leader's answer.

use std::process::{self, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use tower_distributed::{SingleFlight, Store};

use crate::child::{self, Child, Role, tell};
use crate::common::report::{figure, number};
use crate::common::settings::Settings;
use crate::common::stats::{median, percentile};
use crate::common::table::Table;
use crate::common::{self, Bench};

const P50: &str = "follower-p50-ms";
const P99: &str = "follower-p99-ms";
const ROLE: &str = "fly";
/// Long enough for all to come while the first of them is at it.
const WORK: Duration = Duration::from_millis(5);
/// For one leader at a time. Whichever is worse is the figure.
const FOLLOWERS: [usize; 2] = [1, 3];

pub fn run(bench: &Bench) {
    if !bench.settings.wants(P50) && !bench.settings.wants(P99) {
        return;
    }
    let mut rounds = [const { Vec::new() }; FOLLOWERS.len()];
    for _ in 0..bench.settings.rounds {
        for (rounds, followers) in rounds.iter_mut().zip(FOLLOWERS) {
            bench.server.empty();
            rounds.push(round(followers, &bench.server.url));
        }
    }
    let mut table = Table::new(
        format!(
            "From the end of the leader's work to a follower's answer in another process, work of {WORK:?}"
        ),
        ["followers", "p50 ms", "p99 ms", "answers"],
    );
    let of = |rounds: &[Round], read: fn(&Round) -> f64| median(rounds.iter().map(read)) / 1e6;
    let (mut p50, mut p99) = (0.0_f64, 0.0_f64);
    for (rounds, followers) in rounds.iter().zip(FOLLOWERS) {
        let here = (of(rounds, |round| round.p50), of(rounds, |round| round.p99));
        let answers: usize = rounds.iter().map(|round| round.answers).sum();
        table.row([
            followers.to_string(),
            number(here.0),
            number(here.1),
            answers.to_string(),
        ]);
        (p50, p99) = (p50.max(here.0), p99.max(here.1));
    }
    table.print();
    figure(
        P50,
        "p50 from the end of the leader's work to a follower's answer elsewhere, ms",
        p50,
    );
    figure(P99, "p99 of the same, ms", p99);
}

struct Round {
    answers: usize,
    /// Nanoseconds.
    p50: f64,
    p99: f64,
}

fn round(followers: usize, url: &str) -> Round {
    let mut children = child::start(1 + followers, ROLE, url);
    let mut waits: Vec<u32> = children.iter_mut().flat_map(Child::numbers).collect();
    waits.sort_unstable();
    Round {
        answers: waits.len(),
        p50: percentile(&waits, 0.50),
        p99: percentile(&waits, 0.99),
    }
}

/// Who led, and when its work ended.
type Answer = (u32, u64);

/// The part of each process: it flies one key after the other, as all of them do. Whoever comes first leads.
pub fn play(role: &Role) -> ExitCode {
    assert_eq!(role.name, ROLE);
    let length = Settings::read().unwrap().length;
    let waits = common::runtime().unwrap().block_on(async {
        let flights =
            SingleFlight::<Answer>::new(&Store::redis(&role.url).unwrap(), "bench").unwrap();
        for key in 0..8 {
            flights.run(format!("warm-up-{key}"), work).await.unwrap();
        }
        child::wait_for_the_others();
        fly(&flights, length).await
    });
    tell(&waits);
    ExitCode::SUCCESS
}

/// How long it took to hear of the others' work.
async fn fly(flights: &SingleFlight<Answer>, length: Duration) -> Vec<u64> {
    let began = Instant::now();
    let mut waits = Vec::new();
    for key in (0..).take_while(|_| began.elapsed() < length) {
        let asked = now();
        let (leader, ended) = flights.run(format!("key-{key:016}"), work).await.unwrap();
        // Who came too late has not followed.
        if leader != process::id() && asked < ended {
            waits.push(now().saturating_sub(ended));
        }
    }
    waits
}

async fn work() -> Answer {
    tokio::time::sleep(WORK).await;
    (process::id(), now())
}

/// Nanoseconds, by the clock that all processes share.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}
