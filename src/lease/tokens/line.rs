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
        Self {
            waiters: VecDeque::new(),
            handed: 0,
            since: None,
        }
    }
}

impl<S> Line<S> {
    pub(crate) fn new(first: S) -> Self {
        Self {
            waiters: VecDeque::from([first]),
            handed: 0,
            since: None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line<u32> {
        let mut line = Line::new(0);
        (1..50).for_each(|waiter| line.join(waiter));
        line
    }

    /// A grant is handed on at most 31 times, in less than 2 ms. After that it is the turn of another process.
    #[test]
    fn a_grant_is_handed_on_for_a_bounded_time() {
        let (mut line, now) = (line(), Instant::now());
        assert_eq!(line.hand_over(now), None, "nothing was granted");
        for first in [0, 32] {
            assert_eq!(line.granted(now), Some(first));
            let soon = now + LONGEST_TURN - Duration::from_nanos(1);
            let handed: Vec<_> = std::iter::from_fn(|| line.hand_over(soon)).collect();
            assert_eq!(handed, (first + 1..50.min(first + 32)).collect::<Vec<_>>());
        }
        assert!(line.is_empty() && line.granted(now).is_none());
        let mut line = self::line();
        line.granted(now);
        assert_eq!(line.hand_over(now + LONGEST_TURN), None);
        // Who does not accept it uses none of that time.
        assert_eq!(line.passed_over(now + LONGEST_TURN), Some(1));
        assert_eq!(line.hand_over(now + LONGEST_TURN), Some(2));
        assert_eq!(line.hand_over(now + 2 * LONGEST_TURN), None);
    }

    #[test]
    fn who_leaves_the_line_is_passed() {
        let mut line = line();
        [2, 0, 2, 99].iter().for_each(|waiter| line.leave(waiter));
        assert_eq!((line.front(), line.iter().count()), (Some(&1), 48));
        assert_eq!(
            line.drain().collect::<Vec<_>>(),
            [1].into_iter().chain(3..50).collect::<Vec<_>>()
        );
    }
}
