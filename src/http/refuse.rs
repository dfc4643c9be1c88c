//! Refusals as HTTP responses.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use super::fields::{RateLimitFields, seconds};
use crate::token_bucket::Decision;
use crate::{Refusal, RefusalKind, Reject};

/// Refusals as responses with a problem document (RFC 9457) for a body:
///
/// | refusal | status | |
/// |---|---|---|
/// | [`RateLimited`](RefusalKind::RateLimited) | 429 | `Retry-After` (seconds, rounded up, at least 1), RateLimit fields |
/// | [`ExceedsBurst`](RefusalKind::ExceedsBurst) | 400 | no `Retry-After`: it can never be admitted |
/// | [`StoreUnavailable`](RefusalKind::StoreUnavailable) | 503 | the cause is not told to the client |
///
/// A refusal by a quota that never refills is a 429 without `Retry-After`.
///
/// Works for every body that can be made of a `String`: axum's, `http_body_util::Full`, `String` itself.
#[must_use]
pub fn refuse() -> Refuse {
    Refuse::default()
}

/// See [`refuse`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Refuse {
    fields: RateLimitFields,
}

impl Refuse {
    /// With other header fields than the default.
    #[must_use]
    pub fn fields(self, fields: RateLimitFields) -> Self {
        Self { fields }
    }
}

impl<B: From<String>, E> Reject<Response<B>, E> for Refuse {
    type Error = E;

    fn reject(&self, refusal: Refusal) -> Result<Response<B>, E> {
        let status = status(&refusal);
        let mut response = Response::new(B::from(problem(&refusal, status)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = refusal.retry_after() {
            headers.insert(RETRY_AFTER, seconds(after).max(1).into());
        }
        if let Some(decision) = refusal.decision() {
            self.fields.write(decision, headers);
        }
        Ok(response)
    }

    fn inner_error(&self, error: E) -> E {
        error
    }
}

fn status(refusal: &Refusal) -> StatusCode {
    match refusal.kind() {
        RefusalKind::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        RefusalKind::ExceedsBurst => StatusCode::BAD_REQUEST,
        RefusalKind::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The body. Nothing in it needs escaping: our own words, numbers, and names of quotas, which have no quotes.
fn problem(refusal: &Refusal, status: StatusCode) -> String {
    let (kind, title, more) = match (refusal.kind(), refusal.decision()) {
        (RefusalKind::RateLimited, Some(decision)) => {
            let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
            (kind, "Quota exceeded", violated(decision))
        }
        (RefusalKind::ExceedsBurst, _) => {
            ("about:blank", "Bad Request", format!(",\"detail\":\"{}\"", refusal.get_ref()))
        }
        _ => {
            let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
            (kind, "Temporarily reduced capacity", String::new())
        }
    };
    format!("{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{}{more}}}", status.as_u16())
}

fn violated(decision: &Decision) -> String {
    let names: Vec<_> = decision
        .state()
        .balances()
        .filter(|balance| balance.remaining() < decision.cost())
        .map(|balance| format!("\"{}\"", balance.name()))
        .collect();
    format!(",\"violated-policies\":[{}]", names.join(","))
}
