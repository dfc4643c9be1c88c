//! The items of a filter, and its fill level.
//!
//! The steps in memory do the same as `lua/claim.lua`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::bloom_filter::bits::Probe;
use crate::bloom_filter::layout::Mismatch;
use crate::bloom_filter::{BloomFilter, shard_key};
use crate::dedupe::claims::{FilterFull, Found, HandledBy, Memory, step};
use crate::error::Error;
use crate::lease::holders::Holder;
use crate::lease::kind::Kind;
use crate::store::operation::Arguments;
use crate::telemetry::emit::tell;
use crate::telemetry::{self, Event};

/// A filter that remembers the handled items.
#[derive(Debug)]
pub(crate) struct Filtered {
    pub(super) filter: BloomFilter,
    fill: Arc<Fill>,
    pub(super) when_full: FilterFull,
}

impl Filtered {
    pub(crate) fn new(filter: BloomFilter, when_full: FilterFull) -> Self {
        let name = filter.name();
        let fill = filter
            .store()
            .shared(name, || Arc::new(Fill::new(name, filter.size().keys)));
        Self {
            filter,
            fill,
            when_full,
        }
    }

    pub(super) fn fill(&self) -> Option<f64> {
        self.fill.known()
    }

    /// Records the fill level of a generation, from its sample. Returns the level.
    fn measure(&self, probe: &Probe, ones: u64) -> f64 {
        let fill = self.filter.fill(ones);
        self.fill.note(probe.shard, fill);
        fill
    }
}

/// Claims on the items of a filter.
#[derive(Clone, Debug)]
pub(crate) enum FilterClaims {}

impl Kind for FilterClaims {
    type Holders = Holder<false>;
    type Outcome = Filtered;
    const PARTS: &'static [&'static str] =
        &["claim", "@config", "waiters", "beats", "@bits0", "@bits1"];
    const NAME: &'static str = "claim";
    const PIECES: &'static [&'static str] = &["mutex", "bloom", "claim"];
    const FENCED: bool = false;
}

impl Memory for Filtered {
    type Item = Probe;
    // Each run reads one bit per hash.
    const MOST_RUNS: usize = 32;

    fn item(&self, item: &[u8]) -> Probe {
        self.filter.probe(item)
    }

    fn digest(probe: &Probe) -> (u32, u128) {
        (probe.shard, probe.hash())
    }

    async fn open(&self) -> Result<(), Error> {
        self.filter.open().await
    }

    fn known(&self, probe: &Probe, ones: u64) -> HandledBy {
        let is_full = self.measure(probe, ones) > 1.0 && self.when_full == FilterFull::FailOpen;
        if is_full {
            HandledBy::ByFullFilter
        } else {
            HandledBy::ByFilter
        }
    }

    fn note(&self, probe: &Probe, ones: u64) {
        self.measure(probe, ones);
    }

    fn mismatch(&self, stored: &Mismatch) -> Error {
        self.filter.mismatch(stored)
    }

    fn write(&self, call: &mut Arguments<'_>) {
        self.filter.layout().write(call);
    }

    fn write_item(probe: &Probe, call: &mut Arguments<'_>) {
        probe.write(call);
    }

    fn find(&self, probe: &Probe) -> Result<Option<u64>, Found> {
        let layout = self.filter.layout();
        step(
            self.filter.shards(),
            &shard_key(probe.shard),
            |bits, now| {
                bits.enter(layout, now)?;
                let generation = bits.generation_of(layout, probe, now)?;
                Ok(generation.map(|generation| bits.sample(generation)))
            },
        )
    }

    fn insert(&self, probe: &Probe) -> Result<u64, Found> {
        let layout = self.filter.layout();
        step(
            self.filter.shards(),
            &shard_key(probe.shard),
            |bits, now| {
                bits.insert(layout, probe, now)?;
                let current = bits.enter(layout, now)?;
                Ok(bits.sample(current))
            },
        )
    }
}

/// From this level on, a filter is nearly full. From 1 on, it is full.
const NEARLY: f64 = 0.8;
/// How far the level must fall below a threshold before the threshold can be crossed again. The margin is needed
/// because the level is measured by a sample.
const BACK: f64 = 0.1;
/// The level of a shard is stored in these units, plus one: 0 means unknown.
const UNIT: f64 = 10_000.0;

/// Sends an event when the level of a filter crosses a threshold, once per crossing.
#[derive(Debug)]
struct Fill {
    name: Box<str>,
    gauge: telemetry::Fill,
    shards: Box<[AtomicU32]>,
    /// How many thresholds have been crossed.
    crossed: AtomicU8,
}

impl Fill {
    fn new(name: &str, shards: u32) -> Self {
        let shards = (0..shards).map(|_| AtomicU32::new(0)).collect();
        Self {
            name: name.into(),
            gauge: telemetry::Fill::new(name),
            shards,
            crossed: AtomicU8::new(0),
        }
    }

    /// Records the level of a shard.
    fn note(&self, shard: u32, fill: f64) {
        let Some(known) = self.shards.get(shard as usize) else {
            return;
        };
        known.store((fill.clamp(0.0, 1e5) * UNIT) as u32 + 1, Ordering::Relaxed);
        let Some(fill) = self.known() else { return };
        self.gauge.set(fill);
        match self.crossing(fill) {
            Some(Event::FilterNearlyFull) => {
                tell(
                    &self.name,
                    Event::FilterNearlyFull,
                    "the filter has reached 80 % of its capacity",
                );
            }
            Some(event) => tell(&self.name, event, "the filter has reached its capacity"),
            None => {}
        }
    }

    /// Returns the event of the threshold that was crossed, if any.
    fn crossing(&self, fill: f64) -> Option<Event> {
        let above = |margin: f64| {
            [NEARLY, 1.0]
                .iter()
                .filter(|&&least| fill >= least - margin)
                .count() as u8
        };
        let crossed = above(0.0);
        let kept = above(BACK);
        let before = self.crossed.fetch_max(crossed, Ordering::Relaxed);
        if kept < before {
            // A threshold that another thread crossed in the meantime stays crossed.
            let _ =
                self.crossed
                    .compare_exchange(before, kept, Ordering::Relaxed, Ordering::Relaxed);
        }
        (crossed > before).then_some(if crossed == 1 {
            Event::FilterNearlyFull
        } else {
            Event::FilterFull
        })
    }

    /// Returns the mean of the known levels of the shards.
    fn known(&self) -> Option<f64> {
        let all = self
            .shards
            .iter()
            .map(|shard| shard.load(Ordering::Relaxed));
        let (count, sum) = all
            .filter(|known| *known > 0)
            .fold((0, 0.0), |(n, sum), it| (n + 1, sum + f64::from(it - 1)));
        (count > 0).then(|| sum / f64::from(count) / UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_threshold_is_told_once_when_it_is_crossed() {
        use Event::{FilterFull as Full, FilterNearlyFull as Nearly};
        let fill = Fill::new("test", 1);
        for (at, told) in [
            (0.1, None),
            (0.79, None),
            (0.8, Some(Nearly)),
            (0.78, None),
            (0.81, None),
            (1.0, Some(Full)),
            (0.95, None),
            (1.01, None),
            (5.0, None),
            // A new generation.
            (0.0, None),
            (0.85, Some(Nearly)),
            (0.71, None),
            (0.85, None),
            (0.69, None),
            (0.85, Some(Nearly)),
            (1.2, Some(Full)),
            (0.88, None),
            (1.0, Some(Full)),
        ] {
            assert_eq!(fill.crossing(at), told, "{at}");
        }
        // Both thresholds at once, as in a process that has just started.
        assert_eq!(Fill::new("test", 1).crossing(1.5), Some(Full));
    }

    #[test]
    fn a_filter_of_several_shards_is_as_full_as_their_mean() {
        let fill = Fill::new("test", 4);
        assert_eq!(fill.known(), None);
        for (shard, at, mean) in [(0, 0.5, 0.5), (3, 0.7, 0.6), (0, 0.9, 0.8), (9, 5.0, 0.8)] {
            fill.note(shard, at);
            assert!(
                fill.known()
                    .is_some_and(|known| (known - mean).abs() < 1e-3),
                "{:?}",
                fill.known()
            );
        }
    }
}
