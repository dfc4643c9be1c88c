//! Claims without false positives. The digest of each handled item is stored until it expires.

mod bucket;
mod builder;
mod claims;
mod items;
mod layout;
#[cfg(test)]
mod tests;

pub(crate) use self::bucket::Bucket;
pub use self::builder::ExactBuilder;
pub(crate) use self::claims::{Exact, ExactClaims};
pub(crate) use self::items::{Stored, forget, look, stored};
pub(crate) use self::layout::{Digest, Layout};
