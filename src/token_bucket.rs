//! A token bucket per key: Go's `x/time/rate`, distributed.
//!
//! [`TokenBucket`] is a namespace of buckets in a [`Store`](crate::Store); the key is an argument of each call. A bucket holds
//! up to `burst` tokens, one comes back every period/rate, and a request takes as many as it costs or none.
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
//! The generic cell rate algorithm (GCRA, ITU-T I.371), which is a token bucket whose state is one time: the
//! *theoretical arrival time* at which the bucket is full again. With a token every `T`, a request for `n` at
//! `now` moves it to `max(TAT, now) + n·T` and acts at that less `burst·T`, or at once if that is past. Times are
//! exact fractions, so a limit of 7 per second is neither 6.99 nor 7.01. In every interval of length `t`,
//! at most `burst + rate·t` tokens' worth of requests act.
//!
//! # Windows
//!
//! There is no second algorithm, such as a sliding window. An upstream that allows `N` in a window of `W`, however its windows
//! fall, is satisfied by `Quota::new(N - b, W).burst(b)`: by the bound above, at most `b + (N − b)` act within `W`. A small `b`
//! spreads requests evenly, a large one lets more through at once after a pause. What a window has and this has not is all
//! `N` at once, and then none for `W`: kept exactly, that takes a time for each request rather than one for each key, and what
//! keeps it in two counters is wrong by as much as the last window was uneven.
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
//! A bucket has a *level* for each quota of the calls that it has seen, and charges them all for each request: those that
//! the request does not come under until they are used up. So calls under different quotas may share a bucket, and each
//! quota holds for the requests that come under it, in every interval. A quota is known by its rate and burst; its name
//! and its place among others do not matter.
//!
//! A quota that is new to a bucket in use takes over the level of the next slower quota, or else of the slowest: what is
//! owed stays owed, in tokens, and comes back at the new rate. With a smaller burst, as many tokens are left as before, up to
//! that burst. What is cancelled or given back is given back to the quotas of the call that charged it. So a change never
//! refills a bucket, and a higher rate makes nobody wait longer. A bucket forgets its levels when
//! all of them are full; it keeps 16 at most.
//!
//! # Differences from `x/time/rate`
//!
//! * `SetLimit(r)` is [`with_quotas`](TokenBucket::with_quotas) with another rate: both keep the tokens as they are.
//!   `SetBurst(b)` with a smaller `b` keeps them up to `b`, here as there. With a larger one Go keeps the tokens as they are,
//!   and here what is missing stays as it is, so the tokens that the burst has more are to be had at once.
//! * Several quotas at once; quotas per call; [`block_for`](TokenBucket::block_for).
//! * A cost above the burst is an error rather than a reservation that is not OK.
//! * Cancelling reservations out of order gives back what Go gives back, except where that would let more
//!   than the limit through: Go forgets reservations yet to act when a later one acts earlier.
//! * A caller that goes away while its request is being decided gets it undone, if nothing has come after it
//!   in its bucket; else the charge stands, and comes back with time.
//!
//! # Coming from …
//!
//! | there | here |
//! |---|---|
//! | gocorex `NewRedisLimiter(rdb, qps, burst, key)` | [`TokenBucket::new`]`(&store, name, Quota::per_second(qps).burst(burst))`; the key is an argument of each call |
//! | gocorex, `x/time/rate`: `Allow`, `AllowN(now, n)` | [`allow`](TokenBucket::allow), [`allow_n`](TokenBucket::allow_n); the time is the server's |
//! | gocorex `ReserveN(now, n, maxFutureReserve)` | [`reserve_n`](TokenBucket::reserve_n) of a bucket [`with_max_wait`](TokenBucket::with_max_wait) |
//! | `Reservation`: `OK`, `Delay`, `Cancel` | `Result`, [`delay`](Reservation::delay), [`cancel`](Reservation::cancel) |
//! | `Wait(ctx)`, `WaitN(ctx, n)` | [`wait`](TokenBucket::wait), [`wait_n`](TokenBucket::wait_n); drop the future in place of cancelling `ctx` |
//! | bucket4j `addTokens`, `consumeIgnoringRateLimits`; rate-limiter-flexible `reward`, `penalty`, `block` | [`give_back`](TokenBucket::give_back), [`charge`](TokenBucket::charge), [`block_for`](TokenBucket::block_for) |
//! | Gubernator and Envoy: quotas held by each instance | [`prefetch`](TokenBucket::prefetch) |
//! | `Tokens`, `SetLimit`, `SetBurst` | [`peek`](TokenBucket::peek), [`with_quotas`](TokenBucket::with_quotas) |
//! | gocorex `qps = 0` | [`Quota::non_refilling`](crate::Quota::non_refilling) |
//! | `tower_governor`: `per_second`, `burst_size`, `key_extractor`, `use_headers` | [`Quota`](crate::Quota), [`RateLimitLayer::new`](crate::RateLimitLayer::new), `response::RateLimitFields` |
//! | `tower-rate-limit-redis`: `fail_open`, `timeout` | [`StoreFailure`](crate::StoreFailure), [`StoreBuilder::timeout`](crate::StoreBuilder::timeout) |
//!
//! # The layer
//!
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
//! ## What it asks
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
//! ## Several limits at once
//!
//! Limits over different keys, such as one per user, per tenant and for all, are charged together by
//! [`RateLimitLayer::all_of`]: what one of them refuses is charged to none. Layers in a row would charge those that come first.
//!
//! ## What a refused caller gets
//!
//! A boxed [`Refusal`](crate::Refusal) as the error, or a response by [`reject_with`](RateLimitLayer::reject_with).
//! A layer that [waits](RateLimitLayer::max_wait) refuses at once what would have to wait longer.
//!
//! ## Trying a limit out
//!
//! In [shadow mode](RateLimitLayer::shadow) it decides and counts, and lets all requests through:
//! `tower_distributed_decisions_total` has what would have been refused as the outcome `shadowed`, and
//! [`on_refused`](RateLimitLayer::on_refused) sees it.
//!
//! ## Hot keys
//!
//! A key that is refused is [refused in this process](RateLimitLayer::cache_refusals), by what the store told last, and asks
//! only for the tokens that can be there. By choice, tokens of hot keys are [charged ahead](RateLimitLayer::prefetch).
//!
//! ## When the store is away
//!
//! [`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed) unless set: an outage is told as one, and admits nothing.
//!
//! ## Readiness, cancellation
//!
//! `poll_ready` is the inner service's, with no I/O of its own; the instance that was polled ready is the one
//! that is called, after the decision: within `call` where state is in process and nothing is to be waited for, else
//! from the response future. So where a request waits its turn, what the readiness of the inner
//! service reserves stays reserved: put limits that wait outside of, say, a `ConcurrencyLimit`. A response future
//! that is dropped before its request was admitted gives its tokens back.
//!
//! ## Differences from `tower::limit::RateLimitLayer`
//!
//! Tower's limits each instance of a service on its own, in `poll_ready`, with one bucket and no key. This one
//! limits by key, and all clones, routes and processes share the buckets of the store. The inner service must be
//! `Clone`, since the decision may come after `call` has returned.

pub use crate::layer::rate_limit::*;
pub use crate::primitive::token_bucket::*;
