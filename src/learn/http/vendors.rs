//! Header fields in common use, and those of a few large services.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use crate::http::values::{number, reset, value};
use crate::learn::{Learned, Policy};

/// The fields of one limit.
struct Family {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
    unit: &'static str,
    /// The kind of window of the limit.
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A window whose length is not reported.
    Window,
    /// A limit per minute that refills token by token.
    PerMinute,
    /// A limit per minute or per day that refills token by token. The time until it is full determines which.
    PerMinuteOrDay,
}

impl Family {
    const fn of(
        unit: &'static str,
        kind: Kind,
        [limit, remaining, reset]: [&'static str; 3],
    ) -> Self {
        Self {
            limit,
            remaining,
            reset,
            unit,
            kind,
        }
    }
}

macro_rules! fields {
    ($before:literal, $after:literal) => {
        [
            concat!($before, "limit", $after),
            concat!($before, "remaining", $after),
            concat!($before, "reset", $after),
        ]
    };
}

/// Sources: docs.github.com "Rate limits for the REST API"; platform.openai.com "Rate limits"; docs.anthropic.com "Rate
/// limits", whose limits are token buckets per minute.
const FAMILIES: [Family; 9] = [
    Family::of("requests", Kind::Window, fields!("x-ratelimit-", "")),
    Family::of("requests", Kind::Window, fields!("x-rate-limit-", "")),
    Family::of("requests", Kind::Window, fields!("ratelimit-", "")),
    Family::of(
        "requests",
        Kind::PerMinuteOrDay,
        fields!("x-ratelimit-", "-requests"),
    ),
    Family::of(
        "tokens",
        Kind::PerMinuteOrDay,
        fields!("x-ratelimit-", "-tokens"),
    ),
    Family::of(
        "requests",
        Kind::PerMinute,
        fields!("anthropic-ratelimit-requests-", ""),
    ),
    Family::of(
        "tokens",
        Kind::PerMinute,
        fields!("anthropic-ratelimit-tokens-", ""),
    ),
    Family::of(
        "input-tokens",
        Kind::PerMinute,
        fields!("anthropic-ratelimit-input-tokens-", ""),
    ),
    Family::of(
        "output-tokens",
        Kind::PerMinute,
        fields!("anthropic-ratelimit-output-tokens-", ""),
    ),
];

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Windows in common use. A limit whose window is not reported has the shortest of them that contains its reset.
static USUAL: [Duration; 8] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    MINUTE,
    Duration::from_secs(300),
    Duration::from_secs(900),
    HOUR,
    DAY,
    Duration::from_secs(31 * 86_400),
];

/// A window of any length has a reset below this at its end.
const END: Duration = Duration::from_secs(10);

/// Reads the fields of all families. `window`: the window that the user has set for limits that do not report it.
pub(super) fn read(
    headers: &HeaderMap,
    now: SystemTime,
    window: Option<Duration>,
    learned: &mut Learned,
) {
    for family in &FAMILIES {
        let policy = family.read(headers, now, window, &mut learned.ignored);
        learned.policies.extend(policy);
    }
}

impl Family {
    /// Reads the fields of one family. Counts those that cannot be read.
    fn read(
        &self,
        headers: &HeaderMap,
        now: SystemTime,
        window: Option<Duration>,
        ignored: &mut u64,
    ) -> Option<Policy> {
        // Most responses have none of these fields.
        let mut read = |name| {
            let value = value(headers, name)?;
            value.is_none().then(|| *ignored += 1);
            value
        };
        let [limit, remaining] = [self.limit, self.remaining].map(&mut read);
        if limit.is_none() && remaining.is_none() {
            return None;
        }
        let until = read(self.reset);
        let resource = value(headers, "x-ratelimit-resource").flatten();
        let resource = resource.filter(|_| self.limit == "x-ratelimit-limit");
        let mut parsed = |text: Option<&str>| {
            let number = number(text?);
            number.is_none().then(|| *ignored += 1);
            number
        };
        let (limit, remaining) = (parsed(limit), parsed(remaining));
        let until = until.and_then(|text| {
            let until = reset(text, now);
            until.is_none().then(|| *ignored += 1);
            until
        });
        if limit.is_none() && remaining.is_none() {
            return None;
        }
        let window = match (self.kind, resource) {
            // GitHub's limits on searches are per minute, all others per hour.
            (Kind::Window, Some("search" | "code_search")) => Window::of(MINUTE),
            (Kind::Window, Some(_)) => Window::of(HOUR),
            (Kind::Window, None) => window.map_or_else(|| Window::guessed(until), Window::of),
            (Kind::PerMinute, _) => Window::of(MINUTE),
            (Kind::PerMinuteOrDay, _) => Window::of(minute_or_day(limit, remaining, until)),
        };
        Some(Policy {
            limit,
            window: window.length,
            longer: window.longer,
            remaining,
            reset: until,
            unit: self.unit.into(),
            is_doubtful: window.is_doubtful,
            refills: self.kind != Kind::Window,
            ..Policy::named(resource.unwrap_or(self.unit))
        })
    }
}

/// The window of a limit.
#[derive(Default)]
struct Window {
    length: Option<Duration>,
    /// The usual windows above a guessed one.
    longer: &'static [Duration],
    is_doubtful: bool,
}

impl Window {
    fn of(length: Duration) -> Self {
        Self {
            length: Some(length),
            ..Self::default()
        }
    }

    /// The shortest usual window that contains a reset.
    fn guessed(until: Option<Duration>) -> Self {
        let contains = |usual: &Duration| *usual >= until.unwrap_or(Duration::MAX);
        USUAL
            .iter()
            .position(contains)
            .map_or_else(Self::default, |guess| Self {
                length: Some(USUAL[guess]),
                longer: &USUAL[guess + 1..],
                is_doubtful: USUAL[guess] <= END,
            })
    }
}

/// `until` is the time until the missing tokens are refilled.
fn minute_or_day(limit: Option<u64>, remaining: Option<u64>, until: Option<Duration>) -> Duration {
    let window = || {
        let missing = limit?
            .checked_sub(remaining?)
            .filter(|missing| *missing > 0)?;
        Some(until?.as_secs_f64() * limit? as f64 / missing as f64)
    };
    // The geometric mean of both, in seconds.
    if window().is_some_and(|window| window > 2277.0) {
        DAY
    } else {
        MINUTE
    }
}
