//! The state of one bucket and its arithmetic. It equals `lua/level.lua` and `lua/bucket.lua`, integer
//! for integer.
//!
//! GCRA: the state is the *theoretical arrival time* (TAT), at which the bucket is full again. With one token every
//! `T`, a request for `n` tokens is admitted if `max(TAT, now) + n·T − burst·T ≤ now + wait`. It acts at the time
//! on the left-hand side. Times are whole µs plus `den`-ths of a µs, so nothing is rounded.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use crate::store::Cell;
use crate::token_bucket::holds::Holds;
use crate::token_bucket::quota::{Limit, Pace, Quotas, Tokens};

/// A point in time or a duration, in whole µs plus `den`-ths of a µs (`0 ≤ part < den`). Ordered as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) whole: i64,
    pub(crate) part: i64,
}

impl Moment {
    /// The `part` of a [`Level`] that counts used tokens instead of time.
    const USED: i64 = -1;

    /// The number of used tokens of a quota that never refills.
    pub(crate) fn used(tokens: i64) -> Self {
        Self {
            whole: tokens,
            part: Self::USED,
        }
    }

    pub(super) fn at(whole: i64) -> Self {
        Self { whole, part: 0 }
    }

    #[inline]
    pub(crate) fn advance(self, pace: &Pace, tokens: i64) -> Self {
        let whole = self.whole + tokens * pace.whole;
        let parts = self.part + tokens * pace.part;
        if parts < pace.den {
            return Self { whole, part: parts };
        }
        Self {
            whole: whole + parts / pace.den,
            part: parts % pace.den,
        }
    }

    #[inline]
    pub(super) fn minus(self, pace: &Pace, other: Self) -> Self {
        let borrow = self.part < other.part;
        Self {
            whole: self.whole - other.whole - i64::from(borrow),
            part: self.part - other.part + if borrow { pace.den } else { 0 },
        }
    }

    /// In whole µs, rounded up.
    pub(crate) fn ceil(self) -> i64 {
        self.whole + i64::from(self.part > 0)
    }
}

/// The state of a bucket under one quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level {
    /// The TAT. For a quota that never refills or is of a calendar: the used tokens, with the part [`Moment::USED`].
    pub(crate) tat: Moment,
    /// The latest TAT of the reservations that have not acted yet. It is above `tat` only after a cancellation. For a
    /// calendar quota: the window, see [`windows`](super::windows).
    pub(crate) last: Moment,
    /// `last` before the most recent charge; not stored.
    pub(crate) before: Moment,
    /// The quota.
    pub(crate) quota: Tokens,
}

impl Level {
    /// A full level.
    pub(super) fn full(quota: Tokens) -> Self {
        let tat = if quota.num == 0 {
            Moment::used(0)
        } else {
            Moment::default()
        };
        Self {
            tat,
            quota,
            ..Self::default()
        }
    }

    /// The number of whole tokens available at `when`; negative if tokens are already reserved ahead of time.
    #[inline]
    pub(crate) fn tokens(&self, pace: &Pace, when: i64) -> i64 {
        self.free(pace, when, when, when)
    }

    /// The number of whole tokens available by `until`, counted from the TAT or from `start`, whichever is later.
    #[inline]
    fn free(&self, pace: &Pace, now: i64, start: i64, until: i64) -> i64 {
        if pace.num == 0 {
            return self.unused(now, start, until);
        }
        let base = self.tat.max(Moment::at(start));
        pace.burst + tokens_in(pace, until - base.whole, base.part)
    }

    /// The time at which the last charge may act, in whole µs, rounded up: `TAT − burst·T`, with what is left of the
    /// burst.
    pub(super) fn act(&self, pace: &Pace, held: i64) -> i64 {
        if pace.num == 0 {
            return self.acts_in_window();
        }
        self.tat
            .minus(
                pace,
                Moment::default().advance(pace, (pace.burst - held).max(0)),
            )
            .ceil()
    }

    /// The time at which one token is available besides those that are held.
    pub(crate) fn next(&self, pace: &Pace, now: i64, held: i64) -> i64 {
        let mut after = *self;
        after.charge(pace, now, now, 1);
        after.act(pace, held)
    }

    #[inline]
    pub(super) fn charge(&mut self, pace: &Pace, now: i64, at: i64, tokens: i64) {
        if pace.num == 0 {
            self.use_tokens(now, at, tokens);
            return;
        }
        let pending = self.last.whole - pace.span > now;
        self.before = if pending {
            self.last
        } else {
            Moment::default()
        };
        self.tat = self.tat.max(Moment::at(at)).advance(pace, tokens);
        self.last = self.before.max(self.tat);
    }

    /// Charges for a request to which the quota does not apply: at most until the level is empty.
    pub(super) fn charge_up_to_burst(&mut self, now: i64, at: i64, tokens: i64) {
        let pace = Pace::of(self.quota);
        let tokens = tokens.min(pace.burst);
        if pace.num == 0 {
            self.use_up_to_burst(now, at, tokens);
            return;
        }
        let empty = Moment::at(at).advance(&pace, pace.burst);
        let after = self
            .tat
            .max(Moment::at(at))
            .advance(&pace, tokens)
            .min(empty);
        self.tat = self.tat.max(after);
        self.last = self.last.max(self.tat);
    }

    /// Whether a TAT owes more than the burst without `tokens`.
    #[inline]
    fn owes(&self, tat: Moment, now: i64, tokens: i64) -> bool {
        let Tokens { burst, num, den } = self.quota;
        // Exact, and without a division.
        let ahead = i128::from(tat.whole - now) * i128::from(den) + i128::from(tat.part);
        num != 0 && ahead > i128::from(burst - tokens) * i128::from(num)
    }

    /// Whether so many tokens are available by `until`, counted from the TAT or from `start`, whichever is later.
    #[inline]
    fn has(&self, now: i64, start: i64, until: i64, tokens: i64) -> bool {
        match self.quota.num {
            0 => tokens <= self.unused(now, start, until),
            _ => !self.owes(self.tat.max(Moment::at(start)), until, tokens),
        }
    }
}

/// The number of whole tokens that come back in `span` µs minus `part` den-ths of a µs. A negative span counts
/// backwards.
#[inline]
fn tokens_in(pace: &Pace, span: i64, part: i64) -> i64 {
    let laps = span.div_euclid(pace.num);
    let left = span.rem_euclid(pace.num);
    let rest = match left.checked_mul(pace.den) {
        Some(left) => (left - part).div_euclid(pace.num),
        // The share of one of very many processes. The result is below `den` in size, which fits.
        None => {
            let left = i128::from(left) * i128::from(pace.den) - i128::from(part);
            i64::try_from(left.div_euclid(i128::from(pace.num))).unwrap_or(i64::MAX)
        }
    };
    laps.saturating_mul(pace.den).saturating_add(rest)
}

/// The number of whole tokens that come back in `span` µs plus `part` den-ths of a µs, and the `num`-ths of the
/// next token.
pub(super) fn divide(pace: &Pace, span: i64, part: i64) -> (i64, i64) {
    let (num, den) = (i128::from(pace.num), i128::from(pace.den));
    let parts = i128::from(span) * den + i128::from(part);
    let narrow = |number: i128| i64::try_from(number).unwrap_or(i64::MAX);
    (narrow(parts / num), narrow(parts % num))
}

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
    /// When the state was written, if it owed more than its bursts then; otherwise 0. In memory only.
    seen: i64,
    /// One level per quota, in the order of the quotas, then the levels of the quotas of other calls. Empty if
    /// nothing was ever charged.
    pub(crate) levels: SmallVec<[Level; 1]>,
    /// What is held, if anything is. In replies, it may be without the single holds.
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

    /// Completes a changed state: a block that has ended is forgotten, and the time is noted if the state owes more than
    /// its bursts, or has holds.
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

    /// The state as replies have it.
    pub(crate) fn told(self) -> Self {
        Self { seen: 0, ..self }
    }

    /// If the clock was set back since the state was written, moves its times: all by as much, or, if it did not owe
    /// more than its bursts, so that it does not now. Returns whether the clock was set back.
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
        let (start, until, tokens) = (self.start(now), now + ask.wait, ask.cost + self.held());
        start <= until
            && self
                .pairs(quotas)
                .all(|(level, _)| level.has(now, start, until, tokens))
            && (ask.wait == 0 || !quotas.have_windows() || self.has_in_windows(quotas, now, ask))
            && (self.holds.is_none() || ask.cost <= i64::from(quotas.max_cost()) - self.held())
    }

    /// Charges the request if it fits. Returns whether it does.
    #[inline]
    pub(crate) fn take(&mut self, quotas: &Quotas, now: i64, ask: Ask) -> bool {
        let admitted = self.has(quotas, now, ask);
        if admitted {
            self.charge(quotas, now, ask.cost);
        }
        admitted
    }

    /// The number of tokens available by `now + wait`, apart from those that are held. They count from the TAT or the
    /// end of a block, whichever is later. Negative if tokens are already reserved ahead of time.
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
    /// have acted. With holds it is an upper bound. `None` if a quota never refills and has used tokens, or may
    /// have when the holds have ended.
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

    /// The earliest time at which anything may act.
    pub(crate) fn start(&self, now: i64) -> i64 {
        self.blocked_until.max(now)
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
