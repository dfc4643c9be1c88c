//! Reads a filter without its configuration, which is stored with it.

use std::ops::RangeInclusive;

use crate::bloom_filter::bits::{Bits, slot};
use crate::bloom_filter::layout::{Layout, Mismatch, SAMPLE, UNREADABLE, read};
use crate::bloom_filter::operations::{FILTER, PARTS};
use crate::bloom_filter::shard_key;
use crate::bloom_filter::size::FilterSize;
use crate::error::Error;
use crate::store::client::Namespace;
use crate::store::operation::{Arguments, Fields, Garbled, Operation, Repeat, Script, function};

/// What is known of a stored filter. [`Operator::inspect`](crate::operator::Operator::inspect) has an example.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FilterState {
    /// The size of the filter. Its capacity and rate are not stored.
    pub size: FilterSize,
    /// The share of the bits that are set, 0 to 1, in the fuller generation. A filter that was made by capacity and
    /// rate has about 0.5 at its capacity. Estimated by a sample of each key.
    pub filled: f64,
    /// An estimate of how many items the filter remembers, by a sample of each key. See
    /// [`estimated_count`](crate::BloomFilter::estimated_count), which counts all bits.
    pub estimated_count: u64,
}

/// Reads one shard: the stored configuration, and the set bits in the sample of each array.
#[derive(Debug)]
struct Look;

/// The stored data of a shard.
#[derive(Debug)]
struct Shard {
    layout: Layout,
    /// The generations of the shard that count.
    generations: RangeInclusive<i64>,
    /// The set bits in the sample of each array.
    ones: [u64; 2],
}

impl Shard {
    /// `None` if no filter has such a configuration.
    fn new(text: &str, ones: [u64; 2], now: i64) -> Option<Self> {
        let (layout, newest) = Layout::parse(text)?;
        let oldest = layout.generation(now).max(newest) - i64::from(layout.forget > 0);
        Some(Self {
            layout,
            generations: oldest.max(newest - 1)..=newest,
            ones,
        })
    }
}

/// Reads a filter. `None` if there is none under the name.
pub(crate) async fn look(namespace: &Namespace<Bits>) -> Result<Option<FilterState>, Error> {
    let client = namespace.client();
    let Some(Shard { layout, .. }) = client.run(shard_key(0), Look).await? else {
        return Ok(None);
    };
    let mut filled = [0.0; 2];
    let mut items = 0.0;
    for shard in 0..layout.shards {
        let stored = client.run(shard_key(shard), Look).await?;
        let Some(shard) = stored.filter(|shard| shard.layout == layout) else {
            continue;
        };
        for slot in shard.generations.map(slot) {
            items += layout.items_sampled(shard.ones[slot]);
            filled[slot] +=
                shard.ones[slot] as f64 / layout.sampled() as f64 / f64::from(layout.shards);
        }
    }
    let filled = filled[0].max(filled[1]);
    let estimated_count = items.round() as u64;
    Ok(Some(FilterState {
        size: layout.size(),
        filled,
        estimated_count,
    }))
}

impl Operation for Look {
    type Cell = Bits;
    type Reply = Option<Shard>;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "inspect_filter"; FILTER);
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(SAMPLE as i64);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Option<Shard>, Garbled> {
        let Err(Mismatch(text)) = read(&mut fields)? else {
            return Ok(None);
        };
        let mut ones = || {
            fields
                .integer()
                .map(|ones| u64::try_from(ones).unwrap_or(0))
        };
        Shard::new(&text, [ones()?, ones()?], now)
            .ok_or(UNREADABLE)
            .map(Some)
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Option<Shard> {
        bits.look(now)
            .and_then(|(text, ones)| Shard::new(&text, ones, now))
    }
}
