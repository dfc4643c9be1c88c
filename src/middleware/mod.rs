//! What all layers share: key extractors, refusals, the cost of a request, their service and its readiness.

use std::pin::Pin;

use futures_util::FutureExt as _;
use tokio::task::coop::has_budget_remaining;

pub(crate) mod away;
mod cost;
pub(crate) mod detached;
pub(crate) mod key;
mod layered;
mod reject;

pub use self::cost::Cost;
pub use self::key::{Extracted, IntoKey, KeyExtractor};
pub use self::layered::Layered;
pub(crate) use self::layered::{Middleware, give_up_ready, take_ready};
pub(crate) use self::reject::refused;
pub use self::reject::{AsError, Refusal, RefusalKind, Reject};

/// A closure of the user that chooses something for a request.
pub(crate) type Choose<Req, T> = std::sync::Arc<dyn Fn(&Req) -> T + Send + Sync>;

/// Returns the answer of a store in memory to a request that does not wait. It is there at once, so no future is stored.
/// `None`: it would have to wait, for example because the budget of the task is spent. It is dropped then, which withdraws
/// what it asked for, and the request is made anew.
pub(crate) fn at_once<F: Future>(asked: Pin<&mut F>) -> Option<F::Output> {
    if has_budget_remaining() {
        asked.now_or_never()
    } else {
        None
    }
}
