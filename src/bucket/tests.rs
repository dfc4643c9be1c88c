//! Tests of the steps on buckets as a whole: in Lua and in Rust.

mod agreement;
pub(crate) mod fixtures;
