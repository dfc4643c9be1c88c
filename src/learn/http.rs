//! Reads an upstream's limits from header fields.

mod draft;
#[cfg(test)]
mod tests;
mod vendors;

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use crate::error::Error;
use crate::http::origin::Origin;
use crate::http::retry_after::RetryAfter;
use crate::learn::plan::Planner;
use crate::learn::{LearnFromResponse, Learned, Policy};
use crate::macros::in_range;

/// Reads the limits that an upstream reports, for [`learn`](crate::RateLimitLayer::learn) around a client.
///
/// | header fields | |
/// |---|---|
/// | `RateLimit-Policy`, `RateLimit` | draft-ietf-httpapi-ratelimit-headers-11, with several policies |
/// | `X-RateLimit-Limit`, `-Remaining`, `-Reset`; also `RateLimit-…` and `X-Rate-Limit-…` | the reset in seconds from now, in seconds or milliseconds since 1970, or as a date |
/// | the same with `X-RateLimit-Resource` | GitHub: per hour, searches per minute |
/// | `x-ratelimit-limit-requests`, `-tokens`, and so on | OpenAI: per minute or day, depending on the reset |
/// | `anthropic-ratelimit-requests-limit`, `-tokens-`, `-input-tokens-`, `-output-tokens-`, and so on | Anthropic: per minute |
/// | `Retry-After`, `retry-after-ms` of a status from 400 to 599 | as [`RetryAfter`] reads them |
///
/// A 429 or 403 without these fields, but with a limit of which nothing remains, is treated as a request to wait until
/// the reset.
///
/// A field that is malformed, longer than 64 bytes (4 KiB for the fields of the draft), or has several values, is
/// ignored and counted in the event `upstream_field_ignored`.
///
/// # Responses from a cache
///
/// A response that a cache has stored reports past values. The limit and the window of its policy are used. The
/// remaining requests are not, and a reset and `Retry-After` are counted from the time when the response was made: its
/// `Age` is subtracted, down to 0. A response counts as stored if its `Age` is above 0, if `Cache-Status` contains
/// `hit`, or if `X-Cache`, `X-Cache-Status` or `CF-Cache-Status` contains `HIT`, `STALE` or `UPDATING`. A 304 counts as
/// current.
///
/// # From a policy to a quota
///
/// An upstream may count in fixed windows, in sliding windows, or by a token bucket, and does not report which. So the
/// quota of a policy of `N` requests in a window `W` has a burst of `b` = 1 + `N`/100 and a rate of 0.97·`N` + 1 - `b`
/// in `W`. In each interval of length `W`, at most `b + rate·W` = 0.97·`N` + 1 requests are sent. They arrive within
/// `W` even if some take longer than others by 3 % of `W`, so none of them is above the limit, whichever way the
/// upstream counts. [`burst_percent`](Self::burst_percent) sets another burst. Limits of OpenAI and Anthropic are token
/// buckets: the quota has the burst `N` and a rate of 0.97·`N`.
///
/// For a client whose responses are not [`http::Response`]s, such as reqwest, [`read`](Self::read) takes the status and
/// the header fields:
///
/// ```
/// use reqwest::{Request, Response};
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, response::UpstreamLimits};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", Quota::per_second(10))?;
/// let per_host = RateLimitLayer::new(bucket, |request: &Request| request.url().host_str().map(str::to_owned))
///     .learn(|response: &Response| UpstreamLimits::default().read(response.status(), response.headers()));
/// # let _ = per_host;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UpstreamLimits {
    unit: &'static str,
    window: Option<Duration>,
    burst_percent: Option<u8>,
    retry_after: RetryAfter,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            unit: "requests",
            window: None,
            burst_percent: None,
            retry_after: RetryAfter::default(),
        }
    }
}

impl UpstreamLimits {
    /// Sets which limits apply: those with this quota unit. Default: `requests`.
    ///
    /// The quota unit is `qu` in the draft; for OpenAI `requests` or `tokens`; for Anthropic also `input-tokens` and
    /// `output-tokens`. It must be the unit that the [`cost`](crate::RateLimitLayer::cost) of a request counts.
    ///
    /// ```
    /// use tower_distributed::response::UpstreamLimits;
    ///
    /// let tokens = UpstreamLimits::default().unit("tokens");
    /// # let _ = tokens;
    /// ```
    #[must_use]
    pub fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// Sets the window of `X-RateLimit-Limit`, which does not report it. Default: the shortest of 1 s, 10 s, 1 min, 5
    /// min, 15 min, 1 h, 1 day and 31 days that contains the reset, or the longer one that was learned before; without
    /// a reset, the limit is not learned.
    ///
    /// A window of any length has a near reset at its end. So a window of 10 s or less is used only if it is reported
    /// again shortly after the next window must have begun.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::response::UpstreamLimits;
    ///
    /// let per_minute = UpstreamLimits::default().window(Duration::from_secs(60))?;
    /// assert!(UpstreamLimits::default().window(Duration::ZERO).is_err_and(|error| error.is_invalid()));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is not 1 ms to 366 days.
    pub fn window(self, window: Duration) -> Result<Self, Error> {
        in_range("the window", Planner::WINDOWS, "1 ms to 366 days", window)?;
        Ok(Self {
            window: Some(window),
            ..self
        })
    }

    /// Sets the burst of learned quotas, in percent of the limit. Default: 1, or 50 if the [unit](Self::unit) is not
    /// `requests`.
    ///
    /// After a pause, a client may send this many requests at once. The rate is lower by the same amount, so that the
    /// limit is kept in every window: see [the quota of a policy](Self#from-a-policy-to-a-quota). A request that costs
    /// more than the burst is refused.
    ///
    /// ```
    /// use tower_distributed::response::UpstreamLimits;
    ///
    /// let in_batches = UpstreamLimits::default().burst_percent(50)?;
    /// assert!(UpstreamLimits::default().burst_percent(91).is_err_and(|error| error.is_invalid()));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is above 90.
    pub fn burst_percent(self, percent: u8) -> Result<Self, Error> {
        in_range("the burst", 0..=90, "0 to 90 percent of the limit", percent)?;
        Ok(Self {
            burst_percent: Some(percent),
            ..self
        })
    }

    /// Sets the longest time for which an upstream can stop its clients. Default: 5 min.
    ///
    /// At least one token is refilled in this time, whatever limit is reported: a quota below that is raised, and
    /// counted in the event `upstream_field_clamped`. Set a day for an upstream that allows a few requests a day.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::response::UpstreamLimits;
    ///
    /// let limits = UpstreamLimits::default().at_most(Duration::from_secs(3600))?;
    /// assert!(limits.at_most(Duration::ZERO).is_err_and(|error| error.is_invalid()));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is not 1 s to 366 days.
    pub fn at_most(self, longest: Duration) -> Result<Self, Error> {
        Ok(Self {
            retry_after: self.retry_after.with_longest(longest)?,
            ..self
        })
    }

    /// Sets the statuses of refusals. For these, `Retry-After` is used (default: 400 to 599). If a refusal has no such
    /// field and nothing remains, requests wait until the reset (default: 429 and 403). See [`RetryAfter::statuses`].
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_distributed::response::UpstreamLimits;
    ///
    /// let limits = UpstreamLimits::default().statuses([StatusCode::TOO_MANY_REQUESTS])?;
    /// # let _ = limits;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if one of them is not 400 to 599.
    pub fn statuses(self, statuses: impl IntoIterator<Item = StatusCode>) -> Result<Self, Error> {
        Ok(Self {
            retry_after: self.retry_after.statuses(statuses)?,
            ..self
        })
    }

    /// Reads the status and the header fields of a response.
    #[must_use]
    pub fn read(&self, status: StatusCode, headers: &HeaderMap) -> Learned {
        let burst_percent =
            self.burst_percent
                .unwrap_or(if self.unit == "requests" { 1 } else { 50 });
        let planner = Planner {
            burst_percent,
            longest: self.retry_after.longest(),
        };
        let mut learned = Learned {
            planner,
            ..Learned::default()
        };
        let origin = Origin::of(headers);
        draft::read(headers, &mut learned);
        vendors::read(headers, origin.made, self.window, &mut learned);
        if !learned.policies.is_empty() {
            learned.ignored += origin.ignored;
        }
        learned.policies.retain(|policy| policy.unit == self.unit);
        for policy in &mut learned.policies {
            policy.remaining = policy.remaining.filter(|_| !origin.is_stored);
            policy.reset = policy.reset.map(|reset| reset.saturating_sub(origin.age));
        }
        let asked = self.retry_after.read(status, headers);
        learned.ignored += asked.ignored();
        learned.retry_after = asked
            .duration()
            .or_else(|| self.until_reset(status, &learned.policies));
        learned
    }

    /// Returns how long to wait after a refusal that reports only its reset.
    fn until_reset(&self, status: StatusCode, policies: &[Policy]) -> Option<Duration> {
        let used_up = policies
            .iter()
            .filter(|policy| policy.remaining == Some(0) && !policy.refills);
        let reset = used_up.filter_map(|policy| policy.reset).max();
        let reset = reset.filter(|reset| self.retry_after.is_refusal(status) && !reset.is_zero());
        reset.map(|reset| reset.min(self.retry_after.longest()))
    }
}

impl<B> LearnFromResponse<Response<B>> for UpstreamLimits {
    fn learn(&self, response: &Response<B>) -> Learned {
        self.read(response.status(), response.headers())
    }
}
