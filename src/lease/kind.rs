//! The rules of one kind of lease: when a token can hold, where its holders are stored, and the outcomes that it keeps
//! for a key besides its holders, such as the answer of a single flight.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use crate::lease::order::Order;
use crate::lease::queue::Queue;
use crate::lease::settings::{CallerSettings, Settings};
use crate::lease::token::Token;
use crate::store::operation::{Arguments, Field, Garbled};

/// One kind of lease: its rules in Lua, and their counterpart in Rust.
pub(crate) trait Kind: Clone + fmt::Debug + Send + Sync + 'static {
    /// The holders of one key.
    type Holders: Holders;
    /// The outcomes of earlier leases of a key; `()` for most kinds.
    type Outcome: Outcome<Self::Holders>;
    /// The last parts of the key names; no other kind uses them. See `lua/state.lua`.
    const PARTS: &'static [&'static str];
    /// Its name in the Lua library.
    const NAME: &'static str;
    /// The pieces of the Lua library with the rules of the kind.
    const PIECES: &'static [&'static str];
    /// Whether each grant has a fence that the store keeps.
    const FENCED: bool = true;

    /// Returns the fence of a lease that is granted at `now`, if no higher one is stored.
    fn usual_fence(now: i64) -> i64 {
        now
    }

    /// The weight of a token.
    fn weight(_token: &Token) -> i64 {
        1
    }

    /// Returns whether a token excludes all others.
    fn is_exclusive(_token: &Token) -> bool {
        true
    }
}

pub(crate) type Scope<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Scope;
pub(crate) type Query<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Query;
pub(crate) type Found<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Found;
pub(crate) type Entry<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Entry;

/// The pieces of the Lua library that all operations on leases need.
pub(crate) const LEASES: &[&str] = &["token", "queue", "grants", "holders"];

/// The context of a token that is to hold: its rank, the settings that apply to it, and the time, µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) rank: i64,
    pub(crate) settings: &'a Settings,
    pub(crate) now: i64,
}

/// The holders of one key. Each operation begins with [`sweep`](Self::sweep). Times are in µs.
pub(crate) trait Holders: Clone + fmt::Debug + Default + Send + 'static {
    /// Whether tokens may have another [order](Self::order) than that of arrival.
    const ORDERED: bool = false;
    /// Drops all holders, and the state of earlier ones.
    fn clear(&mut self) {
        *self = Self::default();
    }
    /// See [`Cell::heap_bytes`](crate::store::Cell::heap_bytes).
    fn heap_bytes(&self) -> usize {
        0
    }
    /// Drops the holders whose leases have expired.
    fn sweep(&mut self, now: i64);
    /// Returns the sum of the weights held.
    fn used(&self) -> i64;
    /// Returns the tokens of all holders, in any order.
    fn tokens(&self) -> Vec<Token>;
    /// Returns the expiry and the fence of a holder.
    fn held(&self, token: &Token, now: i64) -> Option<(i64, i64)>;
    /// Returns whether a token can hold in addition to the holders.
    fn fits(&self, token: &Token, of: At<'_>) -> bool;
    /// Returns whether the limit for a token is 0.
    fn is_closed(_token: &Token, _of: At<'_>) -> bool {
        false
    }
    /// Returns the weight of a token.
    fn weight(_token: &Token) -> i64 {
        1
    }
    /// Returns whether no token can become a holder now.
    fn is_full(&self) -> bool {
        false
    }
    /// Returns how many waiters count as ahead of a new waiter of this rank.
    fn counted(queue: &Queue, _rank: i64) -> i64 {
        queue.ahead(1)
    }
    /// Returns the order that a token contains.
    fn order(_token: &Token) -> Order {
        Order::ARRIVAL
    }
    /// Makes a token a holder. Returns its fence.
    fn hold(&mut self, token: &Token, expiry: i64, now: i64, queue: &Queue) -> i64;
    /// Records that a lease was granted to a waiter, which has to renew it before it expires.
    fn granted(&mut self, _token: &Token) {}
    /// Returns whether the lease was granted to a waiter, and was not renewed yet.
    fn is_granted(&self, _token: &Token) -> bool {
        false
    }
    /// Records that such a lease was renewed.
    fn confirm(&mut self, _token: &Token) {}
    /// Returns the grants that expired without a renewal since the last call, and when.
    fn lapsed(&mut self) -> Vec<(Token, i64)> {
        Vec::new()
    }
    /// Sets the expiry of a holder's lease.
    fn extend(&mut self, token: &Token, expiry: i64, now: i64);
    /// Makes the next fence higher than `fence`, which was granted elsewhere. There must be a holder.
    fn raise(&mut self, _fence: i64, _now: i64) {}
    /// Removes a holder. Returns whether the token held.
    fn forget(&mut self, token: &Token) -> bool;
    /// Returns when the next lease ends; 0: unknown. No lease lasts longer than the ttl in its token. A longer lease
    /// was granted before the server's clock was set back, and is cut to the ttl.
    fn soonest(&mut self, now: i64) -> i64;
    /// Returns the waiter that is served first. Once `turn` is set, all waiters of the second rank are served before
    /// the first rank.
    fn head(&self, queue: &mut Queue, turn: &mut bool, now: i64) -> Option<Token>;
    /// Returns the time until which the fence is kept, µs; 0: there is none.
    #[cfg(test)]
    fn fence_until(&self) -> i64 {
        0
    }
    /// Returns whether the state can be dropped without a change in behaviour.
    fn is_idle(&self, now: i64) -> bool;
}

/// The outcomes of one kind. An acquire reads them; a holder stores them. In Lua: `look` and `enter`.
pub(crate) trait Outcome<H>: fmt::Debug + Send + Sync + 'static {
    /// Whether the kind has outcomes. If so, the reply to an acquire contains the outcome that was found.
    const KEPT: bool = true;
    /// Whether a message may contain the reason why a place in the queue is gone.
    const HEARS: bool = Self::KEPT;
    /// Whether it carries answers of any size, see [`Operation::BULK`](crate::store::Operation::BULK).
    const BULK: bool = false;
    /// The maximum number of runs in one call, given the size of the data that they write and find.
    const MOST_RUNS: usize = 64;
    /// The settings that a namespace shares.
    type Scope: fmt::Debug + Send + Sync + 'static;
    /// The arguments of a look-up.
    type Query: Clone + fmt::Debug + Send + Sync + 'static;
    /// The result of a look-up.
    type Found: Clone + fmt::Debug + PartialEq + Eq + Send + Sync + 'static;
    /// The arguments for storing an outcome.
    type Entry: Clone + fmt::Debug + Send + Sync + 'static;

    /// Returns the size of an outcome in bytes.
    fn payload(_entry: &Self::Entry) -> usize {
        0
    }
    /// Records the time of the reply to an acquire (µs by the clock of the store), for a caller that has to acquire
    /// again: the first time is kept.
    fn asked_at(_query: &mut Self::Query, _now: i64) {}
    /// Returns the settings that an acquire sends to the state of the key.
    fn told(_query: &Self::Query) -> Option<&CallerSettings> {
        None
    }
    /// Writes the arguments that all runs of a call share.
    fn write_scope(scope: &Self::Scope, call: &mut Arguments<'_>);
    /// Writes the arguments of a look-up.
    fn write_query(query: &Self::Query, call: &mut Arguments<'_>);
    /// Writes the arguments for storing an outcome.
    fn write_entry(entry: &Self::Entry, call: &mut Arguments<'_>);
    /// Reads the result of a look-up.
    fn decode(field: Field<'_>) -> Result<Self::Found, Garbled>;
    /// Looks up the outcome, in memory. With [bypass](super::waiter::AcquireRequest::bypass), it only returns an
    /// outcome that stops even such an acquire.
    fn look(
        holders: &H,
        scope: &Self::Scope,
        query: &Self::Query,
        bypass: bool,
        now: i64,
    ) -> Look<Self::Found>;
    /// Returns the outcome from a message to the waiters, if it is complete.
    fn hear(_scope: &Self::Scope, _told: &[u8]) -> Option<Self::Found> {
        None
    }

    /// Stores an outcome, in memory. Returns an error if something prevents it.
    fn enter(
        holders: &mut H,
        scope: &Self::Scope,
        entry: &Self::Entry,
        of: Completing,
        now: i64,
    ) -> Result<Entered, Self::Found>;
}

/// The lease whose outcome is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completing {
    /// Whether the lease is still held.
    pub(crate) is_held: bool,
    /// Whether the key has a waiter in its queue.
    pub(crate) has_waiters: bool,
}

/// The result of storing an outcome.
#[derive(Clone, Debug)]
pub(crate) enum Entered {
    Nothing,
    /// The waiters must look the outcome up.
    Something,
    /// The waiters must look the outcome up; and how full the filter is now.
    Filled(u64),
    /// The waiters get this message.
    Message(Arc<[u8]>),
}

/// The result of a look-up.
#[derive(Clone, Debug)]
pub(crate) enum Look<F> {
    /// Nothing was found, or nothing that makes the acquire unnecessary.
    Open(Option<F>),
    /// A caller that would have to wait has nothing left to do.
    Meanwhile(F),
    /// No caller has anything left to do.
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
