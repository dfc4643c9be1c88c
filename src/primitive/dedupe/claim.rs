//! A lease on an item of a filter: the twin of `lua/lib/claim.lua`.

use std::io::Write as _;

use crate::Key;
use crate::primitive::bloom_filter::{BloomFilter, Mismatch, Probe};
use crate::primitive::lease::kind::{Kind, Scripts, scripts};
use crate::primitive::lease::outcome::{Entered, Look, Outcome};
use crate::primitive::mutex::holder::Holder;
use crate::store::{Arguments, Field, Garbled};

/// One handles an item, which is then in the filter.
#[derive(Clone, Debug)]
pub(crate) enum Claims {}

impl Kind for Claims {
    type Holders = Holder<false>;
    type Outcome = Seen;
    const PARTS: &'static [&'static str] = &["claim", "@config", "queue", "beats", "@bits0", "@bits1"];
    const SCRIPTS: Scripts = scripts!("lib/bloom", "lib/mutex", "lib/claim");
}

/// What is in a filter.
#[derive(Debug)]
pub(crate) enum Seen {}

/// What is found of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is in the filter.
    Seen,
    /// Another filter is stored under the name.
    Other(Mismatch),
    /// In process: the store is full, and takes no new shard of a filter.
    Full,
}

/// Where the claim on an item is kept: beside its key of the filter.
pub(crate) fn key(probe: &Probe) -> Key {
    let mut key = Vec::with_capacity(40);
    // Writing to memory does not fail.
    let _ = write!(key, "{}:{:032x}", probe.shard, probe.hash());
    Key::from(key)
}

fn write_positions(probe: &Probe, call: &mut Arguments<'_>) {
    for position in probe.positions() {
        call.integer(position as i64);
    }
}

impl Outcome<Holder<false>> for Seen {
    // Each looks at as many bits as there are hashes.
    const MOST_RUNS: usize = 32;
    type Scope = BloomFilter;
    type Query = Probe;
    type Found = Found;
    type Entry = Probe;

    fn write_scope(filter: &BloomFilter, call: &mut Arguments<'_>) {
        filter.layout().write(call);
    }

    fn write_query(probe: &Probe, call: &mut Arguments<'_>) {
        write_positions(probe, call);
    }

    fn write_entry(probe: &Probe, call: &mut Arguments<'_>) {
        write_positions(probe, call);
    }

    fn decode(field: Field<'_>) -> Result<Found, Garbled> {
        match field {
            Field::Text(text) if text == b"seen" => Ok(Found::Seen),
            Field::Text(text) => Ok(Found::Other(Mismatch(String::from_utf8_lossy(text).into_owned()))),
            _ => Err(Garbled("a script answered something else where a filter's answer belongs")),
        }
    }

    fn look(_: &Holder<false>, filter: &BloomFilter, probe: &Probe, bypass: bool, _: i64) -> Look<Found> {
        match filter.step(probe, false) {
            Some(Ok(Ok(true))) if !bypass => Look::Done(Found::Seen),
            Some(Ok(Err(mismatch))) => Look::Done(Found::Other(mismatch)),
            Some(Err(_)) => Look::Done(Found::Full),
            Some(Ok(Ok(_))) | None => Look::Open(None),
        }
    }

    fn enter(
        _: &mut Holder<false>,
        filter: &BloomFilter,
        probe: &Probe,
        _: bool,
        _: i64,
    ) -> Result<Entered, Found> {
        // What was handled was handled, whoever holds the claim by now.
        match filter.step(probe, true) {
            Some(Err(_)) => Err(Found::Full),
            Some(Ok(Err(mismatch))) => Err(Found::Other(mismatch)),
            Some(Ok(Ok(_))) | None => Ok(Entered::Something),
        }
    }
}
