//! Flows: one tenant with a thousand waiting calls beside nine modest ones.

use std::time::Duration;

use tower_distributed::WaitGroup;
use tower_distributed::wait_group::{Turn, WaitGroupBuilder};

use super::crowd::{Crowd, during};
use crate::common::Bench;
use crate::common::report::{Better, Versus, figure};
use crate::common::stats::{median, percentile};

const LIMIT: u32 = 16;
const GREEDY: usize = 1000;
const MODEST: u32 = 9;
const HOLD: Duration = Duration::from_millis(10);

fn fair(limit: u32) -> WaitGroupBuilder {
    WaitGroup::builder(limit).fair()
}

pub fn run(bench: &Bench) {
    let name = "fair-jain";
    if bench.settings.wants(name) {
        let rounds = (0..bench.settings.rounds).map(|_| jain(bench));
        let measures = "Jain's index of the permits of 10 tenants: one with 1 000 waiting calls, nine with one";
        figure(name, measures, median(rounds.collect::<Vec<_>>()));
    }
    let name = "fair-newcomer-wait-vs-fifo";
    if bench.settings.wants(name) {
        let rounds =
            (0..bench.settings.rounds).map(|_| (newcomer(bench, true), newcomer(bench, false)));
        versus(
            name,
            "p99 of a modest tenant's wait beside 1 000 waiting calls, µs",
            rounds,
            Better::Lower,
        );
    }
    let name = "fair-handovers-vs-fifo";
    if bench.settings.wants(name) {
        let rounds =
            (0..bench.settings.rounds).map(|_| (handovers(bench, true), handovers(bench, false)));
        versus(
            name,
            "hand-overs/s, 64 callers of 8 tenants in 4 processes, one permit",
            rounds,
            Better::Higher,
        );
    }
}

/// Tells fair queues beside those in the order of arrival.
fn versus(name: &str, measures: &str, rounds: impl Iterator<Item = (f64, f64)>, better: Better) {
    let rounds: Vec<_> = rounds.collect();
    let ours = median(rounds.iter().map(|(ours, _)| *ours));
    let theirs = median(rounds.iter().map(|(_, theirs)| *theirs));
    let ratio = median(rounds.iter().map(|(ours, theirs)| ours / theirs));
    Versus {
        name,
        measures,
        ours,
        peer: "order of arrival",
        theirs,
        ratio,
        better,
    }
    .tell();
}

fn jain(bench: &Bench) -> f64 {
    let mut crowd = Crowd::new(bench, "jain", &fair(LIMIT), HOLD);
    let mut counts = vec![crowd.callers(bench, GREEDY, Turn::of("greedy"))];
    counts.extend((0..MODEST).map(|nth| crowd.always_one(bench, nth as usize, Turn::of(nth))));
    crowd.is_waiting(bench, GREEDY as u64 - u64::from(LIMIT));
    let served = during(&counts, bench.settings.length);
    crowd.end(bench);
    let (sum, squares) = served.iter().fold((0.0, 0.0), |(sum, squares), count| {
        (sum + count, squares + count * count)
    });
    sum * sum / (served.len() as f64 * squares)
}

fn newcomer(bench: &Bench, is_fair: bool) -> f64 {
    let builder = if is_fair {
        fair(LIMIT)
    } else {
        WaitGroup::builder(LIMIT)
    };
    let turn = |tenant: &'static str| {
        if is_fair {
            Turn::of(tenant)
        } else {
            Turn::new()
        }
    };
    let mut crowd = Crowd::new(
        bench,
        if is_fair { "newcomer" } else { "newcomer-fifo" },
        &builder,
        HOLD,
    );
    let _served = crowd.callers(bench, GREEDY, turn("greedy"));
    crowd.is_waiting(bench, GREEDY as u64 - u64::from(LIMIT));
    let waits = crowd.waits(
        bench,
        turn("modest"),
        Duration::from_millis(3),
        bench.settings.length,
    );
    crowd.end(bench);
    percentile(&waits, 0.99)
}

fn handovers(bench: &Bench, is_fair: bool) -> f64 {
    let builder = if is_fair {
        fair(1)
    } else {
        WaitGroup::builder(1)
    };
    let name = if is_fair {
        "handovers"
    } else {
        "handovers-fifo"
    };
    let mut crowd = Crowd::new(bench, name, &builder, Duration::ZERO);
    let counts: Vec<_> = (0..8_u32)
        .map(|tenant| {
            crowd.callers(
                bench,
                8,
                if is_fair {
                    Turn::of(tenant)
                } else {
                    Turn::new()
                },
            )
        })
        .collect();
    crowd.is_waiting(bench, 32);
    let served = during(&counts, bench.settings.length);
    crowd.end(bench);
    served.iter().sum::<f64>() / bench.settings.length.as_secs_f64()
}
