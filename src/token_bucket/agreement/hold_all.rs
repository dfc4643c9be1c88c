//! Holds of several buckets in one call, among all other operations on the same buckets.

use std::sync::Arc;

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::holds::random_step;
use super::runs::eval;
use super::several::{Both, KEYS, Place, is_foreign};
use crate::store::{Fields, Operation as _};
use crate::token_bucket::holds::{HoldStep, Verb};
use crate::token_bucket::several::{HoldAllStep, Terms};

/// The verb of the first step with other amounts, mostly, since requests do the same on each limit.
fn random_steps(rng: &mut StdRng, terms: &Arc<Terms>) -> HoldAllStep {
    let mut steps: Vec<_> = terms.each.iter().map(|quotas| random_step(rng, quotas)).collect();
    if rng.random_bool(0.8) {
        let (id, verb) = (steps[0].id, steps[0].verb);
        let amount = |step: &HoldStep| match step.verb {
            Verb::Authorize { amount, .. } | Verb::Extend { amount, .. } | Verb::Capture { amount, .. } => {
                amount
            }
        };
        for step in &mut steps {
            let amount = amount(step).max(1);
            (step.id, step.verb) = (
                id,
                match verb {
                    Verb::Authorize { ttl, .. } => Verb::Authorize { amount, ttl },
                    Verb::Extend { ttl, .. } => Verb::Extend { amount, ttl },
                    Verb::Capture { late, .. } => Verb::Capture { amount, late },
                },
            );
        }
    }
    HoldAllStep { terms: Arc::clone(terms), steps: steps.into(), all_or_none: rng.random_bool(0.6) }
}

/// Random steps on some places, in one call.
pub(super) fn step(rng: &mut StdRng, both: &mut Both, terms: &Arc<Terms>) {
    let count = rng.random_range(1..=4);
    let place = |rng: &mut StdRng| KEYS.map(|keys| rng.random_range(0..keys));
    let runs: Vec<_> = (0..count).map(|_| (place(rng), random_steps(rng, terms))).collect();
    let undone = call(both, &runs);
    // The callers of some are gone.
    let gone: Vec<_> = undone.into_iter().filter(|_| rng.random_bool(0.3)).collect();
    if !gone.is_empty() {
        call(both, &gone);
    }
}

/// Sends the steps in one call in Lua, and applies them one by one in Rust. Returns what takes them back.
fn call(both: &mut Both, runs: &[(Place, HoldAllStep)]) -> Vec<(Place, HoldAllStep)> {
    let names: Vec<_> = runs.iter().flat_map(|(place, _)| both.names(*place)).collect();
    let operations: Vec<_> = runs.iter().map(|(_, step)| (step, 1)).collect();
    let now = both.now;
    let fields = eval(&mut both.time, &names, &operations, now);
    let mut undone = Vec::new();
    for ((place, step), fields) in runs.iter().zip(&fields) {
        let lua = step.clone().decode(0, now, Fields::new(fields, false));
        if is_foreign(1, place[1]) {
            assert!(lua.is_err_and(|error| error.0.starts_with("WRONGTYPE")), "{runs:?}");
            // A step for all or none is done in no bucket; another is done in the other buckets.
            let nothing = Verb::Extend { amount: 0, ttl: 0 };
            for limit in [0, 2] {
                let mut alone = step.steps[limit].clone();
                alone.verb = if step.all_or_none { nothing } else { alone.verb };
                alone.apply(both.cell(limit, place[limit]), now);
            }
            continue;
        }
        let rust = both.apply(*place, step.clone());
        let lua = lua.unwrap_or_else(|error| panic!("{error:?}: {runs:?}"));
        assert_eq!(format!("{:?}", lua.each), format!("{:?}", rust.each), "{place:?} of {runs:?} at {now}");
        undone.extend(HoldAllStep::undo(&[lua]).map(|undo| (*place, undo)));
    }
    undone
}
