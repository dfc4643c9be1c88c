//! Releases that the store has not confirmed yet.
//!
//! A release is sent at once on the caller's runtime, so that it is sent before the caller's next operation. This
//! runtime may stop. So a release without a reply is sent again a little later, in the background. A repeated release
//! has no further effect. When many waiters leave at the same time, most withdrawals are sent only after others have
//! completed.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::lease::operations::Release;
use crate::lease::process::event::{Effect, Effects, Host};

/// How long the caller's runtime has to send a release. After that it is sent again, and the pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The same for a withdrawal that the server refused because of its key. The key will be of another type for long, unless
/// somebody repairs it.
const LONGEST_REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// How long a release is repeated at most. After that, the lease or the place expires. The last renewal of a lease is
/// repeated for as long as the lease lasts.
const LONGEST: Duration = Duration::from_secs(60);

/// The releases of a namespace that the store has not confirmed.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    by_number: HashMap<u64, OwedRelease>,
    next: u64,
    /// The numbers, ordered by when their releases are due.
    due: BTreeSet<(Instant, u64)>,
    /// The number of releases that the server refused only because of their keys.
    refused: usize,
    /// Withdrawals that are sent one after the other as releases complete. While there are any, there is a release
    /// without a reply.
    unsent: VecDeque<Release>,
    /// A withdrawal is sent at once while fewer releases than this are pending.
    most: usize,
}

#[derive(Clone, Debug)]
struct OwedRelease {
    release: Release,
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
    pub(super) fn new(most: usize) -> Self {
        Self {
            by_number: HashMap::new(),
            next: 0,
            due: BTreeSet::new(),
            refused: 0,
            unsent: VecDeque::new(),
            most,
        }
    }

    /// Releases in the background, with retries.
    pub(super) fn release<P: Host>(
        &mut self,
        release: Release,
        now: Instant,
        effects: &mut Effects<P>,
    ) {
        let lasts = if release.renews {
            release.left
        } else {
            release.left.min(LONGEST)
        };
        let owed = OwedRelease {
            release,
            due: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            until: now + lasts,
            in_background: false,
            is_refused: false,
        };
        self.send(owed, effects);
    }

    /// Withdraws a waiter that leaves: at once, or later if many releases are pending. So when thousands of waiters
    /// leave at the same time, other calls do not wait for all of their withdrawals.
    pub(super) fn withdraw<P: Host>(
        &mut self,
        release: Release,
        now: Instant,
        effects: &mut Effects<P>,
    ) {
        if self.by_number.len() - self.refused < self.most {
            return self.release(release, now, effects);
        }
        self.unsent.push_back(release);
    }

    /// Sends the next withdrawal: one for each release that has a reply or has to be sent again. The withdrawal may go
    /// to another server.
    fn send_next<P: Host>(&mut self, now: Instant, effects: &mut Effects<P>) {
        if let Some(release) = self.unsent.pop_front() {
            self.release(release, now, effects);
        }
    }

    fn send<P: Host>(&mut self, owed: OwedRelease, effects: &mut Effects<P>) {
        let number = self.next;
        let release = owed.release.clone();
        self.next += 1;
        self.put(number, owed);
        effects.push(Effect::Release {
            release,
            owed: Some(number),
        });
    }

    /// Handles the reply to a release.
    pub(super) fn released<P: Host>(
        &mut self,
        number: u64,
        result: &Result<(), Error>,
        now: Instant,
        effects: &mut Effects<P>,
    ) {
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
                OwedRelease {
                    in_background: false,
                    is_refused,
                    due: now + owed.pause,
                    ..owed
                },
            );
        }
        if !again || is_refused {
            self.send_next(now, effects);
        }
    }

    /// Returns when the first release is sent again.
    pub(super) fn due(&self) -> Option<Instant> {
        let (at, _) = self.due.first()?;
        Some(*at)
    }

    /// Sends the releases again that are due.
    pub(super) fn run_due<P: Host>(&mut self, now: Instant, effects: &mut Effects<P>) {
        while let Some((due, number)) = self.due.first().copied()
            && due <= now
        {
            self.send_again(number, now, effects);
        }
    }

    fn send_again<P: Host>(&mut self, number: u64, now: Instant, effects: &mut Effects<P>) {
        let Some(owed) = self.settle(number) else {
            return;
        };
        if now >= owed.until {
            return self.send_next(now, effects);
        }
        let longest = if owed.is_refused {
            LONGEST_REFUSED_PAUSE
        } else {
            LONGEST_PAUSE
        };
        let pause = (2 * owed.pause).min(longest);
        let owed = OwedRelease {
            pause,
            due: now + pause,
            ..owed
        };
        if owed.in_background {
            return self.put(number, owed);
        }
        self.send_next(now, effects);
        // Only the reply to the last attempt counts, so that no attempt is pending once it has arrived.
        let owed = OwedRelease {
            in_background: true,
            ..owed
        };
        self.send(owed, effects);
    }

    /// Records that the background sends a release.
    pub(super) fn is_in_background(&mut self, number: u64) {
        if let Some(owed) = self.by_number.get_mut(&number) {
            owed.in_background = true;
        }
    }

    /// Makes all releases due now.
    pub(super) fn hurry(&mut self, now: Instant) {
        for owed in self.by_number.values_mut() {
            owed.due = now;
        }
        self.due = self.by_number.keys().map(|number| (now, *number)).collect();
    }

    /// Returns the number of unconfirmed releases.
    pub(super) fn count(&self) -> usize {
        self.by_number.len() + self.unsent.len()
    }

    fn put(&mut self, number: u64, owed: OwedRelease) {
        self.refused += usize::from(owed.is_refused);
        self.due.insert((owed.due, number));
        self.by_number.insert(number, owed);
    }

    fn settle(&mut self, number: u64) -> Option<OwedRelease> {
        let owed = self.by_number.remove(&number)?;
        self.refused -= usize::from(owed.is_refused);
        self.due.remove(&(owed.due, number));
        Some(owed)
    }
}
