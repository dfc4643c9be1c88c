//! The state that a bucket keeps when its calls use different quotas.
//!
//! A bucket has a level for each quota of the calls that it has seen. A quota is identified by its interval and its
//! burst. Each request is charged to all levels. A level whose quota does not apply to the request is charged at
//! most until it is empty. So each quota holds for its own calls, regardless of how calls alternate between quotas.
//!
//! A quota that is new to a used bucket takes over the level of the next slower quota. At least as many tokens are
//! missing in that level as would be missing in the level of the new quota, had it existed before. If there is no
//! slower quota, the new quota takes over the level of the slowest. The number of missing *tokens* is kept. But if the
//! burst is smaller, the number of tokens left is kept, up to the new burst. For a calendar quota, the used tokens are
//! the missing ones.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::bucket::Bucket;
use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::level::{Level, Moment, divide};
use crate::bucket::quota::{Limit, MOST_REPEATS, Pace};
use crate::bucket::quotas::Quotas;
use crate::store::operation::Cell as _;

/// The maximum number of levels of a bucket. Beyond it, the levels that were unused for the longest time are dropped.
const MOST_LEVELS: usize = 16;

impl Bucket {
    /// Whether the first levels are the levels of the quotas.
    pub(crate) fn fits(&self, quotas: &Quotas) -> bool {
        let limits = quotas.limits();
        self.levels.len() >= limits.len()
            && self
                .pairs(quotas)
                .all(|(level, limit)| level.quota == limit.tokens)
    }

    /// Whether the first levels are the levels of the quotas, and a request can be charged without a copy. A copy is
    /// needed if there are levels of other quotas too and one level is of a calendar quota: the copy shows whether a
    /// new window makes all levels full.
    pub(crate) fn fits_in_place(&self, quotas: &Quotas) -> bool {
        let needs_copy = self.levels.len() > quotas.limits().len()
            && self.levels.iter().any(|level| level.calendar().is_some());
        self.fits(quotas) && !needs_copy
    }

    /// An unused bucket.
    pub(crate) fn full(quotas: &Quotas) -> Self {
        Self::new(
            0,
            quotas
                .limits()
                .iter()
                .map(|limit| Level::full(limit.tokens))
                .collect(),
        )
    }

    /// Returns the bucket with the levels of the quotas first, and whether it differs from the stored state: a quota is
    /// new to a used bucket, or the clock was set back.
    pub(crate) fn fitted(&self, quotas: &Quotas, now: i64) -> (Self, bool) {
        let mut this = self.clone();
        let was_set_back = this.set_back(now);
        let (this, is_new) = this.fit(quotas, now);
        (this, was_set_back || is_new)
    }

    /// Like [`fitted`](Self::fitted), for times that were already moved if the clock was set back.
    pub(crate) fn fit(self, quotas: &Quotas, now: i64) -> (Self, bool) {
        let this = self.in_windows_of(now);
        if this.is_idle(now) {
            (Self::full(quotas).in_windows_of(now), false)
        } else if this.fits(quotas) {
            (this.told(), false)
        } else {
            this.with_levels_of(quotas, now)
        }
    }

    pub(crate) fn in_windows_of(mut self, now: i64) -> Self {
        self.move_windows(now);
        self
    }

    fn with_levels_of(self, quotas: &Quotas, now: i64) -> (Self, bool) {
        let find = |limit: &Limit| self.levels.iter().find(|level| level.quota == limit.tokens);
        let mut levels = SmallVec::new();
        let mut is_new = false;
        for limit in quotas.limits() {
            levels.push(find(limit).copied().unwrap_or_else(|| {
                is_new = true;
                self.taken_over(limit, now)
            }));
        }
        let is_other = |level: &&Level| {
            quotas
                .limits()
                .iter()
                .all(|limit| level.quota != limit.tokens)
        };
        levels.extend(self.levels.iter().filter(is_other).copied());
        levels.truncate(MOST_LEVELS);
        let mut fitted = Self::new(self.blocked_until, levels);
        fitted.holds = self.holds;
        (fitted, is_new)
    }

    /// The level of a new quota.
    fn taken_over(&self, limit: &Limit, now: i64) -> Level {
        // The fastest of the quotas that are at least as slow, otherwise the slowest quota.
        let rank = |level: &Level| {
            let interval = level.quota.interval();
            let is_faster = level.quota.interval() < limit.interval();
            (is_faster, if is_faster { -interval } else { interval })
        };
        let nearest = self.levels.iter().min_by(|one, other| {
            let order = rank(one)
                .partial_cmp(&rank(other))
                .unwrap_or(Ordering::Equal);
            order.then(other.tat.cmp(&one.tat))
        });
        let Some(from) = nearest else {
            return Level::full(limit.tokens).to_window_of(now);
        };
        let tat = convert(from, from.tat, limit, now);
        if limit.num == 0 {
            // After the clock was set back, the used tokens may belong to a later window.
            let at = from
                .calendar()
                .map_or(now, |calendar| calendar.start(from.last.whole).max(now));
            let mut level = Level::with_used(limit.tokens, tat.whole, at);
            level.limit_window(now);
            return level;
        }
        let counts_used = from.quota.num == 0;
        let last = if counts_used {
            tat
        } else {
            convert(from, from.last.max(from.tat), limit, now)
        };
        Level {
            tat,
            last,
            quota: limit.tokens,
            ..Level::default()
        }
    }
}

/// Converts a TAT to another quota, so that the same number of tokens is missing.
fn convert(from: &Level, tat: Moment, to: &Pace, now: i64) -> Moment {
    let burst = from.quota.burst;
    // Whole missing tokens, and the missing part of the next token.
    let mut tokens = tat.whole;
    let mut rest = 0.0;
    if from.quota.num != 0 {
        let span = tat.max(Moment::at(now));
        let pace = Pace::of(from.quota);
        let (whole, left) = divide(&pace, span.whole - now, span.part);
        (tokens, rest) = (whole, left as f64 / pace.num as f64);
    }
    tokens -= (burst - to.burst).max(0);
    if tokens < 0 {
        (tokens, rest) = (0, 0.0);
    }
    tokens = tokens.min(MOST_REPEATS as i64 * to.burst);
    if to.num == 0 {
        return Moment::used(tokens + i64::from(rest > 0.0));
    }
    if tokens == 0 && rest == 0.0 {
        return Moment::default();
    }
    if to.take_too_long(tokens) {
        return Moment::at(now + MAX_SPAN);
    }
    let whole = Moment::at(now).advance(to, tokens);
    let parts = whole.part + (rest * to.num as f64).ceil() as i64;
    Moment {
        whole: whole.whole + parts / to.den,
        part: parts % to.den,
    }
}
