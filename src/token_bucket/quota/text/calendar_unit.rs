//! Calendar quotas as text, such as `10000/month@17+02:00`.

use super::Reader;
use crate::Error;
use crate::token_bucket::quota::Quota;
use crate::token_bucket::quota::calendar::Unit;

const OFFSET: &str = "is not an offset from UTC: use -23:59 to +23:59, with two digits each";

impl Reader<'_> {
    /// Reads a unit of the calendar, where windows start, and the offset. `None`, and nothing is read, if the unit is
    /// not one of the calendar. `day` is 24 hours, as `d`, so the day of the calendar is `calendar day`.
    pub(super) fn calendar(&mut self, tokens: &str, count: &str) -> Result<Option<Quota>, Error> {
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
        let (at, is_west) = (self.rest, self.rest.starts_with('-'));
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
