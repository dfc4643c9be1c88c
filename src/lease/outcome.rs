//! Outcomes: what a kind of lease stores for a key besides its holders, such as the answer of a single flight.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use super::settings::Told;
use crate::store::{Arguments, Field, Garbled};

/// The outcomes of one kind. An acquire looks at them; a holder enters them. In Lua: `look` and `enter`.
pub(crate) trait Outcome<H>: fmt::Debug + Send + Sync + 'static {
    /// Whether the kind has outcomes. If so, acquires are answered with what was found.
    const KEPT: bool = true;
    /// Whether a message may say why a place in the queue is gone.
    const HEARS: bool = Self::KEPT;
    /// Whether it carries answers of any size, see [`Operation::BULK`](crate::store::Operation::BULK).
    const BULK: bool = false;
    /// The most runs in one call, given the size of what they write and find.
    const MOST_RUNS: usize = 64;
    /// The settings that a namespace shares.
    type Scope: fmt::Debug + Send + Sync + 'static;
    /// The arguments of a look.
    type Query: Clone + fmt::Debug + Send + Sync + 'static;
    /// What a look finds.
    type Found: Clone + fmt::Debug + PartialEq + Eq + Send + Sync + 'static;
    /// The arguments of an entry.
    type Entry: Clone + fmt::Debug + Send + Sync + 'static;

    /// Returns the size of an entry in bytes.
    fn payload(_entry: &Self::Entry) -> usize {
        0
    }
    /// Records when the store was asked (µs by its clock), for an acquire that has to ask again: the first time counts.
    fn asked_at(_query: &mut Self::Query, _now: i64) {}
    /// Returns what an acquire tells the state of the key.
    fn told(_query: &Self::Query) -> Option<&Told> {
        None
    }
    /// Writes the arguments that all runs of a call share.
    fn write_scope(scope: &Self::Scope, call: &mut Arguments<'_>);
    /// Writes the arguments of a look.
    fn write_query(query: &Self::Query, call: &mut Arguments<'_>);
    /// Writes the arguments of an entry.
    fn write_entry(entry: &Self::Entry, call: &mut Arguments<'_>);
    /// Reads what was found.
    fn decode(field: Field<'_>) -> Result<Self::Found, Garbled>;
    /// Looks at the outcome, in memory. With [bypass](super::Ask::bypass), it only returns what stops even such an
    /// acquire.
    fn look(
        holders: &H,
        scope: &Self::Scope,
        query: &Self::Query,
        bypass: bool,
        now: i64,
    ) -> Look<Self::Found>;
    /// Returns the outcome in a message to the waiters, if it is complete.
    fn hear(_scope: &Self::Scope, _told: &[u8]) -> Option<Self::Found> {
        None
    }

    /// Enters an outcome, in memory. Returns an error if something prevents the entry.
    fn enter(
        holders: &mut H,
        scope: &Self::Scope,
        entry: &Self::Entry,
        of: Completing,
        now: i64,
    ) -> Result<Entered, Self::Found>;
}

/// A lease whose outcome is entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completing {
    /// Whether it is still held.
    pub(crate) is_held: bool,
    /// Whether a waiter has a place in its queue.
    pub(crate) has_waiters: bool,
}

/// What was entered.
#[derive(Clone, Debug)]
pub(crate) enum Entered {
    Nothing,
    /// The waiters must look at it.
    Something,
    /// The same; and how full the filter is now.
    Filled(u64),
    /// The waiters are told this.
    Told(Arc<[u8]>),
}

/// The result of a look.
#[derive(Clone, Debug)]
pub(crate) enum Look<F> {
    /// Nothing was found, or nothing that changes what to do.
    Open(Option<F>),
    /// There is nothing left to do for a caller that would have to wait.
    Meanwhile(F),
    /// There is nothing left to do.
    Done(F),
}

/// The kind keeps no outcomes.
impl<H> Outcome<H> for () {
    const KEPT: bool = false;
    type Scope = ();
    type Query = ();
    type Found = Infallible;
    type Entry = Infallible;

    fn write_scope((): &(), _: &mut Arguments<'_>) {}

    fn write_query((): &(), _: &mut Arguments<'_>) {}

    fn write_entry(entry: &Infallible, _: &mut Arguments<'_>) {
        match *entry {}
    }

    fn decode(_: Field<'_>) -> Result<Infallible, Garbled> {
        Err(Garbled(
            "the script replied with an outcome for a kind of lease that keeps none",
        ))
    }

    fn look(_: &H, (): &(), (): &(), _: bool, _: i64) -> Look<Infallible> {
        Look::Open(None)
    }

    fn enter(
        _: &mut H,
        (): &(),
        entry: &Infallible,
        _: Completing,
        _: i64,
    ) -> Result<Entered, Infallible> {
        match *entry {}
    }
}
