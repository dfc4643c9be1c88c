//! Items that a filter remembers: the twin of `lua/claim.lua`.

use std::sync::Arc;

use super::builder::FilterFull;
use super::claims::{Found, Known, Memory, step};
use super::fill::Fill;
use crate::Error;
use crate::bloom_filter::stored_layout::Mismatch;
use crate::bloom_filter::{BloomFilter, Probe, shard_key};
use crate::lease::holder::Holder;
use crate::lease::kind::Kind;
use crate::store::Arguments;

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

    /// Records how full a generation is, by its sample. Returns the level.
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

    fn known(&self, probe: &Probe, ones: u64) -> Known {
        let is_full = self.measure(probe, ones) > 1.0 && self.when_full == FilterFull::FailOpen;
        if is_full {
            Known::ByFullFilter
        } else {
            Known::ByFilter
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
