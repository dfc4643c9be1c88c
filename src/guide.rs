//! Guides: how to use this crate for a task.
//!
//! | page | |
//! |---|---|
//! | [`recipes`] | a program for each job |
//! | [`on_axum`] | keys, the order of layers, CORS, nested routers |
//! | [`on_tonic`] | layers, keys and statuses for gRPC |
//! | [`outbound`] | a client that keeps to the limit of another service |
//! | [`jobs`] | scheduled jobs, a leader, lock or skip, fencing |
//! | [`operations`] | running the Redis behind this crate: ACL, TLS, Cluster, Sentinel, sizing, monitoring |
//! | [`servers`] | what a server, a proxy or a managed service must offer |
//! | [`scale`] | what one Redis and a Cluster carry, and how to compute it |
//! | [`coming_from`] | what the parts of other libraries are called here |
//! | [`architecture`] | how this crate is built, and its invariants |
//! | [`errors`] | messages and what to do about them |
//! | [`pictures`] | limits, locks, flights, filters and outages, drawn from real runs |
//!
//! See also [`guarantees`](crate::guarantees), [`telemetry`](crate::telemetry), [`protocol`](crate::protocol) and
//! [`wire_format`](crate::wire_format).

#[cfg(feature = "axum")]
#[doc = include_str!("docs/guide/recipes.md")]
pub mod recipes {}

#[cfg(feature = "axum")]
#[doc = include_str!("docs/guide/on_axum.md")]
pub mod on_axum {}

#[cfg(feature = "tonic")]
#[doc = include_str!("docs/guide/on_tonic.md")]
pub mod on_tonic {}

#[cfg(feature = "http")]
#[doc = include_str!("docs/guide/outbound.md")]
pub mod outbound {}

#[doc = include_str!("docs/guide/jobs.md")]
pub mod jobs {}

#[doc = include_str!("docs/guide/errors.md")]
pub mod errors {}

#[cfg(feature = "http")]
#[doc = include_str!("docs/guide/operations.md")]
pub mod operations {}

#[doc = include_str!("docs/guide/servers.md")]
pub mod servers {}

#[cfg(feature = "http")]
#[doc = include_str!("docs/guide/scale.md")]
pub mod scale {}

#[cfg(feature = "http")]
#[doc = include_str!("docs/guide/coming_from.md")]
pub mod coming_from {}

#[doc = include_str!("docs/guide/architecture.md")]
pub mod architecture {}

/// Pictures of real runs, created by the example `pictures`.
///
/// The notes state how each was created. *Computed* pictures are the same in every run. *Measured* pictures come from
/// one run on the machine in the note.
///
/// # A token bucket
///
/// [`TokenBucket`](crate::TokenBucket), 5 tokens per second, burst 10. Dots are admitted requests, rings refused ones.
///
#[doc = include_str!("../docs/token-level.svg")]
///
/// # One limit for two processes
///
/// Process B begins after 2 s. Both together stay within the bound of
/// [`token_bucket`](crate::token_bucket#without-tower).
///
#[doc = include_str!("../docs/fleet-limit.svg")]
///
/// # Concurrency
///
/// A [`WaitGroup`](crate::WaitGroup) with 5 permits. Waiters get free permits in the order of arrival, across
/// processes. The thin light lines are the times from the end of a job to the start of the next one.
///
#[doc = include_str!("../docs/concurrency.svg")]
///
/// # A mutex, a crash and a pause
///
/// B is killed while it holds the [`Mutex`](crate::Mutex): its lease expires. C is stopped while it holds the lock,
/// loses it, and writes when it resumes. The resource refuses this write by its fencing token. See
/// [`guarantees`](crate::guarantees#a-lease-cannot-stop-its-holder).
///
#[doc = include_str!("../docs/mutex-timeline.svg")]
///
/// # Single flights
///
/// Calls of an origin with [`SingleFlight`](crate::SingleFlight), and without it, when each request calls the origin.
/// Dots are runs.
///
#[doc = include_str!("../docs/single-flight.svg")]
///
/// # A Bloom filter
///
/// The false-positive rate of a [`BloomFilter`](crate::BloomFilter) against its fill level.
///
#[doc = include_str!("../docs/false-positives.svg")]
///
/// # An outage
///
/// Redis is unavailable from 3 s to 8 s. [`StoreFailure`](crate::StoreFailure) sets the behaviour of requests during
/// this time. Each store probes once per second, so it can take a second after the outage until all gateways use Redis
/// again.
///
#[doc = include_str!("../docs/outage.svg")]
///
/// # Prefetch
///
/// The time for a decision with [`TokenBucket::prefetch`](crate::TokenBucket::prefetch), compared with a decision of
/// the server for each request. A call to Redis contains the decisions for all tasks that request one at the same time.
///
#[doc = include_str!("../docs/prefetch.svg")]
pub mod pictures {}
