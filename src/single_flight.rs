//! One caller does the work, the others get its answer: across all processes.
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
//!     reports.run("2026-11", || async { unreachable!("the first is at it") }),
//! );
//! assert_eq!(one?, other?);
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! Callers of one key in one process share one run. Processes share through the store: whoever comes first *leads*, holds
//! a lease that is renewed while it works, and publishes its answer for a short [TTL](SingleFlightBuilder::ttl).
//! Those who *follow* are woken and read it; who comes later, and within its life, reads it too. So while the leader
//! lives, keeps its lease and shares its answer, there is one run.
//!
//! * If the leader dies, loses its lease, or goes away, exactly one follower takes over: at once where it can be told,
//!   after the lease's [time to live](SingleFlightBuilder::lease_ttl) where it was killed.
//!   A leader that has lost its lease finishes for its own process, and publishes nothing; so there can be two runs
//!   at a time then. Work that must not be done twice needs the fencing token of a [mutex](crate::mutex).
//! * The work runs in a task of its own, so that no caller that stops polling holds up the others. When the last caller
//!   in its process goes away it is dropped, and a follower elsewhere takes over, unless it is to
//!   [go on](SingleFlightBuilder::go_on). A panic goes on in the caller whose work it was.
//! * An answer that is [too large](SingleFlightBuilder::largest_answer) or that the codec cannot encode reaches the
//!   callers of its own process; in each other process one caller runs, for all of it. An event tells of it.
//! * Nobody waits for what is not shared. See [below](#what-is-not-shared).
//! * A leader that hangs is given up after the [longest run](SingleFlightBuilder::max_run), and a follower takes over.
//! * Nobody follows for longer than [`max_wait`](SingleFlightBuilder::max_wait).
//! * What another codec or version wrote is not read, and what cannot be decoded counts as no answer; an event tells.
//!
//! All processes must be built with the same settings.
//!
//! # Stale answers
//!
//! With [`stale_while_revalidate`](SingleFlightBuilder::stale_while_revalidate) the last good answer is served for a while after its life. The first
//! who finds it stale gets it at once, and its work runs in the background, once in the fleet; meanwhile all get the
//! stale one. So nobody waits where there is any answer. A run that fails leaves the last good answer as it is.
//!
//! With [`refresh_early`](SingleFlightBuilder::refresh_early) an answer is made anew before its life is over: who asks gets
//! the answer that there is, and now and then, the likelier the nearer its end is, has a run begin in the background.
//! Where keys are asked for often nobody meets the end, without an answer that is older than its life.
//!
//! # What is not shared
//!
//! | outcome | callers that wait now | callers in the time after it |
//! |---|---|---|
//! | an answer | get it | get it, for its [TTL](SingleFlightBuilder::ttl) |
//! | an error, with [`share_errors`](SingleFlightBuilder::share_errors); of HTTP, a 5xx | get it, in all processes | run; one leads, the others wait |
//! | an error otherwise | all run at once | run; one leads, the others wait |
//! | a private answer: [`ttl_with`](SingleFlightBuilder::ttl_with) says `None`; of HTTP, `Set-Cookie`, `no-store` and the like | all run at once | all run at once, for [10 s](SingleFlightBuilder::pass_for) |
//! | an answer that is too large | its process gets it; elsewhere one of each process runs | one of each process runs, for the answer's life |
//!
//! [`max_parallel`](SingleFlightBuilder::max_parallel) bounds how many of a key run at once in a process.
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
//! `answer_over_budget`, `flight_lost`, `flight_given_up`, `answer_foreign`, `answer_garbled`. What they mean, and all others: [`telemetry`](crate::telemetry).
//! With `tracing` the work runs in the span of the caller whose it is.
//!
//! # The layer
//!
//! [`SingleFlightLayer`]: one request is handled, all others of its key get the same response, in all processes.
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
//!     .service(service_fn(async |item: String| Ok::<_, Infallible>(item.len() as u64))); // dear, perhaps
//!
//! let (one, other) = tokio::join!(price.clone().oneshot("tea".into()), price.oneshot("tea".into()));
//! assert_eq!((one?, other?), (3, 3));
//! # Ok(()) }
//! ```
//!
//! ## What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; only requests that it names a key for take part, `None`
//! lets a request pass on its own. **All requests of one key get one response: whatever makes a difference belongs into
//! the key**, above all who asks. For HTTP, `web::single_flight` takes part with GET and HEAD alone, and with nothing that
//! carries credentials.
//!
//! For how long an answer lives, when errors are shared and what becomes of answers that are too large are settings of the [`SingleFlight`]: see [`single_flight`](crate::single_flight).
//!
//! ## What is shared
//!
//! The response itself, if it can be cloned and the flight has a codec for it: [`WholeResponse`]. For HTTP,
//! `web::single_flight` shares status, header fields and the body up to a size.
//!
//! ## In which task
//!
//! A request that takes part is handled in a task of its own, since others wait for it: the inner service, its future,
//! and the request must be `Send` and `'static`. With the feature `tracing` that task is in the span of the caller whose
//! request it is. Values of `tokio::task_local!` do not reach it: put what the service needs into the request.
//!
//! ## Answers kept in the process
//!
//! With [`local_cache`](crate::single_flight::SingleFlightBuilder::local_cache) a request whose answer this process has is
//! answered at once, without a call of the store and without a task.
//!
//! ## When the store is away
//!
//! Handled, shared within the process alone, unless the flight is
//! [not to](crate::single_flight::SingleFlightBuilder::on_store_failure).
//!
//! ## Readiness
//!
//! `poll_ready` is the inner service's; the instance that was polled ready is the one that is called, if it is its
//! turn. A follower drops it without a call.

pub use crate::layer::single_flight::*;
pub use crate::primitive::single_flight::*;
