//! The state of one bucket, and how charges, holds and time change it: `lua/bucket.lua` in Rust, integer for integer.
//! The submodules contain its parts, and the operations on buckets that a store runs.

pub(crate) mod adjust;
pub(crate) mod ahead;
pub(crate) mod calendar;
mod change;
pub(crate) mod charge;
pub(crate) mod chosen;
pub(crate) mod decision;
pub(crate) mod give_back;
pub(crate) mod hold;
pub(crate) mod holds;
pub(crate) mod level;
pub(crate) mod quota;
pub(crate) mod quotas;
mod text;
pub(crate) mod wire;

#[cfg(test)]
pub(crate) mod tests;

use smallvec::SmallVec;

use crate::bucket::holds::{Holds, OnEnd, Record};
use crate::bucket::level::{Level, Moment};
use crate::bucket::quota::{Limit, Pace};
use crate::bucket::quotas::Quotas;
use crate::store::notifier::END;
use crate::store::operation::{Cell, Fields, Garbled};

/// A request for `cost` tokens, available within `wait` µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) cost: i64,
    pub(crate) wait: i64,
}

/// The state of one bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The end of a block, µs.
    pub(crate) blocked_until: i64,
    /// When the state was written, if its debt exceeded its bursts then; otherwise 0. In memory only.
    seen: i64,
    /// One level per quota, in the order of the quotas, then the levels of the quotas of other calls. Empty if nothing
    /// was charged yet.
    pub(crate) levels: SmallVec<[Level; 1]>,
    /// The holds, if there are any. In replies, the list of single holds may be missing.
    pub(crate) holds: Option<Box<Holds>>,
}

impl Clone for Bucket {
    fn clone(&self) -> Self {
        // Much faster than `SmallVec::clone`, which clones the items one by one.
        Self {
            levels: SmallVec::from_slice(&self.levels),
            holds: self.holds.clone(),
            ..*self
        }
    }
}

impl Bucket {
    pub(crate) fn new(blocked_until: i64, levels: SmallVec<[Level; 1]>) -> Self {
        Self {
            blocked_until,
            seen: 0,
            levels,
            holds: None,
        }
    }

    /// Replaces the state, as a script writes it.
    pub(crate) fn write(&mut self, after: &Self, now: i64) {
        self.clone_from(after);
        self.written(now);
    }

    /// Completes a changed state: removes a block that has ended, and records the time if the state's debt exceeds its
    /// bursts, or if it has holds.
    #[inline]
    pub(crate) fn written(&mut self, now: i64) {
        if self.blocked_until <= now {
            self.blocked_until = 0;
        }
        let owes = |level: &Level| level.owes(level.tat.max(level.last), now, 0);
        self.seen =
            if self.blocked_until > 0 || self.holds.is_some() || self.levels.iter().any(owes) {
                now
            } else {
                0
            };
    }

    /// The state as replies contain it.
    pub(crate) fn told(self) -> Self {
        Self { seen: 0, ..self }
    }

    /// If the clock was set back since the state was written, moves its times. If the time of the write is known, all
    /// times move by the same span. Otherwise the state's debt did not exceed its bursts then, and is limited to them.
    /// Returns whether the clock was set back.
    #[inline]
    pub(crate) fn set_back(&mut self, now: i64) -> bool {
        let Self { seen, .. } = *self;
        if seen > now {
            let moved = |time: i64| {
                if time > now {
                    (time - seen + now).max(now)
                } else {
                    time
                }
            };
            self.blocked_until = moved(self.blocked_until);
            for level in self.levels.iter_mut().filter(|level| level.quota.num != 0) {
                level.tat.whole = moved(level.tat.whole);
                level.last.whole = moved(level.last.whole);
            }
            self.seen = now;
            if let Some(holds) = &mut self.holds {
                holds.shift(moved);
                self.end_holds(now);
            }
        }
        let mut is_moved = seen > now;
        for level in &mut self.levels {
            if level.quota.num == 0 {
                is_moved |= level.limit_window(now);
            } else if seen == 0 && level.owes(level.tat.max(level.last), now, 0) {
                let empty = Moment::at(now).advance(&Pace::of(level.quota), level.quota.burst);
                (level.tat, level.last) = (level.tat.min(empty), level.last.min(empty));
                is_moved = true;
            }
        }
        is_moved
    }

    /// Whether the request fits.
    #[inline]
    pub(crate) fn has(&self, quotas: &Quotas, now: i64, ask: Ask) -> bool {
        let start = self.start(now);
        let until = now + ask.wait;
        let tokens = ask.cost + self.held();
        start <= until
            && self
                .pairs(quotas)
                .all(|(level, _)| level.has(now, start, until, tokens))
            && (ask.wait == 0 || !quotas.have_windows() || self.has_in_windows(quotas, now, ask))
            && (self.holds.is_none() || ask.cost <= i64::from(quotas.max_cost()) - self.held())
    }

    /// Charges the request if it fits. Returns whether it fits.
    #[inline]
    pub(crate) fn take(&mut self, quotas: &Quotas, now: i64, ask: Ask) -> bool {
        let admitted = self.has(quotas, now, ask);
        if admitted {
            self.charge(quotas, now, ask.cost);
        }
        admitted
    }

    /// The number of tokens available by `now + wait`, without held tokens. They count from the TAT or the end of a
    /// block, whichever is later. Negative if tokens are already reserved ahead of time.
    #[inline]
    pub(crate) fn free(&self, quotas: &Quotas, now: i64, wait: i64) -> i64 {
        let start = self.start(now);
        let tokens = self
            .pairs(quotas)
            .map(|(level, limit)| level.free(limit, now, start, now + wait));
        tokens.fold(i64::MAX, i64::min) - self.held()
    }

    /// Charges without a check.
    #[inline]
    pub(crate) fn charge(&mut self, quotas: &Quotas, now: i64, tokens: i64) {
        let at = self.start(now);
        let acts = if quotas.have_windows() {
            self.acts_in_windows(quotas, now, tokens)
        } else {
            at
        };
        let ours = quotas.limits().len().min(self.levels.len());
        let (ours, others) = self.levels.split_at_mut(ours);
        for (level, limit) in ours.iter_mut().zip(quotas.limits()) {
            level.charge(limit, now, if limit.num == 0 { acts } else { at }, tokens);
        }
        for level in others {
            level.charge_up_to_burst(now, at, tokens);
        }
    }

    /// The time at which the most recent charge may act.
    pub(crate) fn act(&self, quotas: &Quotas, now: i64) -> i64 {
        let held = self.held();
        self.pairs(quotas)
            .map(|(level, limit)| level.act(limit, held))
            .fold(self.start(now), i64::max)
    }

    /// The levels with their quotas.
    pub(crate) fn pairs<'a>(
        &'a self,
        quotas: &'a Quotas,
    ) -> impl Iterator<Item = (&'a Level, &'a Limit)> {
        self.levels.iter().zip(quotas.limits())
    }

    /// The time from which deleting the bucket changes nothing: it is unblocked and full, and every reservation may
    /// have acted. With holds it is an upper bound. `None` if a quota that never refills has used tokens, or may have
    /// used tokens when the holds have ended.
    pub(crate) fn idle_from(&self) -> Option<i64> {
        let holds = self.holds.as_deref();
        let start = holds.map_or(self.blocked_until, |holds| {
            holds.last.max(self.blocked_until)
        });
        self.levels
            .iter()
            .try_fold(start, |idle, level| match level.quota.num == 0 {
                true => {
                    let (last, captures) =
                        holds.map_or((0, 0), |holds| (holds.last, holds.captures));
                    level
                        .window_idle_from(last, captures)
                        .map(|from| idle.max(from))
                }
                false => {
                    let full = level.tat.max(level.last).ceil();
                    Some(idle.max(holds.map_or(full, |holds| holds.full_from(level, full))))
                }
            })
    }

    /// The earliest time at which a request may act.
    pub(crate) fn start(&self, now: i64) -> i64 {
        self.blocked_until.max(now)
    }
}

/// Calendar quotas.
impl Bucket {
    /// Moves calendar quotas on to their current windows, as a script does with the states that it writes.
    pub(crate) fn move_windows(&mut self, now: i64) {
        for level in self.levels.iter_mut().filter(|level| level.quota.num == 0) {
            level.limit_window(now);
            *level = level.to_window_of(now);
        }
    }

    /// Whether the request fits the windows of calendar quotas in which it acts. [`has`](Self::has) checks the held
    /// tokens.
    #[cold]
    pub(crate) fn has_in_windows(&self, quotas: &Quotas, now: i64, ask: Ask) -> bool {
        let acts = self.acts_in_windows(quotas, now, ask.cost);
        let until = now + ask.wait;
        let mut levels = self
            .pairs(quotas)
            .filter(|(level, _)| level.calendar().is_some());
        acts <= until && levels.all(|(level, _)| ask.cost <= level.unused(now, acts, until))
    }

    /// When a request acts, if it is charged: each calendar quota charges it to the window in which it may act under
    /// all quotas.
    #[cold]
    pub(crate) fn acts_in_windows(&self, quotas: &Quotas, now: i64, tokens: i64) -> i64 {
        let start = self.start(now);
        let act = |level: &Level, limit: &Limit, at| {
            let mut after = *level;
            after.charge(limit, now, at, tokens);
            after.act(limit, self.held())
        };
        let refilling = self.pairs(quotas).filter(|(_, limit)| limit.num != 0);
        let mut acts = refilling
            .map(|(level, limit)| act(level, limit, start))
            .fold(start, i64::max);
        // A quota that delays the request delays it for the others as well. Each does so at most once: in the windows
        // after the one that it finds, no tokens are used.
        for _ in quotas.limits() {
            for (level, limit) in self
                .pairs(quotas)
                .filter(|(level, _)| level.calendar().is_some())
            {
                acts = acts.max(act(level, limit, acts));
            }
        }
        acts
    }
}

/// Holds.
impl Bucket {
    /// The number of held tokens.
    #[inline]
    pub(crate) fn held(&self) -> i64 {
        self.holds.as_ref().map_or(0, |holds| holds.held)
    }

    /// The time when a hold may end and release tokens that a request for `cost` tokens needs under a quota that never
    /// refills; 0 if there is no such hold.
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

    /// The state as replies contain it, without the single holds.
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

    /// Reads the holds from a reply, if there are any: the number of held tokens, and the earliest end.
    pub(crate) fn read_held(&mut self, fields: &mut Fields<'_>) -> Result<(), Garbled> {
        if fields.len() > 0 {
            let held = fields.integer()?;
            let next = fields.integer()?;
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

    /// Ends the holds that are due. None is due if the clock was set back since the state was written. Returns whether
    /// any was due: then the state must be written.
    #[inline]
    pub(crate) fn sweep(&mut self, now: i64) -> bool {
        let is_due = self.holds.as_ref().is_some_and(|holds| holds.next <= now);
        if is_due {
            self.end_holds(now);
            // Until now, the time from which the state is idle was only an upper bound.
            match self.is_idle(now) {
                true => *self = Self::default(),
                false => self.written(now),
            }
        }
        is_due
    }

    /// Ends the holds that are due, in the order of their ends: charges them at their end, or releases them.
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
    pub(crate) fn capture(&mut self, quotas: &Quotas, now: i64, tokens: i64) {
        for (at, level) in self.levels.iter_mut().enumerate().filter(|_| tokens > 0) {
            level.settle(now, now, tokens, at < quotas.limits().len());
        }
    }

    pub(crate) fn find_hold(&self, id: u128) -> Option<usize> {
        self.holds
            .as_ref()?
            .each
            .iter()
            .position(|record| record.id == id)
    }

    /// Raises the hold at a position to `amount`, and moves its end to at least `end`. Returns whether that changes
    /// anything.
    pub(crate) fn raise_hold(&mut self, at: usize, amount: i64, end: i64) -> bool {
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

    pub(crate) fn add_hold(&mut self, record: Record) {
        let holds = self.holds.get_or_insert_default();
        holds.add(record.amount, record.end, record.on_end);
        holds.each.push(record);
    }

    /// Removes the hold at a position. Returns its amount.
    pub(crate) fn remove_hold(&mut self, at: usize) -> i64 {
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

impl Cell for Bucket {
    fn is_idle(&self, now: i64) -> bool {
        self.idle_from().is_some_and(|idle| idle <= now)
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        let levels = if self.levels.spilled() {
            self.levels.capacity() * size_of::<Level>()
        } else {
            0
        };
        levels + self.holds.as_ref().map_or(0, |holds| holds.heap_bytes())
    }
}
