//! Maps an item to its digest and bucket. The mapping is the same in every process, release and language.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::store::Arguments;

/// How many slices a window has. One slice more counts, since the oldest is only partly inside the window.
const SLICES: u64 = 2;

/// How many hashes a bucket has. Each slice that counts is in another hash.
pub(crate) const RING: i64 = SLICES as i64 + 1;

/// How many digests a slice has in a bucket at capacity. Redis packs a hash of up to 128 fields
/// (`hash-max-listpack-entries`). This number is so far below 128 that random differences do not exceed it.
const PACKED: u64 = 72;

/// The layout of the handled items.
#[derive(Debug)]
pub(crate) struct Layout {
    buckets: u32,
    /// The length of a slice, µs.
    slice: i64,
    remember_for: Duration,
    /// The stored text.
    descriptor: Arc<str>,
}

/// The digest of an item, and its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) bucket: u32,
    /// How much earlier the slices of the bucket begin, µs, so that the buckets do not expire at the same time.
    pub(super) shift: i64,
    pub(crate) bytes: Arc<[u8; 16]>,
}

impl Layout {
    /// `remember_for` is in whole ms.
    pub(crate) fn new(capacity: u64, remember_for: Duration) -> Self {
        let buckets = capacity.div_ceil(SLICES * PACKED).clamp(1, u32::MAX.into()) as u32;
        let millis = remember_for.as_millis() as u64;
        let slice = (millis * 1000).div_ceil(SLICES) as i64;
        let descriptor = format!("exact1 {buckets} {millis}").into();
        Self {
            buckets,
            slice,
            remember_for,
            descriptor,
        }
    }

    /// Reads the stored text of a layout.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (buckets, millis) = text.strip_prefix("exact1 ")?.split_once(' ')?;
        let remember_for = Duration::from_millis(millis.parse().ok()?);
        let capacity = u64::from(buckets.parse::<u32>().ok()?) * SLICES * PACKED;
        // A text of another program could name a span that is not possible.
        let is_possible = capacity > 0 && (1..1 << 40).contains(&remember_for.as_millis());
        let layout = is_possible.then(|| Self::new(capacity, remember_for))?;
        (*layout.descriptor == *text).then_some(layout)
    }

    pub(crate) fn digest(&self, item: &[u8]) -> Digest {
        let hash = Sha256::digest(item);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        let first = u64::from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let bucket = ((first * u64::from(self.buckets)) >> 32) as u32;
        let shift = i128::from(bucket) * i128::from(self.slice) / i128::from(self.buckets);
        Digest {
            bucket,
            shift: shift as i64,
            bytes: Arc::new(bytes),
        }
    }

    /// Returns the current slice of a bucket.
    pub(super) fn slice_at(&self, digest: &Digest, now: i64) -> i64 {
        (now + digest.shift).div_euclid(self.slice)
    }

    /// Returns when a slice of a bucket no longer counts, in µs. The time from now is rounded up to whole ms, as in
    /// Redis.
    pub(super) fn end_of(&self, digest: &Digest, slice: i64, now: i64) -> i64 {
        let left = (slice + RING) * self.slice - digest.shift - now;
        now + (left + 999) / 1000 * 1000
    }

    /// Returns the time to live of the stored text, ms.
    pub(super) fn kept(&self) -> i64 {
        2 * self.remember_for.as_millis() as i64 + 3_600_000
    }

    pub(super) fn descriptor(&self) -> &Arc<str> {
        &self.descriptor
    }

    /// Returns for how many items the buckets are sized.
    pub(crate) fn capacity(&self) -> u64 {
        u64::from(self.buckets) * SLICES * PACKED
    }

    pub(crate) fn remember_for(&self) -> Duration {
        self.remember_for
    }

    /// Returns the length of a slice (µs), and the number of buckets.
    #[cfg(test)]
    pub(crate) fn slices(&self) -> (i64, u64) {
        (self.slice, self.buckets.into())
    }

    /// Writes the arguments that all runs of a call share.
    pub(super) fn write(&self, call: &mut Arguments<'_>) {
        call.integer(self.slice);
    }
}

impl Digest {
    /// Writes the arguments of a run.
    pub(super) fn write(&self, call: &mut Arguments<'_>) {
        call.integer(self.shift);
        call.bytes(Arc::<[u8; 16]>::clone(&self.bytes));
    }
}

/// `6945 buckets, remember_for 604800s`.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} buckets, remember_for {:?}",
            self.buckets, self.remember_for
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values follow the documentation of the module. With other values, stored items would not be found.
    #[test]
    fn test_vectors() {
        let week = Duration::from_secs(7 * 86_400);
        let layout = Layout::new(1_000_000, week);
        assert_eq!(
            (&*layout.descriptor, layout.slice),
            ("exact1 6945 604800000", 302_400_000_000)
        );
        let digest = layout.digest(b"evt_1");
        let hex: String = digest
            .bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, "7d4e5a76eae6d8c165410ac19fe67565");
        assert_eq!((digest.bucket, digest.shift), (3399, 147999654427));
    }

    #[test]
    fn hashes_are_packed_at_capacity() {
        for capacity in [1, 10_000, 1_000_000, 100_000_000_000] {
            let layout = Layout::new(capacity, Duration::from_secs(60));
            let each = capacity as f64 / SLICES as f64 / f64::from(layout.buckets);
            assert!(each <= PACKED as f64, "{capacity}: {each}");
        }
    }
}
