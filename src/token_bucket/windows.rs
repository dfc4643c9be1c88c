//! The levels of calendar quotas, in `lua/lib/calendar.lua` as well.
//!
//! Such a level counts the tokens used in a window. Its `tat` is the number of used tokens, as for a quota that never
//! refills, and its `last` is the number of the window. At the start of each later window, `burst` of the used tokens
//! come back. More than `burst` tokens are used if tokens were reserved ahead or charged without a check.

#[cfg(test)]
mod tests;

use super::state::{Ask, Bucket, Level, Moment};
use crate::store::END;
use crate::token_bucket::quota::{Calendar, Limit, MAX_SPAN, Quotas, Tokens};

/// How long a state is kept after the end of its last window, µs. If the server's clock steps over the end of a window
/// and back, the used tokens are still known.
const KEPT: i64 = 86_400_000_000;

/// What is held of a key is charged to a level as at most so many bursts.
const MOST_HELD: i64 = 1024;

/// The used tokens of a level are at most so many times its tokens.
const MOST_USED: i64 = 16_384;

impl Level {
    /// Makes a level of what a script has told. `None` if its window, or how much is used, is out of range.
    pub(super) fn read(tat: Moment, last: Moment, quota: Tokens) -> Option<Self> {
        let level = Self {
            tat,
            last,
            quota,
            ..Self::default()
        };
        let is_in_range = |calendar: Calendar| {
            last.whole <= calendar.window(END) && tat.whole <= MOST_USED * quota.burst
        };
        level.calendar().is_none_or(is_in_range).then_some(level)
    }

    /// The calendar of the quota, if it has one.
    #[inline]
    pub(super) fn calendar(&self) -> Option<Calendar> {
        Calendar::of(&self.quota)
    }

    /// Limits the window to the one after the current one, so that a clock that was set back by years does not refuse
    /// requests for years. Returns whether the window changed.
    #[inline]
    pub(super) fn limit_window(&mut self, now: i64) -> bool {
        let Some(calendar) = self.calendar() else {
            return false;
        };
        let latest = calendar.window(now) + 1;
        let is_later = self.last.whole > latest;
        if is_later {
            self.last.whole = latest;
        }
        is_later
    }

    /// Moves on to the current window. If the clock was set back, a later window stays.
    #[inline]
    pub(super) fn to_window_of(mut self, now: i64) -> Self {
        let Some(calendar) = self.calendar() else {
            return self;
        };
        let window = calendar.window(now);
        if self.last.whole < window {
            let back = (window - self.last.whole) * self.quota.burst;
            (self.tat.whole, self.last.whole) = ((self.tat.whole - back).max(0), window);
        }
        self
    }

    /// The used tokens for a request that acts at `at` or later: all of the windows before that are used.
    fn used_by(&self, calendar: &Calendar, at: i64) -> i64 {
        let windows = (calendar.window(at) - self.last.whole).max(0);
        self.tat.whole.max(windows * self.quota.burst)
    }

    /// The number of tokens available by `until` for a request that acts at `start` or later; without those of later
    /// windows, unless they can be reserved.
    pub(super) fn unused(&self, now: i64, start: i64, until: i64) -> i64 {
        let Tokens { burst, .. } = self.quota;
        let Some(calendar) = self.calendar() else {
            return burst - self.tat.whole;
        };
        let last = calendar.window(if calendar.ahead { until } else { now });
        (1 + (last - self.last.whole).max(0)) * burst - self.used_by(&calendar, start)
    }

    /// When the last charge may act: now, or at the start of the window in which its last token is used.
    pub(super) fn acts_in_window(&self) -> i64 {
        match self.calendar() {
            Some(calendar) if self.tat.whole > self.quota.burst => {
                calendar.start(self.last.whole + (self.tat.whole - 1) / self.quota.burst)
            }
            _ => i64::MIN,
        }
    }

    /// Charges a request that acts at `at` or later.
    pub(super) fn use_tokens(&mut self, now: i64, at: i64, tokens: i64) {
        if let Some(calendar) = self.calendar() {
            *self = self.to_window_of(now);
            self.before = self.last;
            let (used, burst) = (self.used_by(&calendar, at), self.quota.burst);
            // The tokens of a request are all of one window, if they can be.
            let left = (burst - used % burst) % burst;
            self.tat.whole = if left < tokens && tokens <= burst {
                used + left
            } else {
                used
            };
        }
        self.tat.whole += tokens;
    }

    /// Charges tokens from `at` on, at most until all tokens are used.
    pub(super) fn use_up_to_burst(&mut self, now: i64, at: i64, tokens: i64) {
        let (mut used, burst) = (self.tat.whole, self.quota.burst);
        let mut most = burst;
        if let Some(calendar) = self.calendar() {
            *self = self.to_window_of(now);
            used = self.used_by(&calendar, at);
            most += (calendar.window(at) - self.last.whole).max(0) * burst;
        }
        self.tat.whole = (used + tokens).min(most).max(self.tat.whole);
    }

    /// Charges at most as much as comes back within 35 years from now.
    pub(super) fn overuse(&mut self, now: i64, at: i64, tokens: i64) {
        let (mut used, mut most) = (self.tat.whole, MAX_SPAN);
        if let Some(calendar) = self.calendar() {
            used = self.used_by(&calendar, at);
            most = self.most_used(&calendar, now);
        }
        self.tat.whole = (used + tokens).min(most).max(self.tat.whole);
    }

    /// The tokens that come back within 35 years from now.
    fn most_used(&self, calendar: &Calendar, now: i64) -> i64 {
        (1 + calendar.window(now + MAX_SPAN) - self.last.whole) * self.quota.burst
    }

    /// The level of a quota that counts used tokens, if `used` tokens are used in the window at `at`.
    pub(super) fn with_used(quota: Tokens, used: i64, at: i64) -> Self {
        let mut level = Self::full(quota).to_window_of(at);
        level.tat = Moment::used(match level.calendar() {
            Some(calendar) => used.min(level.most_used(&calendar, at)),
            None => used,
        });
        level
    }

    /// Whether the tokens of a charge can be given back, which led to `tat` in the window `before`: it was in the current
    /// window, and all charges act now; or nothing was charged after it.
    pub(super) fn can_give_back(&self, tat: Moment, before: Moment) -> bool {
        let windows = self.last.whole - before.whole;
        self.calendar().is_none()
            || windows == 0 && self.tat.whole <= self.quota.burst
            || windows >= 0 && self.tat.whole == tat.whole - windows * self.quota.burst
    }

    /// When all tokens are back; `None` if never.
    pub(super) fn unused_from(&self) -> Option<i64> {
        let (used, burst) = (self.tat.whole, self.quota.burst);
        match self.calendar() {
            _ if used == 0 => Some(0),
            Some(calendar) => Some(calendar.start(self.last.whole + (used + burst - 1) / burst)),
            None => None,
        }
    }

    /// The time from which the level is idle, at the latest, if holds of `captures` tokens end by `last`; `None` if never.
    pub(super) fn window_idle_from(&self, last: i64, captures: i64) -> Option<i64> {
        let mut after = *self;
        if captures > 0 {
            let used = self
                .calendar()
                .map_or(self.tat.whole, |calendar| self.used_by(&calendar, last));
            after.tat.whole = used + captures.min(MOST_HELD * self.quota.burst);
        }
        after
            .unused_from()
            .map(|from| if from == 0 { 0 } else { from + KEPT })
    }

    /// The length of the window at `now`, and when the next one starts. `None` if it is not known, or if there are no
    /// windows.
    pub(super) fn window(&self, now: i64) -> Option<(i64, i64)> {
        let calendar = self.calendar().filter(|_| self.last.whole > 0)?;
        let window = calendar.window(now).max(self.last.whole);
        let next = calendar.start(window + 1);
        Some((next - calendar.start(window), next))
    }
}

impl Bucket {
    /// Moves calendar quotas on to their current windows, as a script does with what it writes.
    pub(super) fn move_windows(&mut self, now: i64) {
        for level in self.levels.iter_mut().filter(|level| level.quota.num == 0) {
            level.limit_window(now);
            *level = level.to_window_of(now);
        }
    }

    /// Whether the request fits the windows of calendar quotas in which it acts. [`has`](Self::has) checks what is held.
    #[cold]
    pub(super) fn has_in_windows(&self, quotas: &Quotas, now: i64, ask: Ask) -> bool {
        let (acts, until) = (self.acts_in_windows(quotas, now, ask.cost), now + ask.wait);
        let mut levels = self
            .pairs(quotas)
            .filter(|(level, _)| level.calendar().is_some());
        acts <= until && levels.all(|(level, _)| ask.cost <= level.unused(now, acts, until))
    }

    /// When a request acts, if it is charged: each calendar quota charges it to the window in which it may act under all
    /// quotas.
    #[cold]
    pub(super) fn acts_in_windows(&self, quotas: &Quotas, now: i64, tokens: i64) -> i64 {
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
        // after the one that it finds, nothing is used.
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
