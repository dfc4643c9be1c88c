//! A distributed WaitGroup (semaphore): at most a given number of permits for each key, across all processes.
//!
//! A [`WaitGroup`] is a namespace in a [`Store`](crate::Store). Each call takes the key as an argument.
//! [`add`](WaitGroup::add) acquires a [`Permit`], and waits if none is free. [`done`](Permit::done) releases the
//! permit; dropping it does the same in the background. [`wait`](WaitGroup::wait) waits until all permits are
//! released.
//!
//! ```
//! use tower_distributed::{Store, WaitGroup};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let exports = WaitGroup::new(&store, "exports", 2)?;
//!
//! let first = exports.add("acme").await?;
//! let second = exports.try_add("acme").await?;
//! assert!(exports.try_add("acme").await.unwrap_err().is_refused());
//! assert_eq!(exports.count("acme").await?, 2);
//!
//! assert!(first.done().await?); // `true`: the permit was still held
//! drop(second);
//! exports.wait("acme").await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! * **Limit.** The permits that are held never exceed the limit, not even for a moment. A
//!   [picture](crate::guide::pictures#concurrency) shows two processes at their limit.
//! * **Order.** Waiters are served in the order in which they arrive at the store, across processes. A waiter with
//!   a small weight does not overtake one with a large weight.
//! * **Crashed holders.** The permits of a crashed process expire after their [ttl](WaitGroupBuilder::ttl).
//! * **Crashed waiters.** A permit that is granted to a crashed waiter expires after 1.5 s. A crashed waiter whose
//!   weight does not fit keeps its place in the queue until 7 s after its last heartbeat.
//! * **Renewal.** Permits are renewed while they are held, so they can be held without a time limit.
//!
//! # Coming from …
//!
//! | there | here |
//! |---|---|
//! | redis-rate-limiter (joshrendek) `NewRateLimiter(client, key, limit)` | [`WaitGroup::new`]`(&store, name, limit)`; the key is an argument of each call |
//! | `Add()`: waits, returns a uuid | [`add`](WaitGroup::add): waits in order of arrival, returns a [`Permit`] |
//! | `Add(i)`, whose `i` has no effect | [`add_n`](WaitGroup::add_n), whose `n` is the weight |
//! | `Done(uuid)` | [`Permit::done`], or drop the permit; from another task or process [`Permit::into_id`] and [`WaitGroup::done`] |
//! | sleep between attempts | none: waiters are woken |
//! | worker timeout | [`ttl`](WaitGroupBuilder::ttl), renewed while the permit is held |
//! | cleaning of dead workers | part of every call |
//! | `sync.WaitGroup`: `Wait` | [`wait`](WaitGroup::wait) |
//!
//! # The layer
//!
//! [`ConcurrencyLimitLayer`] limits how many requests of a key are handled at once, across all processes.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{ConcurrencyLimitLayer, Refusal, Store, WaitGroup};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let exports = WaitGroup::new(&store, "exports", 1)?;
//!
//! let mut export = ServiceBuilder::new()
//!     .layer(ConcurrencyLimitLayer::new(exports.clone(), |tenant: &&'static str| *tenant))
//!     .service(service_fn(async |tenant: &'static str| Ok::<_, std::io::Error>(format!("export of {tenant}"))));
//!
//! assert_eq!(export.ready().await?.call("acme").await?, "export of acme");
//!
//! let elsewhere = exports.add("acme").await?; // for example in another process
//! let error = export.ready().await?.call("acme").await.unwrap_err();
//! assert!(error.downcast_ref::<Refusal>().is_some());
//! # Ok(()) }
//! ```
//!
//! ## Key, weight and limit
//!
//! A closure or function [names the key](crate::KeyExtractor) of a request. A request without a key (`None`) passes
//! without a permit; one without a part of its key, such as a header field, is refused. The [`weight`](ConcurrencyLimitLayer::weight) of a request is 1 by default. The
//! [`limit`](ConcurrencyLimitLayer::limit) is that of the WaitGroup by default. If the request does not fit, it is
//! refused immediately, unless [`max_wait`](ConcurrencyLimitLayer::max_wait) is set. Waiting requests are served in
//! the order of arrival, across processes.
//!
//! ## How long a permit is held
//!
//! The layer holds the permit until the response is returned, or with `response::UntilBodyEnd` until the end of the
//! response body. `web::concurrency_limit` sets `UntilBodyEnd`, and turns refusals into HTTP responses. If the
//! response or the response future is dropped, the permit is released. If the permit is lost because the store
//! forgot it, the request continues, unless [`cancel_when_lost`](ConcurrencyLimitLayer::cancel_when_lost) is set.
//!
//! `response::UntilBodyEnd` releases the permit if the body makes no progress for 60 s. It can also limit the total
//! time. The permit of an upgraded connection (WebSocket, CONNECT) is released with the head of the response. A
//! handler can take its permit and hold it for longer: see [`LeaseSlot`](crate::lease::LeaseSlot).
//!
//! ## When the store is unavailable
//!
//! The layer fails closed ([`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed)), unless
//! [`on_store_failure`](ConcurrencyLimitLayer::on_store_failure) is set.
//!
//! ## Readiness
//!
//! `poll_ready` calls `poll_ready` of the inner service and performs no I/O itself. The response future calls the
//! instance that was polled ready. So a slot that the inner service reserves in `poll_ready` stays reserved while the
//! request waits for its permit.
//!
//! ## Differences from `tower::limit::ConcurrencyLimitLayer`
//!
//! tower's layer has one semaphore per service and waits in `poll_ready`. This layer has one limit per key, shared
//! by all clones, routes and processes, and it can refuse requests. It requires an inner service that is `Clone`.

pub use crate::layer::concurrency_limit::*;
pub use crate::primitive::wait_group::*;
