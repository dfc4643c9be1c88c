//! Settings of a filter.

use std::sync::Arc;
use std::time::Duration;

use super::BloomFilter;
use super::layout::Layout;
use super::size::{MOST_BITS, MOST_HASHES, MOST_KEYS, bits_and_hashes, check_total, keys};
use crate::{Error, Store};

/// Settings of a [`BloomFilter`]: either capacity and false-positive rate, or bits and hashes.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{BloomFilter, Store};
///
/// let store = Store::in_memory();
/// let seen = BloomFilter::builder()
///     .capacity(1_000_000)
///     .false_positive_rate(0.01)
///     .remember_for(Duration::from_secs(86_400))
///     .build(&store, "webhooks")?;
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct BloomFilterBuilder {
    capacity: Option<u64>,
    rate: Option<f64>,
    bits: Option<u64>,
    hashes: Option<u32>,
    keys: Option<u32>,
    remember_for: Option<Duration>,
}

/// Settings that were checked.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) layout: Arc<Layout>,
    pub(super) capacity: Option<u64>,
    pub(super) rate: Option<f64>,
}

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

impl BloomFilterBuilder {
    /// How many different items it is for, at least 1. With [`remember_for`](Self::remember_for) `F`: how many come within
    /// `F`, so a filter for 100 items a second that remembers for a day has a capacity of 8 640 000. With more, it is wrong
    /// more often than the false-positive rate says.
    pub fn capacity(mut self, items: u64) -> Self {
        self.capacity = Some(items);
        self
    }

    /// The false-positive rate: how often at most it says of an item that it was inserted when it was not, once
    /// it is filled to its capacity; above 0 and below 1.
    pub fn false_positive_rate(mut self, rate: f64) -> Self {
        self.rate = Some(rate);
        self
    }

    /// How many bits it has, at least 1, in place of a capacity; as many again where it forgets.
    pub fn bits(mut self, bits: u64) -> Self {
        self.bits = Some(bits);
        self
    }

    /// How many bits stand for an item, 1 to 64, in place of a false-positive rate.
    pub fn hashes(mut self, hashes: u32) -> Self {
        self.hashes = Some(hashes);
        self
    }

    /// Over how many keys the bits are spread, 1 to 64 of at most 64 MiB. Default: one up to 2 MiB; above, as many as
    /// suit the sizes in which the server takes memory.
    ///
    /// An item belongs to one of them. On a Cluster they are on different masters, which share the work.
    pub fn keys(mut self, keys: u32) -> Self {
        self.keys = Some(keys);
        self
    }

    /// For how long an item is remembered at least after it was last inserted, 1 second to 10 years in whole milliseconds.
    /// It is forgotten after twice as long at the latest. The server's clock counts. Default: nothing is forgotten.
    ///
    /// It takes a little more than twice the memory: there are two generations of this length, each of which holds as many
    /// items as the capacity says.
    pub fn remember_for(mut self, span: Duration) -> Self {
        self.remember_for = Some(span);
        self
    }

    /// The filter `name` in a store.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, a setting is
    /// out of range, neither or both of the ways to say the size are used, or 64 keys would not hold it. That a
    /// filter of other settings is stored under the name is found when it is first used.
    pub fn build(self, store: &Store, name: &str) -> Result<BloomFilter, Error> {
        BloomFilter::open_in(store, name, self.check()?)
    }

    fn check(self) -> Result<Config, Error> {
        let forget = self.forget()?;
        let (bits, hashes) = match self {
            Self { capacity: Some(capacity), rate: Some(rate), bits: None, hashes: None, .. } => {
                sized(capacity, rate, forget > 0)?
            }
            Self { bits: Some(bits), hashes: Some(hashes), capacity: None, rate: None, .. } => {
                if bits == 0 {
                    return Err(Error::invalid("a filter must have at least 1 bit, has 0"));
                }
                if !(1..=MOST_HASHES).contains(&hashes) {
                    return Err(Error::invalid(format!(
                        "there must be 1 to {MOST_HASHES} hashes, got {hashes}"
                    )));
                }
                (check_total("the filter", bits as f64)?, hashes)
            }
            Self { capacity, rate, bits, hashes, .. } => {
                return Err(Error::invalid(format!(
                    "a filter takes both capacity and false_positive_rate, or else both bits and hashes, got \
                     capacity {capacity:?}, false_positive_rate {rate:?}, bits {bits:?}, hashes {hashes:?}"
                )));
            }
        };
        let shards = self.shards(bits)?;
        let layout = Layout::new(shards, bits.div_ceil(shards.into()), hashes, forget);
        Ok(Config { layout: layout.into(), capacity: self.capacity, rate: self.rate })
    }

    fn shards(&self, bits: u64) -> Result<u32, Error> {
        let least = bits.div_ceil(MOST_BITS) as u32;
        let most = MOST_KEYS.min(u32::try_from(bits).unwrap_or(MOST_KEYS));
        match self.keys {
            Some(keys) if (least..=most).contains(&keys) => Ok(keys),
            Some(keys) => {
                let text = format!("{bits} bits must be spread over {least} to {most} keys, got {keys}");
                Err(Error::invalid(text))
            }
            None if self.capacity.is_some() => Ok(keys(bits)),
            None => Ok(least),
        }
    }

    /// µs; 0: never.
    fn forget(&self) -> Result<i64, Error> {
        match self.remember_for {
            None => Ok(0),
            Some(span) if (SHORTEST..=LONGEST).contains(&span) && span.subsec_nanos() % 1_000_000 == 0 => {
                Ok(span.as_millis() as i64 * 1000)
            }
            Some(span) => Err(Error::invalid(format!(
                "remember_for must be 1 s to 10 years, in whole milliseconds, is {span:?}"
            ))),
        }
    }
}

/// The bits and hashes for so many items; each generation of those that forget is wrong half as often.
fn sized(capacity: u64, rate: f64, forgets: bool) -> Result<(u64, u32), Error> {
    if !(rate > 0.0 && rate < 1.0) {
        return Err(Error::invalid(format!(
            "the false_positive_rate must be above 0 and below 1, is {rate}"
        )));
    }
    if capacity == 0 {
        return Err(Error::invalid("the capacity must be at least 1, is 0"));
    }
    let (bits, hashes) = bits_and_hashes(capacity, if forgets { rate / 2.0 } else { rate });
    Ok((check_total(&format!("a capacity of {capacity} at a rate of {rate}"), bits)?, hashes))
}
