//! The layout of a filter's bits, which must be the same in all processes, and the text that stores it beside the
//! bits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::bits::SAMPLE;
use crate::store::Arguments;

/// How the bits of a filter are laid out.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The number of keys over which the bits are spread.
    pub(crate) shards: u32,
    /// The number of bits of one array.
    pub(crate) bits: u64,
    pub(crate) hashes: u32,
    /// The length of a generation, µs; 0: items are never forgotten.
    pub(crate) forget: i64,
    /// The stored text, without the generation if the filter forgets.
    descriptor: Arc<str>,
}

/// The stored text of a filter that has another layout and the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch(pub(crate) String);

impl Layout {
    pub(crate) fn new(shards: u32, bits: u64, hashes: u32, forget: i64) -> Self {
        let beginning = format!("bloom1 {shards} {bits} {hashes} {} ", forget / 1000);
        let descriptor = if forget == 0 { beginning + "0" } else { beginning };
        Self { shards, bits, hashes, forget, descriptor: descriptor.into() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bits.div_ceil(8)
    }

    /// Returns the stored text in a generation.
    pub(crate) fn stored(&self, generation: i64) -> String {
        if self.forget == 0 {
            self.descriptor.to_string()
        } else {
            format!("{}{generation}", self.descriptor)
        }
    }

    /// Returns the generation at a time in µs.
    pub(crate) fn generation(&self, now: i64) -> i64 {
        if self.forget == 0 { 0 } else { now.div_euclid(self.forget) }
    }

    /// Returns how many items one call takes at most, so that a script takes less than half a millisecond.
    pub(crate) fn most_items(&self) -> usize {
        (512 / self.hashes as usize).clamp(8, 128)
    }

    /// Estimates how many items one array has, by the number of its set bits.
    pub(crate) fn items_behind(&self, ones: u64) -> f64 {
        self.items_in(self.bits, ones)
    }

    /// Estimates how many items one array has, by the number of set bits in its [sample](super::bits::SAMPLE).
    pub(crate) fn items_sampled(&self, ones: u64) -> f64 {
        self.items_in(self.bits.min(8 * SAMPLE as u64), ones)
    }

    /// Estimates how many items one array has, if `ones` of `bits` bits are set.
    fn items_in(&self, bits: u64, ones: u64) -> f64 {
        // If all bits are set, the estimate would be infinite: it is computed as if one bit were not set.
        let share = ones.min(bits - 1) as f64 / bits as f64;
        -(self.bits as f64 / f64::from(self.hashes)) * (-share).ln_1p()
    }

    /// Writes the four arguments that `lua/lib/bloom.lua` takes.
    pub(crate) fn write(&self, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.descriptor));
        call.integer(self.hashes.into());
        call.integer(self.forget);
        call.integer(self.bytes() as i64 - 1);
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.descriptor == other.descriptor
    }
}

/// `1000 bits in 1 key, 7 hashes, remember_for 60s`.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, bits, hashes, .. } = self;
        let keys = if *shards == 1 { "1 key" } else { &format!("each of {shards} keys") };
        write!(f, "{bits} bits in {keys}, {hashes} hashes, ")?;
        match self.forget {
            0 => f.write_str("no remember_for"),
            micros => write!(f, "remember_for {:?}", Duration::from_micros(micros as u64)),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout() {
            Some(layout) => layout.fmt(f),
            None => write!(f, "{:?}", self.0),
        }
    }
}

impl Mismatch {
    pub(super) fn layout(&self) -> Option<Layout> {
        let mut numbers = self.0.strip_prefix("bloom1 ")?.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (shards, bits, hashes, forget) = (next()?, next()?, next()?, next()?);
        let forget = i64::try_from(forget).ok()?.checked_mul(1000)?;
        Some(Layout::new(shards.try_into().ok()?, bits, hashes.try_into().ok()?, forget))
    }
}
