//! A line: the waiters of one process for one key. One place in the store's queue stands for all of them.
//!
//! The process hands a granted lease on to its own waiters, in the order of arrival, for a bounded time (lock
//! cohorting: Dice, Marathe, Shavit, "Lock Cohorting", PPoPP 2012). After that the process that has waited longest
//! has its turn.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How often a process may hand on one grant. Each holder has its own fence.
pub(crate) const MOST_HANDOVERS: u32 = 31;

/// How long a process may hand on one grant.
pub(crate) const LONGEST_TURN: Duration = Duration::from_millis(2);

/// The waiters, and the hand-overs since the last grant.
#[derive(Clone, Debug)]
pub(crate) struct Line<S> {
    waiters: VecDeque<S>,
    handed: u32,
    since: Option<Instant>,
}

impl<S> Default for Line<S> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), handed: 0, since: None }
    }
}

impl<S> Line<S> {
    pub(crate) fn new(first: S) -> Self {
        Self { waiters: VecDeque::from([first]), handed: 0, since: None }
    }

    pub(crate) fn join(&mut self, waiter: S) {
        self.waiters.push_back(waiter);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&S> {
        self.waiters.front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        self.waiters.iter()
    }

    pub(crate) fn leave(&mut self, waiter: &S)
    where
        S: PartialEq,
    {
        // It is usually at the front.
        if let Some(at) = self.waiters.iter().position(|other| other == waiter) {
            self.waiters.remove(at);
        }
    }

    /// Removes and returns the first waiter, which gets the lease granted to the process now.
    pub(crate) fn granted(&mut self, now: Instant) -> Option<S> {
        (self.handed, self.since) = (0, Some(now));
        self.waiters.pop_front()
    }

    /// Removes and returns the waiter that gets a lease which the last waiter did not accept. The time limit starts
    /// again, since that waiter did not use it.
    pub(crate) fn passed_over(&mut self, now: Instant) -> Option<S> {
        self.since = Some(now);
        self.hand_over(now)
    }

    /// Removes and returns the waiter that the lease is handed on to. Returns `None` if another process has its
    /// turn, or if no waiter is in line.
    pub(crate) fn hand_over(&mut self, now: Instant) -> Option<S> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= LONGEST_TURN;
        if self.handed >= MOST_HANDOVERS || self.since.is_none_or(is_over) {
            return None;
        }
        self.handed += 1;
        self.waiters.pop_front()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = S> {
        self.waiters.drain(..)
    }
}
