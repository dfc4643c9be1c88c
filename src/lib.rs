//! Tower middleware whose state lives in Redis, so that a limit, a lock, a "do it once" or a "seen before" holds across
//! every process of a fleet.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let bucket = TokenBucket::new(&store, "mail", Quota::per_second(5).burst(10))?;
//!
//! let mut send = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new(bucket, |address: &String| address.clone()))
//!     .service(service_fn(async |address: String| Ok::<_, std::io::Error>(format!("sent to {address}"))));
//!
//! assert_eq!(send.ready().await?.call("ann@example.com".into()).await?, "sent to ann@example.com");
//! # Ok(()) }
//! ```
//!
//! # The parts
//!
//! A layer extracts the **key** of a request and calls a **primitive**, which changes the state of that key in a
//! **store**, in one atomic step. The request then goes on to the inner service, or is refused with a [`Refusal`].
//!
//! | layer | primitive | |
//! |---|---|---|
//! | [`RateLimitLayer`] | [`TokenBucket`], [`TokenBuckets`] | at most `rate` requests per period, with a `burst`: see [`token_bucket`] |
//! | [`BudgetLayer`] | [`TokenBucket`], [`TokenBuckets`] | a cost that is known only at the end: an estimate is held, the usage charged |
//! | [`ConcurrencyLimitLayer`] | [`WaitGroup`] | at most N requests at the same time: see [`wait_group`] |
//! | [`RwLockLayer`] | [`RwLock`] | many readers or one writer: see [`rw_lock`] |
//! | [`SingleFlightLayer`] | [`SingleFlight`] | one request is handled, equal ones get its response: see [`single_flight`] |
//! | [`DedupeLayer`] | [`Dedupe`], [`BloomFilter`] | an item is handled once, exactly or by a filter: see [`dedupe`] |
//! | [`MutexLayer`] | [`Mutex`] | one request at a time, on one server or a quorum: see [`mutex`] |
//!
//! Quotas and limits can be changed for the whole fleet at run time: see [`fleet`]. The limit of a [`WaitGroup`] can
//! [adapt](ConcurrencyLimitLayer::adaptive) to the capacity of the inner service.
//!
//! A primitive is a namespace of keys in a [`Store`], and works without tower as well. Permits, locks and claims are
//! [leases](Lease): they are renewed while they are held, and signal when they are lost.
//!
//! For HTTP and gRPC the modules [`web`] and `grpc` set up each layer in one line. The [guides](guide) have a recipe for each
//! job, on axum, on tonic, around clients; [`guide::errors`] lists messages and their fixes, [`guarantees`] what
//! locks in Redis can and cannot promise. [`protocol`] states how leases work, [`wire_format`] what is stored in Redis.
//!
//! # When Redis is away
//!
//! Every call returns [within its bounds](StoreBuilder#how-long-a-call-can-take). An outage is an error that [is
//! unavailable](Error::is_unavailable), never a refusal. After three failures in a row the store returns this error at
//! once, until Redis is back. Layers fail closed by default: see [`StoreFailure`].
//!
//! # Overload
//!
//! The queue of operations is [bounded](StoreBuilder::max_queued). A call beyond the bound fails at once with an error
//! that [is overloaded](Error::is_overloaded). That is not an outage, so no layer fails open because of it. Layers are
//! always ready; to shed load earlier, put tower's `LoadShed` and `ConcurrencyLimit` outside of them.
//!
//! # Runtimes
//!
//! Each tokio runtime has its own connections, so a call depends only on the runtime that awaits it. Renewals and
//! releases run on a background thread of this crate: a lease is renewed and released even if the runtime that acquired
//! it is idle. Calls also work outside of a runtime, except for single flights, which run in a task.
//!
//! # After a loss of Redis's state
//!
//! A restart without persistence, or a failover to a replica that lags, loses recent writes. Then buckets hold more
//! tokens than they should, by at most the tokens that were charged in the lost writes. Locks and permits can be
//! granted twice: see [`guarantees`]. Flights run again, and filters report forgotten items as new.
//!
//! # Types of other crates
//!
//! The public API uses these types of other crates, and no others. A new major version of one of these crates is a new
//! major version of this crate.
//!
//! | crate | types | where |
//! |---|---|---|
//! | `tower`, `tower-layer` | `Layer`, `Service`, `BoxError` | layers, codecs, [`ProvideCredentials`] |
//! | `deadpool-redis` (feature `pools`) | `Pool`, and those of `cluster` and `sentinel` | `Store::from`; re-exported as [`deadpool_redis`] |
//! | `tokio` | `time::Instant`, `runtime::Handle` | [`LeaseHandle::until`], [`StoreBuilder::background`] |
//! | `http`, `http-body`, `bytes` | requests, responses, header fields, bodies | `web`, `extract`, `response`, `grpc` |
//! | `serde` | `Serialize`, `Deserialize` | codecs of single flights; quotas with the feature `serde` |
//! | `tonic` | `Status` | `grpc::status` |
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `rate-limit`, `concurrency-limit`, `mutex`, `rw-lock`, `single-flight`, `dedupe` | yes | each primitive with its layer: leave out what you do not use |
//! | `quorum` | | mutexes on several independent servers: [`mutex`]; switches on `mutex` |
//! | `operator` | | module [`operator`]; switches on all primitives |
//! | `http` | yes | modules [`web`], [`extract`] and [`response`]: layers for HTTP in one line, key extractors, refusals as responses |
//! | `axum` | | key extractors by axum's `MatchedPath`, `OriginalUri` and `ConnectInfo` |
//! | `postcard` | yes | answers of single flights as serde values in the postcard format |
//! | `json` | | answers of single flights as JSON |
//! | `serde` | | [`Quota`] and [`Quotas`] as text, such as `100/min, burst 20` |
//! | `tonic` | | module `grpc`: layers for gRPC in one line, refusals as statuses |
//! | `tracing`, `metrics` | | events and metrics of outages, decisions, leases and load: [all of them](telemetry) |
//! | `pools` | yes | stores on pools of `deadpool-redis`: `Store::from`, [`StoreBuilder::pool`] |
//! | `cluster` | | a Redis Cluster, by URLs or a `deadpool_redis::cluster::Pool` |
//! | `sentinel` | | the master that Redis Sentinel names, by URLs or a `deadpool_redis::sentinel::Pool` |
//! | `rustls` | | `rediss://` URLs by rustls, with the root certificates of the operating system |
//! | `rustls-webpki-roots` | | the same with Mozilla's root certificates |
//! | `native-tls` | | `rediss://` URLs by the library of the operating system (on Linux OpenSSL; if `rustls` is on, that is used) |
//!
//! What default features cost, in crates and in CPU time of a cold debug build (2026-12-01, Rust 1.95, 2 virtual cores, beside
//! other programs):
//!
//! | features | crates | CPU seconds |
//! |---|---|---|
//! | the default ones | 95 | 91 |
//! | without `pools` | −3 | −1 |
//! | without `postcard` | −6 | −4 |
//! | without `http` | −8 | −6 |
//! | without `dedupe` | 0 | −7 |
//! | without `single-flight`, `dedupe` and `postcard` | −8 | −12 |
//! | none | 76 | 61 |
//! | `pools`, `single-flight`, `dedupe`, `http`, `postcard`: each alone | +3, +2, +2, +8, +8 | |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "http", feature = "operator", feature = "quorum")),
    allow(rustdoc::broken_intra_doc_links)
)]
// Without some of the features, parts of the code that they share are unused.
#![cfg_attr(
    not(all(feature = "operator", feature = "quorum")),
    allow(dead_code, unreachable_pub, unused_imports, unused_macros)
)]

#[macro_use]
mod macros;

#[cfg(feature = "concurrency-limit")]
mod adaptive;
#[cfg(feature = "dedupe")]
pub mod bloom_filter;
#[cfg(feature = "rate-limit")]
mod bucket;
mod clock;
#[cfg(feature = "dedupe")]
pub mod dedupe;
mod error;
pub mod extract;
#[cfg(any(feature = "concurrency-limit", feature = "rate-limit"))]
pub mod fleet;
#[cfg(feature = "tonic")]
pub mod grpc;
#[cfg_attr(
    not(all(feature = "axum", feature = "tonic")),
    allow(rustdoc::broken_intra_doc_links)
)]
pub mod guide;
#[doc = include_str!("docs/guarantees.md")]
pub mod guarantees {}
#[cfg(feature = "http")]
mod http;
#[cfg(all(feature = "http", feature = "dedupe"))]
mod idempotency;
#[cfg(interleavings)]
pub mod interleavings;
mod key;
mod layers;
#[cfg(feature = "rate-limit")]
mod learn;
pub mod lease;
#[cfg(feature = "mutex")]
pub mod mutex;
#[cfg(feature = "operator")]
pub mod operator;
#[doc = include_str!("docs/protocol.md")]
pub mod protocol {}
#[cfg(feature = "quorum")]
mod quorum;
#[cfg(any(feature = "concurrency-limit", feature = "rate-limit"))]
mod refused_keys;
#[cfg(feature = "rw-lock")]
pub mod rw_lock;
#[cfg(feature = "single-flight")]
pub mod single_flight;
mod store;
#[cfg(simulation)]
pub use store::dial;
mod sync;
#[doc = include_str!("docs/telemetry.md")]
pub mod telemetry;
#[cfg(test)]
mod tests;
#[cfg(feature = "rate-limit")]
pub mod token_bucket;
#[cfg(feature = "concurrency-limit")]
pub mod wait_group;
#[doc = include_str!("docs/wire_format.md")]
pub mod wire_format {}

#[cfg(feature = "http")]
pub use self::http::{response, web};
#[cfg(feature = "dedupe")]
pub use bloom_filter::BloomFilter;
#[cfg(feature = "rate-limit")]
pub use bucket::{quota::Quota, quotas::Quotas};
/// The version of `deadpool-redis` whose pools [`Store`] accepts.
#[cfg(feature = "pools")]
pub use deadpool_redis;
#[cfg(feature = "dedupe")]
pub use dedupe::{Dedupe, DedupeLayer};
pub use error::Error;
#[cfg(feature = "rate-limit")]
pub use fleet::FleetQuotas;
pub use key::{IntoKey, Key};
pub use layers::Layered;
pub use layers::key::{Extracted, KeyExtractor};
pub use layers::refusal::{AsError, Refusal, RefusalKind, Reject};
pub use lease::{Lease, LeaseHandle};
#[cfg(feature = "mutex")]
pub use mutex::{Mutex, MutexGuard, MutexGuards, MutexLayer};
#[cfg(feature = "rw-lock")]
pub use rw_lock::{RwLock, RwLockLayer};
#[cfg(feature = "single-flight")]
pub use single_flight::{SingleFlight, SingleFlightLayer};
pub use store::Store;
pub use store::address::IntoPool;
pub use store::builder::StoreBuilder;
pub use store::credentials::{Credentials, ProvideCredentials};
pub use store::failure::StoreFailure;
pub use store::stats::{BreakerState, StoreStats};
#[cfg(feature = "rate-limit")]
pub use token_bucket::{BudgetLayer, QuotaTable, RateLimitLayer, TokenBucket, TokenBuckets};
#[cfg(feature = "concurrency-limit")]
pub use wait_group::{ConcurrencyLimitLayer, Permit, WaitGroup};

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
