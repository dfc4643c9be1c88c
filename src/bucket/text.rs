//! Quotas as text, such as `100/min, burst 20` or `10000/month@17+02:00`: parsed, written, and as serde values.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::bucket::calendar;
use crate::bucket::calendar::Unit;
use crate::bucket::quota::{Limit, Quota, Rate};
use crate::bucket::quotas::Quotas;
use crate::error::Error;

/// The units of time. The first name of each unit is used for output.
const UNITS: [(&[&str], Duration); 7] = [
    (&["d", "day", "days"], Duration::from_secs(86_400)),
    (&["h", "hour", "hours"], Duration::from_secs(3600)),
    (&["min", "minute", "minutes"], Duration::from_secs(60)),
    (&["s", "sec", "second", "seconds"], Duration::from_secs(1)),
    (&["ms"], Duration::from_millis(1)),
    (&["us", "µs"], Duration::from_micros(1)),
    (&["ns"], Duration::from_nanos(1)),
];

const UNKNOWN_UNIT: &str =
    "is not a unit of time: use ns, us, ms, s, min, h or d, or calendar day, week, month or year";

const OFFSET: &str = "is not an offset from UTC: use -23:59 to +23:59, with two digits each";

/// Parses one quota.
///
/// The text is a rate such as `100/min`, `3/10s` or `0.5/s`, or a total such as `50 in all`. `, burst 20` and
/// `, named "search"` may follow. The units are `ns`, `us`, `ms`, `s`, `min`, `h` and `d`, or their names, such as
/// `second` and `minutes`.
///
/// A [calendar quota](crate::token_bucket#calendar-quotas) is written as `10000/month`, `2000/week`, `100000/year` or
/// `500/calendar day` (`500/day` refills within 24 hours). `@17` may follow, which is [where it
/// starts](Quota::starting), then the [offset](Quota::at_offset), such as `+02:00`; and `, reserve ahead`.
///
/// ```
/// use tower_distributed::Quota;
///
/// let quota: Quota = "100/min, burst 20".parse()?;
/// assert_eq!(quota, Quota::per_minute(100).burst(20));
/// assert_eq!(quota.to_string(), "100/min, burst 20");
///
/// let error = "100/fortnight".parse::<Quota>().unwrap_err();
/// assert!(error.to_string().contains("fortnight"));
/// # Ok::<(), tower_distributed::Error>(())
/// ```
impl FromStr for Quota {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut reader = Reader {
            whole: text,
            rest: text,
        };
        let quota = reader.quota()?;
        if reader.rest.is_empty() {
            Ok(quota)
        } else {
            Err(reader.unexpected())
        }
    }
}

/// Parses one or several quotas, separated by semicolons: `10/s; 1000/h, burst 100`. See [`Quota`] for the syntax
/// of each.
///
/// ```
/// use tower_distributed::{Quota, Quotas};
///
/// let quotas: Quotas = "10/s; 1000/h, burst 100".parse()?;
/// assert_eq!(quotas, Quotas::new([Quota::per_second(10), Quota::per_hour(1000).burst(100)])?);
/// assert_eq!(quotas.to_string(), "10/s; 1000/h, burst 100");
/// # Ok::<(), tower_distributed::Error>(())
/// ```
impl FromStr for Quotas {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut reader = Reader {
            whole: text,
            rest: text,
        };
        let mut quotas = vec![reader.quota()?];
        while reader.skip(";") {
            quotas.push(reader.quota()?);
        }
        if reader.rest.is_empty() {
            Self::new(quotas)
        } else {
            Err(reader.unexpected())
        }
    }
}

impl TryFrom<&str> for Quotas {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        text.parse()
    }
}

/// The rest of a text that is being parsed.
struct Reader<'a> {
    whole: &'a str,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn quota(&mut self) -> Result<Quota, Error> {
        let number = self.take(|c| c.is_ascii_digit() || ".eE-+".contains(c));
        let mut quota = if self.skip("/") {
            let count = self.take(|c| c.is_ascii_digit());
            match self.calendar(number, count)? {
                Some(quota) => quota,
                None => {
                    let period = self.period(count)?;
                    self.rate(number, period)?
                }
            }
        } else if self.skip("in") && self.skip("all") {
            Quota::non_refilling(self.number(number)?)
        } else {
            return Err(self.unexpected());
        };
        while self.skip(",") {
            if self.skip("burst") {
                let burst = self.take(|c| c.is_ascii_digit());
                quota = quota.burst(self.number(burst)?);
            } else if self.skip("named") && self.skip("\"") {
                let Some((name, rest)) = self.rest.split_once('"') else {
                    return Err(self.unexpected());
                };
                self.rest = rest.trim_start();
                quota = quota.named(name);
            } else if self.skip("reserve") && self.skip("ahead") {
                quota = quota.reserve_ahead(true);
            } else {
                return Err(self.unexpected());
            }
        }
        Ok(quota)
    }

    fn rate(&self, number: &str, period: Duration) -> Result<Quota, Error> {
        if number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Quota::new(self.number(number)?, period));
        }
        let rate = number
            .parse()
            .ok()
            .filter(|rate: &f64| !rate.is_sign_negative());
        let rate = rate.ok_or_else(|| self.no_number(number))?;
        Ok(Quota::per_second_f64(rate / period.as_secs_f64()))
    }

    /// Reads a unit of time, and returns `count` times this unit. An empty `count` means one.
    fn period(&mut self, count: &str) -> Result<Duration, Error> {
        let count = if count.is_empty() {
            1
        } else {
            self.number::<u64>(count)?
        };
        let at = self.rest;
        let unit = self.take(char::is_alphabetic);
        let known = UNITS.iter().find(|(names, _)| names.contains(&unit));
        let Some((_, span)) = known else {
            return Err(self.wrong_at(at, unit, UNKNOWN_UNIT));
        };
        let nanos = span.as_nanos() * u128::from(count);
        let seconds = u64::try_from(nanos / 1_000_000_000);
        let seconds = seconds.map_err(|_| self.wrong(format_args!("the period is too long")))?;
        Ok(Duration::from_secs(seconds) + Duration::from_nanos((nanos % 1_000_000_000) as u64))
    }

    fn number<T: FromStr>(&self, text: &str) -> Result<T, Error> {
        text.parse().map_err(|_| self.no_number(text))
    }

    fn no_number(&self, text: &str) -> Error {
        self.wrong(format_args!("{text:?} is not a number, or is too large"))
    }

    /// Takes the next characters that match `is_kind`, and skips blanks around them.
    fn take(&mut self, is_kind: impl Fn(char) -> bool) -> &'a str {
        let text = self.rest.trim_start();
        let end = text.find(|c| !is_kind(c)).unwrap_or(text.len());
        let (taken, rest) = text.split_at(end);
        self.rest = rest.trim_start();
        taken
    }

    /// Skips `expected` if it comes next. Returns whether it did.
    fn skip(&mut self, expected: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(expected);
        if let Some(rest) = rest {
            self.rest = rest.trim_start();
        }
        rest.is_some()
    }

    fn unexpected(&self) -> Error {
        match self.rest {
            "" => self.wrong(format_args!("something is missing at the end")),
            rest => self.wrong(format_args!("{rest:?} is unexpected")),
        }
    }

    /// The error for `part`, which is at the beginning of `rest`.
    fn wrong_at(&self, rest: &str, part: &str, why: &str) -> Error {
        let position = 1 + self.whole[..self.whole.len() - rest.len()].chars().count();
        self.wrong(format_args!("at position {position}, {part:?} {why}"))
    }

    fn wrong(&self, why: fmt::Arguments<'_>) -> Error {
        let whole = self.whole;
        Error::invalid(format!(
            "invalid quota {whole:?}: {why}; write a quota as \"100/min, burst 20\" or \"10000/month@17+02:00\""
        ))
    }
}

impl Reader<'_> {
    /// Reads a calendar unit, the start of its windows, and the offset. If the unit is not a calendar unit, returns
    /// `None` and reads nothing. `day` is 24 hours, like `d`; the calendar unit is `calendar day`.
    pub(crate) fn calendar(&mut self, tokens: &str, count: &str) -> Result<Option<Quota>, Error> {
        let begin = self.rest;
        let first = self.take(char::is_alphabetic);
        let at = self.rest;
        let name = if first == "calendar" {
            self.take(char::is_alphabetic)
        } else {
            first
        };
        let unit = match Unit::named(name) {
            Some(unit) if first == "calendar" || unit != Unit::Day => unit,
            None if first == "calendar" => {
                return Err(self.wrong_at(at, name, "is not a unit: use day, week, month or year"));
            }
            _ => {
                self.rest = begin;
                return Ok(None);
            }
        };
        if !count.is_empty() {
            let why = format!("cannot have a count, has {count}: a calendar quota is for one unit");
            return Err(self.wrong_at(begin, name, &why));
        }
        let mut quota = Quota::calendar(self.number(tokens)?, unit);
        let at = self.rest;
        if self.skip("@") {
            let start = self.take(|c| c.is_ascii_digit());
            quota = quota.starting(self.number(start)?);
        }
        if self.rest.starts_with(['+', '-']) {
            quota = quota.at_offset(self.offset()?);
        }
        let read = &at[..at.len() - self.rest.len()];
        quota
            .calendar
            .code(unit)
            .map_err(|why| self.wrong_at(at, read, &format!("is not possible: {why}")))?;
        Ok(Some(quota))
    }

    /// Reads an offset from UTC, in minutes.
    fn offset(&mut self) -> Result<i16, Error> {
        let at = self.rest;
        let is_west = self.rest.starts_with('-');
        let text = self.take(|c| c.is_ascii_digit() || "+-:".contains(c));
        let two_digits = |digits: &str, most: i16| {
            let is_written = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits
                .parse()
                .ok()
                .filter(|number: &i16| is_written && *number <= most)
        };
        let parsed = text[1..].split_once(':').and_then(|(hours, minutes)| {
            Some(60 * two_digits(hours, 23)? + two_digits(minutes, 59)?)
        });
        let minutes = parsed.ok_or_else(|| self.wrong_at(at, text, OFFSET))?;
        Ok(if is_west { -minutes } else { minutes })
    }
}

/// Writes the quota as text that [`FromStr`](#impl-FromStr-for-Quota) reads.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Rate::Never => write!(f, "{} in all", self.burst.unwrap_or(0))?,
            Rate::Whole(rate) => write!(f, "{rate}/{}", Span(self.period))?,
            Rate::Calendar(tokens, unit) => {
                write!(f, "{tokens}/")?;
                calendar::write(f, unit, self.calendar)?;
            }
            // With a decimal point or an exponent, so that it is parsed as a fraction.
            Rate::Fraction(rate) => write!(f, "{rate:?}/s")?,
        }
        if let Some(burst) = self.burst.filter(|_| self.rate != Rate::Never) {
            write!(f, ", burst {burst}")?;
        }
        self.name
            .as_ref()
            .map_or(Ok(()), |name| write!(f, ", named \"{name}\""))
    }
}

/// Writes the quotas as text that [`FromStr`](#impl-FromStr-for-Quotas) reads. The text may differ from the
/// original text, but its meaning is the same: `60/min` is written as `1/s, burst 60`.
impl fmt::Display for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.limits();
        for (position, limit) in limits.iter().enumerate() {
            if position > 0 {
                f.write_str("; ")?;
            }
            let is_default = *limit.name == *Quota::default_name(position, limits.len());
            let name = (!is_default).then(|| limit.name.clone());
            Quota {
                name,
                ..described(limit)
            }
            .fmt(f)?;
        }
        Ok(())
    }
}

/// The quota with these numbers, without a name. Its period is the shortest unit in which the rate is an integer.
fn described(limit: &Limit) -> Quota {
    if limit.is_closed {
        return Quota::per_second(0);
    }
    let burst = u32::try_from(limit.burst).unwrap_or(u32::MAX);
    if let Some((unit, calendar)) = calendar::described(limit) {
        return Quota {
            calendar,
            ..Quota::calendar(burst, unit)
        };
    }
    if limit.num == 0 {
        return Quota::non_refilling(burst);
    }
    let num = i128::from(limit.num);
    let den = i128::from(limit.den);
    let per = |span: Duration| {
        let tokens = span.as_micros().cast_signed() * den;
        u32::try_from(tokens / num)
            .ok()
            .filter(|_| tokens % num == 0)
    };
    let whole = UNITS[..4]
        .iter()
        .rev()
        .find_map(|(_, span)| Some((per(*span)?, *span)));
    let (rate, period) = whole.unwrap_or_else(|| {
        let period = Duration::from_micros(limit.num.unsigned_abs());
        (u32::try_from(limit.den).unwrap_or(u32::MAX), period)
    });
    Quota {
        burst: (burst != rate).then_some(burst),
        ..Quota::new(rate, period)
    }
}

/// Writes a time span as a multiple of the largest possible unit.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let unit = UNITS
            .iter()
            .find(|(_, span)| nanos > 0 && nanos.is_multiple_of(span.as_nanos()));
        let (names, span) = unit.unwrap_or(&UNITS[3]);
        match nanos / span.as_nanos() {
            1 => f.write_str(names[0]),
            count => write!(f, "{count}{}", names[0]),
        }
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use std::fmt;
    use std::marker::PhantomData;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Visitor};
    use serde::ser::{Serialize, Serializer};

    use crate::bucket::quota::Quota;
    use crate::bucket::quotas::Quotas;

    /// Deserializes a value from its text.
    struct Text<T>(PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a quota, such as \"100/min, burst 20\"")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    macro_rules! as_text {
        ($($type:ty),*) => {$(
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_str(Text(PhantomData))
                }
            }
        )*};
    }
    as_text!(Quota, Quotas);
}
