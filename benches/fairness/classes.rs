//! Classes: what a flood of one does to another.

use std::time::Duration;

use tower_distributed::WaitGroup;
use tower_distributed::wait_group::Turn;

use super::crowd::{Crowd, during};
use crate::common::Bench;
use crate::common::report::{Better, Versus, figure};
use crate::common::stats::{median, percentile};

const LIMIT: u32 = 16;
const HOLD: Duration = Duration::from_millis(5);
/// More than the permits, so that the high class waits for itself.
const HIGH: usize = 24;
const FLOOD: usize = 1000;
const AGING: Duration = Duration::from_millis(250);

pub fn run(bench: &Bench) {
    let name = "priority-high-p99-vs-alone";
    if bench.settings.wants(name) {
        let rounds: Vec<_> = (0..bench.settings.rounds)
            .map(|_| (wait(bench, FLOOD), wait(bench, 0)))
            .collect();
        let ours = median(rounds.iter().map(|(ours, _)| *ours));
        let theirs = median(rounds.iter().map(|(_, theirs)| *theirs));
        let ratio = median(rounds.iter().map(|(ours, theirs)| ours / theirs));
        let measures = "p99 of the wait of the high class (24 callers) beside 1 000 waiting calls of the low one, µs";
        Versus {
            name,
            measures,
            ours,
            peer: "alone",
            theirs,
            ratio,
            better: Better::Lower,
        }
        .tell();
    }
    let name = "priority-low-served";
    if bench.settings.wants(name) {
        let rounds = (0..bench.settings.rounds).map(|_| low(bench));
        let measures =
            "permits of the low class for each 250 ms of aging, beside 64 callers of the high one";
        figure(name, measures, median(rounds.collect::<Vec<_>>()));
    }
}

fn crowd(bench: &Bench, name: &str) -> Crowd {
    Crowd::new(
        bench,
        name,
        &WaitGroup::builder(LIMIT).priorities(2).aging(AGING),
        HOLD,
    )
}

fn wait(bench: &Bench, flood: usize) -> f64 {
    let mut crowd = crowd(bench, if flood > 0 { "flooded" } else { "alone" });
    let high = Turn::new().class(0);
    let _low = crowd.callers(bench, flood, Turn::new().class(1));
    let _high = crowd.callers(bench, HIGH - 1, high);
    crowd.is_waiting(
        bench,
        (flood as u64 + HIGH as u64 - u64::from(LIMIT)).saturating_sub(4),
    );
    let waits = crowd.waits(bench, high, Duration::ZERO, bench.settings.length);
    crowd.end(bench);
    percentile(&waits, 0.99)
}

fn low(bench: &Bench) -> f64 {
    let mut crowd = crowd(bench, "low");
    let _high = crowd.callers(bench, 64, Turn::new().class(0));
    let counts = [crowd.callers(bench, 8, Turn::new().class(1))];
    crowd.is_waiting(bench, 40);
    let served = during(&counts, bench.settings.length);
    crowd.end(bench);
    served[0] * AGING.as_secs_f64() / bench.settings.length.as_secs_f64()
}
