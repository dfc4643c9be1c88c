//! The settings of a filter, and their checks.

use std::time::Duration;

use crate::bloom_filter::BloomFilter;
use crate::bloom_filter::layout::{Config, Layout, check_remember_for};
use crate::bloom_filter::size::{
    MOST_BITS, MOST_HASHES, MOST_KEYS, bits_and_hashes, check_total, keys,
};
use crate::error::Error;
use crate::macros::{in_range, setters};
use crate::store::Store;
use crate::store::redis::names::check_name;

/// Builds a [`BloomFilter`].
///
/// The size is set either by capacity and false-positive rate, or by bits and hashes.
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

setters! { BloomFilterBuilder:
    /// Sets the number of different items that the filter is for, at least 1. Set
    /// [`false_positive_rate`](Self::false_positive_rate) too.
    ///
    /// With [`remember_for`](Self::remember_for) `F`, the capacity is the number of items that arrive within `F`. For
    /// example, a filter for 100 items a second that remembers for a day has a capacity of 8 640 000. Above the
    /// capacity, the filter exceeds its false-positive rate.
    fn capacity(items: u64) => capacity = Some(items);

    /// Sets the false-positive rate, above 0 and below 1: the share of items that were not inserted and are
    /// reported as inserted. The rate holds up to the capacity.
    fn false_positive_rate(rate: f64) => rate = Some(rate);

    /// Sets the number of bits of the filter, at least 1, instead of a capacity. Set [`hashes`](Self::hashes) too. A
    /// filter that forgets items has twice as many bits.
    ///
    /// ```
    /// use tower_distributed::{BloomFilter, Store};
    ///
    /// // About a million items at 0.8 %, spread over four masters of a Cluster.
    /// let seen = BloomFilter::builder().bits(10_000_000).hashes(7).keys(4).build(&Store::in_memory(), "urls")?;
    /// let size = seen.size();
    /// assert_eq!((size.bits, size.hashes, size.keys), (10_000_000, 7, 4));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    fn bits(bits: u64) => bits = Some(bits);

    /// Sets the number of bits per item, 1 to 64, instead of a false-positive rate. Set [`bits`](Self::bits) too.
    fn hashes(hashes: u32) => hashes = Some(hashes);

    /// Sets the number of keys over which the bits are spread, 1 to 64. A key has at most 64 MiB.
    ///
    /// Default: with a capacity, one key up to 2 MiB, and above that a number of keys at which the server's
    /// allocator wastes little memory. With [`bits`](Self::bits), as few keys as possible.
    ///
    /// An item belongs to one key. On a Cluster the keys are on different masters, which share the work.
    fn keys(keys: u32) => keys = Some(keys);

    /// Sets the minimum time for which an item is remembered after it was last inserted, 1 second to 10 years in whole
    /// milliseconds. Default: items are never forgotten.
    ///
    /// An item is forgotten after twice this time at the latest, by the server's clock. The filter takes a little more
    /// than twice the memory: it has two generations of this length, and each holds the whole capacity.
    fn remember_for(span: Duration) => remember_for = Some(span);
}

impl BloomFilter {
    /// Returns a builder with all settings.
    pub fn builder() -> BloomFilterBuilder {
        BloomFilterBuilder::default()
    }
}

impl BloomFilterBuilder {
    /// Builds the filter `name` in a store.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, a setting is out of
    /// range, the size is set in neither or both of the two ways, or the filter needs more than 64 keys. If a
    /// filter with other settings is stored under the name, the first call returns the error.
    pub fn build(self, store: &Store, name: &str) -> Result<BloomFilter, Error> {
        let config = self.check()?;
        check_name("the name of a namespace", name)?;
        Ok(BloomFilter::open_in(store, name, config))
    }

    fn check(self) -> Result<Config, Error> {
        // In µs; 0: items are never forgotten.
        let forget = match self.remember_for {
            Some(span) => check_remember_for(span)?.as_millis() as i64 * 1000,
            None => 0,
        };
        let (bits, hashes) = match self {
            Self {
                capacity: Some(capacity),
                rate: Some(rate),
                bits: None,
                hashes: None,
                ..
            } => sized(capacity, rate, forget > 0)?,
            Self {
                bits: Some(bits),
                hashes: Some(hashes),
                capacity: None,
                rate: None,
                ..
            } => {
                in_range("bits", 1.., "at least 1", bits)?;
                in_range(
                    "hashes",
                    1..=MOST_HASHES,
                    format_args!("1 to {MOST_HASHES}"),
                    hashes,
                )?;
                (check_total("the filter", bits as f64)?, hashes)
            }
            Self {
                capacity,
                rate,
                bits,
                hashes,
                ..
            } => {
                return Err(Error::invalid(format!(
                    "a filter needs both capacity and false_positive_rate, or both bits and hashes; set are \
                     capacity {capacity:?}, false_positive_rate {rate:?}, bits {bits:?}, hashes {hashes:?}"
                )));
            }
        };
        let shards = self.shards(bits)?;
        let layout = Layout::new(shards, bits.div_ceil(shards.into()), hashes, forget);
        Ok(Config {
            layout: layout.into(),
            capacity: self.capacity,
            rate: self.rate,
        })
    }

    fn shards(&self, bits: u64) -> Result<u32, Error> {
        let least = bits.div_ceil(MOST_BITS) as u32;
        let most = MOST_KEYS.min(u32::try_from(bits).unwrap_or(MOST_KEYS));
        match self.keys {
            Some(keys) => {
                let must = format!("{least} to {most} for {bits} bits");
                in_range("keys", least..=most, &must, keys).map(|()| keys)
            }
            None if self.capacity.is_some() => Ok(keys(bits)),
            None => Ok(least),
        }
    }
}

/// Returns the bits and hashes for a capacity and rate. Each generation of a filter that forgets items has half of the
/// rate.
fn sized(capacity: u64, rate: f64, forgets: bool) -> Result<(u64, u32), Error> {
    if !(rate > 0.0 && rate < 1.0) {
        return Err(Error::invalid(format!(
            "false_positive_rate must be above 0 and below 1, is {rate}"
        )));
    }
    in_range("capacity", 1.., "at least 1", capacity)?;
    let (bits, hashes) = bits_and_hashes(capacity, if forgets { rate / 2.0 } else { rate });
    Ok((
        check_total(
            &format!("capacity {capacity} with false_positive_rate {rate}"),
            bits,
        )?,
        hashes,
    ))
}
