//! Carries out the effects of a [step](super::process) of a namespace: sends the calls, and gives waiters their
//! results.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Subject, Why};
use crate::key::Key;
use crate::lease::handle::{Lease, LeaseHandle, LeaseOwner, Owner};
use crate::lease::key_state::AcquireTerms;
use crate::lease::kind::{Found, Kind, Outcome, Query};
pub(crate) use crate::lease::namespace::ProcessHost;
use crate::lease::namespace::{LeaseNamespace, State};
use crate::lease::operations::{Heartbeat, Positions, Release, Verb};
use crate::lease::options::{Holding, Watched, micros};
use crate::lease::process::event::{
    Effect, Effects, Event, Host, Now, PushEvent, Renewed, WaiterOutcome,
};
use crate::lease::release;
use crate::lease::token::Token;
use crate::lease::waiter::{AcquireRequest, Acquired, WaiterResult};
use crate::store::notifier::{Link, PushKind, Recipient};
use crate::store::scheduler::{PeriodicTask, Signal};
use crate::store::validity::Anchor;
use crate::sync::lock;

impl<K: Kind> LeaseNamespace<K> {
    /// The time and the state of the link, for a call that is sent now.
    pub(super) fn now(&self) -> Now {
        Now {
            at: clock::now(),
            link: self.store.notifier().current_link(),
        }
    }

    /// Handles an event, and carries out its effects.
    pub(super) fn handle(self: &Arc<Self>, event: Event<ProcessHost<K>>) {
        self.run_effects(self.step(|_| Some(event)));
    }

    /// Handles an event, which may depend on the time. Returns its effects.
    pub(super) fn step(
        self: &Arc<Self>,
        event: impl FnOnce(Now) -> Option<Event<ProcessHost<K>>>,
    ) -> Effects<ProcessHost<K>> {
        let mut state = lock(&self.tokens);
        let State { tokens, keep_alive } = &mut *state;
        let now = self.now();
        let earlier = tokens.due();
        let owed = tokens.owed();
        let event = event(now);
        let due = match &event {
            Some(Event::Signal(Signal::Due)) => Some(Some(now.at)),
            Some(Event::Signal(Signal::ShutDown)) => Some(None),
            _ => None,
        };
        if let Some(until) = due {
            let leases = self
                .new_leases
                .iter()
                .flat_map(|new_leases| lock(new_leases).take_due(until));
            leases.for_each(|leased| release::holds(tokens, leased, now));
        }
        let effects = match event {
            Some(event) => tokens.step(event, now),
            None => Effects::new(),
        };
        // Most events have no effects.
        let in_background = !effects.is_empty() && sender(&effects).is_none();
        for effect in &effects {
            // A waiter must not accept a lease that its token gives to the next waiter.
            if let Effect::Lost { lease, taken_back } = effect {
                lease.state.end(*taken_back);
            }
            // Mark it now, so that it is not sent again however late this thread continues.
            if let Effect::Release {
                owed: Some(owed), ..
            } = effect
                && in_background
            {
                tokens.is_in_background(*owed);
            }
        }
        let due = tokens
            .due()
            .filter(|due| earlier.is_none_or(|earlier| *due < earlier));
        let more = tokens.owed() as isize - owed as isize;
        self.has_outages
            .store(tokens.has_outages(), Ordering::Relaxed);
        // Keep the namespace alive until its releases are done.
        *keep_alive = (tokens.owed() > 0).then(|| Arc::clone(self));
        // Change the count before other threads can handle the replies.
        if let Some(owed) = self.store.owed() {
            owed.change(more);
        }
        drop(state);
        if let Some(due) = due {
            self.store.scheduler().schedule(clock::without_suspend(due));
        }
        effects
    }

    /// Carries out effects. Their calls are sent from the background, except releases that no acquire follows: these
    /// are sent before the next call of the caller.
    pub(super) fn run_effects(self: &Arc<Self>, effects: Effects<ProcessHost<K>>) {
        let here = sender(&effects);
        for effect in effects {
            match effect {
                Effect::Release { release, owed } => {
                    self.send_release(here.clone(), &release, owed)
                }
                Effect::Acquire {
                    id,
                    key,
                    token,
                    options,
                } => self.send_acquire(id, key, token, &options),
                Effect::Heartbeat { key, waiters } => self.send_heartbeat(key, waiters),
                Effect::Renew { lease, extends } => self.send_renewal(lease, extends),
                Effect::Subscribe => self.store.subscribe(),
                Effect::Give {
                    waiter,
                    lease,
                    found,
                } => {
                    let lease =
                        Lease::new(lease, Owner::By(Arc::clone(self) as Arc<dyn LeaseOwner>));
                    waiter.offer(Ok(Some(Acquired::Lease(lease, found))));
                }
                Effect::Tell { waiter, outcome } => waiter.offer(self.result(&waiter.ask, outcome)),
                Effect::Lost { lease, .. } => lease.state.notify(false),
                Effect::Valid { lease, sent, until } => {
                    // The holder may have seen the lease end since the step.
                    if !lease.state.renewed(sent, until, clock::now()) {
                        self.handle(Event::Lost {
                            id: lease.state.grant.id,
                            fence: lease.state.grant.fence,
                        });
                    }
                }
            }
        }
    }

    /// Returns the result for a waiter whose acquire got no lease.
    fn result(
        &self,
        ask: &AcquireRequest<Query<K>>,
        outcome: WaiterOutcome<Found<K>>,
    ) -> WaiterResult<Found<K>> {
        match outcome {
            WaiterOutcome::Again => Ok(None),
            WaiterOutcome::Found(found) => Ok(Some(Acquired::Done(found))),
            WaiterOutcome::Failed(error) => Err(error),
            WaiterOutcome::Refused { left, before } => Err(self.refusal(ask, left, before)),
            WaiterOutcome::Closed => Err(Busy {
                subject: ask.subject,
                why: Why::Closed,
                retry_after: None,
            }
            .into()),
        }
    }

    /// Returns the error for a caller that is refused. See [`WaiterOutcome::Refused`].
    pub(super) fn refusal(&self, ask: &AcquireRequest<Query<K>>, left: i64, before: i64) -> Error {
        let why = if ask.wait.is_some() {
            Why::QueueFull
        } else {
            Why::Taken
        };
        // A permit is held for as long as a request takes, and renewed meanwhile, so the end of its lease does not
        // predict its release.
        let is_known =
            ask.subject != Subject::Permit || self.hold_time.recent(Instant::now()).is_some();
        let retry_after = self.retry_after(left, before).filter(|_| is_known);
        Busy {
            subject: ask.subject,
            why,
            retry_after,
        }
        .into()
    }

    fn send_release(self: &Arc<Self>, here: Option<Handle>, release: &Release, owed: Option<u64>) {
        let this = Arc::clone(self);
        let key = release.key.clone();
        let released = move |result| {
            if let Some(owed) = owed {
                this.handle(Event::Released { owed, result });
            }
        };
        if release.renews {
            let renewal = self.renewal(&release.token, release.ttl, 0);
            self.renew
                .send(here, key, renewal, move |answer| released(answer.map(drop)));
            return;
        }
        let operation = self.release_operation(release);
        self.acquire_release
            .send(here, key, operation, move |answer| {
                released(answer.map(drop))
            });
    }

    fn send_acquire(self: &Arc<Self>, id: u64, key: Key, token: Token, options: &Holding) {
        let this = Arc::clone(self);
        let sent = self.now();
        let verb = Verb::Acquire {
            query: None,
            bypass: false,
        };
        let ttl = micros(options.options.ttl);
        let operation = self.operation(token, verb, AcquireTerms::usual(ttl));
        self.acquire_release
            .send(None, key, operation, move |answer| {
                this.handle(match answer {
                    Ok(answer) => Event::Answered {
                        id,
                        sent,
                        answer,
                        polled: None,
                    },
                    Err(error) => Event::Failed {
                        id,
                        is_final: error.is_ended(),
                        error,
                    },
                });
            });
    }

    fn send_heartbeat(self: &Arc<Self>, key: Key, waiters: Vec<(u64, Token)>) {
        let this = Arc::clone(self);
        let sent = self.now();
        let (ids, tokens) = waiters.into_iter().unzip::<_, _, Vec<_>, _>();
        let limit = self.fleet_limit();
        let heartbeat = Heartbeat {
            context: Arc::clone(&self.context),
            limit,
            tokens,
        };
        self.heartbeat.send(None, key, heartbeat, move |answer| {
            this.handle(match answer {
                Ok(Positions {
                    now, soonest, each, ..
                }) => Event::Positions {
                    sent,
                    now,
                    soonest,
                    each: ids.into_iter().zip(each).collect(),
                },
                Err(error) => Event::Unanswered { ids, error },
            });
        });
    }

    fn send_renewal(self: &Arc<Self>, lease: LeaseHandle, extends: bool) {
        let this = Arc::clone(self);
        let sent = clock::now();
        // No renewal shortens a lease: with a ttl of 0, it only reads the expiry.
        let ttl = if extends {
            micros(lease.state.ttl())
        } else {
            0
        };
        let renewal = self.renewal(&lease.state.grant.token, ttl, 0);
        self.renew.send(
            None,
            lease.state.grant.key.clone(),
            renewal,
            move |answer| {
                drop(this.renewed(&lease, sent, answer, true));
            },
        );
    }

    /// Handles the reply to a renewal.
    pub(super) fn renewed(
        self: &Arc<Self>,
        lease: &LeaseHandle,
        sent: Instant,
        answer: Result<(i64, Option<i64>), Error>,
        scheduled: bool,
    ) -> Result<(), Error> {
        let renewed = match &answer {
            Ok((_, None)) => Renewed::Gone,
            Ok((now, Some(expiry))) => {
                let anchor = Anchor { sent, now: *now };
                let drift = lease.state.holding.options.drift;
                Renewed::Valid {
                    sent,
                    until: anchor.until(*expiry, lease.state.ttl(), drift),
                }
            }
            Err(_) => Renewed::Unknown,
        };
        self.handle(Event::Renewed {
            id: lease.state.grant.id,
            renewed,
            scheduled,
        });
        answer?;
        // The token may have been handed on.
        if renewed != Renewed::Gone && lease.is_held() {
            Ok(())
        } else {
            Err(Error::lost())
        }
    }
}

/// Returns the runtime that sends the releases among these effects; `None`: the background sends them.
fn sender<P: Host>(effects: &Effects<P>) -> Option<Handle> {
    for effect in effects {
        if let Effect::Acquire { .. } = effect {
            return None;
        }
    }
    Handle::try_current().ok()
}

impl<K: Kind> PeriodicTask for LeaseNamespace<K> {
    fn due(&self) -> Option<Instant> {
        let new_leases = self
            .new_leases
            .iter()
            .filter_map(|new_leases| lock(new_leases).due());
        new_leases
            .chain(lock(&self.tokens).tokens.due())
            .min()
            .map(clock::without_suspend)
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        self.handle(Event::Signal(signal));
    }
}

impl<K: Kind> Recipient for LeaseNamespace<K> {
    fn hear(self: Arc<Self>, id: u64, news: PushKind) {
        let news = match news {
            PushKind::Granted { expiry, fence } => PushEvent::Granted { expiry, fence },
            PushKind::Gone => {
                self.move_to_process(id);
                PushEvent::Gone
            }
            PushKind::Told(told) => K::Outcome::hear(&self.context.scope, &told)
                .map_or(PushEvent::Gone, PushEvent::Found),
            PushKind::Refused(why) => PushEvent::Refused(why),
        };
        self.handle(Event::Pushed { id, news });
    }
}

impl<K: Kind> Watched for LeaseNamespace<K> {
    fn watched(self: Arc<Self>, id: u64, since: Instant) {
        let notifier = self.store.notifier();
        if notifier.current_link() == Link::Down {
            self.store.subscribe();
        } else if notifier.may_have_missed(since) {
            self.hear(id, PushKind::Gone);
        }
    }
}
