//! [`Quota`]: one rate limit as the user sets it, and [`Limit`]: the same limit, checked and in numbers.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::bucket::calendar::{MAX_SPAN, Settings, Tokens, Unit};
use crate::error::Error;

/// At most `rate` tokens per period on average, and at most `burst` tokens at once.
///
/// A quota is checked when it becomes [`Quotas`](crate::Quotas). Every constructor that takes a quota does this.
///
/// A quota of 0 [closes](crate::token_bucket#closed-limits) its limit: requests are refused until the quota is changed.
/// It can come from [`quotas`](crate::RateLimitLayer::quotas), from a
/// [table](crate::RateLimitLayer::quota_table), or for all processes at once from [`FleetQuotas`](crate::FleetQuotas).
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::Quota;
///
/// Quota::per_second(5).burst(10);
/// Quota::per_hour(1000);                             // the burst is 1000, too
/// Quota::new(3, Duration::from_secs(10));            // 3 every 10 seconds
/// Quota::per_day(10_000).named("day");               // `"day"` in the RateLimit header fields
/// Quota::per_second_f64(0.5);                        // one every 2 seconds
/// Quota::non_refilling(50);                          // 50 in total, no refill
/// Quota::per_calendar_month(10_000);                 // 10 000 from the first of each month on
/// Quota::per_second(0);                              // closed
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    pub(crate) rate: Rate,
    pub(crate) period: Duration,
    pub(crate) burst: Option<u32>,
    pub(crate) calendar: Settings,
    pub(crate) name: Option<Arc<str>>,
}

/// Tokens per period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    Never,
    Whole(u32),
    Fraction(f64),
    /// Tokens per window of a calendar.
    Calendar(u32, Unit),
}

impl Rate {
    /// Whether it admits nothing. [`Never`](Self::Never) admits its burst.
    fn is_zero(self) -> bool {
        match self {
            Self::Never => false,
            Self::Whole(rate) | Self::Calendar(rate, _) => rate == 0,
            Self::Fraction(rate) => rate == 0.0,
        }
    }
}

impl Quota {
    /// `rate` tokens per `period`, spread evenly. The default burst is `rate`.
    #[must_use]
    pub const fn new(rate: u32, period: Duration) -> Self {
        Self::at(Rate::Whole(rate), period, None)
    }

    const fn at(rate: Rate, period: Duration, burst: Option<u32>) -> Self {
        Self {
            rate,
            period,
            burst,
            calendar: Settings::NONE,
            name: None,
        }
    }

    /// `rate` tokens per second.
    #[must_use]
    pub const fn per_second(rate: u32) -> Self {
        Self::new(rate, Duration::from_secs(1))
    }

    /// `rate` tokens per minute.
    #[must_use]
    pub const fn per_minute(rate: u32) -> Self {
        Self::new(rate, Duration::from_secs(60))
    }

    /// `rate` tokens per hour.
    #[must_use]
    pub const fn per_hour(rate: u32) -> Self {
        Self::new(rate, Duration::from_secs(3600))
    }

    /// `rate` tokens per day of 24 hours, which refill evenly. For a number per calendar day, see
    /// [`per_calendar_day`](Self::per_calendar_day).
    #[must_use]
    pub const fn per_day(rate: u32) -> Self {
        Self::new(rate, Duration::from_secs(86_400))
    }

    /// A fractional `rate` of tokens per second, such as `0.5`: 0, or 1e-9 to 1e9. The default burst is the rate
    /// rounded up.
    #[must_use]
    pub const fn per_second_f64(rate: f64) -> Self {
        Self::at(Rate::Fraction(rate), Duration::from_secs(1), None)
    }

    /// `tokens` in total. Used tokens are not refilled until the bucket is [reset](crate::TokenBucket::reset).
    ///
    /// In Redis, the key of such a bucket has no TTL, because an expired key would be a full bucket. It stays
    /// without a TTL when later calls use other quotas, until the bucket is reset.
    #[must_use]
    pub const fn non_refilling(tokens: u32) -> Self {
        Self::at(Rate::Never, Duration::ZERO, Some(tokens))
    }

    /// Sets how many tokens can be taken at once after a pause. Default: the rate. 0 closes the limit.
    ///
    /// A calendar quota has no burst: all its tokens can be taken at once.
    #[must_use]
    pub fn burst(mut self, tokens: u32) -> Self {
        self.burst = Some(tokens);
        self
    }

    /// Sets the name of this quota in response headers (`RateLimit-Policy: "name";q=…`).
    ///
    /// The name is printable ASCII without `"` and `\`. Default: `default`, or `q1`, `q2`, … if there are several
    /// quotas.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// Calendar quotas. See [calendar quotas](crate::token_bucket#calendar-quotas).
impl Quota {
    /// `tokens` per day from midnight to midnight. All of them can be taken at once. [`per_day`](Self::per_day) is a
    /// quota that refills within 24 hours.
    ///
    /// ```
    /// # use tower_distributed::Quota;
    /// let quota = Quota::per_calendar_day(500).at_offset(-5 * 60); // midnight in Bogotá
    /// assert_eq!(quota.to_string(), "500/calendar day-05:00");
    /// ```
    #[must_use]
    pub const fn per_calendar_day(tokens: u32) -> Self {
        Self::calendar(tokens, Unit::Day)
    }

    /// `tokens` per week, from Monday on. All of them can be taken at once.
    ///
    /// ```
    /// # use tower_distributed::Quota;
    /// let quota = Quota::per_calendar_week(2000).starting(7); // Sunday
    /// assert_eq!(quota.to_string(), "2000/week@7");
    /// ```
    #[must_use]
    pub const fn per_calendar_week(tokens: u32) -> Self {
        Self::calendar(tokens, Unit::Week)
    }

    /// `tokens` per month, from its first day on. All of them can be taken at once.
    ///
    /// ```
    /// # use tower_distributed::Quota;
    /// let quota = Quota::per_calendar_month(10_000).starting(17).at_offset(2 * 60);
    /// assert_eq!(quota.to_string(), "10000/month@17+02:00");
    /// ```
    #[must_use]
    pub const fn per_calendar_month(tokens: u32) -> Self {
        Self::calendar(tokens, Unit::Month)
    }

    /// `tokens` per year, from January on. All of them can be taken at once.
    ///
    /// ```
    /// # use tower_distributed::Quota;
    /// let quota = Quota::per_calendar_year(100_000).starting(4); // from 1 April on
    /// assert_eq!(quota.to_string(), "100000/year@4");
    /// ```
    #[must_use]
    pub const fn per_calendar_year(tokens: u32) -> Self {
        Self::calendar(tokens, Unit::Year)
    }

    /// The code of the calendar; `None` if it is another quota.
    pub(crate) fn calendar_code(&self) -> Result<Option<i64>, String> {
        match (self.rate, self.burst) {
            (Rate::Calendar(..), Some(burst)) => {
                Err(format!("a calendar quota has no burst, is {burst}"))
            }
            (Rate::Calendar(_, unit), _) => self.calendar.code(unit).map(Some),
            _ if self.calendar == Settings::NONE => Ok(None),
            _ => Err(
                "only a calendar quota has a start, an offset and later windows to reserve"
                    .to_owned(),
            ),
        }
    }

    pub(crate) const fn calendar(tokens: u32, unit: Unit) -> Self {
        Self::at(Rate::Calendar(tokens, unit), Duration::ZERO, None)
    }

    /// Sets when the windows of a calendar quota start: the weekday of a week (1 is Monday, 7 is Sunday), the day of a
    /// month (1 to 31), or the month of a year (1 to 12). Default: 1.
    ///
    /// A month without this day starts on its last day: in February, `starting(31)` starts on the 28th or 29th. A
    /// calendar day has no such start; use [`at_offset`](Self::at_offset).
    #[must_use]
    pub const fn starting(mut self, start: u8) -> Self {
        self.calendar.starting = Some(start);
        self
    }

    /// Sets the offset of a calendar quota from UTC in minutes, positive to the east: -1439 to 1439. Default: 0.
    ///
    /// With daylight saving time, change the offset when the clocks change; see
    /// [calendar quotas](crate::token_bucket#calendar-quotas).
    #[must_use]
    pub const fn at_offset(mut self, minutes: i16) -> Self {
        self.calendar.offset = Some(minutes);
        self
    }

    /// Sets whether requests that wait can reserve tokens of later windows of a calendar quota. Default: `false`, a
    /// request that would wait for the next window is refused.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let quota = Quota::per_calendar_month(1);
    /// let bucket = TokenBucket::new(&Store::in_memory(), "reports", quota.clone())?;
    /// assert!(bucket.reserve("ann").await?.delay().is_zero());
    /// assert!(bucket.reserve("ann").await.unwrap_err().is_refused());
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "reports", quota.reserve_ahead(true))?;
    /// assert!(bucket.reserve("ann").await?.delay().is_zero());
    /// assert!(!bucket.reserve("ann").await?.delay().is_zero(), "it acts next month");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn reserve_ahead(mut self, ahead: bool) -> Self {
        self.calendar.ahead = ahead;
        self
    }
}

impl Quota {
    pub(crate) fn default_name(position: usize, of: usize) -> Arc<str> {
        if of == 1 {
            Arc::from(DEFAULT_NAME)
        } else {
            Arc::from(format!("q{}", position + 1))
        }
    }

    pub(crate) fn check(self, position: usize, of: usize) -> Result<Limit, Error> {
        let invalid =
            |why: fmt::Arguments<'_>| Error::invalid(format!("invalid quota \"{self}\": {why}"));
        let burst = match (self.burst, self.rate) {
            (Some(burst), _) => burst,
            (None, Rate::Whole(rate)) => rate,
            // The conversion saturates. `interval` below rejects NaN and rates out of range.
            (None, Rate::Fraction(rate)) => (rate.ceil() as u32).max(1),
            (None, Rate::Calendar(tokens, _)) => tokens,
            (None, Rate::Never) => 0,
        };
        let (num, den) = match self
            .calendar_code()
            .map_err(|why| invalid(format_args!("{why}")))?
        {
            Some(code) => (0, code),
            None => self
                .interval(burst.max(1))
                .map_err(|why| invalid(format_args!("{why}")))?,
        };
        let name = match &self.name {
            None => Self::default_name(position, of),
            Some(name) => name.clone(),
        };
        if name.is_empty() || !name.chars().all(is_quotable) {
            return Err(invalid(format_args!(
                "the name must be printable ASCII without quotes and backslashes, is {name:?}"
            )));
        }
        if burst == 0 || self.rate.is_zero() {
            return Ok(Limit::closed(name));
        }
        Ok(Limit::new(name, burst.into(), num, den))
    }

    /// The interval from one token to the next in µs, as a fraction.
    ///
    /// The fraction keeps every product in `lua/level.lua` below 2^53. If the exact interval does not, the
    /// result is the next longer interval that does. The products are `num·den` and `tokens·den`, with up to
    /// [`MOST_REPEATS`] times the burst at once.
    fn interval(&self, burst: u32) -> Result<(i64, i64), &'static str> {
        let micros = i128::from(i64::try_from(self.period.as_micros()).unwrap_or(i64::MAX));
        // period / rate, as integers
        let (period, rate) = match self.rate {
            Rate::Never | Rate::Calendar(..) => return Ok((0, 1)),
            Rate::Whole(rate) => (micros, i128::from(rate.max(1))),
            Rate::Fraction(0.0) => (micros, 1),
            Rate::Fraction(rate) if (1e-9..=1e9).contains(&rate) => {
                // In units of 2^-60: exact for rates of 2^-8 and more; relative error up to 2^-22 at the lower end.
                (micros << 60, (rate * (1_u64 << 60) as f64) as i128)
            }
            Rate::Fraction(_) => {
                return Err("the rate must be 0, or 1e-9 to 1e9 tokens per second");
            }
        };
        if period == 0 {
            return Err("the period must be at least 1 µs");
        }
        let burst = i128::from(burst);
        if burst * period / rate > i128::from(MAX_SPAN) {
            return Err("the burst must refill within 35 years");
        }
        let square = (((1_i128 << 52) as f64 * (rate as f64 / period as f64)) as i128).isqrt();
        let most = square.min(1 << 20).min((1 << 43) / burst).max(1);
        let (num, den) = ceiling(period, rate, most);
        match (i64::try_from(num), i64::try_from(den)) {
            (Ok(num), Ok(den)) => Ok((num, den)),
            _ => Err("the rate is out of range"),
        }
    }
}

/// Whether a quoted text in a header field may contain this character.
pub(crate) fn is_quotable(c: char) -> bool {
    matches!(c, ' '..='~') && c != '"' && c != '\\'
}

/// The name of an unnamed quota that is the only one.
pub(crate) const DEFAULT_NAME: &str = "default";

/// The maximum number of equal requests that one charge combines.
pub(crate) const MOST_REPEATS: usize = 1024;

/// The smallest fraction that is at least `p/q` and has a denominator of at most `most`. The search walks down the
/// Stern-Brocot tree.
fn ceiling(p: i128, q: i128, most: i128) -> (i128, i128) {
    // below < p/q ≤ above, neighbours in the tree
    let mut below = (0, 1);
    let mut above = (1, 0);
    loop {
        let short = p * below.1 - q * below.0;
        let over = q * above.0 - p * above.1;
        if over == 0 {
            return above;
        }
        let steps = (short - 1) / over;
        // The next `below` has too large a denominator, and so has every fraction nearer than `above`.
        if above.1 > 0 && steps > (most - below.1) / above.1 {
            return above;
        }
        below = (below.0 + steps * above.0, below.1 + steps * above.1);
        let short = p * below.1 - q * below.0;
        let closer = (over / short).min((most - above.1) / below.1);
        above = (above.0 + closer * below.0, above.1 + closer * below.1);
        if below.1 + above.1 > most {
            return above;
        }
    }
}

/// A checked [`Quota`], with its name in response headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) name: Arc<str>,
    pub(crate) pace: Pace,
    /// Whether it admits nothing. Then its pace is one token a second, which the store uses for the state.
    pub(crate) is_closed: bool,
}

impl Limit {
    pub(crate) fn new(name: Arc<str>, burst: i64, num: i64, den: i64) -> Self {
        Self {
            name,
            pace: Pace::of(Tokens { burst, num, den }),
            is_closed: false,
        }
    }

    fn closed(name: Arc<str>) -> Self {
        Self {
            is_closed: true,
            ..Self::new(name, 1, 1_000_000, 1)
        }
    }

    /// The largest cost that it can admit.
    pub(crate) fn most(&self) -> i64 {
        if self.is_closed { 0 } else { self.burst }
    }
}

impl Deref for Limit {
    type Target = Pace;

    fn deref(&self) -> &Pace {
        &self.pace
    }
}

/// The numbers of a quota, with values that every decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) tokens: Tokens,
    /// The quotient and the remainder of `num / den`.
    pub(crate) whole: i64,
    pub(crate) part: i64,
    /// How long an empty bucket takes to fill, in whole µs.
    pub(crate) span: i64,
}

impl Pace {
    pub(crate) fn of(tokens: Tokens) -> Self {
        let Tokens { burst, num, den } = tokens;
        let whole = num / den;
        let part = num % den;
        Self {
            tokens,
            whole,
            part,
            span: burst * whole + burst * part / den,
        }
    }
}

impl Deref for Pace {
    type Target = Tokens;

    fn deref(&self) -> &Tokens {
        &self.tokens
    }
}
