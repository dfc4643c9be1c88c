//! A distributed WaitGroup: at most so many at once per key, across all processes.
//!
//! [`WaitGroup`] is a namespace in a [`Store`](crate::Store); the key is an argument of each call. [`add`](WaitGroup::add) gets a
//! [`Permit`], in turn where none is free; dropping it or [`done`](Permit::done) gives it back;
//! [`wait`](WaitGroup::wait) ends when none is left.
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
//! assert!(first.done().await?); // it was held to the end
//! drop(second);
//! exports.wait("acme").await?;
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! There are never more permits out than the limit, not for a moment. Who waits is served in the order of arrival
//! at the store, whatever process it waits in; a heavy one is not overtaken by lighter ones. A crashed holder's permits
//! are free again after its [time to live](WaitGroupBuilder::ttl); a crashed waiter holds nobody up for longer than
//! a grant to it takes to lapse (1.5 s), or where those behind it cannot be told from it, until it has not been heard of
//! for 7 s. Permits are renewed while they are held, so they may be held for ever.
//!
//! # Coming from …
//!
//! | there | here |
//! |---|---|
//! | redis-rate-limiter (joshrendek) `NewRateLimiter(client, key, limit)` | [`WaitGroup::new`]`(&store, name, limit)`; the key is an argument of each call |
//! | `Add()`: waits, returns a uuid | [`add`](WaitGroup::add): waits in turn, returns a [`Permit`] |
//! | `Add(i)`, whose `i` does nothing | [`add_n`](WaitGroup::add_n), whose `n` is the weight |
//! | `Done(uuid)` | [`Permit::done`], or drop it; from another task or process [`Permit::into_id`] and [`WaitGroup::done`] |
//! | sleep between attempts | none: who waits is woken |
//! | worker time-out | [`ttl`](WaitGroupBuilder::ttl), renewed while the permit is held |
//! | cleaning of dead workers | in every step |
//! | `sync.WaitGroup`: `Wait` | [`wait`](WaitGroup::wait) |
//!
//! # The layer
//!
//! [`ConcurrencyLimitLayer`]: at most so many requests of a key at once, across all processes.
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
//! let elsewhere = exports.add("acme").await?; // in another process, perhaps
//! let error = export.ready().await?.call("acme").await.unwrap_err();
//! assert!(error.downcast_ref::<Refusal>().is_some());
//! # Ok(()) }
//! ```
//!
//! ## What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; `None` lets a request pass. The
//! [`weight`](ConcurrencyLimitLayer::weight) is 1 unless set, the [`limit`](ConcurrencyLimitLayer::limit) is the
//! WaitGroup's. A request that cannot be admitted now is refused, unless it may
//! [wait](ConcurrencyLimitLayer::max_wait): first come, first served, across processes.
//!
//! ## How long a permit is held
//!
//! Until there is a response, or with `response::UntilBodyEnd` until the end of its body; for HTTP,
//! `web::concurrency_limit` sets that and how refusals are told. A response that is dropped gives its permit back,
//! as does a response future. A permit that is lost, since the store forgot it, changes nothing for its request
//! unless [`cancel_when_lost`](ConcurrencyLimitLayer::cancel_when_lost) is set.
//!
//! `response::UntilBodyEnd` releases the permit of a body that makes no progress for 60 s, and can set a maximum. The permit
//! of an upgraded connection (WebSocket, CONNECT) is released with the head of the response. A handler can take its
//! permit along and hold it for longer: see [`LeaseSlot`](crate::lease::LeaseSlot).
//!
//! ## When the store is away
//!
//! [`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed) unless set.
//!
//! ## Readiness
//!
//! `poll_ready` is the inner service's, with no I/O of its own; the instance that was polled ready is the one that is
//! called, from the response future. So what the readiness of the inner service reserves stays reserved while a
//! request waits for its permit.
//!
//! ## Differences from `tower::limit::ConcurrencyLimitLayer`
//!
//! Tower's has one semaphore per service and waits in `poll_ready`. This one limits by key, all clones, routes and
//! processes share the permits, and it can refuse. The inner service must be `Clone`.

pub use crate::layer::concurrency_limit::*;
pub use crate::primitive::wait_group::*;
