//! Releases that the store has not confirmed yet.
//!
//! A release is sent at once on the caller's runtime, so that it is sent before the caller's next operation. This
//! runtime may stop. So a release without a reply is sent again a little later, in the background. A repeated release
//! has no further effect. When many waiters leave at the same time, most withdrawals are sent only after others have
//! completed.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::lease::process::event::{Effect, Host, Release};
use crate::lease::process::{Slot, Tokens};

/// How long the caller's runtime has to send a release. After that it is sent again, and the pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a release is repeated at most. After that, the lease or the place expires. The last renewal of a lease is
/// repeated for as long as the lease lasts.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct Owed {
    pub(super) release: Release,
    due: Instant,
    pause: Duration,
    until: Instant,
    /// Whether the background sends it. A release that waits there to be sent is not sent again: that would only make
    /// the queue longer.
    in_background: bool,
    /// Whether the server refused it only because of its key. The server itself works, so other releases need not wait
    /// for this one.
    is_refused: bool,
}

impl Owed {
    fn new(release: Release, now: Instant) -> Self {
        let due = now + FIRST_PAUSE;
        let until = now
            + if release.renews {
                release.left
            } else {
                release.left.min(LONGEST)
            };
        Self {
            release,
            due,
            pause: FIRST_PAUSE,
            until,
            in_background: false,
            is_refused: false,
        }
    }
}

impl<P: Host> Tokens<P> {
    /// Releases in the background, with retries.
    pub(super) fn release(&mut self, release: Release) {
        if !self.rules.is_remote {
            return self.effects.push(Effect::Release {
                release,
                owed: None,
            });
        }
        self.send(Owed::new(release, self.now.at));
    }

    /// Withdraws a waiter that leaves: at once, or later if many releases are pending. So when thousands of waiters
    /// leave at the same time, other calls do not wait for all of their withdrawals.
    pub(super) fn withdraw(&mut self, release: Release) {
        if self.owed.len() - self.refused < self.rules.releases {
            return self.release(release);
        }
        self.unsent.push_back(release);
    }

    /// Sends the next withdrawal: one for each release that has a reply or has to be sent again. The withdrawal may go
    /// to another server.
    fn send_next(&mut self) {
        self.unsent
            .pop_front()
            .into_iter()
            .for_each(|release| self.release(release));
    }

    fn send(&mut self, owed: Owed) {
        let number = self.next_owed;
        let release = owed.release.clone();
        self.next_owed += 1;
        self.put(number, owed);
        self.effects.push(Effect::Release {
            release,
            owed: Some(number),
        });
    }

    /// Handles the reply to a release.
    pub(super) fn released(&mut self, number: u64, result: &Result<(), Error>) {
        let now = self.now.at;
        let Some(owed) = self.settle(number) else {
            return;
        };
        // A withdrawal is repeated: the key of another type may be gone when a pending acquire runs.
        let is_refused = result.as_ref().is_err_and(Error::is_wrong_type);
        let may_follow = result.as_ref().is_err_and(|error| {
            error.is_unavailable() && !error.is_denied() && (owed.release.withdrawn || !is_refused)
        });
        let again = may_follow && now < owed.until;
        if again {
            self.put(
                number,
                Owed {
                    in_background: false,
                    is_refused,
                    due: now + owed.pause,
                    ..owed
                },
            );
        }
        if !again || is_refused {
            self.send_next();
        }
    }

    pub(super) fn release_again(&mut self, number: u64) {
        let now = self.now.at;
        let Some(owed) = self.settle(number) else {
            return;
        };
        if now >= owed.until {
            return self.send_next();
        }
        let pause = (2 * owed.pause).min(LONGEST_PAUSE);
        let owed = Owed {
            pause,
            due: now + pause,
            ..owed
        };
        if owed.in_background {
            return self.put(number, owed);
        }
        self.send_next();
        // Only the reply to the last attempt counts, so that no attempt is pending once it has arrived.
        self.send(Owed {
            in_background: true,
            ..owed
        });
    }

    /// Records that the background sends a release.
    pub(crate) fn is_in_background(&mut self, number: u64) {
        if let Some(owed) = self.owed.get_mut(&number) {
            owed.in_background = true;
        }
    }

    /// Makes all releases due now.
    pub(super) fn hurry(&mut self) {
        for number in self.owed.keys().copied().collect::<Vec<_>>() {
            let owed = self.settle(number).map(|owed| Owed {
                due: self.now.at,
                ..owed
            });
            owed.into_iter().for_each(|owed| self.put(number, owed));
        }
    }

    /// Returns the number of unconfirmed releases.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len() + self.unsent.len()
    }

    fn put(&mut self, number: u64, owed: Owed) {
        self.refused += usize::from(owed.is_refused);
        self.due.insert((owed.due, Slot::Owed(number)));
        self.owed.insert(number, owed);
    }

    fn settle(&mut self, number: u64) -> Option<Owed> {
        let owed = self.owed.remove(&number)?;
        self.refused -= usize::from(owed.is_refused);
        self.due.remove(&(owed.due, Slot::Owed(number)));
        Some(owed)
    }
}
