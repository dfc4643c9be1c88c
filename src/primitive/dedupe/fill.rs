//! How full a filter is, as this process has last seen it.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::telemetry::{self, Event, tell};

/// From here on a filter is nearly full, and from 1 on it is full.
const NEARLY: f64 = 0.8;
/// So far it must fall below a threshold until it can be crossed anew: what is seen is a sample.
const BACK: f64 = 0.1;
/// What is known of a shard is in these, plus one: 0 is unknown.
const UNIT: f64 = 10_000.0;

/// Tells when a filter becomes full: each threshold once when it is crossed.
#[derive(Debug)]
pub(super) struct Fill {
    name: Box<str>,
    gauge: telemetry::Fill,
    shards: Box<[AtomicU32]>,
    /// How many thresholds have been crossed.
    crossed: AtomicU8,
}

impl Fill {
    pub(super) fn new(name: &str, shards: u32) -> Self {
        let shards = (0..shards).map(|_| AtomicU32::new(0)).collect();
        Self { name: name.into(), gauge: telemetry::Fill::new(name), shards, crossed: AtomicU8::new(0) }
    }

    /// Notes how full a shard is.
    pub(super) fn note(&self, shard: u32, fill: f64) {
        let Some(known) = self.shards.get(shard as usize) else { return };
        known.store((fill.clamp(0.0, 1e5) * UNIT) as u32 + 1, Ordering::Relaxed);
        let Some(fill) = self.known() else { return };
        self.gauge.set(fill);
        let crossed = [NEARLY, 1.0].iter().filter(|threshold| fill >= **threshold).count() as u8;
        let kept = [NEARLY, 1.0].iter().filter(|threshold| fill >= **threshold - BACK).count() as u8;
        let before = self.crossed.fetch_max(crossed, Ordering::Relaxed);
        if crossed > before {
            self.tell(crossed);
        } else if kept < before {
            // What another thread has crossed meanwhile is told the next time.
            let _ = self.crossed.compare_exchange(before, kept, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The mean of the shards that are known.
    pub(super) fn known(&self) -> Option<f64> {
        let all = self.shards.iter().map(|shard| shard.load(Ordering::Relaxed));
        let (count, sum) =
            all.filter(|known| *known > 0).fold((0, 0.0), |(n, sum), it| (n + 1, sum + f64::from(it - 1)));
        (count > 0).then(|| sum / f64::from(count) / UNIT)
    }

    #[cold]
    fn tell(&self, crossed: u8) {
        match crossed {
            1 => tell(&self.name, Event::FilterNearlyFull, "the filter is filled to 80 % of its capacity"),
            _ => tell(&self.name, Event::FilterFull, "the filter is filled to its capacity"),
        }
    }
}
