//! The Bloom filters. See the public module `bloom_filter`.

mod batch;
mod bits;
mod claimed;
mod config;
mod hash;
mod layout;
mod operations;
mod size;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use smallvec::smallvec;

pub use self::config::BloomFilterBuilder;
pub(crate) use self::hash::Probe;
pub(crate) use self::layout::Mismatch;

use self::batch::first_places;
use self::bits::Bits;
use self::config::Config;
use self::operations::{Answers, CheckAndInsert, Clear, Contains, Count, Open};
use crate::store::{Client, Namespace};
use crate::{Error, Key, Store};

/// A Bloom filter in a store. A cheap clone; see the [module](crate::bloom_filter) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time. Of items whose insertion was under way, some may have been
/// inserted and others not; as after an error that is [a time-out](Error::is_timeout).
#[derive(Clone, Debug)]
pub struct BloomFilter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    name: String,
    config: Config,
    namespace: Namespace<Bits>,
    clients: Clients,
    /// Whether the first shard is known to have this layout.
    opened: AtomicBool,
}

#[derive(Debug)]
struct Clients {
    check_and_insert: Client<CheckAndInsert>,
    contains: Client<Contains>,
    count: Client<Count>,
    clear: Client<Clear>,
    open: Client<Open>,
}

impl BloomFilter {
    /// The filter `name` in a store, for so many different items, and the false-positive rate that it has once
    /// it is filled to that.
    ///
    /// # Errors
    ///
    /// As [`BloomFilterBuilder::build`] says.
    pub fn new(store: &Store, name: &str, capacity: u64, rate: f64) -> Result<Self, Error> {
        Self::builder().capacity(capacity).false_positive_rate(rate).build(store, name)
    }

    /// Settings of a filter.
    pub fn builder() -> BloomFilterBuilder {
        BloomFilterBuilder::default()
    }

    fn open_in(store: &Store, name: &str, config: Config) -> Result<Self, Error> {
        let namespace = Namespace::new(store, name)?;
        let clients = Clients {
            check_and_insert: namespace.client(),
            contains: namespace.client(),
            count: namespace.client(),
            clear: namespace.client(),
            open: namespace.client(),
        };
        let (store, name) = (store.clone(), name.to_owned());
        Ok(Self(Arc::new(Inner { store, name, config, namespace, clients, opened: false.into() })))
    }

    /// Inserts an item: any bytes, also none.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable); [`is_invalid`](Error::is_invalid) where a filter of another
    /// configuration is stored under the name.
    pub async fn insert(&self, item: impl AsRef<[u8]>) -> Result<(), Error> {
        self.check_and_insert(item).await.map(|_| ())
    }

    /// Whether an item was inserted: *no* is certain, *yes* is wrong at the [rate](Self::false_positive_rate). Inserts nothing, and
    /// does not keep an item from being forgotten.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub async fn contains(&self, item: impl AsRef<[u8]>) -> Result<bool, Error> {
        let probe = self.probe(item.as_ref());
        self.open().await?;
        let contains = Contains { layout: self.0.config.layout.clone(), probes: smallvec![probe] };
        self.first(self.0.clients.contains.run(shard_key(probe.shard), contains).await?)
    }

    /// Inserts an item; `true` where it was new, which is certain. `false` is wrong at the [rate](Self::false_positive_rate): then it
    /// was new and is taken for one that is known.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub async fn check_and_insert(&self, item: impl AsRef<[u8]>) -> Result<bool, Error> {
        let probe = self.probe(item.as_ref());
        self.open().await?;
        let insert = CheckAndInsert { layout: self.0.config.layout.clone(), probes: smallvec![probe] };
        self.first(self.0.clients.check_and_insert.run(shard_key(probe.shard), insert).await?)
    }

    /// Inserts all items.
    ///
    /// Many items go in one call, and a few such calls are on their way at a time. Where it ends early, by an error or as
    /// its future is dropped, some have been inserted.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub async fn insert_all<I>(&self, items: I) -> Result<(), Error>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.check_and_insert_all(items).await.map(|_| ())
    }

    /// Which of the items were inserted, in their order; each as [`contains`](Self::contains).
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub async fn contains_all<I>(&self, items: I) -> Result<Vec<bool>, Error>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let probes = self.probes(items);
        self.open().await?;
        let ask = |layout, probes| Contains { layout, probes };
        self.ask_all(&self.0.clients.contains, ask, &probes, (0..probes.len()).collect()).await
    }

    /// Inserts all items, and says which were new, in their order. One that stands twice is new at its first place
    /// alone. Otherwise as [`insert_all`](Self::insert_all).
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub async fn check_and_insert_all<I>(&self, items: I) -> Result<Vec<bool>, Error>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let probes = self.probes(items);
        self.open().await?;
        let ask = |layout, probes| CheckAndInsert { layout, probes };
        self.ask_all(&self.0.clients.check_and_insert, ask, &probes, first_places(&probes)).await
    }

    /// About how many different items are remembered, by the number of bits that are set (Swamidass and Baldi, 2007).
    /// Near the capacity it is within a percent or so; of a filter that is filled far above it, no more than a lower
    /// bound.
    ///
    /// Where the filter forgets, those inserted in both the current generation and the one before count
    /// twice, so it may be up to twice too many.
    ///
    /// It counts all the bits, which keeps the server busy for some milliseconds per 64 MiB: not for every request.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub async fn estimated_count(&self) -> Result<u64, Error> {
        let mut items = 0.0;
        for shard in 0..self.keys() {
            let count = Count(self.0.config.layout.clone());
            let ones = self.checked(self.0.clients.count.run(shard_key(shard), count).await?)?;
            items += ones.iter().map(|&ones| self.0.config.layout.items_behind(ones)).sum::<f64>();
        }
        Ok(items.round() as u64)
    }

    /// Forgets all items, and of which configuration the filter was: key by key, so that others may meanwhile see a
    /// part of it.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert): a filter of another configuration is not cleared.
    pub async fn clear(&self) -> Result<(), Error> {
        // The first goes last, since it tells of the others.
        for shard in (0..self.keys()).rev() {
            let clear = Clear(self.0.config.layout.clone());
            self.checked(self.0.clients.clear.run(shard_key(shard), clear).await?)?;
        }
        self.0.opened.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The name of the filter.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many different items it is for, where it was built so.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.0.config.capacity
    }

    /// The false-positive rate at its capacity, where it was built so.
    #[must_use]
    pub fn false_positive_rate(&self) -> Option<f64> {
        self.0.config.rate
    }

    /// How many bits it has in all its keys, not counting those of a second generation.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.0.config.layout.bits * u64::from(self.0.config.layout.shards)
    }

    /// How many bits stand for an item.
    #[must_use]
    pub fn hashes(&self) -> u32 {
        self.0.config.layout.hashes
    }

    /// Over how many keys the bits are spread.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.0.config.layout.shards
    }

    /// For how long it remembers at least, where it forgets.
    #[must_use]
    pub fn remember_for(&self) -> Option<Duration> {
        let micros = u64::try_from(self.0.config.layout.forget).unwrap_or(0);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Where an item belongs.
    pub(crate) fn probe(&self, item: &[u8]) -> Probe {
        Probe::new(&self.0.config.layout, item)
    }

    fn probes<I: IntoIterator<Item: AsRef<[u8]>>>(&self, items: I) -> Vec<Probe> {
        items.into_iter().map(|item| self.probe(item.as_ref())).collect()
    }

    fn first(&self, reply: Result<Answers, Mismatch>) -> Result<bool, Error> {
        Ok(self.checked(reply)?.first().is_some_and(|&answer| answer))
    }
}

/// The key of a shard.
pub(crate) fn shard_key(shard: u32) -> Key {
    if shard == 0 { Key::from("0") } else { Key::from(shard) }
}
