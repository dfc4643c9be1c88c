//! Carries out what the [step](super::process) of a namespace says: sends the calls, and gives waiters their results.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Subject, Why};
use crate::key::Key;
use crate::lease::handle::{Keeper, Lease, LeaseHandle};
use crate::lease::key_state::Terms;
use crate::lease::kind::{Found, Kind, Outcome, Query};
pub(crate) use crate::lease::namespace::Local;
use crate::lease::namespace::{Admission, State};
use crate::lease::operations::{Heartbeat, Standings, Verb};
use crate::lease::options::{Holding, Watched, micros};
use crate::lease::process::event::{
    Effect, Effects, Event, Notice, Now, Party, Release, Renewed, Told,
};
use crate::lease::release;
use crate::lease::token::Token;
use crate::lease::waiter::{Ask, Got, Received};
use crate::store::notifier::{Link, News, Recipient};
use crate::store::scheduler::{PeriodicTask, Signal};
use crate::store::validity::Anchor;
use crate::sync::lock;

impl<K: Kind> Admission<K> {
    /// The time and the state of the link, for a call that is sent now.
    pub(super) fn now(&self) -> Now {
        Now {
            at: clock::now(),
            link: self.store.notifier().current_link(),
        }
    }

    /// Handles an event, and carries out what follows.
    pub(super) fn handle(self: &Arc<Self>, event: Event<Local<K>>) {
        self.perform(self.step(|_| Some(event)));
    }

    /// Handles an event, which may depend on the time. Returns what follows.
    pub(super) fn step(
        self: &Arc<Self>,
        event: impl FnOnce(Now) -> Option<Event<Local<K>>>,
    ) -> Effects<Local<K>> {
        let mut state = lock(&self.tokens);
        let State { tokens, keep } = &mut *state;
        let now = self.now();
        let earlier = tokens.due();
        let owed = tokens.owed();
        let event = event(now);
        let grown_up = match &event {
            Some(Event::Signal(Signal::Due)) => Some(Some(now.at)),
            Some(Event::Signal(Signal::ShutDown)) => Some(None),
            _ => None,
        };
        if let Some(until) = grown_up {
            let grown_up = self
                .young
                .iter()
                .flat_map(|young| lock(young).grown_up(until));
            grown_up.for_each(|leased| release::holds(tokens, leased, now));
        }
        let effects = event
            .map(|event| tokens.step(event, now))
            .unwrap_or_default();
        // Nothing follows most events.
        let in_background = !effects.is_empty() && sender(&effects).is_none();
        for effect in &effects {
            // A waiter must not accept a lease that its token gives to the next one.
            if let Effect::Lost { lease, taken_back } = effect {
                lease.state.end(*taken_back);
            }
            // Before the time to send it again, however late this thread runs on.
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
        // The namespace lives until its releases are done.
        *keep = (tokens.owed() > 0).then(|| Arc::clone(self));
        // Before others can handle the answers.
        if let Some(owed) = self.store.owed() {
            owed.change(more);
        }
        drop(state);
        if let Some(due) = due {
            self.store.scheduler().schedule(clock::without_suspend(due));
        }
        effects
    }

    /// Carries out effects. Their calls are sent from the background, but for releases that no acquire follows: these leave
    /// before the next call of the caller.
    pub(super) fn perform(self: &Arc<Self>, effects: Effects<Local<K>>) {
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
                    let lease = Lease::new(lease, Arc::clone(self) as Arc<dyn Keeper>);
                    waiter.offer(Ok(Some(Got::Lease(lease, found))));
                }
                Effect::Tell { waiter, outcome } => waiter.offer(self.result(&waiter.ask, outcome)),
                Effect::Lost { lease, .. } => lease.state.notify(false),
                Effect::Valid { lease, sent, until } => {
                    // Its holder may have seen it end since the step.
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

    /// The result for a waiter that gets no lease by its acquire.
    fn result(&self, ask: &Ask<Query<K>>, outcome: Told<Found<K>>) -> Received<Found<K>> {
        match outcome {
            Told::Again => Ok(None),
            Told::Found(found) => Ok(Some(Got::Done(found))),
            Told::Failed(error) => Err(error),
            Told::Refused { left, before } => Err(self.refusal(ask, left, before)),
            Told::Closed => Err(Busy {
                subject: ask.subject,
                why: Why::Closed,
                retry_after: None,
            }
            .into()),
        }
    }

    /// The error for a caller that is refused. See [`Told::Refused`].
    pub(super) fn refusal(&self, ask: &Ask<Query<K>>, left: i64, before: i64) -> Error {
        let why = if ask.wait.is_some() {
            Why::QueueFull
        } else {
            Why::Taken
        };
        // A permit is held for as long as a request takes, and renewed meanwhile: the end of its lease says nothing of that.
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
        let then = move |result| {
            if let Some(owed) = owed {
                this.handle(Event::Released { owed, result });
            }
        };
        if release.renews {
            let renewal = self.renewal(&release.token, release.ttl, 0);
            return self
                .renew
                .send(here, key, renewal, move |answer| then(answer.map(drop)));
        }
        let operation = self.release_operation(release);
        self.acquire_release
            .send(here, key, operation, move |answer| then(answer.map(drop)));
    }

    fn send_acquire(self: &Arc<Self>, id: u64, key: Key, token: Token, options: &Holding) {
        let this = Arc::clone(self);
        let sent = self.now();
        let verb = Verb::Acquire {
            query: None,
            bypass: false,
        };
        let ttl = micros(options.options.ttl);
        let operation = self.operation(token, verb, Terms::usual(ttl));
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
            scene: Arc::clone(&self.scene),
            limit,
            tokens,
        };
        self.heartbeat.send(None, key, heartbeat, move |answer| {
            this.handle(match answer {
                Ok(Standings {
                    now, soonest, each, ..
                }) => Event::Stands {
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
        // No renewal makes a lease shorter: a ttl of 0 only reads until when it lasts.
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

    /// Handles the answer to a renewal.
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

/// Returns the runtime that sends the releases among these effects; `None`: the background does.
fn sender<P: Party>(effects: &Effects<P>) -> Option<Handle> {
    let is_followed = effects
        .iter()
        .any(|effect| matches!(effect, Effect::Acquire { .. }));
    if is_followed {
        None
    } else {
        Handle::try_current().ok()
    }
}

impl<K: Kind> PeriodicTask for Admission<K> {
    fn due(&self) -> Option<Instant> {
        let young = self.young.iter().filter_map(|young| lock(young).due());
        young
            .chain(lock(&self.tokens).tokens.due())
            .min()
            .map(clock::without_suspend)
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        self.handle(Event::Signal(signal));
    }
}

impl<K: Kind> Recipient for Admission<K> {
    fn hear(self: Arc<Self>, id: u64, news: News) {
        let news = match news {
            News::Granted { expiry, fence } => Notice::Granted { expiry, fence },
            News::Gone => {
                self.grow_up(id);
                Notice::Gone
            }
            News::Told(told) => {
                K::Outcome::hear(&self.scene.scope, &told).map_or(Notice::Gone, Notice::Found)
            }
            News::Refused(why) => Notice::Refused(why),
        };
        self.handle(Event::Pushed { id, news });
    }
}

impl<K: Kind> Watched for Admission<K> {
    fn watched(self: Arc<Self>, id: u64, since: Instant) {
        let notifier = self.store.notifier();
        if notifier.current_link() == Link::Down {
            self.store.subscribe();
        } else if notifier.may_have_missed(since) {
            self.hear(id, News::Gone);
        }
    }
}
