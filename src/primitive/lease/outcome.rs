//! What a kind of lease keeps of a key besides who holds it: what came of the leases before.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use crate::store::{Arguments, Field, Garbled};

/// The outcomes of one kind: looked at by whoever acquires, entered by whoever has held. In Lua, `look` and `enter`.
pub(crate) trait Outcome<H>: fmt::Debug + Send + Sync + 'static {
    /// Whether there is anything to look at: then acquires are answered with what was found.
    const KEPT: bool = true;
    /// Whether it carries answers of any size, see [`Operation::BULK`](crate::store::Operation::BULK).
    const BULK: bool = false;
    /// How many runs one call takes at most, by what they write and find.
    const MOST_RUNS: usize = 64;
    /// What all of a namespace share.
    type Scope: fmt::Debug + Send + Sync + 'static;
    /// What it takes to look.
    type Query: Clone + fmt::Debug + Send + Sync + 'static;
    /// What is found.
    type Found: Clone + fmt::Debug + PartialEq + Eq + Send + Sync + 'static;
    /// What is entered.
    type Entry: Clone + fmt::Debug + Send + Sync + 'static;

    /// The bytes of what is entered.
    fn payload(_entry: &Self::Entry) -> usize {
        0
    }
    /// Notes when the store was first asked (µs by its clock), for those who have to ask again.
    fn asked_at(_query: &mut Self::Query, _now: i64) {}
    /// Whether it is for those who wait alone: then it is not entered where nobody does.
    fn needs_waiters(_entry: &Self::Entry) -> bool {
        false
    }
    /// Writes what all runs of a call share.
    fn write_scope(scope: &Self::Scope, call: &mut Arguments<'_>);
    /// Writes what one who looks needs.
    fn write_query(query: &Self::Query, call: &mut Arguments<'_>);
    /// Writes what is entered.
    fn write_entry(entry: &Self::Entry, call: &mut Arguments<'_>);
    /// Reads what was found.
    fn decode(field: Field<'_>) -> Result<Self::Found, Garbled>;
    /// Looks, in process; for those who [bypass](super::Ask::bypass) it, only for what keeps even them from it.
    fn look(
        holders: &H,
        scope: &Self::Scope,
        query: &Self::Query,
        bypass: bool,
        now: i64,
    ) -> Look<Self::Found>;
    /// What those who wait are told, if that is all there is to know.
    fn hear(_scope: &Self::Scope, _told: &[u8]) -> Option<Self::Found> {
        None
    }

    /// Enters, in process; `holding`: whether the lease was still held. Or says what is in the way.
    fn enter(
        holders: &mut H,
        scope: &Self::Scope,
        entry: &Self::Entry,
        holding: bool,
        now: i64,
    ) -> Result<Entered, Self::Found>;
}

/// What was entered.
#[derive(Clone, Debug)]
pub(crate) enum Entered {
    Nothing,
    /// Those who wait are to look.
    Something,
    /// The same; and how full it is where it was entered.
    Filled(u64),
    /// This is told to those who wait.
    Told(Arc<[u8]>),
}

/// What a look brings.
#[derive(Clone, Debug)]
pub(crate) enum Look<F> {
    /// Nothing, or nothing that changes what is to be done.
    Open(Option<F>),
    /// Nothing is left to do for those who would have to wait.
    Meanwhile(F),
    /// Nothing is left to do.
    Done(F),
}

impl<F> Look<F> {
    /// `None`: there is; `Some(false)`: not for those who would have to wait.
    pub(crate) fn is_done(&self) -> Option<bool> {
        match self {
            Self::Open(_) => None,
            Self::Meanwhile(_) => Some(false),
            Self::Done(_) => Some(true),
        }
    }

    pub(crate) fn found(self) -> Option<F> {
        match self {
            Self::Open(found) => found,
            Self::Meanwhile(found) | Self::Done(found) => Some(found),
        }
    }
}

/// Nothing is kept.
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
        Err(Garbled("a script found something where nothing is kept"))
    }

    fn look(_: &H, (): &(), (): &(), _: bool, _: i64) -> Look<Infallible> {
        Look::Open(None)
    }

    fn enter(_: &mut H, (): &(), entry: &Infallible, _: bool, _: i64) -> Result<Entered, Infallible> {
        match *entry {}
    }
}
