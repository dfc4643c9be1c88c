//! What was promised, checked on what all processes told.

mod held;
mod items;
mod limit;

use std::collections::BTreeMap;

use crate::args::{self, Target};
use crate::message::Note;
use crate::totals::Totals;

pub(crate) use self::limit::Limit;

/// The result of a check.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) holds: bool,
    pub(crate) text: String,
}

/// Checks all that is promised for a target. `limit` is that of its quota, if it has one.
pub(crate) fn check(target: &Target, limit: Option<&Limit>, totals: &Totals) -> Vec<Verdict> {
    let leases = || held::by_key(&totals.notes);
    match target {
        Target::Http(_) | Target::TokenBucket(_) => limit
            .map(|limit| limit.check(&totals.notes))
            .into_iter()
            .collect(),
        Target::WaitGroup(args::WaitGroup { cap, .. }) => {
            vec![held::at_most(
                &leases(),
                u64::from(*cap),
                ["permit", "permits"],
            )]
        }
        Target::Mutex(_) => {
            vec![
                held::at_most(&leases(), 1, ["holder", "holders"]),
                held::fences_rise(&leases()),
            ]
        }
        Target::RwLock(_) => vec![held::writers_alone(&leases()), held::fences_rise(&leases())],
        Target::SingleFlight(_) => {
            vec![held::at_most(
                &leases(),
                1,
                ["run of the origin", "runs of the origin"],
            )]
        }
        Target::Dedupe(dedupe) => items::check(dedupe, totals),
    }
}

/// Collects what `pick` finds, for each key.
fn grouped<T>(notes: &[Note], pick: impl Fn(&Note) -> Option<(u64, T)>) -> BTreeMap<u64, Vec<T>> {
    let mut groups = BTreeMap::<u64, Vec<T>>::new();
    for (key, item) in notes.iter().filter_map(pick) {
        groups.entry(key).or_default().push(item);
    }
    groups
}

/// A time of the run's clock, in seconds.
fn at(micros: u64) -> String {
    format!("{:.3} s", micros as f64 / 1e6)
}
