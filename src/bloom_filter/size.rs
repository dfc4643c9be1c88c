//! Computes how many bits, hashes and keys a filter has.

use std::time::Duration;

use crate::error::Error;

/// The size of a filter: what [`BloomFilter::size`](crate::BloomFilter::size) returns.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct FilterSize {
    /// The capacity. `None` if the filter was built by bits and hashes; it is not stored.
    pub capacity: Option<u64>,
    /// The false-positive rate at the capacity. `None` if the filter was built by bits and hashes; it is not stored.
    pub false_positive_rate: Option<f64>,
    /// The number of bits in all keys, without those of the second generation.
    pub bits: u64,
    /// The number of bits per item.
    pub hashes: u32,
    /// Over how many keys the bits are spread.
    pub keys: u32,
    /// The minimum time for which an item is remembered. `None` if the filter does not forget items.
    pub remember_for: Option<Duration>,
}

/// The maximum number of bits of one array: 64 MiB.
pub(super) const MOST_BITS: u64 = 1 << 29;
pub(super) const MOST_KEYS: u32 = 64;
pub(super) const MOST_HASHES: u32 = 64;

/// The minimum number of bits for a capacity. With fewer bits, the real rate is higher than the formula.
const LEAST_BITS: u64 = 1024;

/// From this many bits on, the number of keys is chosen so that little of the server's memory is wasted.
const SPREAD_FROM: u64 = 1 << 24;
/// How many keys more than the minimum are tried.
const MORE_KEYS: u32 = 15;
/// The accepted ratio of allocated memory to used memory.
const WASTE: f64 = 1.049;

/// Returns the fewest bits and the number of hashes for which `(1 - e^(-k·n/m))^k <= rate`.
pub(super) fn bits_and_hashes(capacity: u64, rate: f64) -> (f64, u32) {
    let mut best = (f64::INFINITY, 1);
    for hashes in 1..=MOST_HASHES {
        let k = f64::from(hashes);
        let bits = (-k * capacity as f64 / (-rate.powf(1.0 / k)).ln_1p()).ceil();
        if bits < best.0 {
            best = (bits, hashes);
        }
    }
    (best.0.max(LEAST_BITS as f64), best.1)
}

/// Returns the default number of keys for a number of bits. It is a part of the stored configuration, so it must
/// never change.
pub(super) fn keys(bits: u64) -> u32 {
    let least = bits.div_ceil(MOST_BITS) as u32;
    if bits < SPREAD_FROM {
        return least;
    }
    let most = (least + MORE_KEYS).min(MOST_KEYS);
    let wastes = (least..=most).map(|keys| (keys, waste(bits, keys)));
    let fits = wastes.clone().find(|(_, waste)| *waste <= WASTE);
    fits.or_else(|| wastes.min_by(|(_, a), (_, b)| a.total_cmp(b)))
        .map_or(least, |(keys, _)| keys)
}

/// Returns the ratio of the memory that the keys take to the memory of their bits. The server's allocator,
/// jemalloc, has four sizes per doubling.
fn waste(bits: u64, keys: u32) -> f64 {
    const HEADER: u64 = 16;
    let bytes = bits.div_ceil(keys.into()).div_ceil(8) + HEADER;
    let step = bytes.next_power_of_two() / 8;
    let taken = bytes.div_ceil(step.max(1)) * step.max(1);
    (taken * u64::from(keys)) as f64 * 8.0 / bits as f64
}

pub(super) fn check_total(what: &str, bits: f64) -> Result<u64, Error> {
    let most = u64::from(MOST_KEYS) * MOST_BITS;
    if bits > most as f64 {
        let text =
            format!("{what} needs {bits:.0} bits, the maximum is {most} in {MOST_KEYS} keys");
        return Err(Error::invalid(text));
    }
    Ok(bits as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The minimum for every Bloom filter: n·ln(1/p)/ln²2 bits.
    fn optimum(capacity: u64, rate: f64) -> f64 {
        capacity as f64 * (1.0 / rate).ln() / std::f64::consts::LN_2.powi(2)
    }

    #[test]
    fn bits_are_near_the_optimum_and_keep_the_rate() {
        for rate in [
            0.5, 0.3, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-6, 1e-9, 1e-12,
        ] {
            for capacity in [1_000, 1_000_000, 100_000_000] {
                let (bits, hashes) = bits_and_hashes(capacity, rate);
                assert!(
                    bits <= 1.05 * optimum(capacity, rate).max(LEAST_BITS as f64),
                    "{capacity} {rate}: {bits}"
                );
                let k = f64::from(hashes);
                let reached = (1.0 - (-k * capacity as f64 / bits).exp()).powf(k);
                assert!(
                    reached <= rate * (1.0 + 1e-9),
                    "{capacity} {rate}: {reached}"
                );
            }
        }
    }

    #[test]
    fn sizes_that_are_known() {
        assert_eq!(bits_and_hashes(1_000_000, 0.01), (9_592_955.0, 7));
        assert_eq!(bits_and_hashes(10_000_000, 0.001), (143_776_394.0, 10));
        assert_eq!(bits_and_hashes(1, 0.5), (1024.0, 1));
        assert_eq!(
            [
                keys(1),
                keys(9_592_955),
                keys(143_776_394),
                keys(64 * MOST_BITS)
            ],
            [1, 1, 5, 64]
        );
    }

    #[test]
    fn no_key_is_above_the_most() {
        for bits in
            (20..=35).flat_map(|power| [(1_u64 << power) - 1, 1 << power, (1 << power) / 3 * 2])
        {
            let keys = keys(bits);
            assert!(
                (1..=MOST_KEYS).contains(&keys) && bits.div_ceil(keys.into()) <= MOST_BITS,
                "{bits}: {keys}"
            );
        }
    }
}
