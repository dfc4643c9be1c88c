//! Reads a filter without its configuration, which is stored with it.

use std::time::Duration;

use super::bits::{Bits, SAMPLE};
use super::layout::{Layout, Mismatch};
use super::operations::PARTS;
use super::shard_key;
use super::size::{MOST_BITS, MOST_HASHES, MOST_KEYS};
use crate::Error;
use crate::store::{Arguments, Field, Fields, Garbled, Namespace, Never, Operation, Repeat, Script, script};

/// What is known of a stored filter. [`Operator`](crate::operator) has an example.
#[derive(Clone, Debug, PartialEq)]
pub struct FilterState {
    bits: u64,
    hashes: u32,
    keys: u32,
    remember_for: Option<Duration>,
    filled: f64,
    items: f64,
}

impl FilterState {
    /// Returns the number of bits in all keys, without those of the second generation.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Returns how many bits stand for an item.
    #[must_use]
    pub fn hashes(&self) -> u32 {
        self.hashes
    }

    /// Returns over how many keys the bits are spread.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// Returns how long an item is remembered at least, or `None` if the filter does not forget.
    #[must_use]
    pub fn remember_for(&self) -> Option<Duration> {
        self.remember_for
    }

    /// Returns the share of the bits that are set, 0 to 1, in the fuller generation. A filter that was made by capacity and
    /// rate has about 0.5 at its capacity. Estimated by a sample of each key.
    #[must_use]
    pub fn filled(&self) -> f64 {
        self.filled
    }

    /// Estimates how many items the filter remembers, by a sample of each key. See
    /// [`estimated_count`](crate::BloomFilter::estimated_count), which counts all bits.
    #[must_use]
    pub fn estimated_count(&self) -> u64 {
        self.items.round() as u64
    }
}

const WRONG_TYPE: Garbled =
    Garbled("WRONGTYPE a key of the filter has a value of another type: delete the key");

const UNREADABLE: Garbled = Garbled(
    "WRONGTYPE the configuration of the filter is not one that this version reads: delete the key or use another name",
);

/// Reads one shard: the stored configuration, and the set bits in the sample of each array.
#[derive(Debug)]
struct Look;

/// A shard, and the server's time.
#[derive(Debug)]
struct Seen {
    now: i64,
    stored: Option<Shard>,
}

/// What a shard has stored.
#[derive(Debug)]
struct Shard {
    layout: Layout,
    /// The newest generation.
    newest: i64,
    /// The set bits in the sample of each array.
    ones: [u64; 2],
}

impl Shard {
    /// `None` if no filter has such a configuration.
    fn new(text: &str, ones: [u64; 2]) -> Option<Self> {
        let (layout, newest) = read(text)?;
        Some(Self { layout, newest, ones })
    }
}

/// Reads a filter. `None` if there is none under the name.
pub(crate) async fn look(namespace: &Namespace<Bits>) -> Result<Option<FilterState>, Error> {
    let client = namespace.client();
    let Some(Shard { layout, .. }) = client.run(shard_key(0), Look).await?.stored else { return Ok(None) };
    let (mut filled, mut items) = ([0.0; 2], 0.0);
    for shard in 0..layout.shards {
        let Seen { now, stored } = client.run(shard_key(shard), Look).await?;
        let same = stored.filter(|shard| shard.layout == layout);
        let Some(Shard { newest, ones, .. }) = same else { continue };
        let current = layout.generation(now).max(newest);
        let back = i64::from(layout.forget > 0);
        for generation in (current - back..=current).filter(|one| (newest - 1..=newest).contains(one)) {
            let slot = generation.rem_euclid(2) as usize;
            items += layout.items_sampled(ones[slot]);
            let sampled = layout.bits.min(8 * SAMPLE as u64);
            filled[slot] += ones[slot] as f64 / sampled as f64 / f64::from(layout.shards);
        }
    }
    let Layout { shards, bits, hashes, forget, .. } = layout;
    let remember_for = u64::try_from(forget).ok().filter(|micros| *micros > 0).map(Duration::from_micros);
    let filled = filled[0].max(filled[1]);
    Ok(Some(FilterState {
        bits: bits * u64::from(shards),
        hashes,
        keys: shards,
        remember_for,
        filled,
        items,
    }))
}

/// Reads a stored text: the layout, and the newest generation. `None` if no filter has such a layout.
fn read(text: &str) -> Option<(Layout, i64)> {
    let layout = Mismatch(text.to_owned()).layout()?;
    let newest = text.rsplit(' ').next()?.parse().ok()?;
    let is_possible = (1..=MOST_KEYS).contains(&layout.shards)
        && (1..=MOST_BITS).contains(&layout.bits)
        && (1..=MOST_HASHES).contains(&layout.hashes)
        && (0..1 << 53).contains(&newest);
    is_possible.then_some((layout, newest))
}

impl Operation for Look {
    type Cell = Bits;
    type Reply = Seen;
    type Undo = Never<Bits>;
    const SCRIPT: Script = script!("bloom_filter/inspect");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(SAMPLE as i64);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Seen, Garbled> {
        let text = match fields.next()? {
            Field::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Field::Integer(0) => return Ok(Seen { now, stored: None }),
            _ => return Err(WRONG_TYPE),
        };
        let mut ones = || fields.integer().map(|ones| u64::try_from(ones).unwrap_or(0));
        let shard = Shard::new(&text, [ones()?, ones()?]).ok_or(UNREADABLE)?;
        Ok(Seen { now, stored: Some(shard) })
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Seen {
        Seen { now, stored: bits.look(now).and_then(|(text, ones)| Shard::new(&text, ones)) }
    }
}
