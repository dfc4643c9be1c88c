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
    seats: VecDeque<S>,
    handed: u32,
    since: Option<Instant>,
}

impl<S> Line<S> {
    pub(crate) fn new(first: S) -> Self {
        Self { seats: VecDeque::from([first]), handed: 0, since: None }
    }

    pub(crate) fn join(&mut self, seat: S) {
        self.seats.push_back(seat);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&S> {
        self.seats.front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        self.seats.iter()
    }

    pub(crate) fn leave(&mut self, is: impl Fn(&S) -> bool) {
        // It is usually at the front.
        if let Some(at) = self.seats.iter().position(is) {
            self.seats.remove(at);
        }
    }

    /// Removes and returns the first waiter, which gets the lease granted to the process now.
    pub(crate) fn granted(&mut self, now: Instant) -> Option<S> {
        (self.handed, self.since) = (0, Some(now));
        self.seats.pop_front()
    }

    /// Removes and returns the waiter that gets a lease whose last waiter has gone away. The time limit starts
    /// again, since that waiter had no turn.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<S> {
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
        self.seats.pop_front()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = S> {
        self.seats.drain(..)
    }
}
