//! Tokens that wait: their acquires, their places in the queue, and their results without a lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::Cause;
use crate::key::Key;
use crate::lease::key_state::Position;
use crate::lease::operations::Release;
use crate::lease::operations::{Answer, ReplyKind};
use crate::lease::options::LeaseOptions;
use crate::lease::process::Tokens;
use crate::lease::process::entry::{Entry, Line, Stage};
use crate::lease::process::event::{Effect, GrantedBy, Host, Now, PushEvent, WaiterOutcome};
use crate::lease::token::Token;
use crate::store::notifier::{Link, Refusal};
use crate::store::validity::Anchor;

/// How long waiters that join a line wait for the future that sends its acquire. After that, a copy is sent in the
/// background, since that future may not be polled.
const UNANSWERED: Duration = Duration::from_millis(500);

/// How much later a message may arrive than a reply that was sent after it.
const MESSAGE_DELAY: Duration = Duration::from_millis(20);

/// Added to the expected end of a lease: a heartbeat that is sent too early must be repeated.
const MARGIN: Duration = Duration::from_millis(2);

/// The maximum number of waiters of one key in one heartbeat.
const MOST_TOKENS: usize = 256;

impl<P: Host> Tokens<P> {
    pub(super) fn arrives(&mut self, key: Key, waiter: P::Waiter) {
        let cohort = P::options(&waiter).options.cohorts;
        if cohort
            && let Some(id) = self.lines.get(&key).copied()
            && let Some(entry) = self.entries.get_mut(&id)
        {
            entry.line.join(waiter);
            match (&entry.stage, entry.due) {
                (
                    Stage::Acquiring {
                        in_background: false,
                        ..
                    },
                    due,
                ) => {
                    let sooner = self.now.at + UNANSWERED;
                    self.set_due(id, Some(due.map_or(sooner, |due| due.min(sooner))));
                }
                _ => self.plan(id),
            }
            return;
        }
        let id = self.acquire(key, Line::new(waiter.clone()), &waiter, cohort, false);
        if self.rules.is_remote {
            self.set_due(id, Some(self.now.at + self.rules.call + self.rules.grant));
        }
    }

    /// Acquires with a new token for a line. Returns its id.
    fn acquire(
        &mut self,
        key: Key,
        line: Line<P::Waiter>,
        first: &P::Waiter,
        cohort: bool,
        in_background: bool,
    ) -> u64 {
        let options = Arc::clone(P::options(first));
        let (id, token) = self.party.token(first);
        let stage = Stage::Acquiring {
            in_background,
            failed: false,
            early: false,
        };
        let mut entry = Entry::new(id, key.clone(), token.clone(), Arc::clone(&options), stage);
        entry.line = line;
        entry.cohort = cohort;
        self.insert(id, entry);
        self.effects.push(Effect::Acquire {
            id,
            key,
            token,
            options,
        });
        id
    }

    pub(super) fn leaves(
        &mut self,
        key: &Key,
        waiter: &P::Waiter,
        id: Option<u64>,
        unanswered: bool,
    ) {
        // A waiter without an entry of its own is in the line that it joined.
        let own = id.filter(|id| self.entries.contains_key(id));
        let Some(id) = own.or_else(|| self.lines.get(key).copied()) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.line.leave(waiter);
        let acquiring = match entry.stage {
            Stage::Held(_) => return self.plan(id),
            Stage::Queued { .. } => false,
            Stage::Acquiring { .. } => true,
        };
        if entry.line.is_empty() {
            let release = entry.release(acquiring, self.rules.alive, self.now.at);
            self.remove(id);
            self.withdraw(release);
        } else if acquiring && unanswered && own.is_some() {
            let release = entry.release(true, self.rules.alive, self.now.at);
            self.acquire_again(id, Some(release));
        }
    }

    pub(super) fn answered(
        &mut self,
        id: u64,
        sent: Now,
        answer: Answer<P::Found>,
        polled: Option<P::Waiter>,
    ) {
        let anchor = Anchor {
            sent: sent.at,
            now: answer.now,
        };
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let (Stage::Acquiring { early, .. }, ReplyKind::Acquired(standing)) =
            (&entry.stage, answer.what)
        else {
            return;
        };
        let early = *early;
        entry.twice |= answer.twice;
        match standing {
            Position::Held { expiry, fence } => {
                let by = GrantedBy::Answer(anchor);
                self.granted(id, by, (expiry, fence), answer.found, polled);
            }
            Position::Queued { soonest, .. } => {
                entry.stage = Stage::Queued {
                    anchor,
                    gone: false,
                };
                // The announced grant may be older than this reply, so a heartbeat looks it up.
                let due = if early {
                    Some(self.now.at)
                } else {
                    self.next_heartbeat(id, anchor, sent.link, soonest)
                };
                self.set_due(id, due);
                self.set_outage(id, None);
                self.effects.push(Effect::Subscribe);
            }
            Position::Done => {
                let found = answer.found.map(WaiterOutcome::Found);
                self.tell(
                    id,
                    &found.unwrap_or_else(|| WaiterOutcome::Failed(unexpected())),
                );
            }
            Position::Refused { soonest, before } => {
                let left = soonest - answer.now;
                self.tell(id, &WaiterOutcome::Refused { left, before });
            }
            // Only this process knows the token. So this process withdrew it, and a copy of an acquire ran late.
            Position::Withdrawn => self.place_lost(id),
        }
    }

    /// Returns when a waiter sends its next heartbeat: in time to keep its place, and when the next lease ends.
    fn next_heartbeat(&self, id: u64, anchor: Anchor, link: Link, soonest: i64) -> Option<Instant> {
        let LeaseOptions {
            foreign, ask_every, ..
        } = *self.entries.get(&id)?.options();
        let now = self.now.at;
        let every = self.rules.heartbeat;
        // Messages that were sent between the server's reply and the new subscription are lost.
        if self.now.link != link {
            return Some(now);
        }
        let polls = foreign || link == Link::Down;
        let every = if polls { every.min(ask_every) } else { every };
        // Heartbeats of many waiters are sent together.
        let heartbeat = clock::together(self.began, now + every, every);
        if soonest == 0 {
            return Some(heartbeat);
        }
        let left = Duration::from_micros(u64::try_from(soonest - anchor.now).unwrap_or(0));
        Some(heartbeat.min((anchor.sent + left).max(now) + MARGIN))
    }

    pub(super) fn pushed(&mut self, id: u64, news: PushEvent<P::Found>) {
        let is_durable = self.rules.is_durable;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        match (&mut entry.stage, news) {
            (Stage::Held(held), PushEvent::Gone) => {
                held.is_doubted(self.now.at);
                self.plan(id);
            }
            (Stage::Held(_), _) => {}
            // Without the server's time the end of a grant is unknown.
            (Stage::Acquiring { early, .. }, PushEvent::Granted { .. }) => *early = true,
            (Stage::Queued { gone: true, .. }, PushEvent::Granted { .. }) => {}
            (Stage::Queued { .. }, PushEvent::Granted { .. }) if is_durable => {
                self.set_due(id, Some(self.now.at))
            }
            (Stage::Queued { .. }, PushEvent::Granted { expiry, fence }) => {
                self.granted(id, GrantedBy::Grant(None), (expiry, fence), None, None);
            }
            (_, PushEvent::Gone) => self.place_lost(id),
            (_, PushEvent::Found(found)) => self.tell(id, &WaiterOutcome::Found(found)),
            (_, PushEvent::Refused(Refusal::QueueFull)) => {
                self.tell(id, &WaiterOutcome::Refused { left: 0, before: 0 })
            }
            (_, PushEvent::Refused(Refusal::Closed)) => self.tell(id, &WaiterOutcome::Closed),
        }
    }

    /// Handles the reply to a heartbeat. The next lease ends at `soonest`, by the server's clock, whose time is `now`.
    pub(super) fn all_stand(
        &mut self,
        sent: Now,
        now: i64,
        soonest: i64,
        each: Vec<(u64, Position)>,
    ) {
        let anchor = Anchor { sent: sent.at, now };
        for (id, standing) in each {
            self.stands(id, standing, anchor, sent.link, soonest);
        }
    }

    /// Handles the state of one waiter, from a heartbeat.
    fn stands(&mut self, id: u64, standing: Position, anchor: Anchor, link: Link, soonest: i64) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let Stage::Queued {
            anchor: known,
            gone,
        } = &mut entry.stage
        else {
            return;
        };
        match standing {
            Position::Held { expiry, fence } if !*gone => {
                self.granted(
                    id,
                    GrantedBy::Grant(Some(anchor)),
                    (expiry, fence),
                    None,
                    None,
                );
            }
            Position::Held { .. } => {}
            Position::Queued { .. } => {
                *known = anchor;
                let due = entry.due;
                let next = self.next_heartbeat(id, anchor, link, soonest);
                // A message may have made it due earlier.
                self.set_due(id, [due, next].into_iter().flatten().min());
                self.set_outage(id, None);
            }
            Position::Refused { .. } | Position::Withdrawn | Position::Done
                if self.rules.has_outcomes =>
            {
                *gone = true;
                self.set_due(id, Some(self.now.at + MESSAGE_DELAY));
            }
            Position::Refused { .. } | Position::Withdrawn | Position::Done => self.place_lost(id),
        }
    }

    /// Handles a failed heartbeat of waiters: each sends another one soon, or stops waiting.
    pub(super) fn heartbeats_failed(&mut self, ids: Vec<u64>, error: &Error) {
        ids.into_iter()
            .for_each(|id| self.heartbeat_failed(id, error));
    }

    fn heartbeat_failed(&mut self, id: u64, error: &Error) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        if entry.due.is_some() || !matches!(entry.stage, Stage::Queued { .. }) {
            return;
        }
        if error.is_away() && entry.line.iter().any(P::gives_up) {
            return self.fail(id, error);
        }
        let due = self.now.at + entry.options().ask_every.min(self.rules.heartbeat);
        self.set_due(id, Some(due));
        self.set_outage(id, Some(error).filter(|error| error.is_away()));
    }

    /// Handles a failed acquire.
    pub(super) fn failed(&mut self, id: u64, error: &Error, is_final: bool) {
        let repeats = self.rules.is_remote && !is_final && error.is_away();
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        match &mut entry.stage {
            // The waiters of a line have waited for a while: an outage may end before their time limits.
            Stage::Acquiring {
                in_background: true,
                failed,
                ..
            } if repeats => {
                *failed = true;
                // The call may still run, after a release.
                entry.twice |= !error.is_not_sent();
                let due = self.now.at + entry.options().ask_every;
                self.set_due(id, Some(due));
                self.set_outage(id, Some(error));
            }
            Stage::Acquiring { .. } => self.fail(id, error),
            Stage::Queued { .. } | Stage::Held(_) => {}
        }
    }

    /// Gives all waiters in a line an error, and releases their token.
    fn fail(&mut self, id: u64, error: &Error) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        // `tell` withdraws the token: it has a place, or its acquire may still run.
        entry.twice |= matches!(entry.stage, Stage::Queued { .. }) || !error.is_not_sent();
        self.tell(id, &WaiterOutcome::Failed(error.clone()));
    }

    /// Handles the loss of a place in the queue: a line acquires again, a single waiter does so itself.
    pub(super) fn place_lost(&mut self, id: u64) {
        match self.entries.get(&id) {
            Some(entry) if entry.cohort => self.acquire_again(id, None),
            Some(_) => self.tell(id, &WaiterOutcome::Again),
            None => {}
        }
    }

    /// Gives all waiters in a line the same result, and removes the line: no waiter uses its token any more.
    pub(super) fn tell(&mut self, id: u64, outcome: &WaiterOutcome<P::Found>) {
        self.withdraw_copy(id);
        let Some(mut entry) = self.remove(id) else {
            return;
        };
        self.effects
            .extend(entry.line.drain().map(|waiter| Effect::Tell {
                waiter,
                outcome: outcome.clone(),
            }));
    }

    /// Withdraws an acquire that was sent twice, before its token is forgotten: otherwise one copy may still run, and
    /// hold or wait without a waiter.
    fn withdraw_copy(&mut self, id: u64) {
        if let Some(entry) = self.entries.get(&id).filter(|entry| entry.twice) {
            self.release(entry.release(true, self.rules.alive, self.now.at));
        }
    }

    /// Sends `release`, and removes the token. Its line acquires again, with a new token.
    pub(super) fn acquire_again(&mut self, id: u64, release: Option<Release>) {
        match release {
            Some(release) => self.release(release),
            None => self.withdraw_copy(id),
        }
        if let Some(Entry {
            key, line, cohort, ..
        }) = self.remove(id)
            && let Some(first) = line.front().cloned()
        {
            self.acquire(key, line, &first, cohort, true);
        }
    }

    pub(super) fn run_due(&mut self) {
        let mut heartbeats = HashMap::<Key, Vec<(u64, Token)>>::new();
        self.owed.run_due(self.now.at, &mut self.effects);
        while let Some((due, id)) = self.due.first().copied()
            && due <= self.now.at
        {
            self.due.remove(&(due, id));
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            entry.due = None;
            match &mut entry.stage {
                Stage::Acquiring { .. } => self.acquire_is_due(id),
                Stage::Queued { gone: true, .. } => self.place_lost(id),
                Stage::Queued { .. } => {
                    heartbeats
                        .entry(entry.key.clone())
                        .or_default()
                        .push((id, entry.token.clone()));
                }
                Stage::Held(_) => self.lease_is_due(id),
            }
        }
        for (key, mut waiters) in heartbeats {
            // In the order of arrival.
            waiters.sort_unstable_by_key(|(id, _)| *id);
            let heartbeat = |waiters: &[_]| Effect::Heartbeat {
                key: key.clone(),
                waiters: waiters.to_vec(),
            };
            self.effects
                .extend(waiters.chunks(MOST_TOKENS).map(heartbeat));
        }
    }

    /// Handles an acquire that failed a while ago, or whose reply is late.
    fn acquire_is_due(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if !entry.cohort {
            // Its future is not polled. It acquires again when it is.
            entry.twice = true;
            return self.tell(id, &WaiterOutcome::Again);
        }
        let Stage::Acquiring {
            in_background,
            failed,
            ..
        } = &mut entry.stage
        else {
            return;
        };
        if !*in_background {
            // A second copy of an acquire gets the same reply.
            *in_background = true;
            entry.twice = true;
        } else if !std::mem::take(failed) {
            return;
        }
        self.effects.push(Effect::Acquire {
            id,
            key: entry.key.clone(),
            token: entry.token.clone(),
            options: Arc::clone(&entry.holding),
        });
    }

    /// Sends the heartbeats of all tokens that wait for a message: now, or soon if no messages arrive now.
    pub(super) fn relinked(&mut self) {
        let waits = |entry: &Entry<P>| {
            entry
                .due
                .filter(|_| matches!(entry.stage, Stage::Queued { .. }))
        };
        let entries = self.entries.iter();
        let due: Vec<_> = entries
            .filter_map(|(id, entry)| Some((*id, waits(entry)?, entry.options().ask_every)))
            .collect();
        for (id, due, ask_every) in due {
            let pause = if self.now.link == Link::Down {
                ask_every
            } else {
                Duration::ZERO
            };
            self.set_due(id, Some(due.min(self.now.at + pause)));
        }
    }
}

/// The error for a reply to another operation.
pub(crate) fn unexpected() -> Error {
    Error::unavailable(Cause::Unexpected, "the reply belongs to another operation")
}
