//! The store engine: runtimes that do not depend on each other, outages, overload, and what they cost. What is to be done once,
//! when callers, Redis, or the way to it fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

// It takes longest, and by its name it begins first.
mod all_quiet;
#[cfg(feature = "cluster")]
mod cluster;
mod ends;
mod in_memory;
#[cfg(feature = "tracing")]
mod once_dedupe_faults;
#[cfg(feature = "postcard")]
mod once_faults;
mod outages;
mod overload;
mod reconnects;
mod runtimes;
mod secrets;
mod shutdown;
mod slow;
#[cfg(target_os = "linux")]
mod sockets;
mod stalled;
mod undo;
