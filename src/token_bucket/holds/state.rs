//! The holds of a bucket: tokens that are not charged yet, and that no other request gets. Each hold ends at a time
//! that its holder moves on. It equals `lua/holds.lua`, integer for integer.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use super::OnEnd;
use crate::store::{Cell as _, END, Fields, Garbled};
use crate::token_bucket::quota::{Limit, MAX_SPAN, Pace, Quotas};
use crate::token_bucket::state::{Bucket, Level, Moment};

/// The maximum number of holds of one key.
pub(super) const MOST: usize = 1024;

/// The holds of one bucket, at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    /// The tokens that are held.
    pub(super) held: i64,
    /// Those of them that are charged when their holds end.
    pub(crate) captures: i64,
    /// When the first hold ends, at the earliest, µs.
    pub(super) next: i64,
    /// When the last hold ends, at the latest, µs.
    pub(crate) last: i64,
    /// In any order. Empty in replies.
    pub(super) each: Vec<Record>,
}

/// One hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: u128,
    pub(super) amount: i64,
    /// µs
    pub(super) end: i64,
    pub(super) on_end: OnEnd,
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

    /// Adds tokens to those that are held until `end`.
    fn add(&mut self, amount: i64, end: i64, on_end: OnEnd) {
        self.held += amount;
        self.captures += if on_end == OnEnd::Capture { amount } else { 0 };
        self.next = if self.each.is_empty() {
            end
        } else {
            self.next.min(end)
        };
        self.last = self.last.max(end);
    }

    /// Moves all times, in their order.
    pub(crate) fn shift(&mut self, moved: impl Fn(i64) -> i64) {
        (self.next, self.last) = (moved(self.next), moved(self.last));
        self.each
            .iter_mut()
            .for_each(|record| record.end = moved(record.end));
    }

    /// When a level that is full at `full` is full again once all holds have ended, at the latest.
    pub(crate) fn full_from(&self, level: &Level, full: i64) -> i64 {
        let (from, pace) = (full.max(self.last), Pace::of(level.quota));
        match pace.take_too_long(self.captures) {
            true => from + MAX_SPAN,
            false => Moment::at(from).advance(&pace, self.captures).ceil(),
        }
    }
}

impl Level {
    /// The level as if what is held were used.
    pub(crate) fn with_held(mut self, pace: &Pace, now: i64, held: i64) -> Self {
        match pace.num {
            _ if held == 0 => {}
            // More may be held than a quota admits that was changed, by any factor.
            0 => self.overuse(now, now, held),
            _ => self.tat = self.overdrawn(pace, now, now, held),
        }
        self
    }

    /// Charges what was held, at the time `at`: in full, with a debt of at most 35 years, or until the level is empty. A
    /// calendar quota is charged in its current window.
    fn settle(&mut self, now: i64, at: i64, tokens: i64, in_full: bool) {
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

impl Bucket {
    /// The tokens that are held.
    #[inline]
    pub(crate) fn held(&self) -> i64 {
        self.holds.as_ref().map_or(0, |holds| holds.held)
    }

    /// When a hold may end whose tokens a request for `cost` tokens lacks, and which never come back otherwise; 0 if
    /// there is none.
    pub(crate) fn held_until(&self, quotas: &Quotas, now: i64, cost: u32) -> i64 {
        let lacks = |(level, limit): (&Level, &Limit)| {
            limit.tokens.never_refill() && level.tokens(limit, now) - self.held() < cost.into()
        };
        let holds = self
            .holds
            .as_ref()
            .filter(|_| self.pairs(quotas).any(lacks));
        holds.map_or(0, |holds| holds.next)
    }

    /// The state as replies have it, without the single holds.
    pub(crate) fn snapshot(&self) -> Self {
        let holds = self.holds.as_ref().map(|holds| {
            Box::new(Holds {
                each: Vec::new(),
                ..**holds
            })
        });
        let mut snapshot = Self::new(self.blocked_until, SmallVec::from_slice(&self.levels));
        snapshot.holds = holds;
        snapshot
    }

    /// Reads what is held from a reply, if anything is: the sum, and the earliest end.
    pub(crate) fn read_held(&mut self, fields: &mut Fields<'_>) -> Result<(), Garbled> {
        if fields.len() > 0 {
            let (held, next) = (fields.integer()?, fields.integer()?);
            if !(1..1 << 32).contains(&held) || !(0..END).contains(&next) {
                return Err(Garbled("a script returned holds that are out of range"));
            }
            self.holds = Some(Box::new(Holds {
                held,
                next,
                last: next,
                ..Holds::default()
            }));
        }
        Ok(())
    }

    /// Ends the holds whose time has come. There are none if the clock was set back since the state was written. Returns
    /// whether it looked for them: then the state is to be written.
    #[inline]
    pub(crate) fn sweep(&mut self, now: i64) -> bool {
        let is_due = self.holds.as_ref().is_some_and(|holds| holds.next <= now);
        if is_due {
            self.end_holds(now);
            // Before, the time from which it is idle was only an upper bound.
            match self.is_idle(now) {
                true => *self = Self::default(),
                false => self.written(now),
            }
        }
        is_due
    }

    /// Ends the holds whose time has come, in the order of their ends: charges them at their end, or releases them.
    pub(crate) fn end_holds(&mut self, now: i64) {
        let Some(mut holds) = self.holds.take_if(|holds| holds.next <= now) else {
            return;
        };
        self.move_windows(now);
        let mut left = Holds::default();
        let mut ended: Vec<Record> = Vec::new();
        for record in std::mem::take(&mut holds.each) {
            if record.end <= now {
                ended.push(record);
            } else {
                left.add(record.amount, record.end, record.on_end);
                left.each.push(record);
            }
        }
        ended.sort_by_key(|record| (record.end, record.amount));
        for Record { end, amount, .. } in ended
            .into_iter()
            .filter(|ended| ended.on_end == OnEnd::Capture)
        {
            for level in &mut self.levels {
                // A level of another quota may have a smaller burst.
                level.settle(now, end, amount, amount <= level.quota.burst);
            }
        }
        if !left.each.is_empty() {
            *holds = left;
            self.holds = Some(holds);
        }
    }

    /// Charges captured tokens, whether they are available or not.
    pub(super) fn capture(&mut self, quotas: &Quotas, now: i64, tokens: i64) {
        for (at, level) in self.levels.iter_mut().enumerate().filter(|_| tokens > 0) {
            level.settle(now, now, tokens, at < quotas.limits().len());
        }
    }

    pub(super) fn find_hold(&self, id: u128) -> Option<usize> {
        self.holds
            .as_ref()?
            .each
            .iter()
            .position(|record| record.id == id)
    }

    /// Raises the hold at a position to `amount`, and moves its end to at least `end`. Returns whether that changes
    /// anything.
    pub(super) fn raise_hold(&mut self, at: usize, amount: i64, end: i64) -> bool {
        let Some(holds) = &mut self.holds else {
            return false;
        };
        let before = holds.each[at];
        let record = &mut holds.each[at];
        record.amount = record.amount.max(amount);
        record.end = record.end.max(end);
        let after = *record;
        holds.add(after.amount - before.amount, after.end, after.on_end);
        after != before
    }

    pub(super) fn add_hold(&mut self, record: Record) {
        let holds = self.holds.get_or_insert_default();
        holds.add(record.amount, record.end, record.on_end);
        holds.each.push(record);
    }

    /// Removes the hold at a position. Returns its amount.
    pub(super) fn remove_hold(&mut self, at: usize) -> i64 {
        let Some(holds) = &mut self.holds else {
            return 0;
        };
        let Record { amount, on_end, .. } = holds.each.swap_remove(at);
        holds.held -= amount;
        holds.captures -= if on_end == OnEnd::Capture { amount } else { 0 };
        if holds.each.is_empty() {
            self.holds = None;
        }
        amount
    }
}
