//! Refusals as HTTP responses.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

#[cfg(feature = "rate-limit")]
use crate::bucket::decision::Decision;
use crate::http::message::seconds;
use crate::layers::refusal::{Refusal, RefusalKind, Reject};

/// Returns a [`Reject`] that converts refusals into HTTP responses. The body is a problem document (RFC 9457).
///
/// | refusal | status | |
/// |---|---|---|
/// | [`RateLimited`](RefusalKind::RateLimited) | 429 | `Retry-After` (seconds, rounded up, at least 1) |
/// | [`ExceedsBurst`](RefusalKind::ExceedsBurst) | 400 | no `Retry-After`: it can never be admitted |
/// | [`NoPermit`](RefusalKind::NoPermit) | 503, or [429](Refuse::permits_per_client) | `Retry-After` (an estimate, once a permit was released) |
/// | [`Locked`](RefusalKind::Locked) | 423 | `Retry-After`, as for `NoPermit` |
/// | [`BadRequest`](RefusalKind::BadRequest) | 400 | no `Retry-After` |
/// | [`MissingPart`](RefusalKind::MissingPart) | 400 | the body names the part, such as a header field |
/// | [`RequestTooLarge`](RefusalKind::RequestTooLarge) | 413 | |
/// | [`RequestTimeout`](RefusalKind::RequestTimeout) | 408 | |
/// | [`KeyReused`](RefusalKind::KeyReused) | 422 | |
/// | [`LookUpFailed`](RefusalKind::LookUpFailed) | 503 | the client does not see the cause |
/// | [`Duplicate`](RefusalKind::Duplicate) | 409 | no `Retry-After` |
/// | [`InFlight`](RefusalKind::InFlight) | 409 | `Retry-After`, as for `NoPermit` |
/// | [`WaitedTooLong`](RefusalKind::WaitedTooLong) | 503 | `Retry-After`, if known |
/// | [`ExceedsLimit`](RefusalKind::ExceedsLimit) | 400 | no `Retry-After`: the request can never be admitted |
/// | [`LeaseLost`](RefusalKind::LeaseLost), [`Closed`](RefusalKind::Closed) | 503 | |
/// | [`Invalid`](RefusalKind::Invalid) | 500 | the error is in the service, see the event `misconfigured` |
/// | [`Overloaded`](RefusalKind::Overloaded) | 503 | `Retry-After`: 1 |
/// | [`StoreUnavailable`](RefusalKind::StoreUnavailable) | 503 | `Retry-After`: 1; the client does not see the cause |
///
/// A refusal by a quota that never refills, or by a [closed](crate::token_bucket#closed-limits) limit, is a 429 without
/// `Retry-After`. `Retry-After` of permits and locks is an
/// [estimate](Refusal::retry_after) of at most 5 s.
///
/// [`RateLimitLayer::fields`](crate::RateLimitLayer::fields) adds the RateLimit fields to admitted and refused
/// responses.
///
/// The body type must implement `From<String>`: for example axum's body, `http_body_util::Full` and `String`.
#[must_use]
pub fn refuse() -> Refuse {
    Refuse::default()
}

/// The [`Reject`] that [`refuse`] returns.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use http::{Request, Response, StatusCode};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup, response};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 1)?;
/// let refuse = response::refuse().permits_per_client().jitter(Duration::from_secs(3));
/// let limit = ConcurrencyLimitLayer::new(exports.clone(), |_: &Request<String>| "ann").reject_with(refuse);
/// let export = async |_: Request<String>| Ok::<_, Infallible>(Response::new("all of it".to_owned()));
///
/// exports.add("ann").await?.done().await?; // the hold time is known from now on
/// let _running = exports.add("ann").await?; // another export of this client
/// let response = limit.layer(service_fn(export)).oneshot(Request::new(String::new())).await?;
/// assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert!(response.headers().contains_key("retry-after"));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Refuse {
    permits_per_client: bool,
    jitter: Duration,
}

impl Refuse {
    /// Returns 429 rather than 503 when no permit is free. For permits per client: the client makes too many requests,
    /// but the service has capacity.
    #[must_use]
    pub fn permits_per_client(self) -> Self {
        Self {
            permits_per_client: true,
            ..self
        }
    }

    /// Adds a random time from zero to `jitter` to each `Retry-After`, so that clients that are refused at the same
    /// time return at different times. Default: zero.
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }
}

impl<B: From<String>, E> Reject<Response<B>, E> for Refuse {
    type Error = E;

    fn reject(&self, refusal: Refusal) -> Result<Response<B>, E> {
        let status = match refusal.kind() {
            RefusalKind::NoPermit if self.permits_per_client => StatusCode::TOO_MANY_REQUESTS,
            _ => status(&refusal),
        };
        let mut response = Response::new(B::from(problem(&refusal, status)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(after) = refusal.retry_after_with(self.jitter) {
            headers.insert(RETRY_AFTER, seconds(after).max(1).into());
        }
        Ok(response)
    }

    fn inner_error(error: E) -> E {
        error
    }
}

fn status(refusal: &Refusal) -> StatusCode {
    match refusal.kind() {
        RefusalKind::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        RefusalKind::BadRequest
        | RefusalKind::MissingPart
        | RefusalKind::ExceedsBurst
        | RefusalKind::ExceedsLimit => StatusCode::BAD_REQUEST,
        RefusalKind::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        RefusalKind::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        RefusalKind::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
        RefusalKind::Locked => StatusCode::LOCKED,
        RefusalKind::InFlight | RefusalKind::Duplicate => StatusCode::CONFLICT,
        RefusalKind::Invalid => StatusCode::INTERNAL_SERVER_ERROR,
        RefusalKind::NoPermit
        | RefusalKind::WaitedTooLong
        | RefusalKind::LeaseLost
        | RefusalKind::Closed
        | RefusalKind::Overloaded
        | RefusalKind::LookUpFailed
        | RefusalKind::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The problem types in the IANA registry, and their titles.
const QUOTA_EXCEEDED: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "Quota exceeded",
);
const REDUCED_CAPACITY: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    "Temporarily reduced capacity",
);

/// Returns the body. It contains fixed texts, numbers, names of quotas (which contain no quotes), and the escaped text
/// of a refusal.
fn problem(refusal: &Refusal, status: StatusCode) -> String {
    let reason = ("about:blank", status.canonical_reason().unwrap_or_default());
    let ((kind, title), more) = match refusal.kind() {
        RefusalKind::RateLimited => (QUOTA_EXCEEDED, violated(refusal)),
        // In a debug build, the developer sees which extension is missing.
        RefusalKind::Invalid if cfg!(debug_assertions) && refusal.get_ref().is_no_extension() => {
            (reason, detail(refusal))
        }
        RefusalKind::Locked | RefusalKind::Invalid | RefusalKind::LookUpFailed => {
            (reason, String::new())
        }
        RefusalKind::NoPermit if status == StatusCode::TOO_MANY_REQUESTS => (reason, String::new()),
        // The text of an extractor of the service may be private.
        RefusalKind::BadRequest if !refusal.get_ref().is_for_clients() => (reason, String::new()),
        RefusalKind::StoreUnavailable => (
            reason,
            ",\"detail\":\"the limit cannot be checked\"".to_owned(),
        ),
        // Clients do not see which part of the service is overloaded.
        RefusalKind::Overloaded => (REDUCED_CAPACITY, String::new()),
        RefusalKind::NoPermit
        | RefusalKind::WaitedTooLong
        | RefusalKind::LeaseLost
        | RefusalKind::Closed => (REDUCED_CAPACITY, detail(refusal)),
        _ => (reason, detail(refusal)),
    };
    let mut problem = String::with_capacity(192);
    let parts = [
        "{\"type\":\"",
        kind,
        "\",\"title\":\"",
        title,
        "\",\"status\":",
        status.as_str(),
        &more,
        "}",
    ];
    problem.extend(parts);
    problem
}

fn detail(refusal: &Refusal) -> String {
    let mut detail = ",\"detail\":\"".to_owned();
    for character in refusal.get_ref().to_string().chars() {
        match character {
            '"' | '\\' => detail.extend(['\\', character]),
            '\0'..' ' => detail.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => detail.push(character),
        }
    }
    detail.push('"');
    detail
}

#[cfg_attr(not(feature = "rate-limit"), allow(unused_variables, unused_mut))]
fn violated(refusal: &Refusal) -> String {
    let mut violated = String::with_capacity(64);
    #[cfg(feature = "rate-limit")]
    if let Some(decision) = refusal.decision() {
        for balance in decision.violated() {
            let before = if violated.is_empty() {
                ",\"violated-policies\":[\""
            } else {
                ",\""
            };
            violated.extend([before, balance.name, "\""]);
        }
    }
    violated.push_str(if violated.is_empty() {
        ",\"violated-policies\":[]"
    } else {
        "]"
    });
    #[cfg(feature = "rate-limit")]
    if refusal.decision().is_some_and(Decision::is_closed) {
        violated.push_str(&detail(refusal));
    }
    violated
}
