//! The primitives: usable without tower, and knowing nothing of it.

pub(crate) mod bloom_filter;
mod clock;
#[cfg(test)]
#[cfg(feature = "postcard")]
mod days;
pub(crate) mod dedupe;
pub(crate) mod lease;
pub(crate) mod mutex;
pub(crate) mod operator;
mod percent;
pub(crate) mod quota;
pub(crate) mod rw_lock;
pub(crate) mod single_flight;
mod stored_layout;
pub(crate) mod token_bucket;
pub(crate) mod wait_group;
