//! A queue that is never empty: 16 permits, held for 12 ms, and 256 callers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::{Store, WaitGroup};

use crate::common::report::{figure, note};
use crate::common::{Bench, settings};

const LIMIT: u32 = 16;
const CALLERS: usize = 256;
const HOLD: Duration = Duration::from_millis(12);
const MAX_WAIT: Duration = Duration::from_secs(1);
/// The part of the run that the rest is compared with.
const FIRST: Duration = Duration::from_secs(30);

/// A call: when it ended, how long it waited, and whether it was refused.
struct Call {
    end: Duration,
    wait: Duration,
    refused: bool,
}

pub fn run(bench: &Bench) {
    let lasts = settings::seconds("SECONDS", 130.0).unwrap();
    let store = Store::builder().redis(&bench.server.url).unwrap();
    let group = WaitGroup::builder(LIMIT)
        .max_wait(MAX_WAIT)
        .build(&store, "trust")
        .unwrap();
    let began = Instant::now();
    let calls = bench.runtime.block_on(async {
        let group = Arc::new(group);
        let callers = (0..CALLERS).map(|_| tokio::spawn(call(Arc::clone(&group), began, lasts)));
        let calls = join_all(callers).await;
        calls
            .into_iter()
            .flat_map(Result::unwrap)
            .collect::<Vec<_>>()
    });
    let first = FIRST.min(lasts / 2);
    let mut waits: Vec<_> = calls
        .iter()
        .filter(|call| call.end < first)
        .map(|call| call.wait)
        .collect();
    waits.sort();
    let median = waits[waits.len() / 2];
    let longest = calls.iter().map(|call| call.wait).max().unwrap();
    let refused: Vec<_> = calls.iter().filter(|call| call.refused).collect();
    figure(
        "long-queue-refused",
        "calls that were refused",
        refused.len() as f64,
    );
    let ratio = longest.as_secs_f64() / median.as_secs_f64();
    figure(
        "long-queue-longest-wait-vs-median",
        "longest wait ÷ median of the first 30 s",
        ratio,
    );
    let when = refused.iter().map(|call| call.end).min();
    note(format!(
        "{} calls in {lasts:?}; the median wait of the first {first:?} is {median:?}, the longest of all {longest:?}; \
         the first refusal: {when:?}",
        calls.len()
    ));
}

async fn call(group: Arc<WaitGroup>, began: Instant, lasts: Duration) -> Vec<Call> {
    let mut calls = Vec::new();
    while began.elapsed() < lasts {
        let asked = Instant::now();
        let permit = group.add("k").await;
        let refused = permit.is_err();
        calls.push(Call {
            end: began.elapsed(),
            wait: asked.elapsed(),
            refused,
        });
        if let Ok(permit) = permit {
            tokio::time::sleep(HOLD).await;
            permit.done().await.unwrap();
        }
    }
    calls
}
