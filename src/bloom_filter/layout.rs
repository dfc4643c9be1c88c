//! The layout of the bits of a filter, and the text that is stored beside them.
//!
//! All processes that use a name must use the same layout. If another layout is stored, calls return an error, here and
//! in the exact mode of `dedupe`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bloom_filter::size::{FilterSize, MOST_BITS, MOST_HASHES, MOST_KEYS};
use crate::error::Error;
use crate::store::operation::{Arguments, Field, Fields, Garbled};

/// The checked settings.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) layout: Arc<Layout>,
    pub(super) capacity: Option<u64>,
    pub(super) rate: Option<f64>,
}

/// The size of the sample: the bytes at the beginning of an array that are counted to estimate the fill level.
pub(super) const SAMPLE: usize = 4096;

/// The layout of the bits of a filter.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The number of keys over which the bits are spread.
    pub(crate) shards: u32,
    /// The number of bits of one array.
    pub(crate) bits: u64,
    pub(crate) hashes: u32,
    /// The length of a generation, µs; 0: items are never forgotten.
    pub(crate) forget: i64,
    /// The stored text, without the generation if the filter forgets items.
    descriptor: Arc<str>,
}

impl Layout {
    pub(crate) fn new(shards: u32, bits: u64, hashes: u32, forget: i64) -> Self {
        let beginning = format!("bloom1 {shards} {bits} {hashes} {} ", forget / 1000);
        let descriptor = if forget == 0 {
            beginning + "0"
        } else {
            beginning
        };
        Self {
            shards,
            bits,
            hashes,
            forget,
            descriptor: descriptor.into(),
        }
    }

    /// Reads a stored text: the layout, and the newest generation. `None` if no filter has such a layout.
    pub(super) fn parse(text: &str) -> Option<(Self, i64)> {
        let mut numbers = text
            .strip_prefix("bloom1 ")?
            .split(' ')
            .map(str::parse::<i64>);
        let mut next = |most: i64| {
            numbers
                .next()?
                .ok()
                .filter(|number| (0..=most).contains(number))
        };
        let shards = next(MOST_KEYS.into())? as u32;
        let bits = next(MOST_BITS as i64)? as u64;
        let hashes = next(MOST_HASHES.into())? as u32;
        let forget = next(i64::MAX / 1000)? * 1000;
        let newest = next((1 << 53) - 1)?;
        let is_whole = numbers.next().is_none() && shards > 0 && bits > 0 && hashes > 0;
        is_whole.then(|| (Self::new(shards, bits, hashes, forget), newest))
    }

    /// Returns the size; its capacity and rate are not stored.
    pub(super) fn size(&self) -> FilterSize {
        FilterSize {
            capacity: None,
            false_positive_rate: None,
            bits: self.bits * u64::from(self.shards),
            hashes: self.hashes,
            keys: self.shards,
            remember_for: self.remember_for(),
        }
    }

    /// Returns the minimum time for which an item is remembered, or `None` if the filter does not forget items.
    pub(super) fn remember_for(&self) -> Option<Duration> {
        let micros = u64::try_from(self.forget).ok().filter(|micros| *micros > 0);
        micros.map(Duration::from_micros)
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
        if self.forget == 0 {
            0
        } else {
            now.div_euclid(self.forget)
        }
    }

    /// Returns the maximum number of items in one call. It limits a script to less than half a millisecond.
    pub(crate) fn most_items(&self) -> usize {
        (512 / self.hashes as usize).clamp(8, 128)
    }

    /// Estimates the number of items in one array from the number of its set bits.
    pub(crate) fn items_behind(&self, ones: u64) -> f64 {
        self.items_in(self.bits, ones)
    }

    /// Estimates the number of items in one array from the number of set bits in its [sample](SAMPLE).
    pub(crate) fn items_sampled(&self, ones: u64) -> f64 {
        self.items_in(self.sampled(), ones)
    }

    /// Returns the number of bits in the sample of one array.
    pub(super) fn sampled(&self) -> u64 {
        self.bits.min(8 * SAMPLE as u64)
    }

    /// Estimates the number of items in one array, if `ones` of `bits` bits are set.
    fn items_in(&self, bits: u64, ones: u64) -> f64 {
        // If all bits are set, the estimate would be infinite: it is computed as if one bit were not set.
        let share = ones.min(bits - 1) as f64 / bits as f64;
        -(self.bits as f64 / f64::from(self.hashes)) * (-share).ln_1p()
    }

    /// Writes the four arguments that `lua/bloom.lua` takes.
    pub(crate) fn write(&self, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.descriptor));
        call.integer(self.hashes.into());
        call.integer(self.forget);
        call.integer(self.bits.div_ceil(8) as i64 - 1);
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
        let Self {
            shards,
            bits,
            hashes,
            ..
        } = self;
        let keys = if *shards == 1 {
            "1 key"
        } else {
            &format!("each of {shards} keys")
        };
        write!(f, "{bits} bits in {keys}, {hashes} hashes, ")?;
        match self.remember_for() {
            None => f.write_str("no remember_for"),
            Some(span) => write!(f, "remember_for {span:?}"),
        }
    }
}

/// The stored text of another layout with the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch(pub(crate) String);

pub(crate) const UNREADABLE: Garbled = Garbled(
    "WRONGTYPE the stored layout is not one that this version reads: delete the key or use another name",
);

impl Mismatch {
    /// Returns the error if the name is used for `what`. `parse` reads a stored text; `None` if this version stores no
    /// such text.
    pub(crate) fn error<L: fmt::Display>(
        &self,
        what: fmt::Arguments<'_>,
        used: &L,
        parse: fn(&str) -> Option<L>,
    ) -> Error {
        let stored =
            parse(&self.0).map_or_else(|| format!("{:?}", self.0), |layout| layout.to_string());
        Error::invalid(format!(
            "{what} is stored with {stored}, but this process uses {used}: set the same in all processes, or choose another \
             name for the new settings"
        ))
    }
}

/// Reads a number, or the text of another layout.
pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Result<u64, Mismatch>, Garbled> {
    match fields.next()? {
        Field::Integer(-1) => Err(Garbled(
            "WRONGTYPE a key has a value of another type: delete the key or use another name",
        )),
        Field::Integer(number) => u64::try_from(number)
            .map(Ok)
            .map_err(|_| Garbled("a script returned a negative number")),
        Field::Text(stored) => Ok(Err(Mismatch(String::from_utf8_lossy(stored).into_owned()))),
        Field::List(_) => Err(Garbled("a script returned a list instead of a number")),
    }
}

/// Reads 1 or 0.
pub(crate) fn read_flag(fields: &mut Fields<'_>) -> Result<bool, Garbled> {
    read(fields)?
        .map(|number| number == 1)
        .map_err(|_| UNREADABLE)
}

/// Checks the time for which items are to be remembered.
pub(crate) fn check_remember_for(span: Duration) -> Result<Duration, Error> {
    const SHORTEST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
    if (SHORTEST..=LONGEST).contains(&span) && span.subsec_nanos().is_multiple_of(1_000_000) {
        return Ok(span);
    }
    Err(Error::invalid(format!(
        "remember_for must be 1 s to 10 years, in whole milliseconds, is {span:?}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_layout_is_one_of_a_filter_or_none() {
        let parsed = |text: &str| {
            Layout::parse(text)
                .map(|(layout, newest)| (layout.shards, layout.bits, layout.forget, newest))
        };
        assert_eq!(
            parsed("bloom1 2 1024 7 60000 12"),
            Some((2, 1024, 60_000_000, 12))
        );
        assert_eq!(parsed("bloom1 1 1 1 0 0"), Some((1, 1, 0, 0)));
        let (keys, hashes) = (MOST_KEYS, MOST_HASHES);
        let most = format!(
            "bloom1 {keys} {MOST_BITS} {hashes} {} {}",
            i64::MAX / 1000,
            (1_i64 << 53) - 1
        );
        assert!(parsed(&most).is_some());
        let none = "|bloom2 1 1 1 0 0|bloom1 1 1 1 0|bloom1 1 1 1 0 0 0|bloom1 1 1 1 0 x|bloom1 1 1 1 -1 0|\
             bloom1 0 1 1 0 0|bloom1 1 0 1 0 0|bloom1 1 1 0 0 0|bloom1 1 1 1 0 9007199254740992";
        for bad in none.split('|') {
            assert_eq!(parsed(bad), None, "{bad}");
        }
        for (at, above) in [
            (1, u64::from(keys) + 1),
            (2, MOST_BITS + 1),
            (3, u64::from(hashes) + 1),
        ] {
            let mut words: Vec<_> = most.split(' ').map(str::to_owned).collect();
            words[at] = above.to_string();
            let text = words.join(" ");
            assert_eq!(parsed(&text), None, "{text}");
        }
    }
}
