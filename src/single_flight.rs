//! Single flights: one caller does the work, and the others get its answer, across all processes.
//!
//! ```
//! use tower_distributed::{SingleFlight, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let reports = SingleFlight::<String>::new(&store, "reports")?;
//!
//! let (one, other) = tokio::join!(
//!     reports.run("2026-11", || async { "expensive".to_owned() }),
//!     reports.run("2026-11", || async { unreachable!("the first caller leads") }),
//! );
//! assert_eq!(one?, other?);
//! # Ok(()) }
//! ```
//!
//! The terms: the *work* is the future that a caller passes, a *run* is one execution of it, and the *answer* is
//! its result. All callers of one key at one time form a *flight*. The *leader* runs; the *followers* wait for its
//! answer.
//!
//! # Guarantees
//!
//! Callers of one key in one process share one run. Processes share runs through the store: the first caller
//! *leads*. It holds a lease, which is renewed while the work runs, and publishes its answer for a short
//! [TTL](SingleFlightBuilder::ttl). *Followers* are woken and read the answer; later callers read it too, until its
//! TTL ends. So there is one run as long as the leader lives, keeps its lease and shares its answer.
//!
//! * If the leader dies, loses its lease, or is dropped, exactly one follower takes over: at once if the lease is
//!   released, and after the [lease's ttl](SingleFlightBuilder::lease_ttl) if the leader's process was killed. A
//!   leader that has lost its lease finishes for its own process and publishes nothing, so two runs can overlap.
//!   Work that must not be done twice needs the fencing token of a [mutex](crate::mutex).
//! * The work runs in its caller's task at first, and in a tokio task of its own once others of its process wait for
//!   it, or after 100 ms. So a caller that stops polling does not delay the others for longer. When the last caller in
//!   its process is dropped, the run is dropped too, and a follower in another process takes over. With
//!   [`go_on`](SingleFlightBuilder::go_on) the run continues. A panic of the work is resumed in the caller that passed
//!   the work.
//! * An answer that is [too large](SingleFlightBuilder::largest_answer), or that the codec cannot encode, reaches
//!   only the callers of the leader's process. In each other process one caller runs and shares its answer within
//!   that process. An event reports it.
//! * If a result is not shared, the waiting callers run at once, in parallel. See [below](#what-is-not-shared).
//! * A run that exceeds [`max_run`](SingleFlightBuilder::max_run) loses the lead, and a follower takes over.
//! * A caller follows for [`max_wait`](SingleFlightBuilder::max_wait) at most.
//! * An answer that another codec or version wrote is not read. An answer that cannot be decoded counts as no
//!   answer. An event reports each case.
//!
//! All processes must use the same settings.
//!
//! # Stale answers
//!
//! With [`stale_while_revalidate`](SingleFlightBuilder::stale_while_revalidate) the last good answer is served for
//! some time after its TTL. The first caller that finds it stale gets it at once, and its work runs in the
//! background, once across all processes. Until that run ends, every caller gets the stale answer. So no caller
//! waits while there is an answer. A run that fails does not replace the last good answer.
//!
//! With [`refresh_early`](SingleFlightBuilder::refresh_early) an answer is refreshed before its TTL ends. A caller
//! gets the current answer, and sometimes its call also starts a run in the background; this gets more likely as
//! the end of the TTL approaches. So callers of a key that is read often rarely meet an expired answer, and no
//! answer is older than its TTL.
//!
//! # What is not shared
//!
//! | outcome | callers that wait now | later callers |
//! |---|---|---|
//! | an answer | get it | get it, for its [TTL](SingleFlightBuilder::ttl) |
//! | an error, with [`share_errors`](SingleFlightBuilder::share_errors); for HTTP, a 5xx | get it, in all processes | run: one leads, the others wait; with [`error_ttl`](SingleFlightBuilder::error_ttl) they get the error |
//! | an error otherwise | all run at once | run: one leads, the others wait |
//! | a private answer: [`ttl_with`](SingleFlightBuilder::ttl_with) returns `None`; for HTTP, `Set-Cookie`, `no-store` and the like | all run at once | all run at once, for [10 s](SingleFlightBuilder::pass_for) |
//! | an answer that is too large | its process gets it; in each other process one runs | one of each process runs, for the answer's TTL but at most [10 s](SingleFlightBuilder::pass_for) |
//!
//! [`max_parallel`](SingleFlightBuilder::max_parallel) bounds how many callers of a key run at once in a process.
//!
//! # Coming from …
//!
//! | there | here |
//! |---|---|
//! | Go `singleflight.Group`: `Do(key, fn)` | [`run`](SingleFlight::run), [`try_run`](SingleFlight::try_run), for all processes |
//! | `DoChan` | the future that these return; with a [`max_wait`](SingleFlightBuilder::max_wait) |
//! | `Forget(key)` | [`forget`](SingleFlight::forget), of the published answer |
//! | "lock or skip" (billing) | [`Mutex::try_with_lock`](crate::Mutex::try_with_lock), [`MutexLayer`](crate::MutexLayer) |
//! | nginx `proxy_cache_lock`, `proxy_cache_use_stale updating` | `web::single_flight`, [`stale_while_revalidate`](SingleFlightBuilder::stale_while_revalidate) |
//!
//! # Events
//!
//! With the feature `tracing` or `metrics`: `answer_too_large`, `answer_not_encodable`, `answer_not_published`,
//! `answer_over_budget`, `flight_lost`, `flight_given_up`, `answer_foreign`, `answer_garbled`. See
//! [`telemetry`](crate::telemetry) for their meaning and for all other events. With `tracing` the work runs in the
//! span of the caller that passed it.
//!
//! # The layer
//!
//! [`SingleFlightLayer`] handles one request of a key at a time. All other requests of that key get its response,
//! in all processes.
//!
//! ```
//! use std::convert::Infallible;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{SingleFlight, SingleFlightLayer, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let prices = SingleFlight::<u64>::new(&store, "prices")?;
//!
//! let price = ServiceBuilder::new()
//!     .layer(SingleFlightLayer::new(prices, |item: &String| item.clone()))
//!     .service(service_fn(async |item: String| Ok::<_, Infallible>(item.len() as u64))); // or something expensive
//!
//! let (one, other) = tokio::join!(price.clone().oneshot("tea".into()), price.oneshot("tea".into()));
//! assert_eq!((one?, other?), (3, 3));
//! # Ok(()) }
//! ```
//!
//! ## Key
//!
//! The key extractor, usually a closure or a function, returns the [key](crate::KeyExtractor) of a request. Only
//! requests with a key take part; with `None` the request is handled alone. **All requests of one key get one
//! response. Put everything into the key that changes the response**, above all the user. For HTTP,
//! `web::single_flight` shares only GET and HEAD requests without credentials.
//!
//! The [`SingleFlight`] sets how long an answer lives, whether errors are shared, and how answers that are too
//! large are handled.
//!
//! ## What is shared
//!
//! [`WholeResponse`] shares the response itself: it must be `Clone`, and the flight needs a codec for it. For HTTP,
//! `web::single_flight` shares the status, the header fields and the body up to a size.
//!
//! ## Tasks
//!
//! A request that takes part may be handled in a tokio task of its own, because other requests wait for its response. So
//! the inner service, its future and the request must be `Send` and `'static`. With the feature `tracing` the task
//! runs in the span of the caller of that request. It may begin in the caller's task and go on in another: so do not
//! rely on values of `tokio::task_local!` or on `spawn_local`, and put the data that the service needs into the request.
//!
//! ## Local cache
//!
//! With [`local_cache`](crate::single_flight::SingleFlightBuilder::local_cache) a request whose answer is in this
//! process's cache is answered at once, without a call of the store and without a task.
//!
//! ## When the store is unavailable
//!
//! Handled, shared within the process alone, unless the flight is
//! [not to](crate::single_flight::SingleFlightBuilder::on_store_failure).
//!
//! ## Readiness
//!
//! `poll_ready` calls the inner service's `poll_ready`. The leader calls the instance that was polled ready; a
//! follower drops that instance without calling it.

pub use crate::layer::single_flight::*;
pub use crate::primitive::single_flight::*;
