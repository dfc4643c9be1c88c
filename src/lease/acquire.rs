//! Acquires a lease, without waiting or with a wait. If the caller drops the future, the acquire is withdrawn in any
//! state.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Cause, Why};
use crate::key::Key;
use crate::lease::handle::{Lease, Owner};
use crate::lease::key_state::Position;
use crate::lease::kind::{Found, Kind, Outcome, Query};
use crate::lease::namespace::{LeaseNamespace, Leases};
use crate::lease::operations::{AcquireRelease, Answer, Release, ReplyKind, Verb};
use crate::lease::options::{ALIVE, Holding, LeaseOptions};
use crate::lease::process::event::{Effect, Event, Grant, Now};
use crate::lease::process::wait::unexpected;
use crate::lease::token::Token;
use crate::lease::waiter::{AcquireRequest, Acquired, Patience, Waiter, WaiterResult, decline};
use crate::store::client::OperationFuture;
use crate::store::timer::until;
use crate::store::validity::{Anchor, Validity};
use crate::sync::lock;

/// How long the reply to an acquire is awaited, even if `max_wait` is shorter.
const UNANSWERED: Duration = Duration::from_millis(500);

impl<K: Kind> Leases<K> {
    /// Acquires a lease, or finds an outcome of an earlier lease. Fails if the acquire is refused. Cancel safe: if the
    /// future is dropped, the waiter leaves the queue, and a granted lease is released.
    pub(crate) async fn acquire(
        &self,
        key: Key,
        mut ask: AcquireRequest<Query<K>>,
    ) -> Result<Acquired<Found<K>>, Error> {
        let Some(Patience { max_wait, .. }) = ask.wait else {
            return self.ask_at_once(key, &ask).await;
        };
        // A deadline that overflows counts as none.
        let deadline = max_wait.and_then(|max_wait| Instant::now().checked_add(max_wait));
        loop {
            // Boxed, because most acquires do not wait, and their future is smaller without it.
            if let Some(got) = Box::pin(self.wait(&key, &mut ask, deadline)).await? {
                return Ok(got);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(self.waited_too_long(&key, &ask));
            }
            // The place in the queue was lost: the process was suspended, or the server lost its data. Let the next
            // waiter go first. There may be an outcome by now, so acquire without `bypass`.
            ask.bypass = false;
            tokio::task::yield_now().await;
        }
    }

    async fn wait(
        &self,
        key: &Key,
        ask: &mut AcquireRequest<Query<K>>,
        deadline: Option<Instant>,
    ) -> WaiterResult<Found<K>> {
        let mut closed = self.holding().closed.subscribe();
        if *closed.borrow_and_update() {
            return Err(Error::interrupted());
        }
        let namespace = &self.namespace;
        let began = Instant::now();
        let (waiter, received) = Waiter::new(self.holding(), ask.clone());
        let own = namespace.arrives(key, &waiter);
        let id = own.as_ref().map(|(id, ..)| *id);
        let is_unanswered = id.is_some();
        let mut leaver = LeaveOnDrop {
            namespace,
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
            let answer = namespace.ask(key.clone(), token, self.holding(), &waiter.ask);
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
                        // The lease was withdrawn, or expired before this poll.
                        Ok(Ok(Some(Acquired::Lease(lease, _)))) if !namespace.accept(&lease) => Ok(None),
                        result => result.unwrap_or(Ok(None)),
                    };
                }
                (sent, answer) = &mut call, if leaver.is_unanswered => {
                    leaver.is_unanswered = false;
                    late.set(until(deadline));
                    let Some(id) = id else { continue };
                    namespace.answered(&waiter, ask, (id, sent), answer, deadline)?;
                }
                () = &mut late => match self.over(key, ask, leaver.is_unanswered.then_some(began)) {
                    Some(error) => return Err(error),
                    None => late.set(until(began.checked_add(UNANSWERED))),
                },
                _ = closed.changed() => return Err(Error::interrupted()),
            }
        }
    }

    /// Returns the error for an acquire whose `max_wait` is over. `unanswered`: when it was sent, if the server has not
    /// replied. In that case it is not known whether the lease is free, so the acquire continues for [`UNANSWERED`]:
    /// `None`.
    fn over(
        &self,
        key: &Key,
        ask: &AcquireRequest<Query<K>>,
        unanswered: Option<Instant>,
    ) -> Option<Error> {
        match unanswered.filter(|_| self.outage(key).is_none()) {
            None => Some(self.waited_too_long(key, ask)),
            Some(since) if since.elapsed() < UNANSWERED => None,
            Some(_) => Some(Error::unavailable(
                Cause::TimedOut,
                "no answer within the longest wait",
            )),
        }
    }

    /// Returns the error for a wait that ends without a lease.
    fn waited_too_long(&self, key: &Key, ask: &AcquireRequest<Query<K>>) -> Error {
        let busy = Busy {
            subject: ask.subject,
            why: Why::WaitedTooLong,
            retry_after: None,
        };
        self.outage(key).unwrap_or_else(|| busy.into())
    }

    /// Returns the error of the last call for the waiters of a key, if the store was unavailable. This includes a call
    /// that is still being retried because the server refuses it.
    pub(crate) fn outage(&self, key: &Key) -> Option<Error> {
        let outage = lock(&self.namespace.tokens)
            .tokens
            .outage(key, clock::now());
        outage.or_else(|| self.namespace.states.refused(key))
    }

    /// Acquires a lease, or finds an outcome of an earlier lease, without waiting.
    ///
    /// The acquire has no place in a queue, and only its own reply concerns it. It therefore needs no waiter, and no
    /// entry in the [tokens](super::process) of this process until it holds a lease.
    async fn ask_at_once(
        &self,
        key: Key,
        ask: &AcquireRequest<Query<K>>,
    ) -> Result<Acquired<Found<K>>, Error> {
        let (holding, _) = self.common();
        if holding.is_closed() {
            return Err(Error::interrupted());
        }
        let namespace = &self.namespace;
        let (id, token) = namespace.local.token(holding, &ask.suffix);
        if let Some(cells) = namespace.states.cells() {
            let context = &namespace.context;
            let terms = ask.terms(holding);
            let step = |state: &mut _, now| {
                context.acquire(state, &token, Some(&ask.query), ask.bypass, terms, now)
            };
            let answer = cells.step(key.as_bytes(), step)?;
            let at = cells.time_of_leases(answer.now);
            return self.answered(key, id, token, ask, answer, (at, at));
        }
        let mut undo = WithdrawOnDrop {
            namespace,
            options: &holding.options,
            key: &key,
            token: &token,
            is_armed: true,
        };
        let sent = clock::recent();
        let answer = namespace
            .ask(key.clone(), token.clone(), holding, ask)
            .await;
        // Without a reply, the acquire may still run. With a reply, a second copy may still run.
        let answer = answer.inspect_err(|error| undo.is_armed = !error.is_not_sent())?;
        let is_closed = holding.is_closed();
        undo.is_armed = match answer.what {
            _ if is_closed => true,
            ReplyKind::Acquired(Position::Held { .. }) => false,
            ReplyKind::Acquired(Position::Done | Position::Refused { .. }) => answer.twice,
            _ => true,
        };
        drop(undo);
        if is_closed {
            return Err(Error::interrupted());
        }
        self.answered(key, id, token, ask, answer, (sent, clock::now()))
    }

    /// Returns the result of an acquire from its reply. The arguments include the times at which it was sent and
    /// answered.
    fn answered(
        &self,
        key: Key,
        id: u64,
        token: Token,
        ask: &AcquireRequest<Query<K>>,
        Answer {
            now,
            what,
            found,
            twice,
            ..
        }: Answer<Found<K>>,
        (sent, at): (Instant, Instant),
    ) -> Result<Acquired<Found<K>>, Error> {
        let namespace = &self.namespace;
        let (holding, owner) = self.common();
        let options = &holding.options;
        match what {
            ReplyKind::Acquired(Position::Held { expiry, fence }) => {
                let until = Anchor { sent, now }.until(expiry, options.ttl, options.drift);
                let Some(validity) = Validity::granted(until, at) else {
                    let ttl = options.ttl;
                    namespace.release_later(Release::new(&key, &token, twice, ttl, ttl + ALIVE));
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
                let lease = namespace.hold(grant, holding);
                let lease = Lease::new(lease, Owner::Common(Arc::clone(owner)));
                Ok(Acquired::Lease(lease, found))
            }
            ReplyKind::Acquired(Position::Done) => found.map(Acquired::Done).ok_or_else(unexpected),
            ReplyKind::Acquired(Position::Refused { soonest, before }) => {
                Err(namespace.refusal(ask, soonest.saturating_sub(now), before))
            }
            ReplyKind::Acquired(Position::Queued { .. } | Position::Withdrawn)
            | ReplyKind::Released(_)
            | ReplyKind::Completed(..) => Err(unexpected()),
        }
    }
}

impl<K: Kind> LeaseNamespace<K> {
    /// Adds a waiter to the line of its process. If there is no line, returns the acquire that the waiter sends itself:
    /// its id, its token, and the time at which it is sent.
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

    /// Handles the reply to the acquire of a waiter. Fails if the waiter would be served after its deadline.
    fn answered(
        self: &Arc<Self>,
        waiter: &Arc<Waiter<K>>,
        ask: &mut AcquireRequest<Query<K>>,
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

    /// Returns the refusal for a waiter that is unlikely to be served before the deadline, if the options ask for it
    /// (`early`).
    /// The estimate uses the recent hold times.
    fn too_late(
        &self,
        ask: &AcquireRequest<Query<K>>,
        answer: &Answer<Found<K>>,
        deadline: Option<Instant>,
    ) -> Option<Error> {
        let ReplyKind::Acquired(Position::Queued { before, .. }) = answer.what else {
            return None;
        };
        // The reply does not have the place of a waiter that was already in the queue.
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

    /// Sends an acquire for a token.
    pub(crate) fn ask(
        &self,
        key: Key,
        token: Token,
        holding: &Holding,
        ask: &AcquireRequest<Query<K>>,
    ) -> OperationFuture<AcquireRelease<K>> {
        let terms = ask.terms(holding);
        let verb = Verb::Acquire {
            query: Some(ask.query.clone()),
            bypass: ask.bypass,
        };
        self.acquire_release
            .run(key, self.operation(token, verb, terms))
    }
}

/// Withdraws the acquire on drop, in any state.
struct LeaveOnDrop<'a, K: Kind> {
    namespace: &'a Arc<LeaseNamespace<K>>,
    key: &'a Key,
    waiter: &'a Arc<Waiter<K>>,
    received: oneshot::Receiver<WaiterResult<Found<K>>>,
    id: Option<u64>,
    is_unanswered: bool,
    /// Whether there is nothing left to withdraw.
    is_over: bool,
}

impl<K: Kind> Drop for LeaveOnDrop<'_, K> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The order matters: an offered lease is handed on to the remaining waiters.
        self.received.close();
        let offered = self.received.try_recv();
        let key = self.key.clone();
        let waiter = Arc::clone(self.waiter);
        self.namespace.handle(Event::Leaves {
            key,
            waiter,
            id: self.id,
            unanswered: self.is_unanswered,
        });
        offered.into_iter().for_each(decline);
    }
}

/// Withdraws an acquire if it is dropped before its reply was received.
pub(super) struct WithdrawOnDrop<'a, K: Kind> {
    pub(super) namespace: &'a Arc<LeaseNamespace<K>>,
    pub(super) options: &'a LeaseOptions,
    pub(super) key: &'a Key,
    pub(super) token: &'a Token,
    pub(super) is_armed: bool,
}

impl<K: Kind> WithdrawOnDrop<'_, K> {
    fn release(&self, withdrawn: bool) -> Release {
        let ttl = self.options.ttl;
        Release::new(self.key, self.token, withdrawn, ttl, ttl + ALIVE)
    }
}

impl<K: Kind> Drop for WithdrawOnDrop<'_, K> {
    fn drop(&mut self) {
        if self.is_armed {
            self.namespace.handle(Event::Withdraws(self.release(true)));
        }
    }
}

#[cfg(test)]
mod tests;
