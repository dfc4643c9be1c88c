//! Reading an upstream's Retry-After.

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{Response, StatusCode};

use crate::layer::rate_limit::Observe;

/// Blocks a key when the upstream answers 429 or 503 with a `Retry-After`, in seconds or as a date (which goes by this
/// machine's clock). For [`observe`](crate::RateLimitLayer::observe), which takes a closure where it is told in
/// another way.
#[derive(Clone, Copy, Debug)]
pub struct RetryAfter {
    longest: Duration,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self { longest: Duration::from_secs(3600) }
    }
}

impl RetryAfter {
    /// Believes no more than this. Default: one hour.
    #[must_use]
    pub fn at_most(longest: Duration) -> Self {
        Self { longest }
    }
}

impl<B> Observe<Response<B>> for RetryAfter {
    fn observe(&self, response: &Response<B>) -> Option<Duration> {
        if !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            return None;
        }
        let told = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
        let after = match told.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => httpdate::parse_http_date(told).ok()?.duration_since(SystemTime::now()).ok()?,
        };
        Some(after.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(status: u16, told: &str) -> Option<Duration> {
        let response = Response::builder().status(status).header(RETRY_AFTER, told).body(()).unwrap();
        RetryAfter::at_most(Duration::from_secs(100)).observe(&response)
    }

    #[test]
    fn seconds_and_dates_are_understood_and_capped() {
        assert_eq!(observed(429, "7"), Some(Duration::from_secs(7)));
        assert_eq!(observed(503, "700"), Some(Duration::from_secs(100)));
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(50));
        assert!(observed(429, &soon).is_some_and(|after| after > Duration::from_secs(40)));
        assert_eq!(observed(429, "Sun, 06 Nov 1994 08:49:37 GMT"), None);
        assert_eq!(observed(429, "soon"), None);
        assert_eq!(observed(200, "7"), None);
    }
}
