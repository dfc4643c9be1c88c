//! What was measured, and which bounds it must keep to.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::CLUSTER;
use crate::common::report::{note, number};
use crate::common::stats::median;
use crate::load::Load;
use crate::watch::Sample;

/// Connections to each server, as the guide `operations` states: two runtimes, that of the gateway and the background
/// thread, with one connection for calls and one for single flights each; one subscription.
const CALLS: usize = 4;
/// To one node of a Cluster for a moment, to find the masters.
const LOOKS: usize = 1;
const SUBSCRIPTIONS: usize = 1;

/// By how much memory may grow from the median of the second third to that of the last: a share, and bytes.
const GROWTH: f64 = 0.05;
const RSS_SLACK: f64 = 4.0 * MIB;
const USED_SLACK: f64 = 1.0 * MIB;

/// Shorter runs have no steady state: their memory is not judged.
const STEADY: Duration = Duration::from_secs(30);

const MIB: f64 = 1_048_576.0;

pub struct Judged<'a> {
    pub name: &'a str,
    pub length: Duration,
    pub load: &'a Load,
    pub samples: &'a [Sample],
}

impl Judged<'_> {
    pub fn print(&self) {
        let Self {
            name, length, load, ..
        } = self;
        let answered: usize = load.latencies.iter().map(Vec::len).sum();
        let per_second = number((answered as f64 / length.as_secs_f64()).round());
        load.print(format!(
            "{name}, {length:?}: {per_second} responses/s, {} requests given up",
            load.given_up
        ));
        let thirds = |read: fn(&Sample) -> u64| {
            self.thirds(read)
                .map(|bytes| format!("{:.1}", bytes / MIB))
                .join(", ")
        };
        let (calls, subscriptions) = self.connections();
        note(format!(
            "Medians of each third: RSS of the gateway {} MiB; used_memory of all servers {} MiB. Connections to one \
             server: at most {calls} for calls, {subscriptions} subscribed.",
            thirds(|sample| sample.rss),
            thirds(|sample| sample.used_memory)
        ));
    }

    /// Each bound that does not hold.
    pub fn problems(&self) -> Vec<String> {
        let mut errors = BTreeMap::<_, usize>::new();
        self.load
            .errors
            .iter()
            .for_each(|(_, error)| *errors.entry(error).or_default() += 1);
        let mut problems: Vec<_> = errors
            .iter()
            .map(|(error, count)| format!("{count} × {error}"))
            .collect();
        problems.extend(self.load.silent());
        let (calls, subscriptions) = self.connections();
        let most = CALLS + if self.name == CLUSTER { LOOKS } else { 0 };
        if calls > most || subscriptions > SUBSCRIPTIONS {
            problems.push(format!(
                "the docs state {most} connections for calls and {SUBSCRIPTIONS} subscription"
            ));
        }
        if self.length >= STEADY {
            problems.extend(self.growth("RSS of the gateway", |sample| sample.rss, RSS_SLACK));
            problems.extend(self.growth(
                "used_memory of the servers",
                |sample| sample.used_memory,
                USED_SLACK,
            ));
        }
        problems
    }

    fn growth(&self, what: &str, read: fn(&Sample) -> u64, slack: f64) -> Option<String> {
        let [_, second, last] = self.thirds(read);
        let most = second * (1.0 + GROWTH) + slack;
        (last > most).then(|| {
            format!(
                "{what} grew from {:.1} MiB in the second third to {:.1} MiB",
                second / MIB,
                last / MIB
            )
        })
    }

    /// The median of each third of the time.
    fn thirds(&self, read: fn(&Sample) -> u64) -> [f64; 3] {
        [0, 1, 2].map(|third| {
            let (from, to) = (self.length * third / 3, self.length * (third + 1) / 3);
            let samples = self
                .samples
                .iter()
                .filter(|sample| (from..to).contains(&sample.at));
            median(samples.map(|sample| read(sample) as f64))
        })
    }

    /// The most connections for calls and for subscriptions.
    fn connections(&self) -> (usize, usize) {
        let most = |read: fn(&Sample) -> usize| self.samples.iter().map(read).max().unwrap_or(0);
        (
            most(|sample| sample.calls),
            most(|sample| sample.subscriptions),
        )
    }
}
