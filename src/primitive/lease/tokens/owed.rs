//! Releases that the store has not confirmed yet.
//!
//! A release is sent at once where its caller is, so that it is sent before the caller's next operation. The caller's
//! runtime may stop. So a little later, a release that has no answer is sent again in the background. To release twice
//! has the same effect as once. Only a waiter that goes away may have to wait until others are withdrawn.

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
    /// Whether the next in turn waits for its answer.
    in_turn: bool,
}

impl Owed {
    fn new(release: Release, now: Instant, in_turn: bool) -> Self {
        let (until, due) = (now + release.left.min(LONGEST), now + FIRST_PAUSE);
        Self { release, due, pause: FIRST_PAUSE, until, in_background: false, in_turn }
    }
}

impl<P: Party> Tokens<P> {
    /// Releases in the background, with retries.
    pub(super) fn release(&mut self, release: Release) {
        if !self.rules.is_remote {
            return self.effects.push(Effect::Release { release, owed: None });
        }
        self.send(Owed::new(release, self.now.at, false));
    }

    /// Withdraws a waiter that goes away, in its turn: when thousands do so at once, the calls of others do not wait for all
    /// of that.
    pub(super) fn withdraw(&mut self, release: Release) {
        if !self.rules.is_remote {
            return self.release(release);
        }
        self.unsent.push_back(Owed::new(release, self.now.at, true));
        self.send_next();
    }

    /// Sends what waits for its turn.
    fn send_next(&mut self) {
        while self.in_turn < self.rules.releases
            && let Some(mut owed) = self.unsent.pop_front()
        {
            if self.now.at < owed.until {
                owed.due = self.now.at + FIRST_PAUSE;
                self.send(owed);
            }
        }
    }

    fn send(&mut self, owed: Owed) {
        let (number, release) = (self.next_owed, owed.release.clone());
        self.next_owed += 1;
        self.in_turn += usize::from(owed.in_turn);
        self.due.insert((owed.due, Slot::Owed(number)));
        self.owed.insert(number, owed);
        self.effects.push(Effect::Release { release, owed: Some(number) });
    }

    /// Handles the answer to a release.
    pub(super) fn released(&mut self, number: u64, result: &Result<(), Error>) {
        let Some(owed) = self.owed.get_mut(&number) else { return };
        // What failed lets others have their turn: it may go to another server.
        self.in_turn -= usize::from(std::mem::take(&mut owed.in_turn));
        let again = result.as_ref().is_err_and(|error| error.is_away() && !error.is_denied());
        if again && self.now.at < owed.until {
            owed.in_background = false;
            // The next in turn is sent when this one is due: it may fail at once as well.
            let due = self.now.at + owed.pause;
            return self.set_owed_due(number, due);
        }
        drop(self.settle(number));
        self.send_next();
    }

    pub(super) fn release_again(&mut self, number: u64) {
        let now = self.now.at;
        self.send_next();
        let Some(owed) = self.owed.get_mut(&number) else { return };
        if now >= owed.until {
            drop(self.settle(number));
            return self.send_next();
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
        self.owed.len() + self.unsent.len()
    }

    fn settle(&mut self, number: u64) -> Option<Owed> {
        let owed = self.owed.remove(&number)?;
        self.in_turn -= usize::from(owed.in_turn);
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
