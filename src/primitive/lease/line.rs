//! Those of one process who wait for a key: one of them has a place in the store's queue for them all.
//!
//! What the process is granted it hands on within itself, in the order of arrival, for a bounded while (lock cohorting:
//! Dice, Marathe, Shavit, "Lock Cohorting", PPoPP 2012). Then the process that has waited longest has its turn.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// So often a process hands on what it was granted once; each time with a fence of its own.
pub(crate) const MOST_HANDOVERS: u32 = 31;

/// For so long.
pub(crate) const LONGEST_TURN: Duration = Duration::from_millis(2);

/// Who waits, and what was handed on to them since the last grant.
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
        // It is mostly at the front.
        if let Some(at) = self.seats.iter().position(is) {
            self.seats.remove(at);
        }
    }

    /// Who is first gets what the process was granted now.
    pub(crate) fn granted(&mut self, now: Instant) -> Option<S> {
        (self.handed, self.since) = (0, Some(now));
        self.seats.pop_front()
    }

    /// Who gets what was offered to somebody who has gone away instead: that was no turn.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<S> {
        self.since = Some(now);
        self.hand_over(now)
    }

    /// Who gets what is handed on; `None` where it is the turn of another process, or nobody waits here.
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
