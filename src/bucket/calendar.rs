//! The numbers of a quota, and the arithmetic of calendar quotas: tokens per day, week, month or year. It equals
//! `lua/calendar.lua`, integer for integer.
//!
//! The windows of a calendar are numbered, with positive numbers. Dates are of the proleptic Gregorian calendar. The
//! conversions between days and months follow Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"
//! (<https://howardhinnant.github.io/date_algorithms.html>), `civil_from_days` and `days_from_civil`: years begin in
//! March, so the leap day is the last day of a year.

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;

/// The longest time in µs that a bucket may take to refill. It keeps all arithmetic below 2^53.
pub(crate) const MAX_SPAN: i64 = 1 << 50;

/// The numbers of a quota: at most `burst` tokens, one more every `num / den` µs. If `num` is 0, tokens do not refill
/// one by one: if `den` is 1, they never refill; otherwise all refill at the start of a window of the [`Calendar`] with
/// the code `den`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tokens {
    pub(crate) burst: i64,
    pub(crate) num: i64,
    pub(crate) den: i64,
}

impl Tokens {
    /// Whether numbers from a store can be the numbers of a quota.
    pub(crate) fn are_valid(&self) -> bool {
        let span = i128::from(self.burst) * i128::from(self.num);
        (1..=u32::MAX.into()).contains(&self.burst)
            && self.num >= 0
            && (1..=1 << 20).contains(&self.den)
            && (self.num > 0 || self.den == 1 || Calendar::of(self).is_some())
            && span <= i128::from(MAX_SPAN) * i128::from(self.den)
    }

    /// Whether used tokens are never refilled.
    pub(crate) fn never_refill(&self) -> bool {
        self.num == 0 && self.den == 1
    }

    /// The average time from one token to the next in µs; infinite if no token is refilled.
    pub(crate) fn interval(&self) -> f64 {
        match Calendar::of(self) {
            Some(calendar) => calendar.average() / self.burst as f64,
            None if self.num == 0 => f64::INFINITY,
            None => self.num as f64 / self.den as f64,
        }
    }

    /// Whether `tokens` take longer than [`MAX_SPAN`] to refill.
    pub(crate) fn take_too_long(&self, tokens: i64) -> bool {
        tokens as f64 * self.interval() > MAX_SPAN as f64
    }
}

/// The unit of a calendar quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Day,
    Week,
    Month,
    Year,
}

/// The settings of a calendar quota, as the user set them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) starting: Option<u8>,
    pub(crate) offset: Option<i16>,
    pub(crate) ahead: bool,
}

/// The windows of a calendar quota, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    length: Length,
    /// The offset from UTC, minutes.
    offset: i64,
    /// Whether tokens of later windows can be reserved.
    pub(crate) ahead: bool,
}

/// The length of a window, and where the windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// Days; and the first day of a window, counted from day 0.
    Days(i64, i64),
    /// Months; the first month of a window, counted from month 0; and the day of the month.
    Months(i64, i64, i64),
}

const MINUTE: i64 = 60_000_000;

const DAY: i64 = 1440 * MINUTE;

/// Days from 0000-03-01, day 0 of month 0, to 1970-01-01.
const EPOCH: i64 = 719_468;

/// The first Monday after day 0.
const MONDAY: i64 = 5;

/// The number of offsets from UTC, with their sign and one unused value: 24 hours in both directions.
const OFFSETS: i64 = 2880;

/// The code of a calendar is `(start + AHEAD if tokens can be reserved ahead)·2880 + 1440 + offset`. The start is 1 for
/// days, and for the others one of these numbers plus the weekday, the day of the month or the month.
const AHEAD: i64 = 100;

const WEEKS: i64 = 10;

const MONTHS: i64 = 20;

const YEARS: i64 = 60;

impl Unit {
    const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Year];

    /// The name in text. `d` and `day` are 24 hours in the text of a quota, so the calendar day has another name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Day => "calendar day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The name without the word `calendar`.
    fn short(self) -> &'static str {
        self.name().trim_start_matches("calendar ")
    }

    /// The unit with this short name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.short() == name)
    }

    /// The last start of a window, and the first number of the code.
    fn starts(self) -> (u8, i64) {
        match self {
            Self::Day => (0, 0),
            Self::Week => (7, WEEKS),
            Self::Month => (31, MONTHS),
            Self::Year => (12, YEARS),
        }
    }
}

impl Settings {
    pub(crate) const NONE: Self = Self {
        starting: None,
        offset: None,
        ahead: false,
    };

    /// The code of the calendar.
    pub(crate) fn code(self, unit: Unit) -> Result<i64, String> {
        let (most, base) = unit.starts();
        let start = match (self.starting, most) {
            (None, _) => 1,
            (Some(start), 0) => {
                return Err(format!(
                    "a calendar day has no start, is {start}: use at_offset"
                ));
            }
            (Some(start), _) if (1..=most).contains(&start) => i64::from(start),
            (Some(start), _) => {
                return Err(format!(
                    "the start of a calendar {} must be 1 to {most}, is {start}",
                    unit.short()
                ));
            }
        };
        let offset = i64::from(self.offset.unwrap_or(0));
        if offset.abs() >= 1440 {
            return Err(format!(
                "the offset from UTC must be -1439 to 1439 minutes, is {offset}"
            ));
        }
        let ahead = if self.ahead { AHEAD } else { 0 };
        Ok((ahead + base + start) * OFFSETS + 1440 + offset)
    }
}

impl Calendar {
    /// The calendar of a quota; `None` for a quota that refills, or never does.
    #[inline]
    pub(crate) fn of(tokens: &Tokens) -> Option<Self> {
        if tokens.num == 0 && tokens.den > 1 {
            Self::from_code(tokens.den)
        } else {
            None
        }
    }

    fn from_code(code: i64) -> Option<Self> {
        let start = code / OFFSETS;
        let offset = code % OFFSETS - 1440;
        let ahead = start / AHEAD;
        let start = start % AHEAD;
        let length = match start {
            1 => Length::Days(1, 0),
            11..=17 => Length::Days(7, MONDAY + start - WEEKS - 1),
            21..=51 => Length::Months(1, 0, start - MONTHS),
            61..=72 => Length::Months(12, (start - YEARS + 9) % 12, 1),
            _ => return None,
        };
        (ahead <= 1 && offset > -1440).then_some(Self {
            length,
            offset,
            ahead: ahead == 1,
        })
    }

    /// The number of the window at a time, µs.
    pub(crate) fn window(&self, at: i64) -> i64 {
        let day = (at + self.offset * MINUTE).div_euclid(DAY) + EPOCH;
        match self.length {
            Length::Days(days, first) => (day - first).div_euclid(days),
            Length::Months(months, first, start) => {
                let month = month_of(day);
                let begun = day >= first_day(month, start);
                (month - i64::from(!begun) - first).div_euclid(months)
            }
        }
    }

    /// When a window begins, µs.
    pub(crate) fn start(&self, window: i64) -> i64 {
        let day = match self.length {
            Length::Days(days, first) => window * days + first,
            Length::Months(months, first, start) => first_day(window * months + first, start),
        };
        (day - EPOCH) * DAY - self.offset * MINUTE
    }

    /// The average length of a window, µs.
    pub(crate) fn average(&self) -> f64 {
        (match self.length {
            Length::Days(days, _) => days * DAY,
            // 400 years are 146 097 days.
            Length::Months(months, ..) => months * (146_097 * DAY / 4800),
        }) as f64
    }
}

/// The month of a day.
fn month_of(day: i64) -> i64 {
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    12 * (400 * era + year) + (5 * of_year + 2) / 153
}

/// The day of a month that has the number `start`, or the last day of a month that lacks it.
fn first_day(month: i64, start: i64) -> i64 {
    let first = |month: i64| {
        let year = month.div_euclid(12);
        let month = month.rem_euclid(12);
        365 * year + year.div_euclid(4) - year.div_euclid(100)
            + year.div_euclid(400)
            + (153 * month + 2) / 5
    };
    if start == 1 {
        first(month)
    } else {
        (first(month) + start).min(first(month + 1)) - 1
    }
}

/// The days from 1970 to the first of a month from 1 to 12.
#[cfg(feature = "http")]
pub(crate) fn days_before(year: i64, month: i64) -> i64 {
    first_day(12 * year + month - 3, 1) - EPOCH
}

/// Writes a calendar as text, from its start on.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, unit: Unit, settings: Settings) -> fmt::Result {
    f.write_str(unit.name())?;
    if let Some(start) = settings.starting {
        write!(f, "@{start}")?;
    }
    if let Some(offset) = settings.offset {
        let sign = if offset < 0 { '-' } else { '+' };
        let minutes = offset.unsigned_abs();
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)?;
    }
    f.write_str(if settings.ahead {
        ", reserve ahead"
    } else {
        ""
    })
}

/// The unit and the settings of a code, as short as possible.
pub(crate) fn described(tokens: &Tokens) -> Option<(Unit, Settings)> {
    let Calendar { offset, ahead, .. } = Calendar::of(tokens)?;
    let start = tokens.den / OFFSETS % AHEAD;
    let unit = Unit::ALL
        .into_iter()
        .rfind(|unit| start >= unit.starts().1)
        .unwrap_or(Unit::Day);
    let starting = u8::try_from(start - unit.starts().1)
        .ok()
        .filter(|start| *start != 1);
    let offset = i16::try_from(offset).ok().filter(|offset| *offset != 0);
    Some((
        unit,
        Settings {
            starting,
            offset,
            ahead,
        },
    ))
}
