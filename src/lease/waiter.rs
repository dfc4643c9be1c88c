//! The acquire of a caller, its waiter in this process, and the result of the waiter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::Error;
use crate::error::reasons::Subject;
use crate::lease::handle::Lease;
use crate::lease::key_state::AcquireTerms;
use crate::lease::kind::{Found, Kind, Query};
use crate::lease::options::{Holding, micros};
use crate::lease::token::Suffix;
use crate::sync::lock;

/// The options of one acquire.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest<Q = ()> {
    pub(crate) subject: Subject,
    /// The suffix that the kind of lease adds to the token.
    pub(crate) suffix: Suffix,
    /// Waiters of lower ranks are served first.
    pub(crate) rank: i64,
    /// How to wait; `None`: do not wait.
    pub(crate) wait: Option<Patience>,
    /// The query for outcomes of earlier leases.
    pub(crate) query: Q,
    /// Whether to acquire in spite of such outcomes. It is reset once the place in the queue is lost.
    pub(crate) bypass: bool,
    /// Whether to stop waiting when the store is unavailable.
    pub(crate) gives_up: bool,
    /// If set, refuse a wait that would take too long. The value is the number of waiters that are served at the same
    /// time.
    pub(crate) early: Option<u32>,
}

impl<Q> AcquireRequest<Q> {
    pub(crate) fn new(
        query: Q,
        subject: Subject,
        suffix: Suffix,
        rank: i64,
        wait: Option<Patience>,
    ) -> Self {
        Self {
            subject,
            suffix,
            rank,
            wait,
            query,
            bypass: false,
            gives_up: false,
            early: None,
        }
    }

    pub(super) fn terms(&self, holding: &Holding) -> AcquireTerms {
        let max_waiters = self.wait.map_or(0, |wait| wait.max_waiters.into());
        AcquireTerms {
            ttl: micros(holding.options.ttl),
            max_waiters,
            rank: self.rank,
            placed: self.early.is_some(),
        }
    }
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The longest wait; `None`: no limit.
    pub(crate) max_wait: Option<Duration>,
    /// The acquire is refused if this many waiters are in the queue.
    pub(crate) max_waiters: u32,
}

impl Patience {
    pub(crate) const FOR_EVER: Self = Self {
        max_wait: None,
        max_waiters: u32::MAX,
    };
}

/// The result of an acquire.
#[derive(Debug)]
pub(crate) enum Acquired<F> {
    /// A lease, and the outcome of an earlier one, if any.
    Lease(Lease, Option<F>),
    /// An earlier lease has an outcome that makes the acquire unnecessary.
    Done(F),
}

/// The result that a waiter receives; `None`: its place is lost, and it must acquire again.
pub(super) type WaiterResult<F> = Result<Option<Acquired<F>>, Error>;

/// A waiter. Waiters are compared by identity.
#[derive(Debug)]
pub(crate) struct Waiter<K: Kind> {
    pub(super) holding: Arc<Holding>,
    pub(super) ask: AcquireRequest<Query<K>>,
    /// `None` once it has a result.
    result: Mutex<Option<oneshot::Sender<WaiterResult<Found<K>>>>>,
}

impl<K: Kind> Waiter<K> {
    /// Creates a waiter, and the receiver of its result.
    pub(super) fn new(
        holding: &Arc<Holding>,
        ask: AcquireRequest<Query<K>>,
    ) -> (Arc<Self>, oneshot::Receiver<WaiterResult<Found<K>>>) {
        let (sender, receiver) = oneshot::channel();
        let waiter = Self {
            holding: Arc::clone(holding),
            ask,
            result: Mutex::new(Some(sender)),
        };
        (Arc::new(waiter), receiver)
    }

    /// Sends a result to the waiter. Drops it if the waiter has left, or has already been sent one.
    pub(super) fn offer(&self, result: WaiterResult<Found<K>>) {
        let sender = lock(&self.result).take();
        if let Some(Err(result)) = sender.map(|sender| sender.send(result)) {
            decline(result);
        }
    }
}

/// Drops a result that its waiter did not accept.
pub(super) fn decline<F>(result: WaiterResult<F>) {
    if let Ok(Some(Acquired::Lease(lease, _))) = result {
        lease.decline();
    }
}

impl<K: Kind> PartialEq for Waiter<K> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
