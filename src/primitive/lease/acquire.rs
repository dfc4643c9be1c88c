//! Acquiring a lease: the call to the store, and the wait for its result.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::admission::{Admission, Leases};
use super::kind::{Found, Kind, Query};
use super::outcome::Outcome as _;
use super::seat::{Got, Heard, Seat};
#[cfg(test)]
use super::table::Stage;
use crate::error::{Busy, Subject, Why};
use crate::store::timer::until;
use crate::{Error, Key};

/// The options of one acquire.
#[derive(Clone)]
pub(crate) struct Ask<Q = ()> {
    pub(crate) subject: Subject,
    /// The suffix that the kind of lease adds to the token.
    pub(crate) suffix: String,
    /// Waiters of lower ranks are served first.
    pub(crate) rank: i64,
    /// How to wait; `None`: do not wait.
    pub(crate) wait: Option<Wait>,
    /// The query for outcomes of earlier leases.
    pub(crate) query: Q,
    /// Whether to acquire in spite of such outcomes. It is reset once the place in the queue is lost.
    pub(crate) bypass: bool,
    /// Whether to stop waiting when the store is unavailable.
    pub(crate) gives_up: bool,
}

impl<Q> Ask<Q> {
    pub(crate) fn about(query: Q, subject: Subject, suffix: String, rank: i64, wait: Option<Wait>) -> Self {
        Self { subject, suffix, rank, wait, query, bypass: false, gives_up: false }
    }
}

impl Ask {
    /// An acquire of a kind that keeps no outcomes.
    pub(crate) fn new(subject: Subject, suffix: String, rank: i64, wait: Option<Wait>) -> Self {
        Self::about((), subject, suffix, rank, wait)
    }
}

/// The token of an acquire, and the id in it.
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) token: Arc<str>,
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The longest wait; `None`: no limit.
    pub(crate) max_wait: Option<Duration>,
    /// The acquire is refused if this many waiters are in the queue.
    pub(crate) max_waiters: u32,
}

impl Wait {
    pub(crate) const FOR_EVER: Self = Self { max_wait: None, max_waiters: u32::MAX };
}

impl<K: Kind> Leases<K> {
    /// Acquires a lease, or finds an outcome of an earlier lease. Fails if the acquire is refused. Cancel safe: if
    /// the future is dropped, the waiter leaves the queue, and a granted lease is released.
    pub(crate) async fn acquire_or_find(
        &self,
        key: Key,
        mut ask: Ask<Query<K>>,
    ) -> Result<Got<Found<K>>, Error> {
        // A deadline that overflows is no deadline.
        let max_wait = ask.wait.and_then(|wait| wait.max_wait);
        let deadline = max_wait.and_then(|max_wait| Instant::now().checked_add(max_wait));
        let mut asked_at = None;
        loop {
            if let Some(got) = self.ask_once(&key, &ask, deadline, &mut asked_at).await? {
                return Ok(got);
            }
            if let Some(now) = asked_at {
                K::Outcome::asked_at(&mut ask.query, now);
            }
            // The place was lost: the process was suspended, or the server lost its data. Let the next waiter go
            // first. By now there may be an outcome, so look at it.
            ask.bypass = false;
            tokio::task::yield_now().await;
        }
    }

    async fn ask_once(
        &self,
        key: &Key,
        ask: &Ask<Query<K>>,
        deadline: Option<Instant>,
        asked_at: &mut Option<i64>,
    ) -> Heard<Found<K>> {
        let mut closed = self.holding.closed.subscribe();
        if *closed.borrow_and_update() {
            return Err(Error::interrupted());
        }
        let seat = Seat::new(&self.holding, ask.gives_up);
        let asked = self.admission.sit_down(key, ask, &seat);
        let id = asked.as_ref().map(|asked| asked.id);
        let leaver = Leaver { admission: &self.admission, key, id, seat: &seat };
        let call = async {
            let Some(Asked { token, .. }) = asked else { return pending().await };
            let sent = self.admission.sent();
            (sent, self.admission.ask(key.clone(), token, &self.holding, ask).await)
        };
        tokio::pin!(call);
        let late = until(deadline);
        tokio::pin!(late);
        let mut answered = false;
        loop {
            tokio::select! {
                biased;
                heard = poll_fn(|context| seat.poll(context)) => {
                    // There is nothing left to take back.
                    std::mem::forget(leaver);
                    return match heard {
                        // The lease expired before this poll.
                        Ok(Some(Got::Lease(lease, _))) if !lease.is_held() => Ok(None),
                        heard => heard,
                    };
                }
                (sent, answer) = &mut call, if !answered => {
                    answered = true;
                    let Some(id) = id else { continue };
                    match answer {
                        Ok(answer) => {
                            asked_at.get_or_insert(answer.now);
                            self.admission.answered(id, sent, answer, ask.subject, ask.wait.is_some());
                        }
                        Err(error) => self.admission.failed(id, &error),
                    }
                }
                () = &mut late => {
                    let busy = Busy { subject: ask.subject, why: Why::WaitedTooLong, retry_after: None };
                    return Err(self.admission.outage(key).unwrap_or_else(|| busy.into()));
                }
                _ = closed.changed() => return Err(Error::interrupted()),
            }
        }
    }

    /// Returns the error of the last call for waiters of a key, if the store was unavailable.
    pub(crate) fn outage(&self, key: &Key) -> Option<Error> {
        self.admission.outage(key)
    }

    /// Returns whether the waiters of a key have a place in the store's queue, or wait for a lease that this
    /// process holds.
    #[cfg(test)]
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        let table = crate::store::lock(&self.admission.table);
        table.values().any(|entry| entry.key == *key && entry.stage != Stage::Asking)
    }

    /// Returns whether a lease of a key is offered to a waiter that has not accepted it.
    #[cfg(test)]
    pub(crate) fn has_offered(&self, key: &Key) -> bool {
        let table = crate::store::lock(&self.admission.table);
        let mut tenures =
            table.values().filter(|entry| entry.key == *key).filter_map(|entry| entry.tenure.as_ref());
        tenures.any(|tenure| tenure.offered().is_some())
    }
}

impl<K: Kind<Outcome = ()>> Leases<K> {
    /// Acquires a lease. Fails if the acquire is refused.
    pub(crate) async fn acquire(&self, key: Key, ask: Ask) -> Result<crate::Lease, Error> {
        match self.acquire_or_find(key, ask).await? {
            Got::Lease(lease, _) => Ok(lease),
            Got::Done(never) => match never {},
        }
    }
}

/// Withdraws the acquire when it is dropped, in any state.
struct Leaver<'a, K: Kind> {
    admission: &'a Arc<Admission<K>>,
    key: &'a Key,
    id: Option<u64>,
    seat: &'a Arc<Seat<Found<K>>>,
}

impl<K: Kind> Drop for Leaver<'_, K> {
    fn drop(&mut self) {
        // The order matters: an offered lease is handed on to the waiters that remain.
        let offered = self.seat.leave();
        self.admission.leave(self.key, self.id, self.seat);
        drop(offered);
    }
}
