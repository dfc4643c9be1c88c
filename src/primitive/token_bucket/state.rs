//! The state of one bucket and the arithmetic on it: what `lua/lib/bucket.lua` and the scripts beside it
//! do, in Rust, integer for integer.
//!
//! GCRA: a bucket is described by the *theoretical arrival time* (TAT) at which it will be full again.
//! With one token every `T`, a request for `n` is admitted if `max(TAT, now) + n·T − burst·T ≤ now + wait`,
//! and acts at that left-hand side. Times are whole µs and `den`-ths of one, so nothing is ever rounded.

use smallvec::SmallVec;

use crate::primitive::quota::{Limit, Pace, Quotas, Tokens};
use crate::store::Cell;

/// A point in time or a span: µs and `den`-ths of a µs (`0 ≤ part < den`). Ordered as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) whole: i64,
    pub(crate) part: i64,
}

impl Moment {
    /// Marks the `part` of a [`Level`] that counts used tokens instead.
    const USED: i64 = -1;

    /// So many tokens used of a quota that never refills.
    pub(crate) fn used(tokens: i64) -> Self {
        Self { whole: tokens, part: Self::USED }
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
        Self { whole: whole + parts / pace.den, part: parts % pace.den }
    }

    #[inline]
    pub(super) fn minus(self, pace: &Pace, other: Self) -> Self {
        let borrow = self.part < other.part;
        Self {
            whole: self.whole - other.whole - i64::from(borrow),
            part: self.part - other.part + if borrow { pace.den } else { 0 },
        }
    }

    /// Whole µs, rounded up.
    pub(crate) fn ceil(self) -> i64 {
        self.whole + i64::from(self.part > 0)
    }
}

/// Where a bucket stands with one of its quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level {
    /// TAT; for a quota that never refills the tokens used, with the part [`Moment::USED`].
    pub(crate) tat: Moment,
    /// The latest TAT of the reservations yet to act: above `tat` only after a cancellation.
    pub(crate) last: Moment,
    /// `last` as it was before the charge that led here; not stored.
    pub(crate) before: Moment,
    /// The quota.
    pub(crate) quota: Tokens,
}

/// The mark that a charge left on one quota, by which it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The TAT that the charge led to; of a quota that never refills the tokens used, or [`KEPT`](Self::KEPT).
    pub(crate) tat: Moment,
    /// The latest TAT of the reservations yet to act at that time.
    pub(crate) before: Moment,
}

impl Trace {
    /// Of a quota that never refills: its tokens are not given back.
    pub(super) const KEPT: Moment = Moment { whole: -1, part: -1 };
}

impl Level {
    /// Full.
    pub(super) fn full(quota: Tokens) -> Self {
        let tat = if quota.num == 0 { Moment::used(0) } else { Moment::default() };
        Self { tat, quota, ..Self::default() }
    }

    /// Whole tokens to be had at `when`; negative where they are lent out already.
    #[inline]
    pub(crate) fn tokens(&self, pace: &Pace, when: i64) -> i64 {
        if pace.num == 0 {
            return pace.burst - self.tat.whole;
        }
        let tat = self.tat.max(Moment::at(when));
        pace.burst + tokens_in(pace, when - tat.whole, tat.part)
    }

    /// When the charge that led here may act: `TAT − burst·T`, in whole µs rounded up.
    fn act(&self, pace: &Pace) -> i64 {
        if pace.num == 0 {
            return i64::MIN;
        }
        self.tat.minus(pace, Moment::default().advance(pace, pace.burst)).ceil()
    }

    /// When one token is to be had.
    pub(crate) fn next(&self, pace: &Pace, now: i64) -> i64 {
        let mut after = *self;
        after.charge(pace, now, now, 1);
        after.act(pace)
    }

    #[inline]
    fn charge(&mut self, pace: &Pace, now: i64, at: i64, tokens: i64) {
        if pace.num == 0 {
            self.tat.whole += tokens;
            return;
        }
        let pending = self.last.whole - pace.span > now;
        self.before = if pending { self.last } else { Moment::default() };
        self.tat = self.tat.max(Moment::at(at)).advance(pace, tokens);
        self.last = self.before.max(self.tat);
    }

    /// The same for requests that do not come under the quota: it is used up at most.
    fn charge_up_to_burst(&mut self, at: i64, tokens: i64) {
        let pace = Pace::of(self.quota);
        let tokens = tokens.min(pace.burst);
        if pace.num == 0 {
            self.tat.whole = (self.tat.whole + tokens).min(pace.burst).max(self.tat.whole);
            return;
        }
        let empty = Moment::at(at).advance(&pace, pace.burst);
        let after = self.tat.max(Moment::at(at)).advance(&pace, tokens).min(empty);
        self.tat = self.tat.max(after);
        self.last = self.last.max(self.tat);
    }

    fn cancel(&mut self, pace: &Pace, now: i64, cost: i64, trace: &Trace, acts: bool) -> bool {
        let mine = trace.tat;
        if pace.num == 0 {
            let used = self.tat.whole;
            if mine.whole >= 0 {
                self.tat.whole = (used - cost).max(0);
            }
            return self.tat.whole < used;
        }
        let is_latest = self.tat == mine && self.last == mine && mine.whole > now;
        if !acts && !is_latest {
            return false;
        }
        let charge = Moment::default().advance(pace, cost);
        let built_upon = self.last.minus(pace, mine);
        if built_upon == Moment::default() {
            self.last = mine.minus(pace, charge).max(trace.before);
            if self.tat < mine {
                // Others have been given back before, and who came since may yet act up to here.
                self.last = self.last.max(self.tat);
            }
        }
        let back = charge.minus(pace, built_upon);
        if back > Moment::default() {
            self.tat = self.tat.minus(pace, back);
        }
        back > Moment::default()
    }

    pub(crate) fn trace(&self) -> Trace {
        Trace { tat: self.tat, before: self.before }
    }
}

/// How many whole tokens come in `span` µs less `part` den-ths of one; negative spans count backwards.
#[inline]
fn tokens_in(pace: &Pace, span: i64, part: i64) -> i64 {
    let laps = span.div_euclid(pace.num);
    let left = span.rem_euclid(pace.num);
    let rest = match left.checked_mul(pace.den) {
        Some(left) => (left - part).div_euclid(pace.num),
        // A share among very many; below `den` in size, which fits.
        None => {
            let left = i128::from(left) * i128::from(pace.den) - i128::from(part);
            i64::try_from(left.div_euclid(i128::from(pace.num))).unwrap_or(i64::MAX)
        }
    };
    laps.saturating_mul(pace.den).saturating_add(rest)
}

/// How many whole tokens come in `span` µs and `part` den-ths of one, and how many `num`-ths of the next.
pub(super) fn divide(pace: &Pace, span: i64, part: i64) -> (i64, i64) {
    let (num, den) = (i128::from(pace.num), i128::from(pace.den));
    let parts = i128::from(span) * den + i128::from(part);
    let narrow = |number: i128| i64::try_from(number).unwrap_or(i64::MAX);
    (narrow(parts / num), narrow(parts % num))
}

/// What is asked of a bucket: `cost` tokens, to be had within `wait` µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) cost: i64,
    pub(crate) wait: i64,
}

/// The state of one bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Nothing acts before this time, µs.
    pub(crate) blocked_until: i64,
    /// One per quota, in their order, and then those of the quotas of other calls. None where nothing was ever charged.
    pub(crate) levels: SmallVec<[Level; 1]>,
}

impl Clone for Bucket {
    fn clone(&self) -> Self {
        // By far quicker than `SmallVec::clone`, which goes one by one.
        Self { blocked_until: self.blocked_until, levels: SmallVec::from_slice(&self.levels) }
    }
}

impl Bucket {
    /// Whether the request fits.
    #[inline]
    pub(crate) fn has(&self, quotas: &Quotas, now: i64, ask: Ask) -> bool {
        self.start(now) <= now + ask.wait && ask.cost <= self.free(quotas, now, ask.wait)
    }

    /// Whether the request fits; if so it is charged.
    #[inline]
    pub(crate) fn take(&mut self, quotas: &Quotas, now: i64, ask: Ask) -> bool {
        let admitted = self.has(quotas, now, ask);
        if admitted {
            self.charge(quotas, now, ask.cost);
        }
        admitted
    }

    /// How many tokens are to be had by `now + wait`, counted from the later of TAT and the end of a block; negative where they
    /// are lent out.
    #[inline]
    pub(crate) fn free(&self, quotas: &Quotas, now: i64, wait: i64) -> i64 {
        let tokens = self.pairs(quotas).map(|(level, limit)| {
            let base = level.tat.max(Moment::at(self.start(now)));
            match limit.num {
                0 => level.tokens(limit, now),
                _ => limit.burst + tokens_in(limit, now + wait - base.whole, base.part),
            }
        });
        tokens.fold(i64::MAX, i64::min)
    }

    /// Charges without asking.
    #[inline]
    pub(crate) fn charge(&mut self, quotas: &Quotas, now: i64, tokens: i64) {
        let at = self.start(now);
        let ours = quotas.limits().len().min(self.levels.len());
        let (ours, others) = self.levels.split_at_mut(ours);
        for (level, limit) in ours.iter_mut().zip(quotas.limits()) {
            level.charge(limit, now, at, tokens);
        }
        for level in others {
            level.charge_up_to_burst(at, tokens);
        }
    }

    /// When what was charged last may act.
    pub(crate) fn act(&self, quotas: &Quotas, now: i64) -> i64 {
        self.pairs(quotas).map(|(level, limit)| level.act(limit)).fold(self.start(now), i64::max)
    }

    /// Gives back what later reservations have not built upon, or, where nobody ever `acts` on the charge, all
    /// of it if nothing has come after it. Whether that was anything.
    pub(crate) fn cancel(
        &mut self,
        quotas: &Quotas,
        now: i64,
        cost: i64,
        traces: &[Trace],
        acts: bool,
    ) -> bool {
        // A bucket that was reset since knows nothing of the charge.
        if self
            .pairs(quotas)
            .zip(traces)
            .any(|((level, limit), trace)| limit.num != 0 && trace.tat > level.last)
        {
            return false;
        }
        let mut given = false;
        for ((level, limit), trace) in self.levels.iter_mut().zip(quotas.limits()).zip(traces) {
            given |= level.cancel(limit, now, cost, trace, acts);
        }
        given
    }

    /// The levels with their quotas.
    pub(crate) fn pairs<'a>(&'a self, quotas: &'a Quotas) -> impl Iterator<Item = (&'a Level, &'a Limit)> {
        self.levels.iter().zip(quotas.limits())
    }

    /// From when on forgetting the bucket changes nothing: it is unblocked, full, and every reservation may have
    /// acted. `None` where it never refills.
    pub(crate) fn idle_from(&self) -> Option<i64> {
        self.levels.iter().try_fold(self.blocked_until, |idle, level| match level.quota.num == 0 {
            true => (level.tat.whole == 0).then_some(idle),
            false => Some(idle.max(level.tat.max(level.last).ceil())),
        })
    }

    /// The first moment at which anything may act.
    pub(crate) fn start(&self, now: i64) -> i64 {
        self.blocked_until.max(now)
    }
}

impl Cell for Bucket {
    fn is_idle(&self, now: i64) -> bool {
        self.idle_from().is_some_and(|idle| idle <= now)
    }
}
