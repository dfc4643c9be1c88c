//! The holds of a bucket: tokens that are not charged yet, and that are not available to other requests. Each hold ends
//! at a time that its renewals extend. It equals `lua/holds.lua`, integer for integer.

#[cfg(test)]
mod tests;

use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::level::{Level, Moment};
use crate::bucket::quota::Pace;
use crate::bucket::quotas::Quotas;

/// The rule for a [`Hold`](crate::token_bucket::Hold) that ends by itself: after its
/// [ttl](crate::TokenBucket::with_hold_ttl) without a renewal, for example because its process crashed. A hold that is
/// dropped before its usage is known ends in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnEnd {
    /// Its amount is charged, at the time of its end.
    Capture,
    /// Nothing is charged.
    Release,
}

/// The settings of holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldOptions {
    /// µs
    pub(crate) ttl: i64,
    pub(crate) on_end: Option<OnEnd>,
}

impl Default for HoldOptions {
    fn default() -> Self {
        Self {
            ttl: 30_000_000,
            on_end: None,
        }
    }
}

impl HoldOptions {
    /// Returns the rule for a hold that ends by itself. By default, a crash does not use up tokens that never refill.
    pub(crate) fn on_end(&self, quotas: &Quotas) -> OnEnd {
        self.on_end.unwrap_or_else(|| {
            match quotas
                .limits()
                .iter()
                .any(|limit| limit.tokens.never_refill())
            {
                true => OnEnd::Release,
                false => OnEnd::Capture,
            }
        })
    }
}

/// The maximum number of holds of one key.
pub(crate) const MOST: usize = 1024;

/// The holds of one bucket, at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    /// The number of held tokens.
    pub(crate) held: i64,
    /// The held tokens that are charged when their holds end.
    pub(crate) captures: i64,
    /// A lower bound for the end of the first hold, µs.
    pub(crate) next: i64,
    /// An upper bound for the end of the last hold, µs.
    pub(crate) last: i64,
    /// In any order. Empty in replies.
    pub(crate) each: Vec<Record>,
}

/// One hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: u128,
    pub(crate) amount: i64,
    /// µs
    pub(crate) end: i64,
    pub(crate) on_end: OnEnd,
}

impl Holds {
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.each.capacity() * size_of::<Record>()
    }

    /// Reads the numbers of stored holds.
    #[cfg(test)]
    pub(crate) fn parse(head: &[u8]) -> Self {
        let number = |from: usize, width: usize| {
            head[from..from + width]
                .iter()
                .fold(0, |number, byte| number << 8 | i64::from(*byte))
        };
        Self {
            held: number(10, 4),
            captures: number(14, 4),
            next: number(18, 8),
            last: number(26, 8),
            each: Vec::new(),
        }
    }

    /// Adds tokens that are held until `end`.
    pub(crate) fn add(&mut self, amount: i64, end: i64, on_end: OnEnd) {
        self.held += amount;
        self.captures += if on_end == OnEnd::Capture { amount } else { 0 };
        self.next = if self.each.is_empty() {
            end
        } else {
            self.next.min(end)
        };
        self.last = self.last.max(end);
    }

    /// Moves all times. `moved` must keep their order.
    pub(crate) fn shift(&mut self, moved: impl Fn(i64) -> i64) {
        (self.next, self.last) = (moved(self.next), moved(self.last));
        self.each
            .iter_mut()
            .for_each(|record| record.end = moved(record.end));
    }

    /// An upper bound for the time when a level that is full at `full` is full again after all holds have ended.
    pub(crate) fn full_from(&self, level: &Level, full: i64) -> i64 {
        let from = full.max(self.last);
        let pace = Pace::of(level.quota);
        match pace.take_too_long(self.captures) {
            true => from + MAX_SPAN,
            false => Moment::at(from).advance(&pace, self.captures).ceil(),
        }
    }
}

impl Level {
    /// The level if held tokens count as used.
    pub(crate) fn with_held(mut self, pace: &Pace, now: i64, held: i64) -> Self {
        match pace.num {
            _ if held == 0 => {}
            // If the quota was changed, any number of tokens may be held.
            0 => self.overuse(now, now, held),
            _ => self.tat = self.overdrawn(pace, now, now, held),
        }
        self
    }

    /// Charges held tokens at the time `at`: all of them, with a debt of at most 35 years, or until the level is empty.
    /// A calendar quota is charged in its current window.
    pub(crate) fn settle(&mut self, now: i64, at: i64, tokens: i64, in_full: bool) {
        if !in_full {
            return self.charge_up_to_burst(now, at, tokens);
        }
        let pace = Pace::of(self.quota);
        if pace.num == 0 {
            return self.overuse(now, at, tokens);
        }
        self.tat = self.overdrawn(&pace, now, at, tokens);
        self.last = self.last.max(self.tat);
    }
}
