//! Conveniences for HTTP: refusals as responses, header fields, key extractors, responses that are shared.
//!
//! ```
//! use axum::{Router, routing::get};
//! use http::Request;
//! use tower_distributed::{Key, Quota, RateLimitLayer, Store, TokenBucket, http as limits};
//!
//! # fn main() -> Result<(), tower_distributed::Error> {
//! let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5).burst(10))?;
//! let layer = RateLimitLayer::new(bucket, limits::header("x-api-key")?)
//!     .reject_with(limits::refuse())              // 429 with Retry-After, the service still cannot fail
//!     .on_admit(limits::InsertDecision)           // Option<Extension<Decision>> in the handler
//!     .on_response(limits::RateLimitFields::default());
//!
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
//! # Ok(()) }
//! ```

mod answer;
mod body;
mod checked;
mod dedupe;
mod fields;
mod flight_body;
mod freshness;
mod idempotency;
mod key;
mod leases;
mod message;
mod path_and_query;
mod reading;
mod refuse;
mod responses;
mod retry_after;
mod shareable;

pub use self::answer::{Answer, AnswerCodec};
pub use self::body::{LeaseEnd, LeasedBody, UntilBodyEnd};
pub use self::checked::Checked;
pub use self::dedupe::{AcknowledgeDuplicates, Duplicate, IsHandled, MarkDuplicate, dedupe};
pub use self::fields::RateLimitFields;
pub use self::flight_body::FlightBody;
pub use self::idempotency::{IdempotencyBuilder, IdempotencyLayer, Idempotent, idempotency};
pub use self::key::{ClientAddr, Header, Method, Path, Peer, client_addr, header, method, path, peer};
pub use self::leases::{ByMethod, InsertLease, concurrency_limit, mutex, rw_lock, single_flight};
pub use self::path_and_query::{PathAndQuery, path_and_query};
pub use self::refuse::{Refuse, refuse};
pub use self::responses::Responses;
pub use self::retry_after::RetryAfter;
pub use self::shareable::is_shareable;

use crate::rate_limit::OnAdmit;
use crate::token_bucket::Decision;

/// Puts the [`Decision`] among the request's extensions, for the handler to read what remains.
///
/// What passes without a decision has none there: requests without a key, and all of them while the store is away
/// under [`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen). So ask axum for an `Option<Extension<Decision>>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct InsertDecision;

impl<B> OnAdmit<http::Request<B>> for InsertDecision {
    fn on_admit(&self, decision: &Decision, request: &mut http::Request<B>) {
        request.extensions_mut().insert(decision.clone());
    }
}
