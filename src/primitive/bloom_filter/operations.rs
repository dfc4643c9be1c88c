//! The operations on one shard of a filter. Each is one script in `lua/bloom_filter/` and its twin in Rust.

use std::sync::Arc;

use smallvec::SmallVec;

use super::bits::Bits;
use super::hash::Probe;
use super::layout::{Layout, Mismatch};
use crate::store::{Arguments, Field, Fields, Garbled, Never, Operation, Repeat, Script, script};

/// The configuration, the bits of even generations, and the bits of odd generations.
pub(crate) const PARTS: &[&str] = &["config", "bits0", "bits1"];

/// Items of one shard.
pub(crate) type Probes = SmallVec<[Probe; 1]>;

/// One answer per item.
pub(crate) type Answers = SmallVec<[bool; 1]>;

/// Inserts items. Answers whether each was new.
#[derive(Debug)]
pub(crate) struct CheckAndInsert {
    pub(crate) layout: Arc<Layout>,
    pub(crate) probes: Probes,
}

/// Answers whether each item is contained.
#[derive(Debug)]
pub(crate) struct Contains {
    pub(crate) layout: Arc<Layout>,
    pub(crate) probes: Probes,
}

/// Counts the set bits of the current generation and of the one before.
#[derive(Debug)]
pub(crate) struct Count(pub(crate) Arc<Layout>);

/// Deletes all items and the configuration.
#[derive(Debug)]
pub(crate) struct Clear(pub(crate) Arc<Layout>);

/// Makes sure that the filter exists with this layout.
#[derive(Debug)]
pub(crate) struct Open(pub(crate) Arc<Layout>);

fn write_positions(probes: &Probes, call: &mut Arguments<'_>) {
    for position in probes.iter().flat_map(Probe::positions) {
        call.integer(position as i64);
    }
}

/// Reads a number or a problem.
fn read(fields: &mut Fields<'_>) -> Result<Result<u64, Mismatch>, Garbled> {
    match fields.next()? {
        Field::Integer(-1) => Err(Garbled(
            "WRONGTYPE a key of the filter has a value of another type: delete the key or use another name",
        )),
        Field::Integer(number) => {
            u64::try_from(number).map(Ok).map_err(|_| Garbled("a script returned a negative number"))
        }
        Field::Text(stored) => Ok(Err(Mismatch(String::from_utf8_lossy(stored).into_owned()))),
        Field::List(_) => Err(Garbled("a script returned a list instead of a number")),
    }
}

/// Reads for each item whether it was contained.
fn read_each(probes: &Probes, mut fields: Fields<'_>) -> Result<Result<Answers, Mismatch>, Garbled> {
    probes.iter().map(|_| Ok(read(&mut fields)?.map(|seen| seen == 1))).collect()
}

impl Operation for CheckAndInsert {
    type Cell = Bits;
    type Reply = Result<Answers, Mismatch>;
    type Undo = Never<Bits>;
    const SCRIPT: Script = script!("bloom_filter/check_and_insert", "lib/bloom");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const SAME_ONCE: bool = false;
    const ONE_KEY: bool = true;

    fn size(&self) -> usize {
        self.probes.len()
    }

    fn most_runs(&self) -> usize {
        self.layout.most_items()
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        self.layout.write(call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        write_positions(&self.probes, call);
    }

    fn decode(self, _: usize, _: i64, fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let seen = read_each(&self.probes, fields)?;
        Ok(seen.map(|seen| seen.into_iter().map(|seen| !seen).collect()))
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Self::Reply {
        self.probes.iter().map(|probe| bits.insert(&self.layout, probe, now)).collect()
    }
}

impl Operation for Contains {
    type Cell = Bits;
    type Reply = Result<Answers, Mismatch>;
    type Undo = Never<Bits>;
    const SCRIPT: Script = script!("bloom_filter/contains", "lib/bloom");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Safe;
    const SAME_ONCE: bool = false;
    const ONE_KEY: bool = true;

    fn size(&self) -> usize {
        self.probes.len()
    }

    fn most_runs(&self) -> usize {
        self.layout.most_items()
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        self.layout.write(call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        write_positions(&self.probes, call);
    }

    fn decode(self, _: usize, _: i64, fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        read_each(&self.probes, fields)
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Self::Reply {
        self.probes.iter().map(|probe| bits.contains(&self.layout, probe, now)).collect()
    }
}

impl Operation for Count {
    type Cell = Bits;
    type Reply = Result<[u64; 2], Mismatch>;
    type Undo = Never<Bits>;
    const SCRIPT: Script = script!("bloom_filter/count", "lib/bloom");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn shared(&self, call: &mut Arguments<'_>) {
        self.0.write(call);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let (current, before) = (read(&mut fields)?, read(&mut fields)?);
        Ok(current.and_then(|current| Ok([current, before?])))
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Self::Reply {
        bits.count(&self.0, now)
    }
}

impl Operation for Clear {
    type Cell = Bits;
    type Reply = Result<(), Mismatch>;
    type Undo = Never<Bits>;
    const SCRIPT: Script = script!("bloom_filter/clear", "lib/bloom");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;

    fn shared(&self, call: &mut Arguments<'_>) {
        self.0.write(call);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        Ok(read(&mut fields)?.map(|_| ()))
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Self::Reply {
        bits.clear(&self.0, now)
    }
}

impl Operation for Open {
    type Cell = Bits;
    type Reply = Result<(), Mismatch>;
    type Undo = Never<Bits>;
    const SCRIPT: Script = script!("bloom_filter/open", "lib/bloom");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn shared(&self, call: &mut Arguments<'_>) {
        self.0.write(call);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        Ok(read(&mut fields)?.map(|_| ()))
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Self::Reply {
        bits.enter(&self.0, now).map(|_| ())
    }
}
