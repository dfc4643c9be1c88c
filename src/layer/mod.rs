//! The tower tier: each primitive as a `Layer` and a `Service`.

mod key;
pub mod rate_limit;
mod reject;

pub use self::key::{IntoKey, KeyExtractor, KeyFn};
pub use self::reject::{AsError, Refusal, RefusalKind, Reject};
