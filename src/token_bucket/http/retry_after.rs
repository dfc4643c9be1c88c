//! Reads the `Retry-After` of an upstream.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response, StatusCode};

use super::learn::now_by;
use crate::token_bucket::layer::BlockOnResponse;

/// Blocks a key when the upstream answers 429 or 503 with `Retry-After`, in seconds or as a date (counted from the
/// `Date` of the response, or else by the clock of this machine), or with `retry-after-ms`, which is more exact: for
/// [`block_on_response`](crate::RateLimitLayer::block_on_response) around a client.
///
/// A longer time counts as 5 min, so that no upstream can stop a fleet for years; [`at_most`](Self::at_most) sets another
/// maximum. For a client whose responses are not of [`http::Response`], such as reqwest, [`read`](Self::read) takes the status
/// and the header fields:
///
/// ```
/// use reqwest::{Request, Response};
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, response::RetryAfter};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", Quota::per_second(10))?;
/// let per_host = RateLimitLayer::new(bucket, |request: &Request| request.url().host_str().map(str::to_owned))
///     .block_on_response(|response: &Response| RetryAfter::default().read(response.status(), response.headers()));
/// # let _ = per_host;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RetryAfter {
    longest: Duration,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self { longest: Duration::from_secs(300) }
    }
}

impl RetryAfter {
    /// Sets the maximum. Default: 5 min.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, StatusCode};
    /// use tower_distributed::response::RetryAfter;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("retry-after", "3600".parse().unwrap());
    /// let asked = RetryAfter::at_most(Duration::from_secs(60)).read(StatusCode::TOO_MANY_REQUESTS, &headers);
    /// assert_eq!(asked, Some(Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub fn at_most(longest: Duration) -> Self {
        Self { longest }
    }

    /// Returns the time that the response asks its client to wait. `None` if its status is not 429 or 503, or if it has no
    /// `Retry-After` or `retry-after-ms`.
    #[must_use]
    pub fn read(&self, status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
        if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            return None;
        }
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            // More than a number holds is more than is believed.
            is_number.then(|| text.parse().unwrap_or(u64::MAX))
        };
        let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.trim());
        let millis = text("retry-after-ms").and_then(number).map(Duration::from_millis);
        let after = millis.or_else(|| {
            let told = text(RETRY_AFTER.as_str())?;
            number(told)
                .map(Duration::from_secs)
                .or_else(|| httpdate::parse_http_date(told).ok()?.duration_since(now_by(headers)).ok())
        });
        Some(after?.min(self.longest))
    }
}

impl<B> BlockOnResponse<Response<B>> for RetryAfter {
    fn block_on_response(&self, response: &Response<B>) -> Option<Duration> {
        self.read(response.status(), response.headers())
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn observed(status: u16, told: &str) -> Option<Duration> {
        let response = Response::builder().status(status).header(RETRY_AFTER, told).body(()).unwrap();
        RetryAfter::at_most(Duration::from_secs(100)).block_on_response(&response)
    }

    #[test]
    fn seconds_and_dates_are_understood_and_capped() {
        assert_eq!(observed(429, "7"), Some(Duration::from_secs(7)));
        assert_eq!(observed(503, "700"), Some(Duration::from_secs(100)));
        assert_eq!(observed(503, "99999999999999999999999"), Some(Duration::from_secs(100)));
        assert_eq!(observed(429, "-7").or(observed(429, "")), None);
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(50));
        assert!(observed(429, &soon).is_some_and(|after| after > Duration::from_secs(40)));
        assert_eq!(observed(429, "Sun, 06 Nov 1994 08:49:37 GMT"), None);
        assert_eq!(observed(429, "soon"), None);
        assert_eq!(observed(200, "7"), None);
        let response =
            Response::builder().status(429).header(RETRY_AFTER, "7").header("retry-after-ms", "6100");
        let read = RetryAfter::default().block_on_response(&response.body(()).unwrap());
        assert_eq!(read, Some(Duration::from_millis(6100)));
    }
}
