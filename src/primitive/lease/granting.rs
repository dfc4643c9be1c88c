//! How a waiter learns the result of its acquire: by the answer, by a push, or by a heartbeat.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::acquire::{Ask, Asked};
use super::admission::{Admission, unasked};
use super::belief::{Anchor, Belief};
use super::handle::Lease;
use super::key_state::{Standing, Terms};
use super::kind::{Found, Kind, Query};
use super::line::Line;
use super::operations::{AcquireRelease, Answer, Verb, What};
use super::options::{Holding, micros};
use super::outcome::Outcome;
use super::releases::GiveBack;
use super::seat::{Got, Heard, Seat};
use super::state::{Granted, LeaseState, Tenure};
use super::table::{Entry, Stage};
use crate::error::{Busy, Cause, Subject, Why};
use crate::primitive::clock;
use crate::store::{Link, News, lock};
use crate::{Error, Key};

/// When a call was sent, and whether pushes arrived at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) at: Instant,
    pub(super) link: Link,
}

/// How a lease was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By the answer to a call: for the full ttl.
    Answer(Anchor),
    /// By a release elsewhere: for a short time, within which it must be renewed. Learned from a push (`None`), or
    /// from the answer to a call.
    Grant(Option<Anchor>),
}

impl<K: Kind> Admission<K> {
    /// Adds a waiter. Returns `None` if it joined a line that has asked already.
    pub(super) fn sit_down(
        &self,
        key: &Key,
        ask: &Ask<Query<K>>,
        seat: &Arc<Seat<Found<K>>>,
    ) -> Option<Asked> {
        let holding = &seat.holding;
        let cohort = holding.options.cohorts && ask.wait.is_some();
        let mut table = lock(&self.table);
        if cohort && let Some((due, driver)) = table.join(key, seat, Instant::now()) {
            drop(table);
            driver.into_iter().for_each(|driver| driver.nudge());
            due.into_iter().for_each(|due| self.store.scheduler().schedule(due));
            return None;
        }
        let (id, token) = self.token(&holding.options, &ask.suffix);
        // A caller that is polled has its answer by then.
        let due = Instant::now() + self.store.call_limit() + self.grant_time();
        let entry = Entry {
            key: key.clone(),
            token: Arc::clone(&token),
            holding: Arc::clone(holding),
            stage: Stage::Asking,
            line: Line::new(Arc::clone(seat)),
            cohort,
            driver: Some(Arc::clone(seat)),
            nudged: None,
            tenure: None,
            due: Some(due),
            early: None,
            twice: false,
            gone: false,
            outage: None,
        };
        table.insert(id, entry);
        drop(table);
        // In memory the answer comes within a poll. Who joins the line meanwhile schedules the check.
        if !self.store.is_in_memory() {
            self.store.scheduler().schedule(due);
        }
        Some(Asked { id, token })
    }

    /// Records the time and the link state of a call that is sent now.
    pub(super) fn sent(&self) -> Sent {
        Sent { at: clock::now(), link: self.link() }
    }

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
        let verb = if ask.bypass { Verb::Bypass } else { Verb::Acquire };
        let operation = self.operation(token, verb, terms);
        self.client().run(key, AcquireRelease { query: Some(ask.query.clone()), ..operation }).await
    }

    /// Handles the answer to a call that was sent at `sent`.
    pub(super) fn answered(
        self: &Arc<Self>,
        id: u64,
        sent: Sent,
        answer: Answer<Found<K>>,
        subject: Subject,
        waits: bool,
    ) {
        let (now, found) = (answer.now, answer.found);
        let anchor = Anchor { sent: sent.at, now };
        if answer.twice
            && let Some(entry) = lock(&self.table).get_mut(id)
        {
            entry.twice = true;
        }
        let What::Acquired(standing) = answer.what else { return self.failed(id, &unasked()) };
        match standing {
            Standing::Held { expiry, fence } => self.granted(id, By::Answer(anchor), expiry, fence, found),
            Standing::Queued { soonest, .. } if waits => self.queued(id, anchor, sent.link, soonest),
            Standing::Done => self.tell(id, || match found.clone() {
                Some(found) => Ok(Some(Got::Done(found))),
                None => Err(unasked()),
            }),
            Standing::Refused { soonest, before } => {
                let why = if waits { Why::QueueFull } else { Why::Taken };
                let retry_after = self.retry_after(soonest - now, before);
                self.tell(id, || Err(Busy { subject, why, retry_after }.into()));
            }
            // Only this process knows the token, so it was neither withdrawn nor queued before.
            Standing::Withdrawn | Standing::Queued { .. } => self.place_lost(id),
        }
    }

    /// Estimates the time until a lease is free, from the end of the next lease and the recent hold times.
    fn retry_after(&self, left: i64, before: i64) -> Option<Duration> {
        let left = u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_micros);
        let turns = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
        let typical = self.hold_time().map(|held| held.saturating_mul(turns));
        match (left, typical) {
            (Some(left), Some(typical)) => Some(left.min(typical)),
            (left, _) => left,
        }
    }

    /// Handles an acquire that was queued.
    fn queued(self: &Arc<Self>, id: u64, anchor: Anchor, link: Link, soonest: i64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id).filter(|entry| entry.stage == Stage::Asking) else { return };
        let due = self.next_heartbeat(&entry.holding.options, anchor, link, soonest);
        (entry.stage, entry.driver, entry.due) = (Stage::Queued(anchor), None, Some(due));
        entry.outage = None;
        let early = entry.early.take();
        drop(table);
        self.store.subscribe();
        self.store.scheduler().schedule(due);
        if let Some(early) = early {
            self.heard(id, early);
        }
    }

    /// Handles a pushed message.
    pub(super) fn heard(self: &Arc<Self>, id: u64, news: News) {
        match news {
            // The message says nothing of replicas, but the answer to a heartbeat does.
            News::Granted { .. } if self.store.durable_within().is_some() => self.ask_now(id, news),
            News::Granted { expiry, fence } => self.granted(id, By::Grant(None), expiry, fence, None),
            News::Gone => self.place_lost(id),
            News::Told(told) => match K::Outcome::hear(&self.scene.scope, &told) {
                Some(found) => self.tell(id, || Ok(Some(Got::Done(found.clone())))),
                None => self.place_lost(id),
            },
        }
    }

    /// Makes the heartbeat of a waiter due now.
    fn ask_now(&self, id: u64, news: News) {
        let now = Instant::now();
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id) else { return };
        match entry.stage {
            Stage::Asking => entry.early = Some(news),
            Stage::Queued(_) => entry.due = Some(now),
            Stage::Holding => return,
        }
        drop(table);
        self.store.scheduler().schedule(now);
    }

    /// Handles a lease that the store granted to a token.
    pub(super) fn granted(
        self: &Arc<Self>,
        id: u64,
        by: By,
        expiry: i64,
        fence: i64,
        found: Option<Found<K>>,
    ) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id) else { return };
        let anchor = match (by, entry.stage) {
            // Known already, or too late.
            (_, Stage::Holding) => return,
            (_, Stage::Queued(_)) if entry.gone => return,
            (By::Answer(anchor) | By::Grant(Some(anchor)), _) | (By::Grant(None), Stage::Queued(anchor)) => {
                anchor
            }
            // The server's time is not known yet.
            (By::Grant(None), Stage::Asking) => {
                entry.early = Some(News::Granted { expiry, fence });
                return;
            }
        };
        // Use the server's time of the last answered call, never the arrival time of the push.
        let options = &entry.holding.options;
        let now = clock::now();
        let until = match by {
            By::Grant(None) => {
                anchor.until_granted(expiry, self.grant_time().min(options.ttl), now, options.drift)
            }
            By::Answer(_) | By::Grant(Some(_)) => anchor.until(expiry, options.ttl, options.drift),
        };
        let Some(belief) = Belief::granted(until, now) else {
            drop(table);
            return self.too_late(id, by);
        };
        let (key, token) = (entry.key.clone(), Arc::clone(&entry.token));
        let granted = Granted { key, token, id, ttl: options.ttl, drift: options.drift, twice: entry.twice };
        let tenure = Tenure::new(granted, belief);
        let is_asked_for = entry.driver.take().is_some();
        (entry.stage, entry.due) = (Stage::Holding, None);
        let fits = entry.line.front().is_some_and(|seat| tenure.suits(&seat.holding.options));
        let seat = if fits { entry.line.granted(Instant::now()) } else { None };
        entry.tenure = Some(Arc::clone(&tenure));
        entry.watch();
        let due = entry.due;
        if !entry.cohort {
            table.remove(id);
        }
        drop(table);
        due.into_iter().for_each(|due| self.store.scheduler().schedule(due));
        let Some(seat) = seat else { return self.ask_for_line(id, Some(GiveBack::of(&tenure))) };
        let state = LeaseState::new(Arc::clone(&tenure), fence, &seat.holding);
        match by {
            // The future is being polled now.
            By::Answer(_) if is_asked_for => self.renewals.add(&state, false),
            By::Answer(_) => self.renewals.hand_over(&state),
            By::Grant(_) => self.renewals.add(&state, true),
        }
        self.offer(&seat, state, found);
    }

    /// Offers a lease to a waiter. If the waiter has gone away, the lease is handed on, or released.
    pub(super) fn offer(
        self: &Arc<Self>,
        seat: &Arc<Seat<Found<K>>>,
        state: Arc<LeaseState>,
        found: Option<Found<K>>,
    ) {
        let tenure = Arc::clone(&state.tenure);
        tenure.offer(Arc::<Seat<Found<K>>>::clone(seat));
        let lease = Lease::new(state, Arc::<Self>::clone(self));
        drop(seat.offer(Ok(Some(Got::Lease(lease, found)))));
    }

    /// Handles a lease that expired before its grant arrived.
    fn too_late(self: &Arc<Self>, id: u64, by: By) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id) else { return };
        let back = entry.give_back(false);
        if entry.cohort {
            drop(table);
            return self.ask_for_line(id, Some(back));
        }
        drop(table);
        self.give_back(back);
        self.tell(id, || match by {
            By::Answer(_) => Err(Error::unavailable(
                Cause::TimedOut,
                "the lease was granted, but expired before the reply arrived",
            )),
            By::Grant(_) => Ok(None),
        });
    }

    /// Handles the loss of a place in the queue. A line asks for another one; a single waiter asks again.
    pub(super) fn place_lost(self: &Arc<Self>, id: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id).filter(|entry| entry.stage != Stage::Holding) else { return };
        let is_line = entry.cohort && entry.driver.is_none();
        drop(table);
        match is_line {
            true => self.ask_for_line(id, None),
            false => self.tell(id, || Ok(None)),
        }
    }

    /// Handles a failed acquire. All waiters in the line receive the error.
    pub(super) fn failed(self: &Arc<Self>, id: u64, error: &Error) {
        let mut table = lock(&self.table);
        let Some(entry) = table.get_mut(id) else { return };
        let back = entry.give_back(true);
        drop(table);
        self.tell(id, || Err(error.clone()));
        if !error.is_not_sent() {
            self.give_back(back);
        }
    }

    /// Gives all waiters in a line their result, and removes the line: no waiter uses its token any more.
    fn tell(&self, id: u64, heard: impl Fn() -> Heard<Found<K>>) {
        let Some(mut entry) = lock(&self.table).remove(id) else { return };
        let seats: Vec<_> = entry.line.drain().collect();
        for seat in seats {
            drop(seat.offer(heard()));
        }
    }

    /// Returns the error of the last call for waiters of a key, if the store was unavailable. Also if that call is still
    /// under way, and is refused again and again.
    pub(super) fn outage(&self, key: &Key) -> Option<Error> {
        let table = lock(&self.table);
        let outage = table.values().filter(|entry| entry.key == *key).find_map(|entry| entry.outage.clone());
        outage.or_else(|| self.namespace.refused(key))
    }
}
