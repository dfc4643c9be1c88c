//! Far more requests at once than Redis can serve: what they are told, what is served meanwhile and right after, and
//! what becomes of the leases that are held.
//!
//! All requests are waiting before the first is made, so that the time they take is that of the store and not that of
//! spawning tasks. What it takes only to wake so many is told beside it, as is what is served where a semaphore lets 256
//! of them ask at a time. All loads run the same program, over leases of the same number.

mod burst;
mod leases;

use std::time::{Duration, Instant};

use tower_distributed::{Quota, Store, TokenBucket};

use self::burst::{Asked, Burst, InTurn, Nothing, Tally, fail_open};
use self::leases::Leases;
use crate::common::Bench;
use crate::common::report::{Better, Versus, figure, note, number};
use crate::common::stats::median;
use crate::common::table::Table;

const UNAVAILABLE: &str = "overload-unavailable";
const FAILED_OPEN: &str = "overload-failed-open";
const RECOVERY: &str = "overload-recovery-ms";
const GOODPUT: &str = "overload-goodput-share";
const LEASES_LOST: &str = "overload-leases-lost";

const REQUESTS: usize = 500_000;
const EVEN_CALLERS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(30);

struct Round {
    even: Burst,
    /// As many tasks as the burst has, of which only so many ask at a time as of the even load.
    in_turn: Burst,
    burst: Burst,
    open: Burst,
    /// The longer of both bursts'.
    recovery: Duration,
    leases_lost: usize,
}

pub fn run(bench: &Bench) {
    let figures = [UNAVAILABLE, FAILED_OPEN, RECOVERY, GOODPUT, LEASES_LOST];
    if !figures.iter().any(|figure| bench.settings.wants(figure)) {
        return;
    }
    let columns = [
        "load",
        "served/s",
        "served",
        "overloaded",
        "told an outage",
        "let through",
        "next after ms",
        "leases lost",
    ];
    let mut table = Table::new(
        format!("{REQUESTS} requests with unique keys, each round"),
        columns,
    );
    let rounds: Vec<Round> = (0..bench.settings.rounds)
        .map(|_| round(bench, &mut table))
        .collect();
    table.print();

    let sum = |read: fn(&Round) -> u32| {
        rounds
            .iter()
            .map(|round| f64::from(read(round)))
            .sum::<f64>()
    };
    // What must not happen is counted over all rounds, and the slowest recovery counts.
    figure(
        UNAVAILABLE,
        "requests that were told an outage, 500 000 at once",
        sum(|round| round.burst.tally.unavailable),
    );
    figure(
        FAILED_OPEN,
        "requests let through unlimited, 500 000 at once, fail open",
        sum(|round| round.open.tally.undecided),
    );
    let recovery = rounds
        .iter()
        .map(|round| round.recovery)
        .max()
        .unwrap_or_default();
    figure(
        RECOVERY,
        "ms from the last answer to the next that is served",
        recovery.as_secs_f64() * 1000.0,
    );
    let share = |of: fn(&Round) -> &Burst| {
        let share = |round: &Round| round.burst.served_per_second() / of(round).served_per_second();
        median(rounds.iter().map(share))
    };
    let in_turn = number(share(|round| &round.in_turn));
    note(format!(
        "All at once ÷ the same tasks, {EVEN_CALLERS} at a time: {in_turn} of the served/s."
    ));
    let per_second =
        |of: fn(&Round) -> &Burst| median(rounds.iter().map(|round| of(round).served_per_second()));
    Versus {
        name: GOODPUT,
        measures: "served/s, 500 000 requests at once",
        ours: per_second(|round| &round.burst),
        peer: "our bucket under 256 callers",
        theirs: per_second(|round| &round.even),
        ratio: share(|round| &round.even),
        better: Better::Higher,
    }
    .tell();
    figure(
        LEASES_LOST,
        "leases lost meanwhile, of 1000",
        sum(|round| round.leases_lost as u32),
    );
}

fn round(bench: &Bench, table: &mut Table<8>) -> Round {
    let (even, _, lost_evenly) = load(bench, table, "256 callers", EVEN_CALLERS, |bucket| bucket);
    let in_turn = |bucket| InTurn::new(bucket, EVEN_CALLERS);
    let (in_turn, _, lost_in_turn) = load(bench, table, "256 of all at a time", REQUESTS, in_turn);
    load(bench, table, "all for nothing", REQUESTS, |_| Nothing);
    let (burst, recovery, lost) = load(bench, table, "all at once", REQUESTS, |bucket| bucket);
    let (open, recovery_open, lost_open) =
        load(bench, table, "the same, fail open", REQUESTS, fail_open);
    Round {
        even,
        in_turn,
        burst,
        open,
        recovery: recovery.max(recovery_open),
        leases_lost: lost_evenly + lost_in_turn + lost + lost_open,
    }
}

/// One load; how long after it the next call was served, and how many leases were lost.
fn load<A: Asked>(
    bench: &Bench,
    table: &mut Table<8>,
    name: &str,
    callers: usize,
    asked: fn(TokenBucket) -> A,
) -> (Burst, Duration, usize) {
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    let bucket = TokenBucket::new(&store, "bench", Quota::per_hour(10)).unwrap();
    let leases = Leases::take(bench, &store);
    bench.runtime.block_on(bucket.allow("warm")).unwrap();

    let burst = burst::run(&bench.runtime, &asked(bucket.clone()), callers, REQUESTS);
    let over = Instant::now();
    while let Err(error) = bench.runtime.block_on(bucket.allow("next")) {
        assert!(
            over.elapsed() < PATIENCE,
            "nothing is served any more: {error}"
        );
    }
    let recovery = over.elapsed();
    let lost = leases.release(bench);

    let Burst {
        tally:
            Tally {
                served,
                undecided,
                overloaded,
                unavailable,
                outage,
            },
        took,
    } = &burst;
    let counts = [*served, *overloaded, *unavailable, *undecided].map(|count| number(count.into()));
    let [served, overloaded, unavailable, undecided] = counts;
    table.row([
        name.to_owned(),
        number(burst.served_per_second().round()),
        served,
        overloaded,
        unavailable,
        undecided,
        number(recovery.as_secs_f64() * 1000.0),
        lost.to_string(),
    ]);
    if let Some(outage) = outage {
        note(format!(
            "{name}: the first outage told after {took:.1?}: {outage}"
        ));
    }
    (burst, recovery, lost)
}
