//! The part of a filter that claims on its items use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bits::Bits;
use super::hash::Probe;
use super::layout::{Layout, Mismatch};
use super::operations::Open;
use super::{BloomFilter, shard_key};
use crate::{Error, Store};

/// The result of a step on a shard. The outer error is that the store is full.
type Stepped<T> = Result<Result<T, Mismatch>, Error>;

impl BloomFilter {
    /// Returns the same filter in the memory of this process, which replaces the store while it is unavailable.
    pub(crate) fn local_share(&self) -> Self {
        Self::open_in(self.0.store.local_share(), &self.0.name, self.0.config.clone())
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.0.config.layout
    }

    /// Makes sure that the first key has this layout, before any other key is used. A stored filter with fewer keys
    /// would not be noticed at the other keys.
    pub(crate) async fn open(&self) -> Result<(), Error> {
        if self.keys() > 1 && !self.0.opened.load(Ordering::Relaxed) {
            let open = Open(self.0.config.layout.clone());
            self.checked(self.0.clients.open.run(shard_key(0), open).await?)?;
            self.0.opened.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn checked<T>(&self, reply: Result<T, Mismatch>) -> Result<T, Error> {
        reply.map_err(|stored| self.mismatch(&stored))
    }

    pub(crate) fn mismatch(&self, stored: &Mismatch) -> Error {
        let (name, asked) = (&self.0.name, &self.0.config.layout);
        Error::invalid(format!("the filter {name:?} is stored with {stored}, but this process uses {asked}"))
    }

    /// Looks for an item in an in-memory store. Returns the [sample](Bits::sample) of the item's generation.
    /// Returns `None` if the store is not in memory.
    pub(crate) fn look(&self, probe: &Probe) -> Option<Stepped<Option<u64>>> {
        let (layout, cells) = (&self.0.config.layout, self.0.namespace.cells()?);
        let step = |bits: &mut Bits, now| {
            // The item will be inserted later. Its key is allocated before the item is handled.
            if cells.is_bounded() {
                bits.enter(layout, now)?;
            }
            let generation = bits.generation_of(layout, probe, now)?;
            Ok(generation.map(|generation| bits.sample(generation)))
        };
        Some(cells.step(shard_key(probe.shard).as_bytes(), step))
    }

    /// Inserts an item in an in-memory store. Returns the [sample](Bits::sample) of the current generation. Returns
    /// `None` if the store is not in memory.
    pub(crate) fn enter(&self, probe: &Probe) -> Option<Stepped<u64>> {
        let (layout, cells) = (&self.0.config.layout, self.0.namespace.cells()?);
        let step = |bits: &mut Bits, now| {
            bits.insert(layout, probe, now)?;
            let current = bits.enter(layout, now)?;
            Ok(bits.sample(current))
        };
        Some(cells.step(shard_key(probe.shard).as_bytes(), step))
    }

    /// Returns how full a generation of a shard is, by the number of set bits in its sample: 1 at its capacity.
    pub(crate) fn fill(&self, sample: u64) -> f64 {
        let Layout { shards, bits, hashes, .. } = &*self.0.config.layout;
        // A filter without a capacity counts as full when half of its bits are set.
        let half = *bits as f64 * f64::from(*shards) * std::f64::consts::LN_2 / f64::from(*hashes);
        let capacity = self.0.config.capacity.map_or(half, |capacity| capacity as f64);
        self.0.config.layout.items_sampled(sample) * f64::from(*shards) / capacity
    }
}
