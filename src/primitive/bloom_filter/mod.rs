//! A Bloom filter: what was seen before, in a few bits per item.
//!
//! [`BloomFilter`] is a filter of a name in a [`Store`]. Whoever uses the same store and name uses the same filter.
//!
//! ```
//! use tower_distributed::{BloomFilter, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let seen = BloomFilter::new(&store, "webhooks", 1_000_000, 0.001)?;
//!
//! assert!(seen.check_and_insert("evt_1").await?); // new
//! assert!(!seen.check_and_insert("evt_1").await?);
//! assert_eq!(seen.contains_all(["evt_1", "evt_2"]).await?, [true, false]);
//! # Ok(()) }
//! ```
//!
//! # What its answers mean
//!
//! *No* is certain: the item was not inserted, or was forgotten. *Yes* is wrong for some items that were never
//! inserted: one in a thousand at a false-positive rate of 0.001 once the filter is filled to its capacity, fewer before, more after. It
//! is always wrong for the same ones, so asking again does not help. [`check_and_insert`](BloomFilter::check_and_insert)
//! is one step: of many that ask for an item at once, in whatever process, one is told that it is new.
//!
//! Items cannot be removed, since their bits are shared. A filter forgets all on [`clear`](BloomFilter::clear), or what is
//! old: with [`remember_for`](BloomFilterBuilder::remember_for) `F`, an item is remembered for at least `F` and at most
//! `2F` after it was last inserted or asked for by `check_and_insert`. That goes by the server's clock; where it is set
//! back, by that much longer.
//!
//! # Memory
//!
//! `n·ln(1/p) / ln²2` bits for n items at rate p, within 5 %, whatever the items are. Twice as much, and a
//! little more, where it forgets.
//!
//! | capacity | 10 % | 1 % | 0.1 % | 0.01 % |
//! |---:|---:|---:|---:|---:|
//! | 10 thousand | 6 KB | 12 KB | 18 KB | 24 KB |
//! | 1 million | 0.6 MB | 1.2 MB | 1.8 MB | 2.4 MB |
//! | 10 million | 6 MB | 12 MB | 18 MB | 24 MB |
//! | 1 thousand million | 600 MB | 1.2 GB | 1.8 GB | 2.4 GB |
//!
//! Redis takes memory in steps of up to a quarter; filters above 2 MiB are spread over as many keys as fit these,
//! and no key has more than 64 MiB. 64 keys hold 4 GiB.
//!
//! A filter that does not forget stays in Redis, without a time to live, until it is cleared. One that does is
//! gone 5 × `remember_for` and two hours after its last use at the latest. A server that evicts keys makes filters
//! forget.
//!
//! # One configuration for all
//!
//! Bits, hashes, keys and `remember_for` are stored beside the bits and compared in every call. Where they differ the
//! call is an error that [is invalid](Error::is_invalid) and names both; what is stored stays as it is. To change them
//! take another name, or clear the filter first, as the one that it was. Capacity and rate count only by the bits
//! and hashes that they make.
//!
//! # In other languages
//!
//! The hash of an item is XXH3 with 128 bits and seed 0; `x` is its lower half and `y` its upper, and all arithmetic on
//! them wraps at 2⁶⁴, but for the products that are shifted. With `N` keys, the item belongs to number
//! `((y >> 32) · N) >> 32`. With `m` bits of a key's array and `k` hashes its bits are:
//!
//! ```text
//! k times { bit = (x · m) >> 64;  x = x · 6364136223846793005 + y }
//! ```
//!
//! where the product by `m` has 128 bits and the multiplier is that of Knuth's MMIX generator. Double hashing
//! (Kirsch and Mitzenmacher, 2006) would let items of a small filter have all their bits in common far too often.
//!
//! | item | hash | `N` | `m` | number | first four bits |
//! |---|---|---:|---:|---:|---|
//! | (empty) | `99aa06d3014798d86001c324468d497f` | 1 | 1000003 | 0 | 375028, 675436, 773159, 564661 |
//! | `user-7` | `6eeef1a6ea2a2373c9d2e0a4ff2c4642` | 1 | 1000003 | 0 | 788376, 229938, 723424, 154789 |
//! | `user-7` | `6eeef1a6ea2a2373c9d2e0a4ff2c4642` | 5 | 536870912 | 2 | 423255060, 123446927, 388384281, 83101697 |
//! | `00 ff 00` | `ebcdd8b056f701bae0d991af43624afa` | 64 | 1000003 | 58 | 878322, 395223, 289000, 718049 |
//!
//! What is kept for number `i` of the filter `name`:
//!
//! | Redis key | |
//! |---|---|
//! | `prefix:{name:i}:config` | `bloom1 N m k F g`: `F` is `remember_for` in ms, 0: never; `g` the newest generation, 0 without |
//! | `prefix:{name:i}:bits0` | the bits of even generations, in the order of `SETBIT`; all of them without generations |
//! | `prefix:{name:i}:bits1` | the bits of odd generations |
//!
//! The current generation is the greater of `g` and the server's time divided by `F`, rounded down. An item is contained if
//! all its bits are set in the array of the current generation, or all in that of the one before. Only arrays of
//! generations `g` and `g - 1` count. Whoever inserts writes a new generation to the configuration and deletes the arrays
//! of all but it and the one before it.
//!
//! # Coming from …
//!
//! | gocorex | here |
//! |---|---|
//! | `NewBloomFilter(client, key, bits, maps)` | [`BloomFilter::builder`]`().bits(bits).hashes(maps).build(&store, name)`, or [`BloomFilter::new`] with a capacity and a false-positive rate |
//! | `Add(ctx, value)` | [`insert`](BloomFilter::insert), [`insert_all`](BloomFilter::insert_all) |
//! | `Exists(ctx, value)` | [`contains`](BloomFilter::contains), [`contains_all`](BloomFilter::contains_all) |
//! | `Exists`, then `Add` | [`check_and_insert`](BloomFilter::check_and_insert), in one step |
//!
//! Its filters hash otherwise, so they cannot be read here.

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

/// A Bloom filter in a store. A cheap clone; see the [module](self) for the whole story.
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
