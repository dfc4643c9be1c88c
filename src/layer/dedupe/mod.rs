//! [`DedupeLayer`]: what was handled once is not handled again, in whatever process.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{BloomFilter, Dedupe, DedupeLayer, Refusal, RefusalKind, Store};
//!
//! struct Event { id: String }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let day = std::time::Duration::from_secs(86_400);
//! let builder = BloomFilter::builder().capacity(1_000_000).false_positive_rate(1e-6);
//! let seen = builder.remember_for(day).build(&store, "events")?;
//!
//! let mut handle = ServiceBuilder::new()
//!     .layer(DedupeLayer::new(Dedupe::new(&seen)?, |event: &Event| event.id.clone()))
//!     .service(service_fn(async |event: Event| Ok::<_, std::io::Error>(format!("handled {}", event.id))));
//!
//! assert_eq!(handle.ready().await?.call(Event { id: "evt_1".into() }).await?, "handled evt_1");
//! let error = handle.ready().await?.call(Event { id: "evt_1".into() }).await.unwrap_err();
//! assert_eq!(error.downcast_ref::<Refusal>().map(Refusal::kind), Some(RefusalKind::Duplicate));
//! # Ok(()) }
//! ```
//!
//! # What becomes of a request
//!
//! Its [key](crate::KeyExtractor), by a closure or function, names the item; `None` lets the request pass. The item is
//! claimed, the inner service called, and the claim confirmed if the outcome is a [success](DedupeLayer::success):
//! from then on the item is a duplicate. After a failure, a panic, or if the response future is dropped, the claim is
//! given back, so that the request may be sent again. The response is held back until that is done: whoever gets it
//! can rely on it. See [`dedupe`](crate::dedupe) for what holds, and for the choice between exact mode and a filter, whose
//! **false positives are not handled**.
//!
//! | the item | |
//! |---|---|
//! | is new | handled |
//! | was handled | refused as [`Duplicate`](crate::RefusalKind::Duplicate); or [marked](DedupeLayer::mark_duplicates) and handled; or [answered](DedupeLayer::answer_duplicates) by a closure |
//! | is being handled elsewhere | refused as [`InFlight`](crate::RefusalKind::InFlight); or [waited](DedupeLayer::wait_up_to) for |
//!
//! Where the truth can be looked up, [`confirm_duplicate`](DedupeLayer::confirm_duplicate) does that for what the filter takes
//! for a duplicate, and what is none is handled. What a filter beyond its capacity takes for a duplicate is
//! [handled](crate::dedupe::FilterFull) unless it is looked up.
//!
//! Where several senders share the layer, key it by the sender and the id: two extractors in a tuple, or
//! [`Key::of`](crate::Key::of). Requests without a key pass and are not deduplicated: refuse what has no id before.
//!
//! # When a claim is lost
//!
//! By a process that stood still, or a store that forgot, a claim can be lost while its item is handled, and somebody
//! else may handle it too. That is told to [`on_unsure`](DedupeLayer::on_unsure), and as an event (`claim_lost`,
//! `claim_not_confirmed`; see [`telemetry`](crate::telemetry)). The handler can
//! watch its claim by [`on_lease`](DedupeLayer::on_lease), or be [cancelled](DedupeLayer::cancel_when_lost).
//!
//! # When the store is away
//!
//! [`StoreFailure::FailClosed`] unless set. `FailOpen` handles without a claim, duplicates too; `LocalShare` remembers in this process
//! alone.
//!
//! # Readiness
//!
//! `poll_ready` is the inner service's; the instance that was polled ready is the one that is called, from the response
//! future.

mod duplicate;
mod future;
mod service;
mod success;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

pub use self::duplicate::{
    AnswerWith, ConfirmDuplicate, Evidence, MarkWith, OnDuplicate, RefuseDuplicates, Verdict,
};
pub use self::future::ResponseFuture;
pub use self::service::Deduped;
pub use self::success::{IsOk, IsSuccess};

use crate::{AsError, Dedupe, Error, Key, Store, StoreFailure};

/// A [`Layer`] that does not handle again what was handled; see the [module](self) for the whole story.
pub struct DedupeLayer<K, U = IsOk, D = RefuseDuplicates, Q = (), N = (), R = AsError> {
    config: Config<K, U, D, Q, N, R>,
}

/// All that a service needs to know; shared by its clones.
#[derive(Clone)]
pub(crate) struct Config<K, U, D, Q, N, R> {
    key: K,
    success: U,
    on_duplicate: D,
    confirm_duplicate: Q,
    on_lease: N,
    reject: R,
    common: Common,
}

/// What is of the same type for all layers.
#[derive(Clone)]
struct Common {
    dedupe: Dedupe,
    longest_wait: Option<Duration>,
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

impl<K> DedupeLayer<K> {
    /// Handles each item once, by the request's key.
    #[must_use]
    pub fn new(dedupe: Dedupe, key: K) -> Self {
        Self {
            config: Config {
                key,
                success: IsOk,
                on_duplicate: RefuseDuplicates,
                confirm_duplicate: (),
                on_lease: (),
                reject: AsError,
                common: Common {
                    dedupe,
                    longest_wait: None,
                    away: Away::FailClosed,
                    on_unsure: None,
                    cancel_when_lost: false,
                },
            },
        }
    }
}

impl<K, U, D, Q, N, R> DedupeLayer<K, U, D, Q, N, R> {
    /// What of an outcome means that the item was handled, by a closure of `&Result<Res, E>`. Default: any response, and
    /// no error. For HTTP there is `http::IsHandled`.
    #[must_use]
    pub fn success<U2>(self, success: U2) -> DedupeLayer<K, U2, D, Q, N, R> {
        let Config { key, success: _, on_duplicate, confirm_duplicate, on_lease, reject, common } =
            self.config;
        DedupeLayer {
            config: Config { key, success, on_duplicate, confirm_duplicate, on_lease, reject, common },
        }
    }

    /// What becomes of duplicates. Default: they are refused.
    #[must_use]
    pub fn on_duplicate<D2>(self, on_duplicate: D2) -> DedupeLayer<K, U, D2, Q, N, R> {
        let Config { key, success, on_duplicate: _, confirm_duplicate, on_lease, reject, common } =
            self.config;
        DedupeLayer {
            config: Config { key, success, on_duplicate, confirm_duplicate, on_lease, reject, common },
        }
    }

    /// Lets duplicates pass to the inner service, marked by a closure of `&mut Req`. For HTTP there is
    /// `http::MarkDuplicate`, for [`on_duplicate`](Self::on_duplicate).
    #[must_use]
    pub fn mark_duplicates<F>(self, mark: F) -> DedupeLayer<K, U, MarkWith<F>, Q, N, R> {
        self.on_duplicate(MarkWith(mark))
    }

    /// Answers duplicates by a closure from `&Req` to the response.
    #[must_use]
    pub fn answer_duplicates<F>(self, answer: F) -> DedupeLayer<K, U, AnswerWith<F>, Q, N, R> {
        self.on_duplicate(AnswerWith(answer))
    }

    /// Looks up whether what the filter takes for a duplicate is one, by a closure from `&Req` to a future of `bool`,
    /// which borrows nothing from the request. What is none is handled, if once it is claimed that is still so.
    #[must_use]
    pub fn confirm_duplicate<Q2>(self, confirm: Q2) -> DedupeLayer<K, U, D, Q2, N, R> {
        let Config { key, success, on_duplicate, confirm_duplicate: _, on_lease, reject, common } =
            self.config;
        DedupeLayer {
            config: Config {
                key,
                success,
                on_duplicate,
                confirm_duplicate: confirm,
                on_lease,
                reject,
                common,
            },
        }
    }

    /// Shows requests that have their claim what watches it, by a closure of `(&LeaseHandle, &mut Req)`. For HTTP there
    /// is `http::InsertLease`.
    #[must_use]
    pub fn on_lease<N2>(self, on_lease: N2) -> DedupeLayer<K, U, D, Q, N2, R> {
        let Config { key, success, on_duplicate, confirm_duplicate, on_lease: _, reject, common } =
            self.config;
        DedupeLayer {
            config: Config { key, success, on_duplicate, confirm_duplicate, on_lease, reject, common },
        }
    }

    /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
    /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is `http::refuse()`,
    /// for gRPC `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> DedupeLayer<K, U, D, Q, N, R2> {
        let Config { key, success, on_duplicate, confirm_duplicate, on_lease, reject: _, common } =
            self.config;
        DedupeLayer {
            config: Config { key, success, on_duplicate, confirm_duplicate, on_lease, reject, common },
        }
    }

    /// Waits for what comes of an item that is being handled elsewhere, up to this long: if it fails there, it is handled
    /// here. Default: it is refused.
    #[must_use]
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.config.common.longest_wait = Some(longest);
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

impl<S, K, U, D, Q, N, R> Layer<S> for DedupeLayer<K, U, D, Q, N, R>
where
    K: Clone,
    U: Clone,
    D: Clone,
    Q: Clone,
    N: Clone,
    R: Clone,
{
    type Service = Deduped<S, K, U, D, Q, N, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Deduped::new(inner, self.config.clone())
    }
}

impl<K: Clone, U: Clone, D: Clone, Q: Clone, N: Clone, R: Clone> Clone for DedupeLayer<K, U, D, Q, N, R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<K, U, D, Q, N, R> fmt::Debug for Config<K, U, D, Q, N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("dedupe", &self.common.dedupe).finish_non_exhaustive()
    }
}

impl<K, U, D, Q, N, R> fmt::Debug for DedupeLayer<K, U, D, Q, N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupeLayer").field("config", &self.config).finish()
    }
}
