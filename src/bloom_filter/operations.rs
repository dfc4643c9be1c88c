//! The operations on one shard of a filter. Each corresponds to one operation of `lua/filter.lua`.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::bloom_filter::bits::{Bits, Probe};
use crate::bloom_filter::layout::{Layout, Mismatch, read};
use crate::store::operation::{Arguments, Fields, Garbled, Operation, Repeat, Script, function};

/// The configuration, the bits of even generations, and the bits of odd generations.
pub(crate) const PARTS: &[&str] = &["config", "bits0", "bits1"];

/// Items of one shard.
pub(crate) type Probes = SmallVec<[Probe; 1]>;

/// One number per item, or the result of the step for the shard.
pub(crate) type Answers = SmallVec<[u64; 2]>;

/// A step on one shard. Its script takes the layout and the positions of the items.
pub(crate) trait Step: fmt::Debug + Send + Sync + 'static {
    const SCRIPT: Script;
    const REPEAT: Repeat;
    /// The number of results of a step that takes no items.
    const NUMBERS: usize;
    /// The same step in Rust: with the layout, the items and the time.
    const APPLY: fn(&mut Bits, &Layout, &[Probe], i64) -> Result<Answers, Mismatch>;
}

/// The pieces of the Lua library for filters.
pub(super) const FILTER: &[&str] = &["bloom", "filter"];

/// Implements steps: `Step(SCRIPT, REPEAT, NUMBERS) => APPLY;`.
macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident($script:expr, $repeat:ident, $numbers:literal) => $apply:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) enum $step {}

        impl Step for $step {
            const SCRIPT: Script = $script;
            const REPEAT: Repeat = Repeat::$repeat;
            const NUMBERS: usize = $numbers;
            const APPLY: fn(&mut Bits, &Layout, &[Probe], i64) -> Result<Answers, Mismatch> = $apply;
        }
    )+};
}

steps! {
    /// Inserts items. Returns 1 for each that was already contained, otherwise 0.
    CheckAndInsert(function!(Writes: "check_and_insert"; FILTER), Never, 1)
        => |bits, layout, probes, now| {
            probes.iter().map(|probe| Ok(u64::from(!bits.insert(layout, probe, now)?))).collect()
        };

    /// Returns 1 for each item that is contained, otherwise 0.
    Contains(function!(Reads: "contains"; FILTER), Safe, 1)
        => |bits, layout, probes, now| {
            probes.iter().map(|probe| Ok(u64::from(bits.contains(layout, probe, now)?))).collect()
        };

    /// Counts the set bits of the current generation and of the previous one.
    Count(function!(Reads: "count"; FILTER), Safe, 2)
        => |bits, layout, _, now| bits.count(layout, now).map(Answers::from);

    /// Deletes all items and the configuration.
    Clear(function!(Writes: "clear_filter"; FILTER), Never, 1)
        => |bits, layout, _, now| bits.clear(layout, now).map(|()| smallvec![1]);

    /// Makes sure that the filter exists with this layout.
    Open(function!(Writes: "open_filter"; FILTER), Safe, 1)
        => |bits, layout, _, now| bits.enter(layout, now).map(|_| smallvec![1]);
}

/// A step for items of one shard.
#[derive(Debug)]
pub(crate) struct OnShard<S> {
    pub(crate) layout: Arc<Layout>,
    pub(crate) probes: Probes,
    pub(crate) step: PhantomData<S>,
}

impl<S: Step> Operation for OnShard<S> {
    type Cell = Bits;
    type Reply = Result<Answers, Mismatch>;
    type Undo = Self;
    const SCRIPT: Script = S::SCRIPT;
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = S::REPEAT;
    const SAME_ONCE: bool = false;
    const ONE_KEY: bool = true;

    fn size(&self) -> usize {
        self.probes.len().max(1)
    }

    fn most_runs(&self) -> usize {
        if self.probes.is_empty() {
            1
        } else {
            self.layout.most_items()
        }
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        self.layout.write(call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        self.probes.iter().for_each(|probe| probe.write(call));
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let numbers = if self.probes.is_empty() {
            S::NUMBERS
        } else {
            self.probes.len()
        };
        (0..numbers).map(|_| read(&mut fields)).collect()
    }

    fn apply(self, bits: &mut Bits, now: i64) -> Self::Reply {
        S::APPLY(bits, &self.layout, &self.probes, now)
    }
}
