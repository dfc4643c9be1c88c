//! The primitives: usable without tower.

pub(crate) mod quota;
pub mod token_bucket;
