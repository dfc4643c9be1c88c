//! The hooks of a layer: traits for its settings.

use std::sync::Arc;
use std::time::Duration;

use crate::middleware::Cost;
use crate::token_bucket::Decision;
use crate::{Admission, Key};
use derive_where::derive_where;

/// A hook for admitted requests, before the inner service gets them. Implemented by functions and closures of
/// `(&Decision, &mut Req)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be called with an admitted `{Req}`",
    note = "pass a closure with typed arguments: `|decision: &Decision, request: &mut Request| ...`"
)]
pub trait OnAdmit<Req> {
    /// Called with the decision that admitted the request.
    fn on_admit(&self, decision: &Decision, request: &mut Req);
}

impl<Req, F: Fn(&Decision, &mut Req)> OnAdmit<Req> for F {
    fn on_admit(&self, decision: &Decision, request: &mut Req) {
        self(decision, request);
    }
}

/// A hook for responses to admitted requests. Implemented by functions and closures of `(&Decision, &mut Res)`.
///
/// A type that implements this trait also gets the key of the request:
///
/// ```
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_distributed::token_bucket::OnResponse;
/// use tower_distributed::{Admission, Quota, RateLimitLayer, Store, TokenBucket};
///
/// /// Tells each caller how many requests it has left.
/// struct WithLeft;
///
/// impl OnResponse<String> for WithLeft {
///     fn on_response(&self, admission: &Admission<'_>, reply: &mut String) {
///         *reply += &format!(", {:?} has {} left", admission.key(), admission.decision().remaining());
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(10))?;
/// let limit = RateLimitLayer::new(bucket, |user: &&'static str| *user).on_response(WithLeft);
/// let send = async |_: &'static str| Ok::<_, std::io::Error>("sent".to_owned());
/// assert_eq!(limit.layer(service_fn(send)).oneshot("ann").await?, "sent, Key(ann) has 9 left");
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be called with a response `{Res}`",
    note = "pass a closure with typed arguments: `|decision: &Decision, response: &mut Response| ...`"
)]
pub trait OnResponse<Res> {
    /// Called with what the limit knows of the request.
    fn on_response(&self, admission: &Admission<'_>, response: &mut Res);
}

impl<Res, F: Fn(&Decision, &mut Res)> OnResponse<Res> for F {
    fn on_response(&self, admission: &Admission<'_>, response: &mut Res) {
        self(admission.decision(), response);
    }
}

/// Reads from a response how long to block its key. Implemented by functions and closures from `&Res` to
/// `Option<Duration>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read how long to wait from a `{Res}`",
    note = "pass a closure with a typed argument that returns `Option<Duration>`, or `response::RetryAfter`"
)]
pub trait BlockOnResponse<Res> {
    /// Returns the duration of the block; `None`: no block.
    fn block_on_response(&self, response: &Res) -> Option<Duration>;
}

impl<Res, F: Fn(&Res) -> Option<Duration>> BlockOnResponse<Res> for F {
    fn block_on_response(&self, response: &Res) -> Option<Duration> {
        self(response)
    }
}

type OnRefused<Req> = Arc<dyn Fn(&Req, &Key, &Decision) + Send + Sync>;

/// The hooks of a layer. Hooks of one kind are called in the order in which they were set.
#[derive_where(Clone, Default)]
pub(super) struct Hooks<Req, Res> {
    /// Called first, and for refused requests as well.
    pub(super) fields: Option<Arc<dyn OnResponse<Res> + Send + Sync>>,
    pub(super) on_admit: Vec<Arc<dyn OnAdmit<Req> + Send + Sync>>,
    pub(super) on_refused: Vec<OnRefused<Req>>,
    pub(super) on_response: Vec<Arc<dyn OnResponse<Res> + Send + Sync>>,
    pub(super) block_on_response: Vec<Arc<dyn BlockOnResponse<Res> + Send + Sync>>,
    pub(super) cost_of_response: Vec<Arc<dyn Cost<Res> + Send + Sync>>,
}

impl<Req, Res> Hooks<Req, Res> {
    /// Whether no hook reads how a request was admitted.
    pub(super) fn are_unread(&self) -> bool {
        self.fields.is_none()
            && self.on_admit.is_empty()
            && self.on_response.is_empty()
            && self.block_on_response.is_empty()
            && self.cost_of_response.is_empty()
    }

    /// Calls the hooks for a response. Returns the longest block of the key, and the sum of all charges.
    pub(super) fn answered(
        &self,
        admission: Option<&Admission<'_>>,
        response: &mut Res,
    ) -> (Option<Duration>, u32) {
        let mut charge = 0;
        if let Some(admission) = admission {
            self.fields.iter().for_each(|hook| hook.on_response(admission, response));
            self.on_response.iter().for_each(|hook| hook.on_response(admission, response));
            // A request without a decision is charged nothing.
            let charges = self.cost_of_response.iter().map(|hook| hook.cost(response));
            charge = charges.fold(0, u32::saturating_add);
        }
        (self.block_on_response.iter().filter_map(|hook| hook.block_on_response(response)).max(), charge)
    }
}
