#![doc = include_str!("bloom_filter/page.md")]

pub(crate) mod bits;
mod builder;
pub(crate) mod layout;
pub(crate) mod look;
mod operations;
mod size;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::smallvec;

use crate::bloom_filter::layout::{Config, Layout, Mismatch};
use crate::bloom_filter::operations::{
    Answers, CheckAndInsert, Clear, Contains, Count, OnShard, Open, Probes, Step,
};
use crate::error::Error;
use crate::key::Key;
use crate::store::Store;
use crate::store::client::{Client, Namespace};

pub use self::builder::BloomFilterBuilder;
pub use self::size::FilterSize;

pub(crate) use self::bits::{Bits, Probe};

/// The maximum number of concurrent calls of a batch.
const UNDER_WAY: usize = 4;

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
    /// the item was new. In a store on a pool for a Cluster, `false` can also be wrong if a connection breaks: see
    /// [`Store`](crate::Store#repeated-calls).
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable. Then it is unknown whether the item was
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
    /// Near the capacity, the error is about 1 %. Far above the capacity, the estimate is only a lower bound. If the
    /// filter forgets items, an item that was inserted in both the current and the previous generation counts twice, so
    /// the estimate may be up to twice too high.
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
    /// The keys are deleted one after the other, so other callers may see a part of the filter until this returns.
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

    /// Returns the size of the filter: its bits, hashes and keys, the settings they were computed from, and how long
    /// items are remembered.
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

    /// Checks that the first key has this layout, before any other key is used. The other keys do not show that a
    /// stored filter has fewer keys.
    pub(crate) async fn open(&self) -> Result<(), Error> {
        if self.layout().shards > 1 && !self.0.opened.load(Ordering::Relaxed) {
            self.step::<Open>(0).await?;
            self.0.opened.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn checked<T>(&self, reply: Result<T, Mismatch>) -> Result<T, Error> {
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

    /// Returns the fill level of a generation of a shard, from the number of set bits in its sample: 1 at its capacity.
    pub(crate) fn fill(&self, sample: u64) -> f64 {
        let Layout {
            shards,
            bits,
            hashes,
            ..
        } = &**self.layout();
        // A filter without a capacity is full when half of its bits are set.
        let half = *bits as f64 * f64::from(*shards) * std::f64::consts::LN_2 / f64::from(*hashes);
        let capacity = self
            .0
            .config
            .capacity
            .map_or(half, |capacity| capacity as f64);
        self.layout().items_sampled(sample) * f64::from(*shards) / capacity
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

    /// Runs a step for the items at these places. The items of a key are sent in one call, up to `most_items`. Returns
    /// whether each item was contained, in the order of all items, with `true` at the other places.
    async fn ask_all<S: Step>(
        &self,
        client: &Client<OnShard<S>>,
        probes: &[Probe],
        mut places: Vec<usize>,
    ) -> Result<Vec<bool>, Error> {
        self.open().await?;
        places.sort_by_key(|&place| probes[place].shard);
        let mut seen = vec![true; probes.len()];
        let mut under_way = VecDeque::new();
        let mut rest = &places[..];
        loop {
            while let (true, Some(&first)) = (under_way.len() < UNDER_WAY, rest.first()) {
                let shard = probes[first].shard;
                let alike = rest
                    .iter()
                    .take_while(|&&place| probes[place].shard == shard);
                let (call, later) = rest.split_at(alike.take(self.layout().most_items()).count());
                let items = call.iter().map(|&place| probes[place]).collect();
                under_way.push_back((call, client.run(shard_key(shard), self.on_shard(items))));
                rest = later;
            }
            let Some((call, running)) = under_way.pop_front() else {
                return Ok(seen);
            };
            for (&place, answer) in call.iter().zip(self.checked(running.await?)?) {
                seen[place] = answer == 1;
            }
        }
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

/// Returns the first place of each item. Calls that run at the same time can overtake each other, so an item that
/// occurs twice is sent only once.
fn first_places(probes: &[Probe]) -> Vec<usize> {
    let mut known = HashSet::with_capacity(probes.len());
    (0..probes.len())
        .filter(|&place| known.insert(probes[place].hash()))
        .collect()
}
