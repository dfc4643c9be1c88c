//! The arithmetic of one limit: how many tokens are available, and how a charge changes the state. It equals
//! `lua/level.lua` and `lua/calendar.lua`, integer for integer.
//!
//! GCRA: the state is the *theoretical arrival time* (TAT), at which the bucket is full again. With one token every
//! `T`, a request for `n` tokens is admitted if `max(TAT, now) + n·T − burst·T ≤ now + wait`. It acts at the time
//! on the left-hand side. Times are whole µs plus `den`-ths of a µs, so nothing is rounded.
//!
//! The level of a calendar quota counts the tokens used in a window. Its `tat` is the number of used tokens, as for a
//! quota that never refills, and its `last` is the number of the window. At the start of each later window, `burst` of
//! the used tokens are refilled. More than `burst` tokens are used if tokens were reserved ahead or charged without a
//! check.

#[cfg(test)]
mod tests;

use crate::bucket::calendar::{Calendar, MAX_SPAN, Tokens};
use crate::bucket::quota::Pace;
use crate::store::notifier::END;

/// How long a state is kept after the end of its last window, µs: if the server's clock steps over the end of a window
/// and back, the number of used tokens is still known.
const KEPT: i64 = 86_400_000_000;

/// The holds of a key are charged to a level as at most this many bursts: one for each hold.
const MOST_HELD: i64 = 1024;

/// The maximum number of used tokens of a stored level, in bursts.
const MOST_USED: i64 = 16_384;

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

    pub(crate) fn at(whole: i64) -> Self {
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
    pub(crate) fn minus(self, pace: &Pace, other: Self) -> Self {
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
    /// The TAT. For a quota that never refills and for a calendar quota: the used tokens, with the part
    /// [`Moment::USED`].
    pub(crate) tat: Moment,
    /// The latest TAT of the reservations that have not acted yet. It is above `tat` only after a cancellation. For a
    /// calendar quota: the number of the window.
    pub(crate) last: Moment,
    /// `last` before the most recent charge; not stored.
    pub(crate) before: Moment,
    /// The quota.
    pub(crate) quota: Tokens,
}

impl Level {
    /// A full level.
    pub(crate) fn full(quota: Tokens) -> Self {
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
    pub(crate) fn free(&self, pace: &Pace, now: i64, start: i64, until: i64) -> i64 {
        if pace.num == 0 {
            return self.unused(now, start, until);
        }
        let base = self.tat.max(Moment::at(start));
        pace.burst + tokens_in(pace, until - base.whole, base.part)
    }

    /// The time at which the last charge may act, in whole µs, rounded up: `TAT − burst·T`, if the burst is reduced by
    /// the held tokens.
    pub(crate) fn act(&self, pace: &Pace, held: i64) -> i64 {
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

    /// The time at which one token is available besides the held ones.
    pub(crate) fn next(&self, pace: &Pace, now: i64, held: i64) -> i64 {
        let mut after = *self;
        after.charge(pace, now, now, 1);
        after.act(pace, held)
    }

    #[inline]
    pub(crate) fn charge(&mut self, pace: &Pace, now: i64, at: i64, tokens: i64) {
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

    /// Charges a request to which the quota does not apply: at most until the level is empty.
    pub(crate) fn charge_up_to_burst(&mut self, now: i64, at: i64, tokens: i64) {
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

    /// Whether the debt of a TAT without `tokens` exceeds the burst.
    #[inline]
    pub(crate) fn owes(&self, tat: Moment, now: i64, tokens: i64) -> bool {
        let Tokens { burst, num, den } = self.quota;
        // Exact, and without a division.
        let ahead = i128::from(tat.whole - now) * i128::from(den) + i128::from(tat.part);
        num != 0 && ahead > i128::from(burst - tokens) * i128::from(num)
    }

    /// Whether this number of tokens is available by `until`, counted from the TAT or from `start`, whichever is later.
    #[inline]
    pub(crate) fn has(&self, now: i64, start: i64, until: i64, tokens: i64) -> bool {
        match self.quota.num {
            0 => tokens <= self.unused(now, start, until),
            _ => !self.owes(self.tat.max(Moment::at(start)), until, tokens),
        }
    }
}

/// The number of whole tokens that are refilled in `span` µs minus `part` den-ths of a µs. A negative span counts
/// backwards.
#[inline]
fn tokens_in(pace: &Pace, span: i64, part: i64) -> i64 {
    let laps = span.div_euclid(pace.num);
    let left = span.rem_euclid(pace.num);
    let rest = match left.checked_mul(pace.den) {
        Some(left) => (left - part).div_euclid(pace.num),
        // For the share of one of very many processes. The absolute result is below `den`, so it fits.
        None => {
            let left = i128::from(left) * i128::from(pace.den) - i128::from(part);
            i64::try_from(left.div_euclid(i128::from(pace.num))).unwrap_or(i64::MAX)
        }
    };
    laps.saturating_mul(pace.den).saturating_add(rest)
}

/// The number of whole tokens that are refilled in `span` µs plus `part` den-ths of a µs, and the `num`-ths of the next
/// token.
pub(crate) fn divide(pace: &Pace, span: i64, part: i64) -> (i64, i64) {
    let num = i128::from(pace.num);
    let den = i128::from(pace.den);
    let parts = i128::from(span) * den + i128::from(part);
    let narrow = |number: i128| i64::try_from(number).unwrap_or(i64::MAX);
    (narrow(parts / num), narrow(parts % num))
}

/// Levels of quotas that count used tokens: calendar quotas, and quotas that never refill.
impl Level {
    /// Creates a level from the numbers in the reply of a script. `None` if its window or its number of used tokens is
    /// out of range.
    pub(crate) fn read(tat: Moment, last: Moment, quota: Tokens) -> Option<Self> {
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
    pub(crate) fn calendar(&self) -> Option<Calendar> {
        Calendar::of(&self.quota)
    }

    /// Limits the window to the one after the current one, so that a clock that was set back by years does not refuse
    /// requests for years. Returns whether the window changed.
    #[inline]
    pub(crate) fn limit_window(&mut self, now: i64) -> bool {
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
    pub(crate) fn to_window_of(mut self, now: i64) -> Self {
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

    /// The used tokens for a request that acts at `at` or later: the tokens of all windows before `at` count as used.
    fn used_by(&self, calendar: &Calendar, at: i64) -> i64 {
        let windows = (calendar.window(at) - self.last.whole).max(0);
        self.tat.whole.max(windows * self.quota.burst)
    }

    /// The number of tokens available by `until` for a request that acts at `start` or later. Tokens of later windows
    /// count only if they can be reserved.
    pub(crate) fn unused(&self, now: i64, start: i64, until: i64) -> i64 {
        let Tokens { burst, .. } = self.quota;
        let Some(calendar) = self.calendar() else {
            return burst - self.tat.whole;
        };
        let last = calendar.window(if calendar.ahead { until } else { now });
        (1 + (last - self.last.whole).max(0)) * burst - self.used_by(&calendar, start)
    }

    /// When the last charge may act: now, or at the start of the window in which its last token is used.
    pub(crate) fn acts_in_window(&self) -> i64 {
        match self.calendar() {
            Some(calendar) if self.tat.whole > self.quota.burst => {
                calendar.start(self.last.whole + (self.tat.whole - 1) / self.quota.burst)
            }
            _ => i64::MIN,
        }
    }

    /// Charges a request that acts at `at` or later.
    pub(crate) fn use_tokens(&mut self, now: i64, at: i64, tokens: i64) {
        if let Some(calendar) = self.calendar() {
            *self = self.to_window_of(now);
            self.before = self.last;
            let used = self.used_by(&calendar, at);
            let burst = self.quota.burst;
            // The tokens of a request are from one window, if possible.
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
    pub(crate) fn use_up_to_burst(&mut self, now: i64, at: i64, tokens: i64) {
        let mut used = self.tat.whole;
        let burst = self.quota.burst;
        let mut most = burst;
        if let Some(calendar) = self.calendar() {
            *self = self.to_window_of(now);
            used = self.used_by(&calendar, at);
            most += (calendar.window(at) - self.last.whole).max(0) * burst;
        }
        self.tat.whole = (used + tokens).min(most).max(self.tat.whole);
    }

    /// Charges at most as many tokens as are refilled within 35 years from now.
    pub(crate) fn overuse(&mut self, now: i64, at: i64, tokens: i64) {
        let mut used = self.tat.whole;
        let mut most = MAX_SPAN;
        if let Some(calendar) = self.calendar() {
            used = self.used_by(&calendar, at);
            most = self.most_used(&calendar, now);
        }
        self.tat.whole = (used + tokens).min(most).max(self.tat.whole);
    }

    /// The number of tokens that are refilled within 35 years from now.
    fn most_used(&self, calendar: &Calendar, now: i64) -> i64 {
        (1 + calendar.window(now + MAX_SPAN) - self.last.whole) * self.quota.burst
    }

    /// The level of a quota that counts used tokens, if `used` tokens are used in the window at `at`.
    pub(crate) fn with_used(quota: Tokens, used: i64, at: i64) -> Self {
        let mut level = Self::full(quota).to_window_of(at);
        level.tat = Moment::used(match level.calendar() {
            Some(calendar) => used.min(level.most_used(&calendar, at)),
            None => used,
        });
        level
    }

    /// Whether the tokens of a charge can be given back. The charge resulted in `tat` in the window `before`. They can
    /// if that window is the current one and all charges act now, or if nothing was charged after it.
    pub(crate) fn can_give_back(&self, tat: Moment, before: Moment) -> bool {
        let windows = self.last.whole - before.whole;
        self.calendar().is_none()
            || windows == 0 && self.tat.whole <= self.quota.burst
            || windows >= 0 && self.tat.whole == tat.whole - windows * self.quota.burst
    }

    /// When all tokens are refilled; `None` if never.
    pub(crate) fn unused_from(&self) -> Option<i64> {
        let used = self.tat.whole;
        let burst = self.quota.burst;
        match self.calendar() {
            _ if used == 0 => Some(0),
            Some(calendar) => Some(calendar.start(self.last.whole + (used + burst - 1) / burst)),
            None => None,
        }
    }

    /// An upper bound for the time from which the level is idle, if holds of `captures` tokens end by `last`; `None` if
    /// never.
    pub(crate) fn window_idle_from(&self, last: i64, captures: i64) -> Option<i64> {
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
    pub(crate) fn window(&self, now: i64) -> Option<(i64, i64)> {
        let calendar = self.calendar().filter(|_| self.last.whole > 0)?;
        let window = calendar.window(now).max(self.last.whole);
        let next = calendar.start(window + 1);
        Some((next - calendar.start(window), next))
    }
}

/// Charges without a check.
impl Level {
    /// The TAT after a charge at the time `at` of at most as many tokens as are refilled within 35 years from now.
    pub(crate) fn overdrawn(&self, pace: &Pace, now: i64, at: i64, tokens: i64) -> Moment {
        let most = Moment::at(now + MAX_SPAN);
        let after = match pace.take_too_long(tokens) {
            true => most,
            false => self.tat.max(Moment::at(at)).advance(pace, tokens).min(most),
        };
        self.tat.max(after)
    }

    /// Charges at most as many tokens as are refilled within 35 years from now.
    pub(crate) fn overdraw(&mut self, pace: &Pace, now: i64, at: i64, tokens: i64) {
        if pace.num == 0 {
            self.overuse(now, at, tokens);
            return;
        }
        let pending = self.last.whole - pace.span > now;
        self.tat = self.overdrawn(pace, now, at, tokens);
        self.last = if pending {
            self.last.max(self.tat)
        } else {
            self.tat
        };
    }

    pub(crate) fn give(&mut self, pace: &Pace, now: i64, tokens: i64) {
        if pace.num == 0 {
            self.tat.whole = (self.tat.whole - tokens).max(0);
            return;
        }
        if self.tat.whole <= now {
            return;
        }
        let pending = self.last.whole - pace.span > now;
        let full = Moment::at(now);
        self.tat = match pace.take_too_long(tokens) {
            true => full,
            false => self
                .tat
                .minus(pace, Moment::default().advance(pace, tokens))
                .max(full),
        };
        if !pending {
            self.last = self.tat;
        }
    }
}
