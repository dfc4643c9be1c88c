//! The tower tier: each primitive as a `Layer` and a `Service`.

pub mod concurrency_limit;
pub mod dedupe;
mod key;
pub mod leased;
pub mod mutex;
pub mod rate_limit;
mod reject;
pub mod rw_lock;
pub mod single_flight;

pub use self::key::{IntoKey, KeyExtractor, KeyFn};
pub use self::reject::{AsError, Refusal, RefusalKind, Reject};
