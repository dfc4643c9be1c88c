//! One line per layer for HTTP: refusals are responses, and services that cannot fail still cannot.
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
//! They work around every service of [`http::Request`]s and [`http::Response`]s: of axum, hyper, reqwest, or your own.

// A hook that is a generic function has a type that asks for `'static` bodies; a closure that calls it has not.
#![allow(clippy::redundant_closure)]

#[cfg(feature = "concurrency-limit")]
mod concurrency_limit;
#[cfg(feature = "dedupe")]
mod dedupe;
mod insert_lease;
#[cfg(feature = "mutex")]
mod mutex;
#[cfg(feature = "rate-limit")]
mod rate_limit;
#[cfg(feature = "rw-lock")]
mod rw_lock;
#[cfg(feature = "single-flight")]
mod single_flight;
#[cfg(feature = "rate-limit")]
mod token_budget;

#[cfg(feature = "concurrency-limit")]
pub use self::concurrency_limit::concurrency_limit;
#[cfg(feature = "dedupe")]
pub use self::dedupe::{Duplicate, acknowledge_duplicate, dedupe, is_handled, mark_duplicate};
pub use self::insert_lease::InsertLease;
#[cfg(feature = "mutex")]
pub use self::mutex::mutex;
#[cfg(feature = "rate-limit")]
pub use self::rate_limit::{insert_decision, rate_limit, rate_limits};
#[cfg(feature = "rw-lock")]
pub use self::rw_lock::{access_by_method, rw_lock};
#[cfg(feature = "single-flight")]
pub use self::single_flight::single_flight;
#[cfg(feature = "rate-limit")]
pub use self::token_budget::{insert_usage, token_budget, token_budgets};
#[cfg(feature = "dedupe")]
pub use crate::idempotency::{IdempotencyBuilder, IdempotencyLayer, RequestTrailers, idempotency};
