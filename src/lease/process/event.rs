//! The events of the tokens of a process, and their effects.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::error::Error;
use crate::key::Key;
use crate::lease::key_state::Position;
use crate::lease::operations::{Answer, Release};
use crate::lease::options::Holding;
use crate::lease::token::Token;
use crate::store::notifier::{Link, Refusal};
use crate::store::scheduler::Signal;
use crate::store::validity::{Anchor, Validity};

/// The environment of [`Tokens`](super::Tokens): the waiters, the leases and the names of tokens. In the model these
/// are plain numbers.
pub(crate) trait Host {
    /// A waiter. Clones are equal.
    type Waiter: Clone + PartialEq + fmt::Debug;
    /// The lease of one holder.
    type Lease: Clone + fmt::Debug;
    /// The outcome of an earlier lease.
    type Found: Clone + fmt::Debug;

    /// Returns the options of the acquire of a waiter.
    fn options(waiter: &Self::Waiter) -> &Arc<Holding>;

    /// Whether a waiter stops waiting when the store is unavailable.
    fn gives_up(_waiter: &Self::Waiter) -> bool {
        false
    }

    /// Whether a lease must outlast this process: no other holder may have it yet, although its holder is done, or
    /// detached work may still run under it.
    fn outlasts(_lease: &Self::Lease) -> bool {
        false
    }

    /// Returns a new id, and the token that contains it.
    fn token(&mut self, waiter: &Self::Waiter) -> (u64, Token);

    /// Creates the lease for a waiter.
    fn lease(&mut self, waiter: &Self::Waiter, grant: Grant) -> Self::Lease;
}

/// A lease that the store granted to a token.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) id: u64,
    pub(crate) fence: i64,
    /// Whether the acquire may run again, after the release.
    pub(crate) twice: bool,
    pub(crate) validity: Validity,
    /// When this process learned of the grant.
    pub(crate) at: Instant,
    /// Whether the waiter has to accept the lease first.
    pub(crate) offered: bool,
}

/// The time of an event, and whether pushed messages arrive at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// The time by the [clock](crate::clock) of leases.
    pub(crate) at: Instant,
    pub(crate) link: Link,
}

/// An event of a token. The ids are those in tokens.
#[derive(Debug)]
pub(crate) enum Event<P: Host> {
    /// A waiter arrives.
    Arrives { key: Key, waiter: P::Waiter },
    /// A waiter leaves. `id`: that of its own acquire. `unanswered`: no task receives the reply to that acquire.
    Leaves {
        key: Key,
        waiter: P::Waiter,
        id: Option<u64>,
        unanswered: bool,
    },
    /// The reply to an acquire that was sent at `sent`. `polled`: the waiter that receives the reply itself.
    Answered {
        id: u64,
        sent: Now,
        answer: Answer<P::Found>,
        polled: Option<P::Waiter>,
    },
    /// An acquire failed. `is_final`: no other call can follow.
    Failed {
        id: u64,
        error: Error,
        is_final: bool,
    },
    /// A message from the store.
    Pushed { id: u64, news: PushEvent<P::Found> },
    /// The reply to a heartbeat that was sent at `sent`: for each waiter, whether it holds or waits. The next lease
    /// ends at `soonest`, by the server's clock.
    Positions {
        sent: Now,
        now: i64,
        soonest: i64,
        each: Vec<(u64, Position)>,
    },
    /// A heartbeat failed.
    Unanswered { ids: Vec<u64>, error: Error },
    /// A lease that was acquired without waiting has to be renewed or ended. `renew`: when.
    Holds {
        grant: Grant,
        lease: P::Lease,
        options: Arc<Holding>,
        renew: Option<Instant>,
    },
    /// A waiter has accepted its lease.
    Accepted { id: u64, fence: i64 },
    /// The reply to a renewal. `scheduled`: it was an [`Effect::Renew`].
    Renewed {
        id: u64,
        renewed: Renewed,
        scheduled: bool,
    },
    /// A lease has ended in this process, whatever its renewals returned.
    Lost { id: u64, fence: i64 },
    /// A holder releases its lease. `detached`: no task awaits the release.
    Ends {
        release: Release,
        id: u64,
        fence: i64,
        detached: bool,
    },
    /// The store no longer holds the lease, or must keep it without this process.
    Forgotten { id: u64, fence: i64 },
    /// A token without an entry here is released.
    Releases(Release),
    /// An acquire without an entry here may still run, and its result is unknown or unwanted. It is withdrawn once few
    /// enough releases are pending.
    Withdraws(Release),
    /// The reply to a release.
    Released {
        owed: u64,
        result: Result<(), Error>,
    },
    /// Something may be due, messages may have been missed, all releases are to be sent again now, or this process
    /// releases all its leases.
    Signal(Signal),
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The call that was sent at `sent` made the lease valid until `until`.
    Valid { sent: Instant, until: Instant },
    /// The store replied that the lease has ended.
    Gone,
    /// The call failed.
    Unknown,
}

/// A message to a waiter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PushEvent<F> {
    /// The waiter holds the lease until `expiry` (µs, by the server's clock).
    Granted { expiry: i64, fence: i64 },
    /// The waiter lost its place in the queue, or its lease, according to the message.
    Gone,
    /// An outcome makes the acquire unnecessary.
    Found(F),
    /// The waiter lost its place, and is refused.
    Refused(Refusal),
}

/// The effect of an event. The order matters: a release is sent before the acquire that follows it.
#[derive(Clone, Debug)]
pub(crate) enum Effect<P: Host> {
    /// Send an acquire. A waiter that has just arrived sends it itself; otherwise it is sent in the background.
    Acquire {
        id: u64,
        key: Key,
        token: Token,
        options: Arc<Holding>,
    },
    /// Send a release. `owed`: the number for [`Event::Released`], if the release can fail.
    Release { release: Release, owed: Option<u64> },
    /// Send a heartbeat for waiters of a key.
    Heartbeat {
        key: Key,
        waiters: Vec<(u64, Token)>,
    },
    /// Renew a lease. `extends`: for its full ttl; otherwise only look up whether it is held.
    Renew { lease: P::Lease, extends: bool },
    /// A renewal that was sent at `sent` made a lease valid until `until`.
    Valid {
        lease: P::Lease,
        sent: Instant,
        until: Instant,
    },
    /// Make the store push messages to this process.
    Subscribe,
    /// Give a lease to a waiter.
    Give {
        waiter: P::Waiter,
        lease: P::Lease,
        found: Option<P::Found>,
    },
    /// Give a waiter the outcome of an acquire that got no lease.
    Tell {
        waiter: P::Waiter,
        outcome: WaiterOutcome<P::Found>,
    },
    /// A lease has ended, not by its holder. `taken_back`: its waiter did not accept it in time.
    Lost { lease: P::Lease, taken_back: bool },
}

pub(crate) type Effects<P> = SmallVec<[Effect<P>; 2]>;

/// The outcome of an acquire that got no lease, for its waiter.
#[derive(Clone, Debug)]
pub(crate) enum WaiterOutcome<F> {
    /// The place in the queue is lost: the waiter must acquire again.
    Again,
    /// An outcome makes the acquire unnecessary.
    Found(F),
    /// The queue is full. The next lease ends in `left` µs, and `before` waiters are ahead.
    Refused { left: i64, before: i64 },
    /// The limit is 0.
    Closed,
    /// The call to the store failed.
    Failed(Error),
}

/// How this process learned of a grant, which determines how long it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantedBy {
    /// From the reply to an acquire: valid for the full ttl.
    Answer(Anchor),
    /// From a release elsewhere: valid for a short time, within which it must be renewed. Learned from a pushed message
    /// (`None`), or from a heartbeat.
    Grant(Option<Anchor>),
}
