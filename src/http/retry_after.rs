//! Reading an upstream's Retry-After.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Response, StatusCode};

use crate::rate_limit::Observe;

/// Blocks a key when the upstream answers 429 or 503 with a `Retry-After` in seconds; for
/// [`observe`](crate::RateLimitLayer::observe), which takes a closure where yours are told in another way (as a date, say).
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
        let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds).min(self.longest))
    }
}
