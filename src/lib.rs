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
//! A request goes through a layer, which names its **key** and asks a **primitive**, which takes one step on the key's
//! state in a **store**. The decision either lets the request on to the inner service or becomes a [`Refusal`].
//!
//! | layer | primitive | |
//! |---|---|---|
//! | [`RateLimitLayer`] | [`TokenBucket`], [`TokenBuckets`] | at most `rate` per period with a `burst`; [the whole story](token_bucket) |
//! | [`ConcurrencyLimitLayer`] | [`WaitGroup`] | at most N at once; [the whole story](wait_group) |
//! | [`RwLockLayer`] | [`RwLock`] | readers share, a writer is alone; [the whole story](rw_lock) |
//! | [`SingleFlightLayer`] | [`SingleFlight`] | one does the work, the others get its answer; [the whole story](single_flight) |
//! | [`DedupeLayer`] | [`Dedupe`], [`BloomFilter`] | what was handled once is not handled again, exactly or by a filter; [the whole story](dedupe) |
//! | [`MutexLayer`] | [`Mutex`] | one at a time, on one server or a quorum; [the whole story](mutex) |
//!
//! A primitive is a namespace of states in a [`Store`], one per key, and can be used without tower. What is held for a
//! while is a [`Lease`]: renewed while it is held, and telling when it is lost.
//!
//! # When Redis is away
//!
//! Every call ends [within its bounds](StoreBuilder#how-long-a-call-can-take) with an error that
//! [is an outage](Error::is_unavailable), never a refusal; after three failures in a row the store answers at once until
//! Redis is back. Layers refuse such requests unless told otherwise: see [`StoreFailure`].
//!
//! # When there is too much to do
//!
//! What waits for Redis is [bounded](StoreBuilder::max_queued). A call beyond the bound
//! [is overloaded](Error::is_overloaded): refused at once, not an outage, and never a reason to let a request pass. Layers
//! stay ready all the same; to shed load earlier, put tower's `LoadShed` and `ConcurrencyLimit` outside of them.
//!
//! # Runtimes
//!
//! A call depends on nothing but the runtime it is awaited on: each has connections of its own. Renewals and releases run
//! on a thread of this crate's, so a lease is kept and given back whether or not the runtime that took it runs. Calls may
//! also be made outside of any runtime, but for single flights, which run in a task.
//!
//! # After a loss of Redis's state
//!
//! A restart without persistence, or a failover to a replica that lagged, forgets what was charged since: buckets
//! are fuller than they should be, by at most what was forgotten. Locks and permits can be granted a second time: see
//! [`guarantees`]. Flights run again, and filters take what they forgot for new.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `http` | yes | modules [`web`], [`extract`] and [`response`]: layers for HTTP in one line, key extractors, refusals as responses |
//! | `axum` | | key extractors by axum's `MatchedPath`, `OriginalUri` and `ConnectInfo` |
//! | `postcard` | yes | answers of single flights as serde values in the postcard format |
//! | `json` | | answers of single flights as JSON |
//! | `serde` | | [`Quota`] and [`Quotas`] as text, such as `100/min, burst 20` |
//! | `tonic` | | module `grpc`: refusals as statuses |
//! | `tracing`, `metrics` | | events and metrics of outages, decisions, leases and load: [all of them](telemetry) |
//! | `cluster` | | [`Store`] from a `deadpool_redis::cluster::Pool` |
//! | `sentinel` | | [`Store`] from a `deadpool_redis::sentinel::Pool` |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "http"), allow(rustdoc::broken_intra_doc_links))]

pub mod bloom_filter;
pub mod dedupe;
mod error;
pub mod extract;
#[cfg(feature = "tonic")]
pub mod grpc;
#[doc = include_str!("docs/guarantees.md")]
pub mod guarantees {}
mod layer;
pub mod lease;
pub mod mutex;
mod primitive;
mod random;
#[cfg(feature = "http")]
pub mod response;
pub mod rw_lock;
pub mod single_flight;
mod store;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
#[doc = include_str!("docs/telemetry.md")]
pub mod telemetry;
pub mod token_bucket;
pub mod wait_group;
#[cfg(feature = "http")]
pub mod web;

pub use error::Error;
pub use layer::concurrency_limit::ConcurrencyLimitLayer;
pub use layer::dedupe::DedupeLayer;
pub use layer::mutex::MutexLayer;
pub use layer::rate_limit::{QuotaTable, RateLimitLayer};
pub use layer::rw_lock::RwLockLayer;
pub use layer::single_flight::SingleFlightLayer;
pub use layer::{Admission, AsError, Extracted, IntoKey, KeyExtractor, Refusal, RefusalKind, Reject};
pub use primitive::bloom_filter::BloomFilter;
pub use primitive::dedupe::Dedupe;
pub use primitive::lease::{Lease, LeaseHandle};
pub use primitive::mutex::{Mutex, MutexGuard};
pub use primitive::quota::{LiveQuotas, Quota, Quotas};
pub use primitive::rw_lock::RwLock;
pub use primitive::single_flight::SingleFlight;
pub use primitive::token_bucket::{TokenBucket, TokenBuckets};
pub use primitive::wait_group::{Permit, WaitGroup};
pub use store::{BreakerState, IntoPool, Key, Ping, Store, StoreBuilder, StoreFailure};

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
