//! The store engine: runtimes that do not depend on each other, outages, overload, and what they cost.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

#[cfg(feature = "cluster")]
mod cluster;
mod embeddings;
mod ends;
mod in_memory;
mod leases;
mod no_runtime;
mod outages;
mod overload;
mod quiet;
mod reconnects;
mod secrets;
mod shutdown;
mod slow;
#[cfg(target_os = "linux")]
mod sockets;
mod stalled;
mod undo;

// Parked: they use API that does not exist yet. Take the comments away once it does.
mod builder_api; // StoreBuilder::{connect_timeout, queue_timeout, background}, Store::{ping, shutdown}
mod overload_bounds; // StoreBuilder::{max_queued, max_queued_bytes}, Error::is_overloaded, RefusalKind::Overloaded
