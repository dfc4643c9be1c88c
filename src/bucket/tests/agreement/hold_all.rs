//! Holds of several buckets in one call, among all other operations on the same buckets.

use std::sync::Arc;

use rand::RngExt as _;
use rand::rngs::StdRng;

use crate::bucket::charge::JoinedTerms;
use crate::bucket::hold::{HoldSteps, Verb};
use crate::bucket::tests::agreement::holds::random_step;
use crate::bucket::tests::agreement::several::place;
use crate::bucket::tests::agreement::{Both, Run};
use crate::store::operation::Operation as _;

/// The verb of the first step with other amounts, mostly, since requests do the same on each limit.
fn random_steps(rng: &mut StdRng, terms: &Arc<JoinedTerms>) -> HoldSteps {
    let mut steps: Vec<_> = terms
        .each
        .iter()
        .map(|quotas| random_step(rng, quotas))
        .collect();
    if rng.random_bool(0.8) {
        let (id, verb) = (steps[0].id, steps[0].verb);
        for step in &mut steps {
            let (Verb::Authorize { amount, .. }
            | Verb::Extend { amount, .. }
            | Verb::Capture { amount, .. }) = step.verb;
            let amount = amount.max(1);
            step.id = id;
            step.verb = match verb {
                Verb::Authorize { ttl, .. } => Verb::Authorize { amount, ttl },
                Verb::Extend { ttl, .. } => Verb::Extend { amount, ttl },
                Verb::Capture { late, .. } => Verb::Capture { amount, late },
            };
        }
    }
    HoldSteps {
        each: steps.into(),
        terms: Some(Arc::clone(terms)),
        all_or_none: rng.random_bool(0.6),
    }
}

fn run(keys: impl Into<Vec<usize>>, step: HoldSteps) -> Run<HoldSteps> {
    // A step for all or none is done in no bucket if a key is foreign; another is done in the other buckets.
    let mut elsewhere = HoldSteps {
        all_or_none: false,
        ..step.clone()
    };
    if step.all_or_none {
        elsewhere
            .each
            .iter_mut()
            .for_each(|step| step.verb = Verb::Extend { amount: 0, ttl: 0 });
    }
    Run {
        elsewhere: Some(elsewhere),
        ..Run::new(keys, step)
    }
}

/// Random steps on some places, in one call.
pub(crate) fn step(rng: &mut StdRng, both: &mut Both, terms: &Arc<JoinedTerms>) {
    let count = rng.random_range(1..=4);
    let runs: Vec<_> = (0..count)
        .map(|_| run(place(rng), random_steps(rng, terms)))
        .collect();
    let replies = both.call(&runs);
    // The callers of some are gone.
    let undone = runs.iter().zip(replies).filter_map(|(of, replies)| {
        let undo = HoldSteps::undo(&replies)?;
        Some(run(of.keys.clone(), undo))
    });
    let gone: Vec<_> = undone.filter(|_| rng.random_bool(0.3)).collect();
    both.call(&gone);
}
