//! Releases that the store has not confirmed yet.
//!
//! A release is sent at once where its caller is, so that it is sent before the caller's next operation. The caller's
//! runtime may stop. So a little later, a release that has no answer is sent again in the background. To release twice
//! has the same effect as once. When a crowd of waiters goes away, most are withdrawn when others have been.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::lease::process::event::{Effect, Party, Release};
use crate::lease::process::{Slot, Tokens};

/// How long the caller's runtime has to send a release. After that it is sent again, each time after twice the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a release is sent again at most. After that, the lease or the place expires. The last renewal of a lease is
/// sent again for as long as the lease lasts.
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
        }
    }
}

impl<P: Party> Tokens<P> {
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

    /// Withdraws a waiter that goes away: at once, or in its turn, if many releases are under way. So when thousands do so
    /// at once, the calls of others do not wait for all of that.
    pub(super) fn withdraw(&mut self, release: Release) {
        if self.owed.len() < self.rules.releases {
            return self.release(release);
        }
        self.unsent.push_back(release);
    }

    /// Sends what waits for its turn: once for each release that is answered, or has to be sent again. The next may go to
    /// another server.
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

    /// Handles the answer to a release.
    pub(super) fn released(&mut self, number: u64, result: &Result<(), Error>) {
        let now = self.now.at;
        let Some(owed) = self.settle(number) else {
            return;
        };
        // A key of another type may be gone when an acquire runs that is under way.
        let again = result.as_ref().is_err_and(|error| {
            error.is_unavailable()
                && !error.is_denied()
                && (owed.release.withdrawn || !error.is_wrong_type())
        });
        if again && now < owed.until {
            return self.put(
                number,
                Owed {
                    in_background: false,
                    due: now + owed.pause,
                    ..owed
                },
            );
        }
        self.send_next();
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
        // Only the answer to the last attempt counts, so that none is under way once it has come.
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

    /// Returns how many releases are not confirmed.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len() + self.unsent.len()
    }

    fn put(&mut self, number: u64, owed: Owed) {
        self.due.insert((owed.due, Slot::Owed(number)));
        self.owed.insert(number, owed);
    }

    fn settle(&mut self, number: u64) -> Option<Owed> {
        let owed = self.owed.remove(&number)?;
        self.due.remove(&(owed.due, Slot::Owed(number)));
        Some(owed)
    }
}
