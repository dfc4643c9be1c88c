//! Requests that are handled once. See the public module `dedupe`.

mod duplicate;
mod future;
mod service;
mod success;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use self::duplicate::{AnswerWith, MarkWith};
pub use self::duplicate::{ConfirmDuplicate, DuplicateAction, Evidence, OnDuplicate, RefuseDuplicates};
pub use self::future::ResponseFuture;
pub use self::service::DedupeService;
use self::success::IsOk;
pub use self::success::IsSuccess;

use super::key::DynKey;
use super::leased::{OnLease, OnLeases};
use crate::{AsError, Dedupe, Error, Key, KeyExtractor, Store, StoreFailure};

/// A [`Layer`] that does not handle again what was handled; see the [module](crate::dedupe) for the whole story.
///
/// Its parameters are the types of the requests, the responses and the errors of the inner service, and what becomes of
/// [refusals](Self::reject_with).
pub struct DedupeLayer<Req, Res, E, R = AsError> {
    config: Config<Req, Res, E, R>,
}

/// All that a service needs to know; shared by its clones.
pub(crate) struct Config<Req, Res, E, R> {
    key: DynKey<Req>,
    success: Arc<dyn IsSuccess<Res, E> + Send + Sync>,
    on_duplicate: Arc<dyn OnDuplicate<Req, Res> + Send + Sync>,
    /// `None`: the filter is believed.
    confirm_duplicate: Option<Arc<dyn ConfirmDuplicate<Req> + Send + Sync>>,
    on_lease: OnLeases<Req>,
    reject: R,
    common: Common,
}

/// What is of the same type for all layers.
#[derive(Clone)]
struct Common {
    dedupe: Dedupe,
    max_wait: Option<Duration>,
    away: Away,
    on_unsure: OnUnsure,
    cancel_when_lost: bool,
}

type OnUnsure = Option<Arc<dyn Fn(&Unsure) + Send + Sync>>;

#[derive(Clone)]
enum Away {
    FailClosed,
    FailOpen,
    LocalShare(Option<Dedupe>),
}

/// An item that was handled, and may be handled again.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unsure {
    /// The request's key.
    pub key: Key,
    /// `None`: the claim was lost, so that somebody else may have handled the item too; it is a duplicate from now on.
    /// Else why it could not be noted that it was handled; it goes on being tried while the claim lasts.
    pub error: Option<Error>,
}

impl<Req, Res, E> DedupeLayer<Req, Res, E> {
    /// Handles each item once, by the request's key.
    #[must_use]
    pub fn new(dedupe: Dedupe, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        Self {
            config: Config {
                key: Arc::new(key),
                success: Arc::new(IsOk),
                on_duplicate: Arc::new(RefuseDuplicates),
                confirm_duplicate: None,
                on_lease: Vec::new(),
                reject: AsError,
                common: Common {
                    dedupe,
                    max_wait: None,
                    away: Away::FailClosed,
                    on_unsure: None,
                    cancel_when_lost: false,
                },
            },
        }
    }
}

impl<Req, Res, E, R> DedupeLayer<Req, Res, E, R> {
    /// What of an outcome means that the item was handled, by a closure of `&Result<Res, E>`. Default: any response, and
    /// no error. For HTTP there is `web::IsHandled`.
    #[must_use]
    pub fn success(mut self, success: impl IsSuccess<Res, E> + Send + Sync + 'static) -> Self {
        self.config.success = Arc::new(success);
        self
    }

    /// What becomes of duplicates. Default: they are refused.
    #[must_use]
    pub fn on_duplicate(mut self, on_duplicate: impl OnDuplicate<Req, Res> + Send + Sync + 'static) -> Self {
        self.config.on_duplicate = Arc::new(on_duplicate);
        self
    }

    /// Lets duplicates pass to the inner service, marked by a closure of `&mut Req`. For HTTP there is
    /// `web::MarkDuplicate`, for [`on_duplicate`](Self::on_duplicate).
    #[must_use]
    pub fn mark_duplicates(self, mark: impl Fn(&mut Req) + Send + Sync + 'static) -> Self {
        self.on_duplicate(MarkWith(mark))
    }

    /// Answers duplicates by a closure from `&Req` to the response.
    #[must_use]
    pub fn answer_duplicates(self, answer: impl Fn(&Req) -> Res + Send + Sync + 'static) -> Self {
        self.on_duplicate(AnswerWith(answer))
    }

    /// Refuses duplicates: the default, but of `web::dedupe`.
    #[must_use]
    pub fn refuse_duplicates(self) -> Self {
        self.on_duplicate(RefuseDuplicates)
    }

    /// Looks up whether what the filter takes for a duplicate is one, by a closure from `&Req` to a future of `bool`,
    /// which borrows nothing from the request. What is none is handled, if once it is claimed that is still so.
    #[must_use]
    pub fn confirm_duplicate(mut self, confirm: impl ConfirmDuplicate<Req> + Send + Sync + 'static) -> Self {
        self.config.confirm_duplicate = Some(Arc::new(confirm));
        self
    }

    /// Shows requests that have their claim what watches it, by a closure of `(&LeaseHandle, &mut Req)`. For HTTP there
    /// is `web::InsertLease`.
    #[must_use]
    pub fn on_lease(mut self, on_lease: impl OnLease<Req> + Send + Sync + 'static) -> Self {
        self.config.on_lease.push(Arc::new(on_lease));
        self
    }

    /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
    /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is `response::refuse()`,
    /// for gRPC `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> DedupeLayer<Req, Res, E, R2> {
        let Config { key, success, on_duplicate, confirm_duplicate, on_lease, reject: _, common } =
            self.config;
        DedupeLayer {
            config: Config { key, success, on_duplicate, confirm_duplicate, on_lease, reject, common },
        }
    }

    /// Waits for what comes of an item that is being handled elsewhere, up to this long: if it fails there, it is handled
    /// here. Default: it is refused.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.config.common.max_wait = Some(max_wait);
        self
    }

    /// What to do while the store gives no answer. Default: [`StoreFailure::FailClosed`].
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        self.config.common.away = match on_store_failure {
            StoreFailure::FailClosed => Away::FailClosed,
            StoreFailure::FailOpen => Away::FailOpen,
            StoreFailure::LocalShare { .. } => {
                Away::LocalShare(self.config.common.dedupe.in_store(&Store::in_memory()).ok())
            }
        };
        self
    }

    /// Told of each item that was handled and may be handled again.
    #[must_use]
    pub fn on_unsure(mut self, told: impl Fn(&Unsure) + Send + Sync + 'static) -> Self {
        self.config.common.on_unsure = Some(Arc::new(told));
        self
    }

    /// Whether the inner service's future is dropped when the claim is lost, and the request refused as
    /// [`LeaseLost`](crate::RefusalKind::LeaseLost). Default: no.
    #[must_use]
    pub fn cancel_when_lost(mut self, cancel: bool) -> Self {
        self.config.common.cancel_when_lost = cancel;
        self
    }
}

impl<S, Req, Res, E, R: Clone> Layer<S> for DedupeLayer<Req, Res, E, R> {
    type Service = DedupeService<S, Req, Res, E, R>;

    fn layer(&self, inner: S) -> Self::Service {
        DedupeService::new(inner, self.config.clone())
    }
}

impl<Req, Res, E, R: Clone> Clone for DedupeLayer<Req, Res, E, R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<Req, Res, E, R: Clone> Clone for Config<Req, Res, E, R> {
    fn clone(&self) -> Self {
        let Self { key, success, on_duplicate, confirm_duplicate, on_lease, reject, common } = self;
        Self {
            key: Arc::clone(key),
            success: Arc::clone(success),
            on_duplicate: Arc::clone(on_duplicate),
            confirm_duplicate: confirm_duplicate.clone(),
            on_lease: on_lease.clone(),
            reject: reject.clone(),
            common: common.clone(),
        }
    }
}

impl<Req, Res, E, R> fmt::Debug for Config<Req, Res, E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("dedupe", &self.common.dedupe).finish_non_exhaustive()
    }
}

impl<Req, Res, E, R> fmt::Debug for DedupeLayer<Req, Res, E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupeLayer").field("config", &self.config).finish()
    }
}
