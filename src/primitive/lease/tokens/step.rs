//! Tokens that wait: their acquires, their places in the queue, and what they are told.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::key_state::Standing;
use super::super::options::LeaseOptions;
use super::super::validity::Anchor;
use super::event::By;
use super::{
    Acquired, Effect, Effects, Entry, Event, Grant, Held, Line, Notice, Now, Party, Release, Slot, Stage,
    Tokens, Told,
};
use crate::error::Cause;
use crate::store::Link;
use crate::{Error, Key};

/// How long waiters that join a line wait for the future that sends its acquire. After that, a copy is sent in the
/// background: that future may not be polled.
const UNANSWERED: Duration = Duration::from_millis(500);

/// How much later a message may arrive than an answer that was sent after it.
const MESSAGE_DELAY: Duration = Duration::from_millis(20);

/// Added to the expected end of a lease: a heartbeat that comes too early must be repeated.
const MARGIN: Duration = Duration::from_millis(2);

/// The most waiters of one key in one heartbeat.
const MOST_TOKENS: usize = 256;

/// Waiters by their ids, with their tokens.
type Waiters = Vec<(u64, Arc<str>)>;

impl<P: Party> Tokens<P> {
    /// Handles an event. The effects must be carried out in their order.
    pub(crate) fn step(&mut self, event: Event<P>, now: Now) -> Effects<P> {
        let mut effects = Effects::new();
        let (at, out) = (now.at, &mut effects);
        match event {
            Event::Arrives { key, waiter } => self.arrives(key, waiter, at, out),
            Event::Leaves { key, waiter, id, unanswered } => {
                self.leaves(&key, &waiter, id, unanswered, at, out)
            }
            Event::Answered { id, sent, answer, polled } => self.answered(id, sent, answer, polled, now, out),
            Event::Failed { id, error, is_final } => self.failed(id, &error, is_final, at, out),
            Event::Pushed { id, news } => self.pushed(id, news, at, out),
            Event::Stands { sent, now: server, soonest, each } => {
                for (id, standing) in each {
                    self.stands(
                        id,
                        standing,
                        Anchor { sent: sent.at, now: server },
                        (sent.link, soonest),
                        now,
                        out,
                    );
                }
            }
            Event::Unanswered { ids, error } => self.unanswered(ids, &error, at, out),
            Event::Holds { grant: Grant { key, token, id, fence, validity, .. }, lease, options } => {
                let left = validity.until().saturating_duration_since(at);
                let renew = options.options.watchdog.then(|| self.renewal(at, left, options.options.ttl));
                let held = Held { lease, validity, fence, offered: None, renew, is_renewing: false };
                self.insert(id, Entry::new(key, token, options, Stage::Held(held)));
                self.plan(id);
            }
            Event::Accepted { id, fence } => self.accepted(id, fence),
            Event::Renewed { id, renewed, scheduled } => self.renewed(id, renewed, scheduled, at, out),
            Event::Lost { id, fence } => self.lost(id, fence, true, at, out),
            Event::Ends { release, id, fence, detached } => self.ends(release, id, fence, detached, at, out),
            Event::Forgotten { id, fence } => self.forgotten(id, fence, at, out),
            Event::Releases(release) => self.release(release, at, out),
            Event::Released { owed, result } => self.released(owed, &result, at, out),
            Event::Due => self.run_due(at, out),
            Event::Relinked => self.resume(now, true),
            Event::Interrupted => self.resume(now, false),
            Event::Hurry => self.hurry(at),
            Event::Shutdown => self.shut_down(at, out),
        }
        effects
    }

    fn arrives(&mut self, key: Key, waiter: P::Waiter, at: Instant, effects: &mut Effects<P>) {
        let options = Arc::clone(P::options(&waiter));
        let cohort = P::joins(&waiter);
        if cohort
            && let Some(id) = self.lines.get(&key).copied()
            && let Some(entry) = self.entries.get_mut(&id)
        {
            entry.line.join(waiter);
            match (&entry.stage, entry.due) {
                (Stage::Acquiring { in_background: false, .. }, due) => {
                    let sooner = at + UNANSWERED;
                    self.set_due(id, Some(due.map_or(sooner, |due| due.min(sooner))));
                }
                _ => self.plan(id),
            }
            return;
        }
        let (id, token) = self.party.token(&waiter);
        let stage = Stage::Acquiring { in_background: false, failed: false, early: false };
        let mut entry = Entry::new(key.clone(), Arc::clone(&token), Arc::clone(&options), stage);
        (entry.line, entry.cohort) = (Line::new(waiter), cohort);
        self.insert(id, entry);
        if self.rules.is_remote {
            self.set_due(id, Some(at + self.rules.call + self.rules.grant));
        }
        effects.push(Effect::Acquire { id, key, token, options });
    }

    fn leaves(
        &mut self,
        key: &Key,
        waiter: &P::Waiter,
        id: Option<u64>,
        unanswered: bool,
        at: Instant,
        effects: &mut Effects<P>,
    ) {
        // A waiter without an entry of its own is in the line that it joined.
        let own = id.filter(|id| self.entries.contains_key(id));
        let Some(id) = own.or_else(|| self.lines.get(key).copied()) else { return };
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.line.leave(waiter);
        let acquiring = match entry.stage {
            Stage::Held(_) => return self.plan(id),
            Stage::Queued { .. } => false,
            Stage::Acquiring { .. } => true,
        };
        let lost = acquiring && unanswered && own.is_some();
        if entry.line.is_empty() {
            let release = entry.release(acquiring, self.rules.alive, at);
            self.remove(id);
            self.withdraw(release, at, effects);
        } else if lost {
            let release = entry.release(acquiring, self.rules.alive, at);
            self.acquire_again(id, Some(release), at, effects);
        }
    }

    fn answered(
        &mut self,
        id: u64,
        sent: Now,
        Acquired { now: server, standing, found, twice }: Acquired<P::Found>,
        polled: Option<P::Waiter>,
        now: Now,
        effects: &mut Effects<P>,
    ) {
        let anchor = Anchor { sent: sent.at, now: server };
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Stage::Acquiring { early, .. } = entry.stage else { return };
        entry.twice |= twice;
        match standing {
            Standing::Held { expiry, fence } => {
                self.granted(id, By::Answer(anchor), (expiry, fence), found, polled, now.at, effects);
            }
            Standing::Queued { soonest, .. } => {
                // The announced grant may be older than this answer, so it is asked for.
                let due = match early {
                    true => Some(now.at),
                    false => self.next_heartbeat(id, anchor, sent.link, soonest, now),
                };
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.stage = Stage::Queued { anchor, gone: false };
                }
                self.set_due(id, due);
                self.set_outage(id, None);
                effects.push(Effect::Subscribe);
            }
            Standing::Done => {
                let outcome = found.map_or_else(|| Told::Failed(unexpected()), Told::Found);
                self.tell(id, &outcome, now.at, effects);
            }
            Standing::Refused { soonest, before } => {
                self.tell(id, &Told::Refused { left: soonest - server, before }, now.at, effects);
            }
            // Only this process knows the token. So it was withdrawn here, and the copy of an acquire came late.
            Standing::Withdrawn => self.place_lost(id, now.at, effects),
        }
    }

    /// Returns when a waiter sends its next heartbeat: in time to keep its place, and when the next lease ends.
    fn next_heartbeat(&self, id: u64, anchor: Anchor, link: Link, soonest: i64, now: Now) -> Option<Instant> {
        let entry = self.entries.get(&id)?;
        let LeaseOptions { foreign, ask_every, .. } = *entry.options();
        // Messages that were sent between the server's answer and the new subscription are lost.
        if now.link != link {
            return Some(now.at);
        }
        let polls = foreign || link == Link::Down;
        let every = self.rules.heartbeat;
        let heartbeat = now.at + if polls { ask_every.min(every) } else { every };
        if soonest == 0 {
            return Some(heartbeat);
        }
        let left = Duration::from_micros(u64::try_from(soonest - anchor.now).unwrap_or(0));
        Some(heartbeat.min((anchor.sent + left).max(now.at) + MARGIN))
    }

    pub(super) fn pushed(&mut self, id: u64, news: Notice<P::Found>, at: Instant, effects: &mut Effects<P>) {
        let is_durable = self.rules.is_durable;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match (&mut entry.stage, news) {
            (Stage::Held(_), _) => {}
            // Without the server's time a grant has no end.
            (Stage::Acquiring { early, .. }, Notice::Granted { .. }) => *early = true,
            (Stage::Queued { gone: true, .. }, Notice::Granted { .. }) => {}
            (Stage::Queued { .. }, Notice::Granted { .. }) if is_durable => self.set_due(id, Some(at)),
            (Stage::Queued { .. }, Notice::Granted { expiry, fence }) => {
                self.granted(id, By::Grant(None), (expiry, fence), None, None, at, effects);
            }
            (_, Notice::Gone) => self.place_lost(id, at, effects),
            (_, Notice::Found(found)) => self.tell(id, &Told::Found(found), at, effects),
        }
    }

    /// Handles the state of one waiter, from a heartbeat.
    fn stands(
        &mut self,
        id: u64,
        standing: Standing,
        anchor: Anchor,
        (link, soonest): (Link, i64),
        now: Now,
        effects: &mut Effects<P>,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Stage::Queued { anchor: known, gone } = &mut entry.stage else { return };
        match standing {
            Standing::Held { expiry, fence } if !*gone => {
                self.granted(id, By::Grant(Some(anchor)), (expiry, fence), None, None, now.at, effects);
            }
            Standing::Held { .. } => {}
            Standing::Queued { .. } => {
                *known = anchor;
                let (due, next) = (entry.due, self.next_heartbeat(id, anchor, link, soonest, now));
                // A message may have made it due earlier.
                self.set_due(id, [due, next].into_iter().flatten().min());
                self.set_outage(id, None);
            }
            Standing::Refused { .. } | Standing::Withdrawn | Standing::Done if self.rules.has_outcomes => {
                *gone = true;
                self.set_due(id, Some(now.at + MESSAGE_DELAY));
            }
            Standing::Refused { .. } | Standing::Withdrawn | Standing::Done => {
                self.place_lost(id, now.at, effects)
            }
        }
    }

    /// Handles a failed heartbeat: its waiters send another one soon, or stop waiting.
    fn unanswered(&mut self, ids: Vec<u64>, error: &Error, at: Instant, effects: &mut Effects<P>) {
        let outage = Some(error).filter(|error| error.is_away());
        for id in ids {
            let Some(entry) = self.entries.get(&id).filter(|entry| entry.due.is_none() && entry.is_queued())
            else {
                continue;
            };
            if outage.is_some() && entry.line.iter().any(P::gives_up) {
                self.fail(id, error, at, effects);
                continue;
            }
            let due = at + entry.options().ask_every.min(self.rules.heartbeat);
            self.set_due(id, Some(due));
            self.set_outage(id, outage);
        }
    }

    /// Handles a failed acquire.
    fn failed(&mut self, id: u64, error: &Error, is_final: bool, at: Instant, effects: &mut Effects<P>) {
        let repeats = self.rules.is_remote && !is_final && error.is_away();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let every = entry.options().ask_every;
        match &mut entry.stage {
            // The waiters of a line have waited for a while: an outage may end before their time limits.
            Stage::Acquiring { in_background: true, failed, .. } if repeats => {
                *failed = true;
                // The call may still run, after a release.
                entry.twice |= !error.is_not_sent();
                self.set_due(id, Some(at + every));
                self.set_outage(id, Some(error));
            }
            Stage::Acquiring { .. } => self.fail(id, error, at, effects),
            Stage::Queued { .. } | Stage::Held(_) => {}
        }
    }

    /// Gives all waiters in a line an error, and releases their token.
    fn fail(&mut self, id: u64, error: &Error, at: Instant, effects: &mut Effects<P>) {
        let Some(entry) = self.entries.get(&id) else { return };
        // Of an acquire that was sent twice, `tell` withdraws the copy.
        let release =
            (!entry.twice && !error.is_not_sent()).then(|| entry.release(true, self.rules.alive, at));
        self.tell(id, &Told::Failed(error.clone()), at, effects);
        if let Some(release) = release {
            self.release(release, at, effects);
        }
    }

    /// Handles the loss of a place in the queue: a line acquires again, a single waiter does so itself.
    pub(super) fn place_lost(&mut self, id: u64, at: Instant, effects: &mut Effects<P>) {
        match self.entries.get(&id) {
            Some(entry) if entry.cohort => self.acquire_again(id, None, at, effects),
            Some(_) => self.tell(id, &Told::Again, at, effects),
            None => {}
        }
    }

    /// Tells all waiters in a line the same, and removes the line: no waiter uses its token any more.
    pub(super) fn tell(&mut self, id: u64, outcome: &Told<P::Found>, at: Instant, effects: &mut Effects<P>) {
        self.withdraw_copy(id, at, effects);
        let Some(mut entry) = self.remove(id) else { return };
        effects.extend(entry.line.drain().map(|waiter| Effect::Tell { waiter, outcome: outcome.clone() }));
    }

    /// Withdraws an acquire that was sent twice, before its token is forgotten: one copy may still run, and would hold or
    /// wait for nobody.
    fn withdraw_copy(&mut self, id: u64, at: Instant, effects: &mut Effects<P>) {
        if let Some(entry) = self.entries.get(&id).filter(|entry| entry.twice) {
            let release = entry.release(true, self.rules.alive, at);
            self.release(release, at, effects);
        }
    }

    /// Removes a token, after `release` is sent. Its line acquires again, with a token of its own.
    pub(super) fn acquire_again(
        &mut self,
        id: u64,
        release: Option<Release>,
        at: Instant,
        effects: &mut Effects<P>,
    ) {
        match release {
            Some(release) => self.release(release, at, effects),
            None => self.withdraw_copy(id, at, effects),
        }
        let entry = self.remove(id);
        let Some((Entry { key, line, cohort, .. }, front)) =
            entry.and_then(|entry| entry.line.front().cloned().map(|front| (entry, front)))
        else {
            return;
        };
        let options = Arc::clone(P::options(&front));
        let (id, token) = self.party.token(&front);
        let stage = Stage::Acquiring { in_background: true, failed: false, early: false };
        let mut entry = Entry::new(key.clone(), Arc::clone(&token), Arc::clone(&options), stage);
        (entry.line, entry.cohort) = (line, cohort);
        self.insert(id, entry);
        effects.push(Effect::Acquire { id, key, token, options });
    }

    fn run_due(&mut self, at: Instant, effects: &mut Effects<P>) {
        let mut heartbeats = HashMap::<Key, Waiters>::new();
        while let Some((due, slot)) = self.due.first().copied().filter(|(due, _)| *due <= at) {
            self.due.remove(&(due, slot));
            let Slot::Entry(id) = slot else {
                let Slot::Owed(number) = slot else { continue };
                self.release_again(number, at, effects);
                continue;
            };
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.due = None;
            match &mut entry.stage {
                Stage::Acquiring { .. } => self.acquire_is_due(id, at, effects),
                Stage::Queued { gone: true, .. } => self.place_lost(id, at, effects),
                Stage::Queued { .. } => {
                    heartbeats.entry(entry.key.clone()).or_default().push((id, Arc::clone(&entry.token)));
                }
                Stage::Held(_) => self.lease_is_due(id, at, effects),
            }
        }
        for (key, mut waiters) in heartbeats {
            // Waiters come before those that came later.
            waiters.sort_unstable_by_key(|(id, _)| *id);
            let chunks = waiters.chunks(MOST_TOKENS);
            effects.extend(
                chunks.map(|waiters| Effect::Heartbeat { key: key.clone(), waiters: waiters.to_vec() }),
            );
        }
    }

    /// Handles an acquire that failed a while ago, or is not answered in time.
    fn acquire_is_due(&mut self, id: u64, at: Instant, effects: &mut Effects<P>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !entry.cohort {
            // Its future is not polled. It acquires again when it is.
            let release = entry.release(true, self.rules.alive, at);
            self.tell(id, &Told::Again, at, effects);
            return self.release(release, at, effects);
        }
        let Stage::Acquiring { in_background, failed, .. } = &mut entry.stage else { return };
        if !*in_background {
            // The same acquire twice gives the same answer.
            (*in_background, entry.twice) = (true, true);
        } else if !std::mem::take(failed) {
            return;
        }
        let (key, token, options) = (entry.key.clone(), Arc::clone(&entry.token), Arc::clone(&entry.holding));
        effects.push(Effect::Acquire { id, key, token, options });
    }

    /// Sends heartbeats now, or soon if no messages arrive now: by waiters that wait for a message, or by those whose call was
    /// lost.
    fn resume(&mut self, Now { at, link }: Now, waiting: bool) {
        let is_due = |entry: &Entry<P>| match &entry.stage {
            Stage::Queued { .. } => entry.due.is_some() == waiting,
            Stage::Held(held) => !waiting && held.is_renewing,
            Stage::Acquiring { .. } => false,
        };
        let ids: Vec<_> = self.entries.iter().filter(|(_, entry)| is_due(entry)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if let Stage::Held(held) = &mut entry.stage {
                (held.renew, held.is_renewing) = (Some(at), false);
            }
            let pause =
                if waiting && link == Link::Down { entry.options().ask_every } else { Duration::ZERO };
            let due = entry.due.map_or(at + pause, |due| due.min(at + pause));
            self.set_due(id, Some(due));
        }
    }
}

/// The error for an answer that says nothing.
pub(in super::super) fn unexpected() -> Error {
    Error::unavailable(Cause::Unexpected, "the reply belongs to another operation")
}
