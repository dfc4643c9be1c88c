//! The primitives: usable without tower, and knowing nothing of it.

pub mod bloom_filter;
mod clock;
pub mod dedupe;
pub mod lease;
pub mod mutex;
mod percent;
pub(crate) mod quota;
pub mod rw_lock;
pub mod single_flight;
pub mod token_bucket;
pub mod wait_group;
