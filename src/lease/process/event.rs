//! What can happen to the tokens of a process, and what follows from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::error::Error;
use crate::key::Key;
use crate::lease::key_state::Standing;
use crate::lease::operations::Answer;
use crate::lease::options::{Holding, micros};
use crate::lease::token::Token;
use crate::store::notifier::{Link, Refusal};
use crate::store::scheduler::Signal;
use crate::store::validity::{Anchor, Validity};

/// The outside of [`Tokens`](super::Tokens): the waiters, the leases and the names of tokens. In the model
/// these are plain numbers.
pub(crate) trait Party {
    /// A waiter. Clones are equal.
    type Waiter: Clone + PartialEq + fmt::Debug;
    /// The lease of one holder.
    type Lease: Clone + fmt::Debug;
    /// The outcome of an earlier lease.
    type Found: Clone + fmt::Debug;

    /// The options that a waiter acquires with.
    fn options(waiter: &Self::Waiter) -> &Arc<Holding>;

    /// Whether a waiter stops waiting when the store is unavailable.
    fn gives_up(_waiter: &Self::Waiter) -> bool {
        false
    }

    /// Whether a lease is to last even if this process ends: its holder is done, and others must not have it yet.
    fn outlasts(_lease: &Self::Lease) -> bool {
        false
    }

    /// Returns a new id, and the token that contains it.
    fn token(&mut self, waiter: &Self::Waiter) -> (u64, Token);

    /// Makes the lease for a waiter.
    fn lease(&mut self, waiter: &Self::Waiter, grant: Grant) -> Self::Lease;
}

/// What the store granted to a token.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) id: u64,
    pub(crate) fence: i64,
    /// Whether the acquire may run again, after the release.
    pub(crate) twice: bool,
    pub(crate) validity: Validity,
    /// When it was learned of.
    pub(crate) at: Instant,
    /// Whether its waiter has to accept it first.
    pub(crate) offered: bool,
}

/// When something happens, and whether pushed messages arrive at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// By the [clock](crate::clock) of leases.
    pub(crate) at: Instant,
    pub(crate) link: Link,
}

/// What happens to a token. The ids are those in tokens.
#[derive(Debug)]
pub(crate) enum Event<P: Party> {
    /// A waiter comes.
    Arrives { key: Key, waiter: P::Waiter },
    /// A waiter goes away. `id`: of its own acquire. `unanswered`: nothing receives the answer to that.
    Leaves {
        key: Key,
        waiter: P::Waiter,
        id: Option<u64>,
        unanswered: bool,
    },
    /// An acquire that was sent at `sent` was answered. `polled`: the waiter that receives the answer itself.
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
    /// A message came from the store.
    Pushed { id: u64, news: Notice<P::Found> },
    /// A heartbeat that was sent at `sent` was answered: for each waiter whether it holds or waits. The next lease ends
    /// at `soonest`, by the server's clock.
    Stands {
        sent: Now,
        now: i64,
        soonest: i64,
        each: Vec<(u64, Standing)>,
    },
    /// A heartbeat failed.
    Unanswered { ids: Vec<u64>, error: Error },
    /// A lease that was acquired at once has to be renewed, or to be ended: `renew` is when.
    Holds {
        grant: Grant,
        lease: P::Lease,
        options: Arc<Holding>,
        renew: Option<Instant>,
    },
    /// A waiter has accepted its lease.
    Accepted { id: u64, fence: i64 },
    /// A renewal was answered. `scheduled`: it was an [`Effect::Renew`].
    Renewed {
        id: u64,
        renewed: Renewed,
        scheduled: bool,
    },
    /// A lease has ended here, whatever its renewals said.
    Lost { id: u64, fence: i64 },
    /// A holder gives up its lease. `detached`: nothing awaits the release.
    Ends {
        release: Release,
        id: u64,
        fence: i64,
        detached: bool,
    },
    /// The store does not hold the lease any more, or shall keep it without this process.
    Forgotten { id: u64, fence: i64 },
    /// A token without an entry here is released.
    Releases(Release),
    /// An acquire without an entry here, whose answer is not known or not wanted, may still run. It is withdrawn in its turn.
    Withdraws(Release),
    /// A release was answered.
    Released {
        owed: u64,
        result: Result<(), Error>,
    },
    /// Something may be due, messages may have been missed, all releases are sent again now, or this process gives up all
    /// its leases.
    Signal(Signal),
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The call that was sent at `sent` made the lease valid until then.
    Valid { sent: Instant, until: Instant },
    /// The store says that the lease has ended.
    Gone,
    /// The call failed.
    Unknown,
}

/// A message to a waiter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Notice<F> {
    /// It holds until `expiry` (µs, by the server's clock).
    Granted { expiry: i64, fence: i64 },
    /// It lost its place in the queue, or its lease, as is said.
    Gone,
    /// An outcome leaves nothing to do.
    Found(F),
    /// It lost its place, and is refused.
    Refused(Refusal),
}

/// A release of a lease, or of a place in the queue. Or the last renewal of a lease that is left to others.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) key: Key,
    pub(crate) token: Token,
    /// Whether the acquire may run after the release.
    pub(crate) withdrawn: bool,
    /// Whether the lease is renewed instead.
    pub(crate) renews: bool,
    /// The ttl of its acquire, µs.
    pub(crate) ttl: i64,
    /// How long the lease or the place may last.
    pub(crate) left: Duration,
}

impl Release {
    pub(crate) fn new(
        key: &Key,
        token: &Token,
        withdrawn: bool,
        ttl: Duration,
        left: Duration,
    ) -> Self {
        Self {
            key: key.clone(),
            token: token.clone(),
            withdrawn,
            renews: false,
            ttl: micros(ttl),
            left,
        }
    }
}

/// What has to be done. The order matters: a release is sent before the acquire that follows it.
#[derive(Clone, Debug)]
pub(crate) enum Effect<P: Party> {
    /// Send an acquire. Its waiter does so, if it has just arrived; otherwise it is sent in the background.
    Acquire {
        id: u64,
        key: Key,
        token: Token,
        options: Arc<Holding>,
    },
    /// Send a release. `owed`: the number under which it must be answered, if it can fail.
    Release { release: Release, owed: Option<u64> },
    /// Send a heartbeat for waiters of a key.
    Heartbeat {
        key: Key,
        waiters: Vec<(u64, Token)>,
    },
    /// Renew a lease. `extends`: for its full ttl; otherwise only look up whether it is held.
    Renew { lease: P::Lease, extends: bool },
    /// A renewal that was sent at `sent` made a lease valid until then.
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
    /// Tell a waiter that it gets no lease by this acquire.
    Tell {
        waiter: P::Waiter,
        outcome: Told<P::Found>,
    },
    /// A lease has ended without its holder. `taken_back`: its waiter has not accepted it in time.
    Lost { lease: P::Lease, taken_back: bool },
}

pub(crate) type Effects<P> = SmallVec<[Effect<P>; 2]>;

/// What a waiter learns of its acquire, if it gets no lease.
#[derive(Clone, Debug)]
pub(crate) enum Told<F> {
    /// Its place is lost: it must acquire again.
    Again,
    /// There is nothing left to do.
    Found(F),
    /// The queue is full. The next lease ends in `left` µs, and `before` waiters are ahead.
    Refused { left: i64, before: i64 },
    /// The limit is 0.
    Closed,
    /// The call to the store failed.
    Failed(Error),
}

/// Until when a grant is valid, and how it was learned of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By the answer to an acquire: for the full ttl.
    Answer(Anchor),
    /// By a release elsewhere, for a short time, within which it must be renewed: learned from a push (`None`), or from
    /// a heartbeat.
    Grant(Option<Anchor>),
}
