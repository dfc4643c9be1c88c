//! The RateLimit header fields.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Response};

use crate::layer::rate_limit::OnResponse;
use crate::primitive::token_bucket::{Balance, Decision};

/// Tells clients where they stand, in header fields.
///
/// By default in `RateLimit-Policy` and `RateLimit` as of draft-ietf-httpapi-ratelimit-headers-11, an item for each
/// quota:
///
/// ```text
/// RateLimit-Policy: "default";q=10;w=2
/// RateLimit: "default";r=4;t=1
/// ```
///
/// `q` is the burst and `w` the seconds that an empty bucket takes to fill. `r` is the tokens left, and `t` the seconds in
/// which as many come back, so that a client that spreads its requests over them is not refused; where none are left, the
/// seconds until the next. For a refusal it is no later than `Retry-After`. Limits within limits add their items. A quota
/// that never refills has neither `w` nor `t`. Seconds are rounded up.
#[derive(Clone, Copy, Debug)]
pub struct RateLimitFields {
    draft: bool,
    legacy: bool,
}

impl Default for RateLimitFields {
    fn default() -> Self {
        Self { draft: true, legacy: false }
    }
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

impl RateLimitFields {
    /// No fields at all.
    #[must_use]
    pub fn none() -> Self {
        Self { draft: false, legacy: false }
    }

    /// The older `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds from now) alone,
    /// for the quota that is nearest to its end.
    #[must_use]
    pub fn legacy() -> Self {
        Self { draft: false, legacy: true }
    }

    /// These fields and the older `X-RateLimit-…`.
    #[must_use]
    pub fn and_legacy(self) -> Self {
        Self { legacy: true, ..self }
    }

    pub(super) fn write(self, decision: &Decision, headers: &mut HeaderMap) {
        let retry_after = decision.retry_after();
        let until = |balance: &Balance<'_>| {
            // Never later than Retry-After says.
            let window = balance.effective_window();
            window.map(|window| seconds(retry_after.map_or(window, |retry| retry.min(window))))
        };
        if self.draft {
            let state = decision.state();
            let policy = state.quotas().policy(|| {
                let window = |balance: &Balance<'_>| balance.window().map(|window| seconds(window).max(1));
                field(state.balances(), ";q=", Balance::limit, ";w=", window)
            });
            headers.append(POLICY, policy.clone());
            headers.append(RATE_LIMIT, field(state.balances(), ";r=", Balance::remaining, ";t=", until));
        }
        let tightest = decision.state().tightest();
        let told = headers.get(X_REMAINING).and_then(|told| told.to_str().ok()?.parse::<u32>().ok());
        // There is room for one limit only: the one that is nearest to its end.
        if self.legacy && told.is_none_or(|told| tightest.remaining() < told) {
            headers.insert(X_LIMIT, tightest.limit().into());
            headers.insert(X_REMAINING, tightest.remaining().into());
            match until(&tightest) {
                Some(until) => drop(headers.insert(X_RESET, until.into())),
                None => drop(headers.remove(X_RESET)),
            }
        }
    }
}

impl<B> OnResponse<Response<B>> for RateLimitFields {
    fn on_response(&self, decision: &Decision, response: &mut Response<B>) {
        self.write(decision, response.headers_mut());
    }
}

/// Whole seconds, rounded up: nobody is told to come too early.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// A field with an item for each quota: its name, a number, and where there is one another.
fn field<'a>(
    balances: impl Iterator<Item = Balance<'a>>,
    first: &str,
    number: impl Fn(&Balance<'a>) -> u32,
    second: &str,
    other: impl Fn(&Balance<'a>) -> Option<u64>,
) -> HeaderValue {
    let (mut field, mut digits) = (String::with_capacity(64), itoa::Buffer::new());
    for balance in balances {
        let separator = if field.is_empty() { "\"" } else { ", \"" };
        let number = digits.format(number(&balance));
        field.extend([separator, balance.name(), "\"", first, number]);
        if let Some(number) = other(&balance) {
            field.extend([second, digits.format(number)]);
        }
    }
    // Names of quotas are printable ASCII, so this does not fail.
    HeaderValue::try_from(field).unwrap_or(HeaderValue::from_static(""))
}
