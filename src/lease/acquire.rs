//! Acquires a lease: at once, or with a wait. If the caller goes away, the acquire is withdrawn, whatever its state is.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Cause, Why};
use crate::key::Key;
use crate::lease::handle::Lease;
use crate::lease::key_state::Standing;
use crate::lease::kind::{Found, Kind, Outcome, Query};
use crate::lease::namespace::{Admission, Leases};
use crate::lease::operations::{Answer, Verb, What};
use crate::lease::options::{ALIVE, Holding, LeaseOptions};
use crate::lease::process::event::{Effect, Event, Grant, Now, Release};
use crate::lease::process::wait::unexpected;
use crate::lease::token::Token;
use crate::lease::waiter::{Ask, Got, Received, Wait, Waiter, decline};
use crate::store::timer::until;
use crate::store::validity::{Anchor, Validity};
use crate::sync::lock;

/// How long the answer to an acquire is awaited, also where the longest wait is shorter.
const UNANSWERED: Duration = Duration::from_millis(500);

impl<K: Kind> Leases<K> {
    /// Acquires a lease, or finds an outcome of an earlier lease. Fails if the acquire is refused. Cancel safe: if
    /// the future is dropped, a waiter leaves the queue, and a granted lease is released.
    pub(crate) async fn acquire_or_find(
        &self,
        key: Key,
        mut ask: Ask<Query<K>>,
    ) -> Result<Got<Found<K>>, Error> {
        let Some(Wait { max_wait, .. }) = ask.wait else {
            return self.ask_at_once(key, &ask).await;
        };
        // A deadline that overflows is no deadline.
        let deadline = max_wait.and_then(|max_wait| Instant::now().checked_add(max_wait));
        loop {
            // In a box: most acquires do not wait, and are smaller without it.
            if let Some(got) = Box::pin(self.wait(&key, &mut ask, deadline)).await? {
                return Ok(got);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(self.waited_too_long(&key, &ask));
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
        let mut closed = self.holding().closed.subscribe();
        if *closed.borrow_and_update() {
            return Err(Error::interrupted());
        }
        let admission = &self.admission;
        let began = Instant::now();
        let (waiter, received) = Waiter::new(self.holding(), ask.clone());
        let own = admission.arrives(key, &waiter);
        let id = own.as_ref().map(|(id, ..)| *id);
        let is_unanswered = id.is_some();
        let mut leaver = Leaver {
            admission,
            key,
            waiter: &waiter,
            received,
            id,
            is_unanswered,
            is_over: false,
        };
        let call = async {
            let Some((_, token, sent)) = own else {
                return pending().await;
            };
            let answer = admission.ask(key.clone(), token, self.holding(), &waiter.ask);
            (sent, answer.await)
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
                    late.set(until(deadline));
                    let Some(id) = id else { continue };
                    admission.answered(&waiter, ask, (id, sent), answer, deadline)?;
                }
                () = &mut late => match self.over(key, ask, leaver.is_unanswered.then_some(began)) {
                    Some(error) => return Err(error),
                    None => late.set(until(began.checked_add(UNANSWERED))),
                },
                _ = closed.changed() => return Err(Error::interrupted()),
            }
        }
    }

    /// The error for an acquire whose longest wait is over. `unanswered`: when it was sent, if the server has not answered. Then it
    /// is not known whether the lease is free, so the acquire goes on for [`UNANSWERED`]: `None`.
    fn over(&self, key: &Key, ask: &Ask<Query<K>>, unanswered: Option<Instant>) -> Option<Error> {
        match unanswered.filter(|_| self.outage(key).is_none()) {
            None => Some(self.waited_too_long(key, ask)),
            Some(since) if since.elapsed() < UNANSWERED => None,
            Some(_) => Some(Error::unavailable(
                Cause::TimedOut,
                "no answer within the longest wait",
            )),
        }
    }

    /// The error for a wait that ends without a lease.
    fn waited_too_long(&self, key: &Key, ask: &Ask<Query<K>>) -> Error {
        let busy = Busy {
            subject: ask.subject,
            why: Why::WaitedTooLong,
            retry_after: None,
        };
        self.outage(key).unwrap_or_else(|| busy.into())
    }

    /// Returns the error of the last call for the waiters of a key, if the store was unavailable. Also if that call is
    /// still under way, and is refused again and again.
    pub(crate) fn outage(&self, key: &Key) -> Option<Error> {
        let outage = lock(&self.admission.tokens)
            .tokens
            .outage(key, clock::now());
        outage.or_else(|| self.admission.namespace.refused(key))
    }

    /// Acquires a lease, or finds an outcome of an earlier lease, without waiting.
    ///
    /// Such a call has no place in a queue: nothing but its answer concerns it. So it is not among the
    /// [tokens](super::process) of this process before it holds a lease, and needs no waiter.
    async fn ask_at_once(&self, key: Key, ask: &Ask<Query<K>>) -> Result<Got<Found<K>>, Error> {
        if self.holding().is_closed() {
            return Err(Error::interrupted());
        }
        let admission = &self.admission;
        let options = self.options();
        let (id, token) = admission.token(self.holding(), &ask.suffix);
        if let Some(cells) = admission.namespace.cells() {
            let scene = &admission.scene;
            let terms = ask.terms(self.holding());
            let step = |state: &mut _, now| {
                scene.acquire(state, &token, Some(&ask.query), ask.bypass, terms, now)
            };
            let answer = cells.step(key.as_bytes(), step)?;
            let at = cells.time_of_leases(answer.now);
            return self.answered(key, id, token, ask, answer, (at, at));
        }
        let mut undo = Undo {
            admission,
            options,
            key: &key,
            token: &token,
            is_armed: true,
        };
        let sent = clock::recent();
        let answer = admission
            .ask(key.clone(), token.clone(), self.holding(), ask)
            .await;
        // Without an answer, the acquire may still run. With one, a copy may, if there was one.
        let answer = answer.inspect_err(|error| undo.is_armed = !error.is_not_sent())?;
        let is_closed = self.holding().is_closed();
        undo.is_armed = match answer.what {
            _ if is_closed => true,
            What::Acquired(Standing::Held { .. }) => false,
            What::Acquired(Standing::Done | Standing::Refused { .. }) => answer.twice,
            _ => true,
        };
        drop(undo);
        if is_closed {
            return Err(Error::interrupted());
        }
        self.answered(key, id, token, ask, answer, (sent, clock::now()))
    }

    /// Returns what the answer to an acquire says that was sent, and answered, at these times.
    fn answered(
        &self,
        key: Key,
        id: u64,
        token: Token,
        ask: &Ask<Query<K>>,
        Answer {
            now,
            what,
            found,
            twice,
            ..
        }: Answer<Found<K>>,
        (sent, at): (Instant, Instant),
    ) -> Result<Got<Found<K>>, Error> {
        let admission = &self.admission;
        let options = self.options();
        match what {
            What::Acquired(Standing::Held { expiry, fence }) => {
                let until = Anchor { sent, now }.until(expiry, options.ttl, options.drift);
                let Some(validity) = Validity::granted(until, at) else {
                    let ttl = options.ttl;
                    admission.release_later(Release::new(&key, &token, twice, ttl, ttl + ALIVE));
                    let text = "the lease was granted, but expired before the reply arrived";
                    return Err(Error::unavailable(Cause::TimedOut, text));
                };
                let grant = Grant {
                    key,
                    token,
                    id,
                    fence,
                    twice,
                    validity,
                    at,
                    offered: false,
                };
                let lease = admission.hold(grant, self.holding());
                Ok(Got::Lease(Lease::with(lease, self.keeper()), found))
            }
            What::Acquired(Standing::Done) => found.map(Got::Done).ok_or_else(unexpected),
            What::Acquired(Standing::Refused { soonest, before }) => {
                Err(admission.refusal(ask, soonest.saturating_sub(now), before))
            }
            What::Acquired(Standing::Queued { .. } | Standing::Withdrawn)
            | What::Released(_)
            | What::Completed(..) => Err(unexpected()),
        }
    }
}

impl<K: Kind> Admission<K> {
    /// Lets a waiter join the line of its process. If there is none, returns the acquire that the waiter sends itself: its
    /// id, its token, and the time at which it is sent.
    fn arrives(self: &Arc<Self>, key: &Key, waiter: &Arc<Waiter<K>>) -> Option<(u64, Token, Now)> {
        let mut sent = None;
        let mut effects = self.step(|now| {
            sent = Some(now);
            Some(Event::Arrives {
                key: key.clone(),
                waiter: Arc::clone(waiter),
            })
        });
        match effects.pop() {
            Some(Effect::Acquire { id, token, .. }) => Some((id, token, sent?)),
            _ => None,
        }
    }

    /// Handles the answer to the acquire of a waiter. Fails if its turn would come after the deadline.
    fn answered(
        self: &Arc<Self>,
        waiter: &Arc<Waiter<K>>,
        ask: &mut Ask<Query<K>>,
        (id, sent): (u64, Now),
        answer: Result<Answer<Found<K>>, Error>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let late = answer
            .as_ref()
            .ok()
            .and_then(|answer| self.too_late(ask, answer, deadline));
        self.handle(match answer {
            Ok(answer) => {
                K::Outcome::asked_at(&mut ask.query, answer.now);
                Event::Answered {
                    id,
                    sent,
                    answer,
                    polled: Some(Arc::clone(waiter)),
                }
            }
            Err(error) => Event::Failed {
                id,
                error,
                is_final: false,
            },
        });
        late.map_or(Ok(()), Err)
    }

    /// Returns the refusal for a place in the queue that is not served before the deadline, by how long leases were held of
    /// late, if the options say so.
    fn too_late(
        &self,
        ask: &Ask<Query<K>>,
        answer: &Answer<Found<K>>,
        deadline: Option<Instant>,
    ) -> Option<Error> {
        let What::Acquired(Standing::Queued { before, .. }) = answer.what else {
            return None;
        };
        // The place of a waiter that was there before is not known.
        let at_once = ask.early.filter(|_| !answer.twice)?;
        let now = Instant::now();
        let held = self.hold_time.recent(now)?;
        let turns = u32::try_from(before.max(0))
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        let expected = held.saturating_mul(turns) / at_once.max(1);
        let late = expected.checked_sub(deadline?.saturating_duration_since(now))?;
        if self.hold_time.probes(now) {
            return None;
        }
        let retry_after = Some(late.max(held / at_once.max(1)));
        Some(
            Busy {
                subject: ask.subject,
                why: Why::QueueTooLong,
                retry_after,
            }
            .into(),
        )
    }

    /// Acquires for a token.
    pub(crate) async fn ask(
        &self,
        key: Key,
        token: Token,
        holding: &Holding,
        ask: &Ask<Query<K>>,
    ) -> Result<Answer<Found<K>>, Error> {
        let terms = ask.terms(holding);
        let verb = Verb::Acquire {
            query: Some(ask.query.clone()),
            bypass: ask.bypass,
        };
        self.acquire_release
            .run(key, self.operation(token, verb, terms))
            .await
    }
}

impl<K: Kind> Leases<K>
where
    K::Outcome: Outcome<K::Holders, Found = Infallible>,
{
    /// Acquires a lease. Fails if the acquire is refused.
    pub(crate) async fn acquire(&self, key: Key, ask: Ask<Query<K>>) -> Result<Lease, Error> {
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

impl<K: Kind> Drop for Leaver<'_, K> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The order matters: an offered lease is handed on to the waiters that remain.
        self.received.close();
        let offered = self.received.try_recv();
        let key = self.key.clone();
        let waiter = Arc::clone(self.waiter);
        self.admission.handle(Event::Leaves {
            key,
            waiter,
            id: self.id,
            unanswered: self.is_unanswered,
        });
        offered.into_iter().for_each(decline);
    }
}

/// Withdraws an acquire when it is dropped before its answer was received.
pub(super) struct Undo<'a, K: Kind> {
    pub(super) admission: &'a Arc<Admission<K>>,
    pub(super) options: &'a LeaseOptions,
    pub(super) key: &'a Key,
    pub(super) token: &'a Token,
    pub(super) is_armed: bool,
}

impl<K: Kind> Undo<'_, K> {
    fn release(&self, withdrawn: bool) -> Release {
        let ttl = self.options.ttl;
        Release::new(self.key, self.token, withdrawn, ttl, ttl + ALIVE)
    }
}

impl<K: Kind> Drop for Undo<'_, K> {
    fn drop(&mut self) {
        if self.is_armed {
            self.admission.handle(Event::Withdraws(self.release(true)));
        }
    }
}

#[cfg(test)]
mod tests;
