//! Releases that the store has not confirmed yet.
//!
//! A release is sent at once where its caller is, so that it is sent before the caller's next operation. The caller's
//! runtime may stop. So a little later, a release that has no answer is sent again in the background. To release twice
//! has the same effect as once. When a crowd of waiters goes away, most are withdrawn a little later.

use std::time::Duration;

use tokio::time::Instant;

use super::{Effect, Party, Release, Slot, Tokens};
use crate::Error;

/// How long the caller's runtime has to send a release. After that it is sent again, each time after twice the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a release is sent again at most. After that, the lease or the place expires.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct Owed {
    pub(super) release: Release,
    due: Instant,
    pause: Duration,
    until: Instant,
    /// Whether the background has it. What waits there to be sent is sent in its turn: to send it again would only
    /// make the queue longer.
    in_background: bool,
}

impl Owed {
    fn new(release: Release, now: Instant, due: Instant) -> Self {
        let until = now + if release.renews { release.left } else { release.left.min(LONGEST) };
        Self { release, due, pause: FIRST_PAUSE, until, in_background: false }
    }
}

impl<P: Party> Tokens<P> {
    /// Releases in the background, with retries.
    pub(super) fn release(&mut self, release: Release) {
        if !self.rules.is_remote {
            return self.effects.push(Effect::Release { release, owed: None });
        }
        self.send(Owed::new(release, self.now.at, self.now.at + FIRST_PAUSE));
    }

    /// Withdraws a waiter that goes away: at once, or when it is due, if many go away (GCRA). So when thousands do so at
    /// once, the calls of others do not wait for all of that.
    pub(super) fn withdraw(&mut self, release: Release) {
        let (now, (at_once, pace)) = (self.now.at, self.rules.withdrawals);
        let due = (self.withdrawn + pace).max(now.checked_sub(at_once * pace).unwrap_or(now));
        self.withdrawn = due;
        if due <= now || !self.rules.is_remote {
            return self.release(release);
        }
        self.owe(Owed::new(release, now, due));
    }

    fn send(&mut self, owed: Owed) {
        let release = owed.release.clone();
        let owed = Some(self.owe(owed));
        self.effects.push(Effect::Release { release, owed });
    }

    /// Returns the number of a release that is sent, or again, when it is due.
    fn owe(&mut self, owed: Owed) -> u64 {
        let number = self.next_owed;
        self.next_owed += 1;
        self.due.insert((owed.due, Slot::Owed(number)));
        self.owed.insert(number, owed);
        number
    }

    /// Handles the answer to a release.
    pub(super) fn released(&mut self, number: u64, result: &Result<(), Error>) {
        let Some(owed) = self.owed.get_mut(&number) else { return };
        let again = result.as_ref().is_err_and(|error| error.is_away() && !error.is_denied());
        if again && self.now.at < owed.until {
            owed.in_background = false;
            let due = self.now.at + owed.pause;
            return self.set_owed_due(number, due);
        }
        drop(self.settle(number));
    }

    pub(super) fn release_again(&mut self, number: u64) {
        let now = self.now.at;
        let Some(owed) = self.owed.get_mut(&number) else { return };
        if now >= owed.until {
            return drop(self.settle(number));
        }
        owed.pause = (2 * owed.pause).min(LONGEST_PAUSE);
        let due = now + owed.pause;
        if owed.in_background {
            return self.set_owed_due(number, due);
        }
        // Only the answer to the last attempt counts, so that none is under way once it has come.
        if let Some(mut owed) = self.settle(number) {
            (owed.in_background, owed.due) = (true, due);
            self.send(owed);
        }
    }

    /// Records that the background sends a release.
    pub(crate) fn is_in_background(&mut self, number: u64) {
        if let Some(owed) = self.owed.get_mut(&number) {
            owed.in_background = true;
        }
    }

    /// Makes all releases due now.
    pub(super) fn hurry(&mut self) {
        let numbers: Vec<_> = self.owed.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.set_owed_due(number, self.now.at));
    }

    /// Returns how many releases are not confirmed.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len()
    }

    fn settle(&mut self, number: u64) -> Option<Owed> {
        let owed = self.owed.remove(&number)?;
        self.due.remove(&(owed.due, Slot::Owed(number)));
        Some(owed)
    }

    fn set_owed_due(&mut self, number: u64, due: Instant) {
        if let Some(owed) = self.owed.get_mut(&number) {
            self.due.remove(&(owed.due, Slot::Owed(number)));
            owed.due = due;
            self.due.insert((due, Slot::Owed(number)));
        }
    }
}
