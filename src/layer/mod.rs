//! The tower tier: each primitive as a `Layer` and a `Service`.

pub(crate) mod concurrency_limit;
pub(crate) mod dedupe;
pub(crate) mod key;
pub(crate) mod leased;
pub(crate) mod mutex;
pub(crate) mod rate_limit;
mod reject;
pub(crate) mod rw_lock;
pub(crate) mod single_flight;

pub use self::key::{Extracted, IntoKey, KeyExtractor, KeyFn, LookUp, look_up};
pub use self::reject::{Admission, AsError, Refusal, RefusalKind, Reject};

/// Takes the instance that was polled ready, which is the one to call. Its clone, which stays, is not ready yet.
pub(crate) fn take_ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}
