//! The RateLimit header fields of responses: [`RateLimitFields`] selects and writes them.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use crate::bucket::decision::{Balance, BucketState, Decision};
use crate::bucket::quota::is_quotable;
use crate::error::Error;
use crate::http::message::seconds;
use crate::key::Key;
use crate::layers::rate_limit::RateLimitLayer;

#[cfg(test)]
mod tests;

/// Adds RateLimit header fields to responses. They contain the number of tokens left.
///
/// By default `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11, with an item for each
/// quota:
///
/// ```text
/// RateLimit-Policy: "default";q=10;w=2
/// RateLimit: "default";r=4;t=1
/// ```
///
/// `q` is the burst and `w` the number of seconds that an empty bucket takes to fill. `r` is the number of tokens left,
/// and `t` the number of seconds in which as many tokens refill, so that a client that spreads its requests over this
/// time is not refused. If no tokens are left, `t` is the time until the next one. For a calendar quota, `w` is the
/// length of the current window, and `t` the time until the next window. For a quota that refused the request, `t` is
/// at most `Retry-After`. Nested layers add their items. A quota that never refills, or is 0, has neither `w` nor `t`.
/// Seconds are rounded up.
///
/// If requests cost different numbers of tokens ([`cost`](crate::RateLimitLayer::cost),
/// [`cost_of_response`](crate::RateLimitLayer::cost_of_response)), the unit of `q` and `r` is not requests. Then the
/// policy has `qu="tokens"`, or [another unit](Self::unit). The policy can also have the
/// [partition key](Self::partition_key).
///
/// [`RateLimitLayer::fields`] writes these fields to the responses to admitted and refused requests, however refusals
/// become responses. [`web::rate_limit`](crate::web::rate_limit) writes the default fields. If several layers write
/// fields, [name](crate::Quota::named) their quotas, so that clients can tell them apart.
///
/// The draft (8.5) warns of clients that all return at the same time. A bucket refills token by token, not at a full
/// minute, so keys do not refill at the same time. `r` tokens in `t` seconds never exceed the rate. If many clients are
/// refused at the same moment, as after a deployment, use [`jitter`](crate::response::Refuse::jitter).
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_distributed::response::{RateLimitFields, refuse};
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "uploads", Quota::per_second(1000))?;
/// let fields = RateLimitFields::default().unit("content-bytes")?.partition_key(true).and_legacy();
/// let limit = RateLimitLayer::new(bucket, |_: &Request<String>| "all").fields(fields).reject_with(refuse());
/// let upload = async |_: Request<String>| Ok::<_, Infallible>(Response::new("stored".to_owned()));
///
/// let response = limit.layer(service_fn(upload)).oneshot(Request::new(String::new())).await?;
/// let policy = response.headers()["ratelimit-policy"].to_str()?;
/// assert!(policy.starts_with("\"default\";q=1000;w=1;qu=\"content-bytes\";pk=:"));
/// assert_eq!(response.headers()["x-ratelimit-remaining"], "999");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RateLimitFields {
    draft: bool,
    legacy: bool,
    unit: Option<&'static str>,
    partition_key: bool,
}

impl Default for RateLimitFields {
    fn default() -> Self {
        Self {
            draft: true,
            legacy: false,
            unit: None,
            partition_key: false,
        }
    }
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

impl RateLimitFields {
    /// Writes no fields: a refusal has `Retry-After` only.
    #[must_use]
    pub fn none() -> Self {
        Self {
            draft: false,
            ..Self::default()
        }
    }

    /// Writes only the older `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds from
    /// now), for the quota with the fewest tokens left.
    #[must_use]
    pub fn legacy() -> Self {
        Self {
            draft: false,
            legacy: true,
            ..Self::default()
        }
    }

    /// Also writes the older `X-RateLimit-…` fields; see [`legacy`](Self::legacy).
    #[must_use]
    pub fn and_legacy(self) -> Self {
        Self {
            legacy: true,
            ..self
        }
    }

    /// Sets the unit of the quota (`qu`), such as `content-bytes`. Default: none, which means requests; `tokens` if
    /// requests cost different numbers of tokens.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is empty, or has characters other than printable ASCII, quotes or
    /// backslashes.
    pub fn unit(self, unit: &'static str) -> Result<Self, Error> {
        if unit.is_empty() || !unit.chars().all(is_quotable) {
            return Err(Error::invalid(format!(
                "a quota unit must be printable ASCII without quotes and backslashes, is {unit:?}"
            )));
        }
        Ok(Self {
            unit: Some(unit),
            ..self
        })
    }

    /// Sets whether policies have the partition key (`pk`): a hash (SHA-256, 96 bits) of the key of the request.
    /// Requests with the same `pk` share a quota. With [several limits](crate::RateLimitLayer::all_of), it is a hash of
    /// all keys together. Default: `false`.
    #[must_use]
    pub fn partition_key(self, partition_key: bool) -> Self {
        Self {
            partition_key,
            ..self
        }
    }

    /// `is_weighted`: requests cost different numbers of tokens.
    pub(super) fn write(self, decision: &Decision, is_weighted: bool, headers: &mut HeaderMap) {
        if self.draft {
            self.write_draft(decision, is_weighted, headers);
        }
        if self.legacy {
            write_legacy(decision, headers);
        }
    }

    /// Writes `RateLimit-Policy` and `RateLimit`.
    fn write_draft(self, decision: &Decision, is_weighted: bool, headers: &mut HeaderMap) {
        let state = &decision.state;
        let policy = |rest: &str| {
            let window = |balance: &Balance<'_>| Some(seconds(balance.window?).max(1));
            field(
                state,
                [";q=", ";w="],
                |_, balance| (balance.limit, window(balance)),
                rest,
            )
        };
        let mut rest = String::new();
        if let Some(unit) = self.unit.or(is_weighted.then_some("tokens")) {
            rest.extend([";qu=\"", unit, "\""]);
        }
        if self.partition_key
            && let Some(key) = &decision.key
        {
            rest.extend([";pk=:", &partition(key), ":"]);
        }
        let policy = match rest.as_str() {
            "" => state.quotas.policy(|| policy("")),
            rest => policy(rest),
        };
        let retry_after = decision.retry_after();
        let level = |quota: usize, balance: &Balance<'_>| {
            let until = until(decision, retry_after, quota, balance);
            (balance.remaining, until)
        };
        let limit = field(state, [";r=", ";t="], level, "");
        match headers.entry(POLICY) {
            Entry::Vacant(vacant) => {
                vacant.insert(policy);
                headers.append(RATE_LIMIT, limit);
            }
            Entry::Occupied(written) => {
                // A layer that is applied twice writes its fields once.
                let is_same = written.iter().any(|written| *written == policy)
                    && headers
                        .get_all(RATE_LIMIT)
                        .iter()
                        .any(|written| *written == limit);
                if !is_same {
                    headers.append(POLICY, policy);
                    headers.append(RATE_LIMIT, limit);
                }
            }
        }
    }
}

/// Writes the `X-RateLimit-…` fields. They describe one limit: the one with the fewest tokens left.
fn write_legacy(decision: &Decision, headers: &mut HeaderMap) {
    let tightest = decision.state.tightest();
    let written = headers
        .get(X_REMAINING)
        .and_then(|written| written.to_str().ok()?.parse::<u32>().ok());
    if written.is_some_and(|written| tightest.remaining >= written) {
        return;
    }
    headers.insert(X_LIMIT, tightest.limit.into());
    headers.insert(X_REMAINING, tightest.remaining.into());
    let quota = decision
        .state
        .balances()
        .position(|balance| balance.name == tightest.name);
    match until(
        decision,
        decision.retry_after(),
        quota.unwrap_or(0),
        &tightest,
    ) {
        Some(until) => drop(headers.insert(X_RESET, until.into())),
        None => drop(headers.remove(X_RESET)),
    }
}

/// The seconds until more tokens of a quota are available. For a quota that refused the request, at most `Retry-After`.
fn until(
    decision: &Decision,
    retry_after: Option<Duration>,
    quota: usize,
    balance: &Balance<'_>,
) -> Option<u64> {
    let window = balance.effective_window?;
    let retry = retry_after.filter(|_| decision.lacks(quota, balance));
    Some(seconds(retry.map_or(window, |retry| retry.min(window))))
}

impl<Req, B, R> RateLimitLayer<Req, Response<B>, R> {
    /// Sets which RateLimit header fields the responses to admitted and refused requests have. The last call replaces
    /// earlier ones. Default: none; for [`web::rate_limit`](crate::web::rate_limit), the fields of the draft
    /// ([`RateLimitFields::default`]).
    ///
    /// ```
    /// use axum::{Router, extract::Request, response::{IntoResponse, Response}, routing::get};
    /// use http::StatusCode;
    /// use tower_distributed::response::RateLimitFields;
    /// use tower_distributed::{Quota, Refusal, Store, TokenBucket, extract, web};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5).burst(10))?;
    /// let limit = web::rate_limit(bucket, extract::client_ip())
    ///     .fields(RateLimitFields::legacy()) // for clients that know only these fields
    ///     .reject_with(|_: Refusal| (StatusCode::TOO_MANY_REQUESTS, "later").into_response());
    /// let app: Router = Router::new().route("/", get(async || "hello")).layer(limit);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fields(self, fields: RateLimitFields) -> Self {
        self.with_fields(move |decision, is_weighted, response: &mut Response<B>| {
            fields.write(decision, is_weighted, response.headers_mut());
        })
    }
}

/// A hash of a key in base64, written as a byte sequence of RFC 9651.
fn partition(key: &Key) -> String {
    STANDARD.encode(&Sha256::digest(key.as_bytes())[..12])
}

/// A field with an item for each quota: its name, and by its position a number, where there is one another, and `rest`.
fn field(
    state: &BucketState,
    parameters: [&str; 2],
    numbers: impl Fn(usize, &Balance<'_>) -> (u32, Option<u64>),
    rest: &str,
) -> HeaderValue {
    let mut field = SmallVec::<[u8; 128]>::new();
    let mut digits = itoa::Buffer::new();
    for (quota, balance) in state.balances().enumerate() {
        let separator = if field.is_empty() { "\"" } else { ", \"" };
        let (number, other) = numbers(quota, &balance);
        for part in [
            separator,
            balance.name,
            "\"",
            parameters[0],
            digits.format(number),
        ] {
            field.extend_from_slice(part.as_bytes());
        }
        if let Some(number) = other {
            field.extend_from_slice(parameters[1].as_bytes());
            field.extend_from_slice(digits.format(number).as_bytes());
        }
        field.extend_from_slice(rest.as_bytes());
    }
    // The names of quotas are printable ASCII, so this does not fail.
    HeaderValue::from_bytes(&field).unwrap_or(HeaderValue::from_static(""))
}
