//! Carries out what the [step](super::tokens) of a namespace says.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::admission::{Admission, State};
use super::handle::Lease;
use super::key_state::{Standing, Terms};
use super::kind::{Found, Kind};
use super::operations::{AcquireRelease, Answer, Heartbeat, Verb, What};
use super::options::{Holding, LeaseOptions, micros};
use super::outcome::Outcome;
use super::state::LeaseState;
use super::tokens::{Acquired, Effect, Effects, Event, Grant, Notice, Now, Party, Release, Renewed, Told};
use super::validity::Anchor;
use super::waiter::{Got, Received, Waiter};
use crate::error::{Busy, Cause, Why};
use crate::primitive::clock;
use crate::store::{Ids, News, OperationFuture, PeriodicTask, Recipient, lock};
use crate::{Error, Key};

/// The waiters and leases of this process.
pub(crate) struct Local<K> {
    pub(super) process: Arc<str>,
    pub(super) ids: Ids,
    pub(super) kind: PhantomData<fn(K)>,
}

impl<K> Local<K> {
    pub(super) fn named(&self, options: &LeaseOptions, suffix: &str) -> (u64, Arc<str>) {
        let id = self.ids.next();
        (id, options.token(&self.process, id, suffix))
    }
}

impl<K: Kind> Party for Local<K> {
    type Waiter = Arc<Waiter<Found<K>>>;
    type Lease = Arc<LeaseState>;
    type Found = Found<K>;

    fn options(waiter: &Self::Waiter) -> &Arc<Holding> {
        &waiter.holding
    }

    fn joins(waiter: &Self::Waiter) -> bool {
        waiter.waits && waiter.holding.options.cohorts
    }

    fn gives_up(waiter: &Self::Waiter) -> bool {
        waiter.gives_up
    }

    fn outlasts(lease: &Arc<LeaseState>) -> bool {
        lease.is_retained()
    }

    fn token(&mut self, waiter: &Self::Waiter) -> (u64, Arc<str>) {
        self.named(&waiter.holding.options, &waiter.suffix)
    }

    fn lease(&mut self, waiter: &Self::Waiter, grant: Grant) -> Arc<LeaseState> {
        LeaseState::new(grant, &waiter.holding)
    }
}

impl<K: Kind> Admission<K> {
    /// The time and the state of the link, for a call that is sent now.
    pub(super) fn now(&self) -> Now {
        Now { at: clock::now(), link: self.store.notifier().current_link() }
    }

    /// Handles an event, and carries out what follows.
    pub(super) fn handle(self: &Arc<Self>, event: Event<Local<K>>) {
        self.carry_out(self.step(|_| Some(event)));
    }

    /// Carries out effects, the calls among them in the background.
    pub(super) fn carry_out(self: &Arc<Self>, effects: Effects<Local<K>>) {
        if let Some(work) = self.perform(effects) {
            match self.store.background() {
                Some(background) => background.spawn(work),
                // In memory the answers are ready at once.
                None => drop(work.now_or_never()),
            }
        }
    }

    /// Handles an event, which may depend on the time. Returns what follows. The clock is read once.
    pub(super) fn step(
        self: &Arc<Self>,
        event: impl FnOnce(Now) -> Option<Event<Local<K>>>,
    ) -> Effects<Local<K>> {
        let mut state = lock(&self.tokens);
        let State { tokens, keep } = &mut *state;
        let (now, earlier, owed) = (self.now(), tokens.due(), tokens.owed());
        let effects = event(now).map(|event| tokens.step(event, now)).unwrap_or_default();
        for effect in &effects {
            // A waiter must not accept a lease that its token gives to the next one.
            if let Effect::Lost { lease, taken_back } = effect {
                lease.end(*taken_back);
            }
        }
        let due = tokens.due().filter(|due| earlier.is_none_or(|earlier| *due < earlier));
        let more = tokens.owed() as isize - owed as isize;
        // The namespace lives until its releases are done.
        let kept = if tokens.owed() > 0 {
            keep.get_or_insert_with(|| Arc::clone(self));
            None
        } else {
            keep.take()
        };
        // Before others can handle the answers.
        if let Some(owed) = self.store.owed() {
            owed.change(more);
        }
        drop(state);
        drop(kept);
        if let Some(due) = due {
            self.store.scheduler().schedule(clock::without_suspend(due));
        }
        effects
    }

    /// Carries out effects. Returns the calls among them, which take time.
    pub(super) fn perform(self: &Arc<Self>, effects: Effects<Local<K>>) -> Option<BoxFuture<'static, ()>> {
        let mut calls: Vec<BoxFuture<'static, ()>> = Vec::new();
        // A release is sent before the acquire that follows it, from the same runtime.
        let mut first = Vec::new();
        let is_followed = effects.iter().any(|effect| matches!(effect, Effect::Acquire { .. }));
        for effect in effects {
            let this = Arc::clone(self);
            match effect {
                Effect::Release { release, owed } if is_followed => first.push((release, owed)),
                Effect::Release { release, owed } => {
                    if let Some(owed) = owed
                        && Handle::try_current().is_err()
                    {
                        lock(&self.tokens).tokens.is_in_background(owed);
                    }
                    self.send_release(&release, owed);
                }
                Effect::Subscribe => self.store.subscribe(),
                Effect::Give { waiter, lease, found } => {
                    let lease = Lease::new(lease, this);
                    drop(waiter.offer(Ok(Some(Got::Lease(lease, found)))));
                }
                Effect::Tell { waiter, outcome } => drop(waiter.offer(self.result(&waiter, outcome))),
                Effect::Lost { lease, .. } => lease.notify(),
                Effect::Valid { lease, sent, until } => {
                    if !lease.renewed(sent, until) {
                        self.handle(Event::Lost { id: lease.id, fence: lease.fence });
                    }
                }
                Effect::Renew { lease } => {
                    calls.push(Box::pin(async move { drop(this.renew(&lease, true).await) }))
                }
                Effect::Heartbeat { key, waiters } => calls.push(Box::pin(this.heartbeat(key, waiters))),
                Effect::Acquire { id, key, token, options } => {
                    let first = std::mem::take(&mut first);
                    let acquire = Acquire { admission: this, id, is_answered: false };
                    calls.push(Box::pin(acquire.run(first, key, token, options)));
                }
            }
        }
        first.into_iter().for_each(|(release, owed)| self.send_release(&release, owed));
        match calls.len() {
            0 | 1 => calls.pop(),
            _ => Some(Box::pin(async move { drop(join_all(calls).await) })),
        }
    }

    /// The result for a waiter that gets no lease by its acquire.
    fn result(&self, waiter: &Waiter<Found<K>>, outcome: Told<Found<K>>) -> Received<Found<K>> {
        match outcome {
            Told::Again => Ok(None),
            Told::Found(found) => Ok(Some(Got::Done(found))),
            Told::Failed(error) => Err(error),
            Told::Refused { left, before } => {
                let why = if waiter.waits { Why::QueueFull } else { Why::Taken };
                Err(Busy { subject: waiter.subject, why, retry_after: self.retry_after(left, before) }.into())
            }
        }
    }

    /// Sends a release before the next call of this runtime, and has its answer handled when it comes.
    fn send_release(self: &Arc<Self>, release: &Release, owed: Option<u64>) {
        let sent = self.client().begin(release.key.clone(), self.release_operation(release));
        // In memory it is done already.
        let Some(owed) = owed else { return };
        Arc::new(Sent { admission: Arc::clone(self), owed, call: Mutex::new(Some(sent)) }).wake();
    }

    async fn heartbeat(self: Arc<Self>, key: Key, waiters: Vec<(u64, Arc<str>)>) {
        let sent = self.now();
        let (ids, tokens) = waiters.into_iter().unzip::<_, _, Vec<_>, _>();
        let heartbeat = Heartbeat { scene: Arc::clone(&self.scene), tokens };
        match self.clients.heartbeat.run(key, heartbeat).await {
            Ok(answer) => {
                let each = ids.into_iter().zip(answer.what.each).collect();
                self.handle(Event::Stands { sent, now: answer.now, soonest: answer.what.soonest, each });
            }
            Err(error) => self.handle(Event::Unanswered { ids, error }),
        }
    }

    /// Renews a lease once, for its full ttl.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        state: &Arc<LeaseState>,
        scheduled: bool,
    ) -> Result<(), Error> {
        let (sent, ttl, id) = (clock::now(), state.ttl(), state.id);
        let call = self.renew_token(state.key.clone(), Arc::clone(&state.token), ttl, 0).await;
        let renewed = match &call {
            Ok(answer) => answer.what.map_or(Renewed::Gone, |expiry| {
                let until = Anchor { sent, now: answer.now }.until(expiry, ttl, state.holding.options.drift);
                Renewed::Valid { sent, until }
            }),
            Err(_) => Renewed::Unknown,
        };
        self.handle(Event::Renewed { id, renewed, scheduled });
        call?;
        // The token may have been handed on.
        if renewed != Renewed::Gone && state.is_held() { Ok(()) } else { Err(Error::lost()) }
    }

    /// Lets the waiter of an offered lease accept it. Returns `false` if the lease was taken back, or has ended.
    pub(super) fn accept(self: &Arc<Self>, lease: &LeaseState) -> bool {
        if !lease.is_offered() {
            return lease.is_held();
        }
        let mut accepts = false;
        self.step(|now| {
            accepts = lease.accept(now.at);
            accepts.then_some(Event::Accepted { id: lease.id, fence: lease.fence })
        });
        accepts
    }
}

/// The step's view of an answer.
pub(super) fn acquired<F>(answer: Answer<F>) -> Acquired<F> {
    let standing = match answer.what {
        What::Acquired(standing) => standing,
        // Decoding never returns that.
        What::Released(_) => Standing::Withdrawn,
    };
    Acquired { now: answer.now, standing, found: answer.found, twice: answer.twice }
}

/// The acquire of a line, sent in the background.
struct Acquire<K: Kind> {
    admission: Arc<Admission<K>>,
    id: u64,
    is_answered: bool,
}

impl<K: Kind> Acquire<K> {
    async fn run(
        mut self,
        first: Vec<(Release, Option<u64>)>,
        key: Key,
        token: Arc<str>,
        options: Arc<Holding>,
    ) {
        let (admission, id) = (Arc::clone(&self.admission), self.id);
        for (release, owed) in first {
            admission.send_release(&release, owed);
        }
        let sent = admission.now();
        let terms = Terms::usual(micros(options.options.ttl));
        let call = admission.client().run(key, admission.operation(token, Verb::Acquire, terms)).await;
        self.is_answered = true;
        admission.handle(match call {
            Ok(answer) => Event::Answered { id, sent, answer: acquired(answer), polled: None },
            Err(error) => Event::Failed { id, error, is_final: false },
        });
    }
}

/// The background runtime may shut down before there is an answer.
impl<K: Kind> Drop for Acquire<K> {
    fn drop(&mut self) {
        if !self.is_answered {
            let error = Error::unavailable(Cause::Disconnected, "the background runtime has shut down");
            self.admission.handle(Event::Failed { id: self.id, error, is_final: true });
        }
    }
}

/// A release whose answer no task awaits. It is polled when its answer comes.
struct Sent<K: Kind> {
    admission: Arc<Admission<K>>,
    owed: u64,
    call: Mutex<Option<OperationFuture<AcquireRelease<K>>>>,
}

impl<K: Kind> Wake for Sent<K> {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut call = lock(&self.call);
        let Some(future) = call.as_mut() else { return };
        let Poll::Ready(answer) = future.poll_unpin(&mut Context::from_waker(&waker)) else { return };
        *call = None;
        drop(call);
        self.admission.handle(Event::Released { owed: self.owed, result: answer.map(drop) });
    }
}

impl<K: Kind> PeriodicTask for Admission<K> {
    fn due(&self) -> Option<Instant> {
        lock(&self.tokens).tokens.due().map(clock::without_suspend)
    }

    fn run(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let effects = self.step(|_| Some(Event::Due));
        self.perform(effects).unwrap_or_else(|| Box::pin(std::future::ready(())))
    }

    fn relinked(self: Arc<Self>) {
        self.handle(Event::Relinked);
    }

    fn hurry(self: Arc<Self>) {
        self.handle(Event::Hurry);
    }

    fn interrupted(self: Arc<Self>) {
        self.handle(Event::Interrupted);
    }

    fn shut_down(self: Arc<Self>) {
        self.handle(Event::Shutdown);
    }
}

impl<K: Kind> Recipient for Admission<K> {
    fn hear(self: Arc<Self>, id: u64, news: News) {
        let news = match news {
            News::Granted { expiry, fence } => Notice::Granted { expiry, fence },
            News::Gone => Notice::Gone,
            News::Told(told) => {
                K::Outcome::hear(&self.scene.scope, &told).map_or(Notice::Gone, Notice::Found)
            }
        };
        self.handle(Event::Pushed { id, news });
    }
}
