//! What happens when Redis, or the way to it, fails.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attackers;
mod bad_input;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod certificates;
#[cfg(feature = "cluster")]
mod cluster;
mod credentials;
#[cfg(feature = "cluster")]
mod durable_cluster;
#[cfg(feature = "sentinel")]
mod failover;
mod fsync;
mod functions;
mod late_captures;
mod leases;
mod not_serving;
mod other_servers;
mod pools;
mod resent;
mod several_holds;
#[cfg(feature = "cluster")]
mod shards;
#[cfg(feature = "cluster")]
mod slots;
#[cfg(feature = "sentinel")]
mod switches;
#[cfg(all(feature = "cluster", feature = "sentinel", feature = "postcard"))]
mod table;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod tls;
mod woken;
