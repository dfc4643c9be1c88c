//! The part of a filter that claims on its items use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::BloomFilter;
use super::bits::Bits;
use super::layout::Layout;
use super::operations::Open;
use crate::bloom_filter::stored_layout::Mismatch;
use crate::store::Namespace;
use crate::{Error, Store};

impl BloomFilter {
    /// Returns the same filter in the memory of this process, which replaces the store while it is unavailable.
    pub(crate) fn local_share(&self) -> Self {
        Self::open_in(
            self.0.store.local_share(),
            &self.0.name,
            self.0.config.clone(),
        )
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.0.config.layout
    }

    pub(crate) fn shards(&self) -> &Namespace<Bits> {
        &self.0.namespace
    }

    /// Makes sure that the first key has this layout, before any other key is used. A stored filter with fewer keys
    /// would not be noticed at the other keys.
    pub(crate) async fn open(&self) -> Result<(), Error> {
        if self.layout().shards > 1 && !self.0.opened.load(Ordering::Relaxed) {
            self.step::<Open>(0).await?;
            self.0.opened.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn checked<T>(&self, reply: Result<T, Mismatch>) -> Result<T, Error> {
        reply.map_err(|stored| self.mismatch(&stored))
    }

    pub(crate) fn mismatch(&self, stored: &Mismatch) -> Error {
        let parse = |text: &str| Some(Layout::parse(text)?.0);
        stored.error(
            format_args!("the filter {:?}", self.0.name),
            &**self.layout(),
            parse,
        )
    }

    /// Returns how full a generation of a shard is, by the number of set bits in its sample: 1 at its capacity.
    pub(crate) fn fill(&self, sample: u64) -> f64 {
        let Layout {
            shards,
            bits,
            hashes,
            ..
        } = &**self.layout();
        // A filter without a capacity counts as full when half of its bits are set.
        let half = *bits as f64 * f64::from(*shards) * std::f64::consts::LN_2 / f64::from(*hashes);
        let capacity = self
            .0
            .config
            .capacity
            .map_or(half, |capacity| capacity as f64);
        self.layout().items_sampled(sample) * f64::from(*shards) / capacity
    }
}
