//! What becomes of claims when Redis, the way to it, or their holders fail.
#![cfg(feature = "tracing")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
mod dropped;
mod events;
mod losses;
mod outages;
mod scene;
mod wrong_types;
