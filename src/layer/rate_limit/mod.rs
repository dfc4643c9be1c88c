//! [`RateLimitLayer`]: at most so many requests per key, across all processes.
//!
//! ```
//! use tower::{ServiceBuilder, ServiceExt, Service, service_fn};
//! use tower_distributed::{Quota, RateLimitLayer, Refusal, Store, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let bucket = TokenBucket::new(&store, "greetings", Quota::per_minute(60).burst(1))?;
//!
//! let mut greet = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new(bucket, |name: &&'static str| *name))
//!     .service(service_fn(async |name: &'static str| Ok::<_, std::io::Error>(format!("hello {name}"))));
//!
//! assert_eq!(greet.ready().await?.call("Ann").await?, "hello Ann");
//! let error = greet.ready().await?.call("Ann").await.unwrap_err();
//! assert!(error.downcast_ref::<Refusal>().is_some());
//! # Ok(()) }
//! ```
//!
//! # What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; `None` lets a request pass. The
//! [`cost`](RateLimitLayer::cost) is one token unless set, the [`quotas`](RateLimitLayer::quotas) are the
//! bucket's. Each attempt counts: a `Retry` outside of the limit asks again, a `LoadShed` inside of it sheds what has
//! been charged.
//!
//! What a request cost can also be told [after it](RateLimitLayer::charge_after). Some requests can [pass](RateLimitLayer::skip_if),
//! and keys that are refused again and again can be [banned](RateLimitLayer::ban). Quotas are the bucket's, or come
//! [from a closure](RateLimitLayer::quotas), from a [table](RateLimitLayer::quota_table) by route or method, or are
//! [looked up](RateLimitLayer::look_up_quotas); [`LiveQuotas`](crate::LiveQuotas) change at run time.
//!
//! # Several limits at once
//!
//! Limits over different keys, such as one per user, per tenant and for all, are charged together by
//! [`RateLimitLayer::all_of`]: what one of them refuses is charged to none. Layers in a row would charge those that come first.
//!
//! # What a refused caller gets
//!
//! A boxed [`Refusal`](crate::Refusal) as the error, or a response by [`reject_with`](RateLimitLayer::reject_with).
//! A layer that [waits](RateLimitLayer::wait_up_to) refuses at once what would have to wait longer.
//!
//! # Trying a limit out
//!
//! In [shadow mode](RateLimitLayer::shadow) it decides and counts, and lets all requests through:
//! `tower_distributed_decisions_total` has what would have been refused as the outcome `shadowed`, and
//! [`on_refused`](RateLimitLayer::on_refused) sees it.
//!
//! # Hot keys
//!
//! A key that is refused is [refused in this process](RateLimitLayer::cache_refusals), by what the store told last, and asks
//! only for the tokens that can be there. By choice, tokens of hot keys are [charged ahead](RateLimitLayer::prefetch).
//!
//! # When the store is away
//!
//! [`StoreFailure::FailClosed`] unless set: an outage is told as one, and admits nothing.
//!
//! # Readiness, cancellation
//!
//! `poll_ready` is the inner service's, with no I/O of its own; the instance that was polled ready is the one
//! that is called, after the decision: within `call` where state is in process and nothing is to be waited for, else
//! from the response future. So where a request waits its turn, what the readiness of the inner
//! service reserves stays reserved: put limits that wait outside of, say, a `ConcurrencyLimit`. A response future
//! that is dropped before its request was admitted gives its tokens back.
//!
//! # Differences from `tower::limit::RateLimitLayer`
//!
//! Tower's limits each instance of a service on its own, in `poll_ready`, with one bucket and no key. This one
//! limits by key, and all clones, routes and processes share the buckets of the store. The inner service must be
//! `Clone`, since the decision may come after `call` has returned.

mod ban;
mod future;
mod hooks;
mod layer;
mod limiter;
mod quotas;
mod service;

pub use self::ban::Ban;
pub use self::future::ResponseFuture;
pub use self::hooks::{
    Admitted, Afterwards, Answered, Both, ChargeAfter, Charged, Cost, Hooks, Observe, Observed, OnAdmit,
    OnRefused, OnResponse, OneToken, Refused,
};
pub use self::layer::{RateLimitLayer, StoreFailure};
pub use self::limiter::{AllOf, KeyExtractors};
pub use self::quotas::{
    ChooseQuotas, InTable, LookUp, QuotaTable, QuotasFuture, RowName, RowNameFn, SameQuotas,
};
pub use self::service::RateLimit;
pub use crate::layer::key::SkipIf;
