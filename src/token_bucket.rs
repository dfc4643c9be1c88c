//! Distributed rate limits: a token bucket for each key, as Go's `x/time/rate`.
//!
//! A [`TokenBucket`] is a namespace of buckets in a [`Store`](crate::Store). Each call takes the key as an
//! argument. A bucket holds up to `burst` tokens and gets one token back every period/rate. A request takes as many
//! tokens as it costs, or none.
//!
//! ```
//! use tower_distributed::{Quota, Store, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let bucket = TokenBucket::new(&store, "sms", Quota::per_minute(10).burst(2))?;
//!
//! assert!(bucket.allow("user-7").await?.is_admitted());
//! assert!(bucket.allow("user-7").await?.is_admitted());
//! let refused = bucket.allow("user-7").await?;
//! assert!(refused.retry_after().is_some_and(|after| after.as_secs() <= 6));
//! assert!(bucket.allow("user-8").await?.is_admitted());
//! # Ok(()) }
//! ```
//!
//! # The algorithm
//!
//! The generic cell rate algorithm (GCRA, ITU-T I.371). It is a token bucket whose state is a single time: the
//! *theoretical arrival time* (TAT), at which the bucket is full again. With one token every `T`, a request for `n`
//! tokens at `now` moves the TAT to `max(TAT, now) + n·T`. The request may act at the new TAT minus `burst·T`, or
//! immediately if that time has passed. Times are exact fractions: a limit of 7 per second is neither 6.99 nor
//! 7.01.
//!
//! The guarantee: in every interval of length `t`, requests worth at most `burst + rate·t` tokens act.
//! [Pictures](crate::guide::pictures#a-token-bucket) show the level of a bucket, and two processes under one limit.
//!
//! # Windows
//!
//! There is no second algorithm, such as a sliding window. If an upstream allows `N` requests in any window of
//! length `W`, use `Quota::new(N - b, W).burst(b)`. By the guarantee above, at most `b + (N − b) = N` requests act
//! within `W`. A small `b` spreads requests evenly. A large `b` lets more requests through at once after a pause.
//!
//! Only a window allows all `N` requests at once, followed by none for the rest of `W`. An exact window stores one
//! time for each request; a token bucket stores one time for each key. A window approximated by two
//! counters is inexact when the requests of the previous window were not spread evenly.
//!
//! ```
//! use std::time::Duration;
//! use tower_distributed::Quota;
//!
//! // At most 100 in every minute, 20 of them at once.
//! let quota = Quota::new(80, Duration::from_secs(60)).burst(20);
//! # let _ = quota;
//! ```
//!
//! # When quotas change
//!
//! Calls under different quotas may share a bucket. Each quota holds for its own requests, in every interval.
//!
//! * A bucket stores one *level* for each quota that its calls have used. A quota is identified by its rate and its
//!   burst; its name and its position do not matter.
//! * Each request is charged to all levels. A level whose quota does not apply to the request is charged until it
//!   is empty, and never goes below that.
//! * A quota that is new to a used bucket takes over the level of the next slower quota, or of the slowest quota if
//!   no slower one exists. The missing tokens stay missing, and come back at the new rate. If the new burst is
//!   smaller, the bucket keeps as many tokens as before, up to the new burst. So a change never refills a bucket,
//!   and a higher rate never makes a request wait longer.
//! * A cancelled or given-back charge returns to the quotas of the call that was charged.
//! * A bucket stores at most 16 levels, and drops all levels when all of them are full.
//!
//! # Differences from `x/time/rate`
//!
//! * `SetLimit(r)` is [`with_quotas`](TokenBucket::with_quotas) with another rate. Both keep the available tokens.
//!   `SetBurst(b)` with a smaller `b` keeps the available tokens up to `b`, in Go and here. With a larger `b`, Go
//!   keeps the available tokens; this crate keeps the missing tokens, so the additional burst is available at once.
//! * A request can have several quotas, and each call can use other quotas. A key can be
//!   [blocked](TokenBucket::block_for).
//! * A cost above the burst is an error, not a reservation that is not OK.
//! * Cancelling reservations out of order gives back what Go gives back, except where that would let more requests
//!   through than the limit. Go forgets pending reservations when a later reservation acts earlier.
//! * If a caller drops its request before the decision arrives, the charge is undone, provided that nothing was
//!   charged to the bucket after it. Otherwise the tokens come back with time.
//!
//! # Coming from …
//!
//! | other library | this crate |
//! |---|---|
//! | gocorex `NewRedisLimiter(rdb, qps, burst, key)` | [`TokenBucket::new`]`(&store, name, Quota::per_second(qps).burst(burst))`; the key is an argument of each call |
//! | gocorex, `x/time/rate`: `Allow`, `AllowN(now, n)` | [`allow`](TokenBucket::allow), [`allow_n`](TokenBucket::allow_n); the store's clock gives the time |
//! | gocorex `ReserveN(now, n, maxFutureReserve)` | [`reserve_n`](TokenBucket::reserve_n) of a bucket [`with_max_wait`](TokenBucket::with_max_wait) |
//! | `Reservation`: `OK`, `Delay`, `Cancel` | `Result`, [`delay`](Reservation::delay), [`cancel`](Reservation::cancel) |
//! | `Wait(ctx)`, `WaitN(ctx, n)` | [`wait`](TokenBucket::wait), [`wait_n`](TokenBucket::wait_n); to cancel, drop the future |
//! | bucket4j `addTokens`, `consumeIgnoringRateLimits`; rate-limiter-flexible `reward`, `penalty`, `block` | [`give_back`](TokenBucket::give_back), [`charge`](TokenBucket::charge), [`block_for`](TokenBucket::block_for) |
//! | Gubernator and Envoy: quotas held by each instance | [`prefetch`](TokenBucket::prefetch) |
//! | `Tokens`, `SetLimit`, `SetBurst` | [`peek`](TokenBucket::peek), [`with_quotas`](TokenBucket::with_quotas) |
//! | gocorex `qps = 0` | [`Quota::non_refilling`](crate::Quota::non_refilling) |
//! | `tower_governor`: `per_second`, `burst_size`, `key_extractor`, `use_headers` | [`Quota`](crate::Quota), [`RateLimitLayer::new`](crate::RateLimitLayer::new), `response::RateLimitFields` |
//! | `tower-rate-limit-redis`: `fail_open`, `timeout` | [`StoreFailure`](crate::StoreFailure), [`StoreBuilder::timeout`](crate::StoreBuilder::timeout) |
//!
//! # The layer
//!
//! [`RateLimitLayer`] limits the rate of requests per key, across all processes.
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
//! ## Key, cost and quotas of a request
//!
//! * The [key](crate::KeyExtractor) comes from a closure, a function or an [extractor](crate::extract). A request for
//!   which a closure returns `None` passes without a limit. A request without a part of the key, such as a header
//!   field, is refused.
//! * The [`cost`](RateLimitLayer::cost) is one token by default. You can charge more
//!   [after the response](RateLimitLayer::cost_of_response), when the real cost is known.
//! * The quotas are those of the bucket by default. They can come [from a closure](RateLimitLayer::quotas), which may
//!   look them up asynchronously, or from a [table](RateLimitLayer::quota_table) by route or method.
//! * A key that is refused again and again can be [banned](RateLimitLayer::ban).
//!
//! Each attempt is charged. A `Retry` outside the limit is charged for every attempt. A `LoadShed` inside the limit
//! rejects requests that are already charged.
//!
//! ## Several limits at once
//!
//! [`RateLimitLayer::all_of`] charges limits over different keys together, such as one per user, one per tenant and
//! one global limit. If one limit refuses the request, no limit is charged. With separate layers in a row, the
//! outer limits would be charged for requests that an inner limit refuses.
//!
//! ## What a refused caller gets
//!
//! A boxed [`Refusal`](crate::Refusal) as the error, or a response with
//! [`reject_with`](RateLimitLayer::reject_with). A layer with a [`max_wait`](RateLimitLayer::max_wait) refuses a
//! request immediately if it would have to wait longer than that.
//!
//! ## Trying a limit out
//!
//! In [shadow mode](RateLimitLayer::shadow) the layer decides and counts, but lets all requests through. The metric
//! `tower_distributed_decisions_total` counts requests that would have been refused with the outcome `shadowed`.
//! [`on_refused`](RateLimitLayer::on_refused) is called for them.
//!
//! ## Hot keys
//!
//! After a refusal, the process [refuses the key from its cache](RateLimitLayer::cache_refusals), without a call to
//! the store. It sends only as many requests to the store as there can be tokens. Optionally, the process
//! [prefetches](RateLimitLayer::prefetch) tokens of hot keys.
//!
//! ## When the store is unavailable
//!
//! The layer fails closed by default ([`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed)): it admits no
//! request, and reports an outage as an outage, not as a refusal.
//!
//! ## Readiness and cancellation
//!
//! `poll_ready` polls the inner service and does no I/O. The layer calls the instance that was polled ready, after
//! the decision. If the state is in memory and the request does not have to wait, it calls the inner service within
//! `call`; otherwise from the response future. So while a request waits, it keeps the capacity that the
//! readiness of the inner service reserves. Put a layer that waits outside of, for example, a `ConcurrencyLimit`.
//!
//! If a response future is dropped before its request is admitted, the tokens of the request are given back.
//!
//! ## Differences from `tower::limit::RateLimitLayer`
//!
//! Tower's layer limits each instance of a service separately, in `poll_ready`, with one bucket and no key. This
//! layer limits by key, and all clones, routes and processes share the buckets of the store. The inner service must
//! be `Clone`, because the decision may come after `call` has returned.

pub use crate::layer::rate_limit::*;
pub use crate::primitive::token_bucket::*;
