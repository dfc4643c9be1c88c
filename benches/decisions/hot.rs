//! One hot key: tokens charged ahead, and refusals that this process makes alone.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota};
use tower_distributed::{Quota, Store, TokenBucket};

use crate::cell::{self, Sample};
use crate::common::Bench;
use crate::common::report::{Better, Versus, figure, note, number};
use crate::common::stats::median;
use crate::contestants::Contestant;
use crate::workload::Workload;

const CALLERS: usize = 256;
/// More than anybody asks for.
const ENOUGH: u32 = 100_000_000;

#[derive(Clone)]
struct Ours(TokenBucket);

impl Contestant for Ours {
    async fn admits(&mut self, key: &'static str) -> bool {
        self.0.allow(key).await.unwrap().is_admitted()
    }
}

#[derive(Clone)]
struct Governor(Arc<DefaultKeyedRateLimiter<&'static str>>);

impl Contestant for Governor {
    async fn admits(&mut self, key: &'static str) -> bool {
        // As ours does when it need not wait.
        tokio::task::coop::consume_budget().await;
        self.0.check_key(&key).is_ok()
    }
}

struct Round {
    sample: Sample,
    admitted: f64,
    scripts: f64,
}

fn round(bench: &Bench, contestant: impl Contestant) -> Round {
    let (began, before) = (Instant::now(), bench.server.script_calls());
    let sample = cell::run(
        &bench.runtime,
        contestant,
        Workload::HotRefused,
        CALLERS,
        bench.settings.length,
    );
    let scripts = (bench.server.script_calls() - before) as f64 / began.elapsed().as_secs_f64();
    Round {
        sample,
        admitted: sample.admitted * sample.per_second,
        scripts,
    }
}

fn bucket(bench: &Bench, quota: Quota) -> TokenBucket {
    bench.server.empty();
    TokenBucket::new(&Store::redis(&bench.server.url).unwrap(), "bench", quota).unwrap()
}

fn of(rounds: &[Round], read: fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(read))
}

pub fn run(bench: &Bench) {
    if bench.settings.wants("prefetch") {
        prefetch(bench);
    }
    if bench.settings.wants("gate") {
        gate(bench);
    }
}

fn prefetch(bench: &Bench) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.settings.rounds {
        let bucket = bucket(bench, Quota::per_second(ENOUGH));
        ours.push(round(
            bench,
            Ours(
                bucket
                    .prefetch(std::time::Duration::from_millis(10))
                    .unwrap(),
            ),
        ));
        let quota = GovernorQuota::per_second(NonZeroU32::new(ENOUGH).unwrap());
        theirs.push(round(
            bench,
            Governor(Arc::new(DefaultKeyedRateLimiter::keyed(quota))),
        ));
    }
    let refused = 1.0 - of(&ours, |round| round.sample.admitted);
    let p99 = number(of(&ours, |round| round.sample.p99 / 1000.0));
    note(format!(
        "One key, {CALLERS} callers, prefetch of 10 ms: share refused {refused:.4}, p99 {p99} µs."
    ));
    figure(
        "prefetch-decisions-per-second",
        "decisions/s, one key, prefetch of 10 ms, 256 callers",
        of(&ours, |round| round.sample.per_second),
    );
    figure(
        "prefetch-p50-us",
        "p50 of the same, µs",
        of(&ours, |round| round.sample.p50 / 1000.0),
    );
    figure(
        "prefetch-scripts-per-second",
        "scripts/s that Redis runs for the same",
        of(&ours, |round| round.scripts),
    );
    let rates = ours
        .iter()
        .zip(&theirs)
        .map(|(ours, theirs)| (ours.sample.per_second, theirs.sample.per_second));
    Versus {
        name: "prefetch-hot-key-vs-governor",
        measures: "decisions/s, one key, prefetch of 10 ms, 256 callers",
        ours: of(&ours, |round| round.sample.per_second),
        peer: "governor, keyed, in memory",
        theirs: of(&theirs, |round| round.sample.per_second),
        ratio: median(rates.map(|(ours, theirs)| ours / theirs)),
        better: Better::Higher,
    }
    .tell();
}

fn gate(bench: &Bench) {
    let quota = || Quota::per_second(50_000).burst(500);
    let (mut gated, mut exact) = (Vec::new(), Vec::new());
    for _ in 0..bench.settings.rounds {
        gated.push(round(
            bench,
            Ours(bucket(bench, quota()).cache_refusals(true)),
        ));
        exact.push(round(bench, Ours(bucket(bench, quota()))));
    }
    let scripts = (
        of(&gated, |round| round.scripts),
        of(&exact, |round| round.scripts),
    );
    let admitted = (
        of(&gated, |round| round.admitted),
        of(&exact, |round| round.admitted),
    );
    let [with, without] = [scripts.0, scripts.1].map(|rate| number(rate.round()));
    note(format!(
        "One key at 50 000/s, {CALLERS} callers: {with} scripts/s with cached refusals, {without} without."
    ));
    let measures = "decisions/s, one key at 50 000/s, cached refusals, 256 callers";
    figure(
        "gate-decisions-per-second",
        measures,
        of(&gated, |round| round.sample.per_second),
    );
    Versus {
        name: "gate-admitted-vs-exact",
        measures: "admitted/s, one key at 50 000/s, cached refusals, 256 callers",
        ours: admitted.0,
        peer: "our bucket, every refusal from Redis",
        theirs: admitted.1,
        ratio: admitted.0 / admitted.1,
        better: Better::Higher,
    }
    .tell();
}
