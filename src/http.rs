//! Support for HTTP: the layers with their HTTP settings, refusals as responses, bodies that hold a lease, and key
//! extractors. [`web`], [`response`] and [`extract`](crate::extract) are public under these names at the root of the
//! crate.

#[cfg(feature = "single-flight")]
pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod layers;
pub(crate) mod message;
#[cfg(feature = "rate-limit")]
pub(crate) mod meter;
#[cfg(feature = "rate-limit")]
pub(crate) mod origin;
#[cfg(feature = "rate-limit")]
pub(crate) mod rate_limit_fields;
pub(crate) mod refuse;
#[cfg(feature = "single-flight")]
pub(crate) mod replayed_body;
#[cfg(feature = "single-flight")]
pub(crate) mod responses;
#[cfg(feature = "rate-limit")]
pub(crate) mod retry_after;
#[cfg(feature = "single-flight")]
pub(crate) mod shareable;
pub(crate) mod until_body_end;
#[cfg(feature = "rate-limit")]
pub(crate) mod values;

pub mod web {
    //! One function per layer for HTTP: refusals are responses, and a service that cannot fail still cannot fail.
    //!
    //! ```
    //! use axum::{Router, routing::get};
    //! use tower_distributed::{Quota, Store, TokenBucket, extract, web};
    //!
    //! # fn main() -> Result<(), tower_distributed::Error> {
    //! let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5).burst(10))?;
    //! let limit = web::rate_limit(bucket, extract::client_ip());
    //! let app: Router = Router::new().route("/", get(async || "hello")).layer(limit);
    //! # Ok(()) }
    //! ```
    //!
    //! | function | layer |
    //! |---|---|
    //! | [`rate_limit`] | [`RateLimitLayer`](crate::RateLimitLayer), with `Retry-After` and RateLimit fields |
    //! | [`rate_limits`] | the same with several limits over different keys, charged all or none |
    //! | [`token_budget`] | [`BudgetLayer`](crate::BudgetLayer): a cost that is known only at the end of the body |
    //! | [`token_budgets`] | the same with several limits, held all or none |
    //! | [`concurrency_limit`] | [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), to the end of the response body |
    //! | [`rw_lock`] | [`RwLockLayer`](crate::RwLockLayer), by the method, to the end of the response body |
    //! | [`mutex`] | [`MutexLayer`](crate::MutexLayer), to the end of the response body |
    //! | [`single_flight`] | [`SingleFlightLayer`](crate::SingleFlightLayer), for GET and HEAD |
    //! | [`dedupe`] | [`DedupeLayer`](crate::DedupeLayer), for webhooks |
    //! | [`idempotency`] | `Idempotency-Key`, with the response replayed |
    //!
    //! They work around every service of [`http::Request`]s and [`http::Response`]s: of axum, hyper, reqwest, or your
    //! own.

    pub use super::layers::InsertLease;
    #[cfg(feature = "concurrency-limit")]
    pub use super::layers::concurrency_limit;
    #[cfg(feature = "mutex")]
    pub use super::layers::mutex;
    #[cfg(feature = "single-flight")]
    pub use super::layers::single_flight;
    #[cfg(feature = "dedupe")]
    pub use super::layers::{Duplicate, acknowledge_duplicate, dedupe, is_handled, mark_duplicate};
    #[cfg(feature = "rw-lock")]
    pub use super::layers::{access_by_method, rw_lock};
    #[cfg(feature = "rate-limit")]
    pub use super::layers::{
        insert_decision, insert_usage, rate_limit, rate_limits, token_budget, token_budgets,
    };
    #[cfg(feature = "dedupe")]
    pub use crate::idempotency::idempotency;
    #[cfg(feature = "dedupe")]
    pub use crate::idempotency::layer::{IdempotencyBuilder, IdempotencyLayer};
    #[cfg(feature = "dedupe")]
    pub use crate::idempotency::upload::RequestTrailers;
}

pub mod response {
    //! HTTP responses: refusals, header fields, bodies that hold a lease, and shared responses.

    #[cfg(feature = "single-flight")]
    pub use super::answer::{Answer, AnswerCodec};
    pub use super::body::HeldBody;
    #[cfg(feature = "rate-limit")]
    pub use super::meter::{MeterBody, MeteredBody};
    #[cfg(feature = "rate-limit")]
    pub use super::rate_limit_fields::RateLimitFields;
    pub use super::refuse::{Refuse, refuse};
    #[cfg(feature = "single-flight")]
    pub use super::replayed_body::FlightBody;
    #[cfg(feature = "single-flight")]
    pub use super::responses::Responses;
    #[cfg(feature = "rate-limit")]
    pub use super::retry_after::RetryAfter;
    #[cfg(feature = "single-flight")]
    pub use super::shareable::is_shareable;
    pub use super::until_body_end::{LeaseEnd, LeasedBody, UntilBodyEnd};
    #[cfg(feature = "rate-limit")]
    pub use crate::learn::http::UpstreamLimits;
}

/// Keys of HTTP requests; [`crate::extract`] makes them public.
pub(crate) mod extract {
    mod client_ip;
    mod parameter;
    mod path;
    mod request_line;
    pub(crate) mod shared_get;
    #[cfg(test)]
    mod tests;

    pub use self::client_ip::{ClientIp, client_ip};
    pub use self::parameter::{bearer, cookie, header, query};
    pub use self::path::{extension, path, path_and_query};
    #[cfg(feature = "axum")]
    pub use self::request_line::matched_path;
    pub use self::request_line::{grpc_method, grpc_service, host, method};

    pub use self::shared_get::{SharedGet, shared_get};
}
