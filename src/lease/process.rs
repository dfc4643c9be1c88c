//! The tokens of this process: the waiters, the leases, and the releases that the store has not confirmed.
//!
//! This is the client's side of the protocol as one pure step: [`Tokens::step`] takes an event and the time, and
//! returns the effects. It holds no lock, makes no call and reads no clock.
//! [`LeaseNamespace`](super::namespace::LeaseNamespace) carries out the effects; the model runs the same step. An
//! acquire that does not wait has an entry here only once it has a lease: see [`acquire`](mod@super::acquire).
//!
//! The life of a token:
//!
//! ```text
//! Acquiring ──▶ Queued ──▶ Held ──▶ released (kept as owed until the store confirms it)
//!     └───────────────────▲
//! ```
//!
//! A token serves the waiters in its [`Line`](entry::Line): one waiter or, for kinds with cohorts, all waiters of this
//! process for a key. If a token fails, its line acquires again with another token.

pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod hold;
pub(crate) mod owed;
#[cfg(test)]
mod test_support;
pub(crate) mod wait;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::key::Key;
use crate::lease::operations::Release;
use crate::lease::options::Rules;
use crate::lease::process::entry::Entry;
use crate::lease::process::event::{Effect, Effects, Event, Host, Now};
use crate::lease::process::owed::Owed;
use crate::store::notifier::Link;
use crate::store::scheduler::Signal;

/// The tokens of a namespace in this process.
#[derive(Clone, Debug)]
pub(crate) struct Tokens<P: Host> {
    pub(super) party: P,
    rules: Rules,
    pub(super) entries: HashMap<u64, Entry<P>>,
    /// The entry that new waiters for a key join, for kinds with cohorts: the only such entry for its key.
    lines: HashMap<Key, u64>,
    owed: Owed,
    /// The entries, ordered by their due times.
    due: BTreeSet<(Instant, u64)>,
    /// The keys whose last call found the store unavailable, and when.
    outages: HashMap<Key, (Error, Instant)>,
    /// Renewal times are rounded to multiples of a span since this time.
    began: Instant,
    /// The time of the step, and its effects so far.
    now: Now,
    effects: Effects<P>,
}

impl<P: Host> Tokens<P> {
    /// Handles an event. The effects must be carried out in order.
    pub(crate) fn step(&mut self, event: Event<P>, now: Now) -> Effects<P> {
        self.now = now;
        match event {
            Event::Arrives { key, waiter } => self.arrives(key, waiter),
            Event::Leaves {
                key,
                waiter,
                id,
                unanswered,
            } => self.leaves(&key, &waiter, id, unanswered),
            Event::Answered {
                id,
                sent,
                answer,
                polled,
            } => self.answered(id, sent, answer, polled),
            Event::Failed {
                id,
                error,
                is_final,
            } => self.failed(id, &error, is_final),
            Event::Pushed { id, news } => self.pushed(id, news),
            Event::Positions {
                sent,
                now,
                soonest,
                each,
            } => self.all_stand(sent, now, soonest, each),
            Event::Unanswered { ids, error } => self.heartbeats_failed(ids, &error),
            Event::Holds {
                grant,
                lease,
                options,
                renew,
            } => self.holds(grant, lease, options, renew),
            Event::Accepted { id, fence } => self.accepted(id, fence),
            Event::Renewed {
                id,
                renewed,
                scheduled,
            } => self.renewed(id, renewed, scheduled),
            Event::Lost { id, fence } => self.lost(id, fence, true),
            Event::Ends {
                release,
                id,
                fence,
                detached,
            } => self.ends(release, id, fence, detached),
            Event::Forgotten { id, fence } => self.forgotten(id, fence),
            Event::Releases(release) => self.release(release),
            Event::Withdraws(release) => self.withdraw(release),
            Event::Released { owed, result } => {
                self.owed.released(owed, &result, now.at, &mut self.effects);
            }
            Event::Signal(signal) => self.signal(signal),
        }
        std::mem::take(&mut self.effects)
    }

    fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::Due => self.run_due(),
            Signal::Relinked => self.relinked(),
            Signal::Hurry => self.owed.hurry(self.now.at),
            Signal::ShutDown => self.shut_down(),
        }
    }

    pub(crate) fn new(party: P, rules: Rules, now: Instant) -> Self {
        Self {
            party,
            owed: Owed::new(rules.releases),
            rules,
            entries: HashMap::new(),
            lines: HashMap::new(),
            due: BTreeSet::new(),
            outages: HashMap::new(),
            began: now,
            now: Now {
                at: now,
                link: Link::Down,
            },
            effects: Effects::new(),
        }
    }

    /// Returns when [`Signal::Due`] is needed.
    pub(crate) fn due(&self) -> Option<Instant> {
        let entries = self.due.first().map(|(at, _)| *at);
        entries.into_iter().chain(self.owed.due()).min()
    }

    /// Releases in the background, with retries if the store is in another process.
    fn release(&mut self, release: Release) {
        if self.rules.is_remote {
            return self.owed.release(release, self.now.at, &mut self.effects);
        }
        self.effects.push(Effect::Release {
            release,
            owed: None,
        });
    }

    /// Withdraws a waiter that leaves.
    fn withdraw(&mut self, release: Release) {
        if self.rules.is_remote {
            return self.owed.withdraw(release, self.now.at, &mut self.effects);
        }
        self.release(release);
    }

    /// Records that the background sends a release.
    pub(crate) fn is_in_background(&mut self, number: u64) {
        self.owed.is_in_background(number);
    }

    /// Returns the number of unconfirmed releases.
    pub(crate) fn owed(&self) -> usize {
        self.owed.count()
    }

    /// Returns the error of the last call for the waiters of a key, if the store was unavailable. These waiters may
    /// have left since.
    pub(crate) fn outage(&self, key: &Key, now: Instant) -> Option<Error> {
        let (error, at) = self.outages.get(key)?;
        (now < *at + self.outage_lasts()).then(|| error.clone())
    }

    fn insert(&mut self, id: u64, entry: Entry<P>) {
        if entry.cohort {
            self.lines.insert(entry.key.clone(), id);
        }
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<Entry<P>> {
        let entry = self.entries.remove(&id)?;
        if entry.cohort {
            self.lines.remove(&entry.key);
        }
        if let Some(at) = entry.due {
            self.due.remove(&(at, id));
        }
        Some(entry)
    }

    /// Sets when an entry is due.
    fn set_due(&mut self, id: u64, due: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if entry.due == due {
            return;
        }
        if let Some(old) = std::mem::replace(&mut entry.due, due) {
            self.due.remove(&(old, id));
        }
        if let Some(at) = due {
            self.due.insert((at, id));
        }
    }

    /// Sets the due time of an entry from its stage.
    fn plan(&mut self, id: u64) {
        if let Some(due) = self
            .entries
            .get(&id)
            .map(|entry| entry.stage_due(entry.due))
        {
            self.set_due(id, due);
        }
    }

    /// Records whether the last call for an entry found the store unavailable.
    fn set_outage(&mut self, id: u64, error: Option<&Error>) {
        if error.is_none() && self.outages.is_empty() {
            return;
        }
        let Some(key) = self.entries.get(&id).map(|entry| entry.key.clone()) else {
            return;
        };
        let Some(error) = error else {
            return self.is_back(&key, self.now.at);
        };
        self.outages.insert(key, (error.clone(), self.now.at));
        self.forget_outages(self.now.at);
    }

    pub(crate) fn has_outages(&self) -> bool {
        !self.outages.is_empty()
    }

    /// Records that the store replied to a call for a key.
    pub(crate) fn is_back(&mut self, key: &Key, now: Instant) {
        if !self.outages.is_empty() {
            self.outages.remove(key);
            self.forget_outages(now);
        }
    }

    fn forget_outages(&mut self, now: Instant) {
        // Check a single entry first. Going through all entries under the lock for each call would block the calls of
        // other tasks.
        let lasts = self.outage_lasts();
        if self
            .outages
            .values()
            .next()
            .is_some_and(|(_, at)| now >= *at + lasts)
        {
            self.outages.retain(|_, (_, at)| now < *at + lasts);
        }
    }

    /// How long the error of a failed call is returned: until the next call must have ended.
    fn outage_lasts(&self) -> Duration {
        self.rules.call + self.rules.heartbeat
    }
}
