#![doc = include_str!("bloom_filter/page.md")]

mod batch;
mod bits;
mod claimed;
mod config;
mod hash;
mod layout;
pub(crate) mod look;
mod operations;
mod size;
pub(crate) mod stored_layout;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::smallvec;

pub use self::config::BloomFilterBuilder;
pub(crate) use self::hash::Probe;
pub use self::size::FilterSize;

use self::batch::first_places;
pub(crate) use self::bits::Bits;
use self::config::Config;
use self::operations::{Answers, CheckAndInsert, Clear, Contains, Count, OnShard, Probes, Step};
use crate::store::{Client, Namespace};
use crate::{Error, Key, Store};

/// A Bloom filter in a store.
///
/// Clones are cheap and share the filter. See the [module](crate::bloom_filter) for details.
///
/// ```
/// use tower_distributed::{BloomFilter, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let seen = BloomFilter::new(&Store::in_memory(), "urls", 1_000_000, 0.001)?;
/// seen.insert("https://example.com/").await?;
/// assert!(seen.contains("https://example.com/").await?);
///
/// seen.insert_all(["https://example.com/a", "https://example.com/b"]).await?;
/// let found = ["https://example.com/b", "https://example.com/c"];
/// assert_eq!(seen.insert_all(found).await?, [false, true]); // only the second is new
/// assert_eq!(seen.estimated_count().await?, 4);
///
/// seen.clear().await?;
/// assert!(!seen.contains("https://example.com/").await?);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// Every future here may be dropped at any time. If an insertion is dropped, some of its items may have been
/// inserted and others not. The same holds after an error that [is a timeout](Error::is_timeout).
#[derive(Clone, Debug)]
pub struct BloomFilter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    name: String,
    config: Config,
    namespace: Namespace<Bits>,
    check_and_insert: Client<OnShard<CheckAndInsert>>,
    contains: Client<OnShard<Contains>>,
    /// Whether the first shard is known to have this layout.
    opened: AtomicBool,
}

impl BloomFilter {
    /// Creates the filter `name` in a store, with a capacity and a false-positive rate.
    ///
    /// The capacity is the number of different items. The filter has the false-positive rate when it holds the
    /// capacity.
    ///
    /// # Errors
    ///
    /// The same errors as [`BloomFilterBuilder::build`].
    pub fn new(store: &Store, name: &str, capacity: u64, rate: f64) -> Result<Self, Error> {
        Self::builder()
            .capacity(capacity)
            .false_positive_rate(rate)
            .build(store, name)
    }

    /// Returns a builder with all settings.
    pub fn builder() -> BloomFilterBuilder {
        BloomFilterBuilder::default()
    }

    /// Opens a filter whose name was already checked.
    fn open_in(store: &Store, name: &str, config: Config) -> Self {
        let namespace = Namespace::open(store, name);
        Self(Arc::new(Inner {
            store: store.clone(),
            name: name.to_owned(),
            config,
            check_and_insert: namespace.client(),
            contains: namespace.client(),
            namespace,
            opened: false.into(),
        }))
    }

    /// Returns whether an item was inserted.
    ///
    /// `false` is certain. `true` is wrong at the [false-positive rate](BloomFilterBuilder::false_positive_rate). The
    /// call inserts nothing, and does not extend the time for which the item is remembered.
    ///
    /// # Errors
    ///
    /// The same errors as [`insert`](Self::insert).
    pub async fn contains(&self, item: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.ask(&self.0.contains, self.probe(item.as_ref())).await
    }

    /// Inserts an item and returns whether it was new. An item is any bytes, and may be empty.
    ///
    /// `true` is certain. `false` is wrong at the [false-positive rate](BloomFilterBuilder::false_positive_rate): then
    /// the item was new. On a store on a pool for a Cluster it can also be wrong if a connection breaks: see
    /// [`Store`](crate::Store#repeated-calls).
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store gives no answer. Then it is unknown whether the item was
    /// new, and it may be inserted: another call would then return `false`. A [`Dedupe`](crate::Dedupe) has no such
    /// gap, because it claims an item before it is handled. [`is_overloaded`](Error::is_overloaded) if a bound of the
    /// store is reached. [`is_invalid`](Error::is_invalid) if a filter with another configuration is stored under the
    /// name.
    #[doc(alias = "check_and_insert")]
    pub async fn insert(&self, item: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(!self
            .ask(&self.0.check_and_insert, self.probe(item.as_ref()))
            .await?)
    }

    /// Returns for each item whether it was inserted, in the order of the items. See [`contains`](Self::contains).
    ///
    /// # Errors
    ///
    /// The same errors as [`insert`](Self::insert).
    pub async fn contains_all<I>(&self, items: I) -> Result<Vec<bool>, Error>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let probes = self.probes(items);
        self.ask_all(&self.0.contains, &probes, (0..probes.len()).collect())
            .await
    }

    /// Inserts all items and returns for each whether it was new, in the order of the items.
    ///
    /// An item that occurs twice is new only at its first place. Sends many items in one call to the store, and a few
    /// such calls at a time. If it returns an error or its future is dropped, some of the items may have been inserted.
    ///
    /// # Errors
    ///
    /// The same errors as [`insert`](Self::insert).
    pub async fn insert_all<I>(&self, items: I) -> Result<Vec<bool>, Error>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let probes = self.probes(items);
        let seen = self
            .ask_all(&self.0.check_and_insert, &probes, first_places(&probes))
            .await?;
        Ok(seen.into_iter().map(|seen| !seen).collect())
    }

    /// Estimates how many different items the filter remembers, by the number of set bits (Swamidass and Baldi,
    /// 2007).
    ///
    /// Near the capacity, the error is about 1 %. Far above the capacity, the estimate is only a lower bound. If
    /// the filter forgets, an item that was inserted in both the current generation and the one before counts
    /// twice, so the estimate may be up to twice too high.
    ///
    /// The server counts all bits, which takes some milliseconds per 64 MiB. Do not call this for every request.
    ///
    /// # Errors
    ///
    /// The same errors as [`insert`](Self::insert).
    pub async fn estimated_count(&self) -> Result<u64, Error> {
        let mut items = 0.0;
        for shard in 0..self.layout().shards {
            let ones = self.step::<Count>(shard).await?;
            items += ones
                .iter()
                .map(|&ones| self.layout().items_behind(ones))
                .sum::<f64>();
        }
        Ok(items.round() as u64)
    }

    /// Deletes all items and the stored configuration.
    ///
    /// The keys are deleted one after the other, so other callers may see a part of the filter meanwhile.
    ///
    /// # Errors
    ///
    /// The same errors as [`insert`](Self::insert). A filter with another configuration is not cleared.
    pub async fn clear(&self) -> Result<(), Error> {
        // The first key is deleted last, since its configuration protects the other keys.
        for shard in (0..self.layout().shards).rev() {
            self.step::<Clear>(shard).await?;
        }
        self.0.opened.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the name of the filter.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the size: bits, hashes and keys, what they were computed from, and how long items are remembered.
    #[must_use]
    pub fn size(&self) -> FilterSize {
        let Config {
            layout,
            capacity,
            rate,
        } = &self.0.config;
        FilterSize {
            capacity: *capacity,
            false_positive_rate: *rate,
            ..layout.size()
        }
    }

    /// Returns the place of an item.
    pub(crate) fn probe(&self, item: &[u8]) -> Probe {
        Probe::new(self.layout(), item)
    }

    fn probes<I: IntoIterator<Item: AsRef<[u8]>>>(&self, items: I) -> Vec<Probe> {
        items
            .into_iter()
            .map(|item| self.probe(item.as_ref()))
            .collect()
    }

    fn on_shard<S>(&self, probes: Probes) -> OnShard<S> {
        OnShard {
            layout: self.layout().clone(),
            probes,
            step: PhantomData,
        }
    }

    /// Runs a step for an item. Returns whether the item was contained.
    async fn ask<S: Step>(&self, client: &Client<OnShard<S>>, probe: Probe) -> Result<bool, Error> {
        self.open().await?;
        let reply = client
            .run(shard_key(probe.shard), self.on_shard(smallvec![probe]))
            .await?;
        Ok(self.checked(reply)?.first() == Some(&1))
    }

    /// Runs a rare step on a whole shard.
    async fn step<S: Step>(&self, shard: u32) -> Result<Answers, Error> {
        let client = self.0.namespace.client::<OnShard<S>>();
        self.checked(
            client
                .run(shard_key(shard), self.on_shard(Probes::new()))
                .await?,
        )
    }
}

/// Returns the key of a shard.
pub(crate) fn shard_key(shard: u32) -> Key {
    if shard == 0 {
        Key::from("0")
    } else {
        Key::from(shard)
    }
}
