//! Acquiring a lease: the call to the store, and the wait for its result.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::admission::{Admission, Leases};
use super::key_state::Terms;
use super::kind::{Found, Kind, Query};
use super::operations::{Answer, Verb};
use super::options::{Holding, micros};
use super::outcome::Outcome as _;
use super::tokens::{Effect, Event};
use super::waiter::{Got, Received, Waiter, decline};
use crate::error::{Busy, Subject, Why};
use crate::primitive::clock;
use crate::store::lock;
use crate::store::timer::until;
use crate::{Error, Key};

/// The options of one acquire.
#[derive(Clone, Debug)]
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
    pub(crate) fn new(query: Q, subject: Subject, suffix: String, rank: i64, wait: Option<Wait>) -> Self {
        Self { subject, suffix, rank, wait, query, bypass: false, gives_up: false }
    }
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
    /// the future is dropped, a waiter leaves the queue, and a granted lease is released.
    pub(crate) async fn acquire_or_find(
        &self,
        key: Key,
        mut ask: Ask<Query<K>>,
    ) -> Result<Got<Found<K>>, Error> {
        let Some(Wait { max_wait, .. }) = ask.wait else { return self.ask_at_once(&key, &ask).await };
        // A deadline that overflows is no deadline.
        let deadline = max_wait.and_then(|max_wait| Instant::now().checked_add(max_wait));
        loop {
            if let Some(got) = self.wait(&key, &mut ask, deadline).await? {
                return Ok(got);
            }
            // The place was lost: the process was suspended, or the server lost its data. Let the next waiter go
            // first. By now there may be an outcome, so look at it.
            ask.bypass = false;
            tokio::task::yield_now().await;
        }
    }

    async fn wait(
        &self,
        key: &Key,
        ask: &mut Ask<Query<K>>,
        deadline: Option<Instant>,
    ) -> Received<Found<K>> {
        let mut closed = self.holding.closed.subscribe();
        if *closed.borrow_and_update() {
            return Err(Error::interrupted());
        }
        let admission = &self.admission;
        let (waiter, received) = Waiter::new(&self.holding, ask.clone());
        // It joins the line of its process, or sends an acquire of its own.
        let mut sent = None;
        let mut effects = admission.step(|_, now| {
            sent = Some(now);
            Some(Event::Arrives { key: key.clone(), waiter: Arc::clone(&waiter) })
        });
        let (id, token) = match effects.pop() {
            Some(Effect::Acquire { id, token, .. }) => (Some(id), Some(token)),
            _ => (None, None),
        };
        let is_unanswered = id.is_some();
        let mut leaver =
            Leaver { admission, key, waiter: &waiter, received, id, is_unanswered, is_over: false };
        let call = async {
            let (Some(token), Some(sent)) = (token, sent) else { return pending().await };
            (sent, admission.ask(key.clone(), token, &self.holding, &waiter.ask).await)
        };
        tokio::pin!(call);
        let late = until(deadline);
        tokio::pin!(late);
        loop {
            tokio::select! {
                biased;
                result = &mut leaver.received => {
                    leaver.is_over = true;
                    return match result {
                        // The lease was taken back, or expired before this poll.
                        Ok(Ok(Some(Got::Lease(lease, _)))) if !admission.accept(&lease) => Ok(None),
                        result => result.unwrap_or(Ok(None)),
                    };
                }
                (sent, answer) = &mut call, if leaver.is_unanswered => {
                    leaver.is_unanswered = false;
                    let Some(id) = id else { continue };
                    admission.handle(match answer {
                        Ok(answer) => {
                            K::Outcome::asked_at(&mut ask.query, answer.now);
                            let polled = Some(Arc::clone(&waiter));
                            Event::Answered { id, sent, answer, polled }
                        }
                        Err(error) => Event::Failed { id, error, is_final: false },
                    });
                }
                () = &mut late => {
                    let busy = Busy { subject: ask.subject, why: Why::WaitedTooLong, retry_after: None };
                    return Err(leaver.leave().unwrap_or_else(|| busy.into()));
                }
                _ = closed.changed() => return Err(Error::interrupted()),
            }
        }
    }

    /// Returns the error of the last call for the waiters of a key, if the store was unavailable. Also if that call is
    /// still under way, and is refused again and again.
    pub(crate) fn outage(&self, key: &Key) -> Option<Error> {
        let outage = lock(&self.admission.tokens).tokens.outage(key, clock::now());
        outage.or_else(|| self.admission.namespace.refused(key))
    }

    /// Returns whether the waiters of a key have a place in the store's queue, or wait for a lease that this
    /// process holds.
    #[cfg(test)]
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        lock(&self.admission.tokens).tokens.is_placed(key)
    }

    /// Returns whether a lease of a key is offered to a waiter that has not accepted it.
    #[cfg(test)]
    pub(crate) fn has_offered(&self, key: &Key) -> bool {
        lock(&self.admission.tokens).tokens.is_offered(key)
    }
}

impl<K: Kind> Admission<K> {
    /// Acquires for a token.
    pub(crate) async fn ask(
        &self,
        key: Key,
        token: Arc<str>,
        holding: &Holding,
        ask: &Ask<Query<K>>,
    ) -> Result<Answer<Found<K>>, Error> {
        let max_waiters = ask.wait.map_or(0, |wait| wait.max_waiters.into());
        let terms = Terms { ttl: micros(holding.options.ttl), max_waiters, rank: ask.rank };
        let verb = Verb::Acquire { query: Some(ask.query.clone()), bypass: ask.bypass };
        self.acquire_release.run(key, self.operation(token, verb, terms)).await
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
    waiter: &'a Arc<Waiter<K>>,
    received: oneshot::Receiver<Received<Found<K>>>,
    id: Option<u64>,
    is_unanswered: bool,
    /// Whether there is nothing left to take back.
    is_over: bool,
}

impl<K: Kind> Leaver<'_, K> {
    /// Goes away. Returns the error of the last call for the waiters of the key, if the store was unavailable.
    fn leave(&mut self) -> Option<Error> {
        self.is_over = true;
        // The order matters: an offered lease is handed on to the waiters that remain.
        self.received.close();
        let offered = self.received.try_recv();
        let mut outage = None;
        let effects = self.admission.step(|tokens, now| {
            outage = tokens.outage(self.key, now.at);
            let (key, waiter) = (self.key.clone(), Arc::clone(self.waiter));
            Some(Event::Leaves { key, waiter, id: self.id, unanswered: self.is_unanswered })
        });
        self.admission.perform(effects);
        offered.into_iter().for_each(decline);
        outage.or_else(|| self.admission.namespace.refused(self.key))
    }
}

impl<K: Kind> Drop for Leaver<'_, K> {
    fn drop(&mut self) {
        if !self.is_over {
            self.leave();
        }
    }
}
