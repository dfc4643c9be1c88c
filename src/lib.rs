#![cfg_attr(docsrs, feature(doc_cfg))]
//! tower-distributed

mod error;
#[cfg(feature = "tonic")]
pub mod grpc;
#[cfg(feature = "http")]
pub mod http;
mod layer;
mod primitive;
mod store;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub use error::Error;
pub use layer::rate_limit::{self, RateLimitLayer, WhenAway};
pub use layer::{AsError, IntoKey, KeyExtractor, Refusal, RefusalKind, Reject};
pub use primitive::quota::{Quota, Quotas};
pub use primitive::token_bucket::{self, TokenBucket};
pub use store::{IntoPool, Key, Store, StoreBuilder};
