//! Requests that are handled under a lease: what [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer),
//! [`MutexLayer`](crate::MutexLayer) and [`RwLockLayer`](crate::RwLockLayer) share.

mod future;
mod hold;
mod service;
mod slot;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use self::future::ResponseFuture;
pub use self::hold::{Hold, UntilResponse};
pub use self::service::LeaseService;
pub use self::slot::LeaseSlot;

use crate::layer::key::DynKey;
use crate::telemetry::Outcome;
use crate::{AsError, Error, Extracted, Lease, LeaseHandle};

/// A lease under way; `None`: let through without one.
pub(crate) type Leasing = Pin<Box<dyn Future<Output = Result<Option<Lease>, Error>> + Send>>;

/// Gets leases for requests.
pub(crate) trait Provide<Req> {
    /// Asks for the lease of a request, once its key is known. `None`: the request passes without one.
    fn lease(&self, key: Extracted, request: &Req) -> Leasing;
}

/// Sees a request that has its lease before the inner service does. Functions and closures of
/// `(&LeaseHandle, &mut Req)` do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be called with the lease of a `{Req}`",
    note = "pass a closure with typed arguments: `|lease: &LeaseHandle, request: &mut Request| ...`"
)]
pub trait OnLease<Req> {
    /// Called with what watches the lease.
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Req);

    /// Called instead where the inner service may also take the lease along: by
    /// [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), [`MutexLayer`](crate::MutexLayer) and
    /// [`RwLockLayer`](crate::RwLockLayer). Calls
    /// [`on_lease`](Self::on_lease) unless implemented.
    fn on_slot(&self, lease: &LeaseHandle, _slot: &LeaseSlot, request: &mut Req) {
        self.on_lease(lease, request);
    }
}

impl<Req, F: Fn(&LeaseHandle, &mut Req)> OnLease<Req> for F {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Req) {
        self(lease, request);
    }
}

/// What is done while the store gives no answer; `L` stands in for it in the process.
#[derive(Clone, Debug)]
pub(crate) enum Away<L> {
    FailClosed,
    FailOpen,
    LocalShare(L),
}

impl<L> Away<L> {
    /// What comes of asking, where the store is away by `local`. `None`: let through without a lease.
    pub(crate) async fn settle<T, F: Future<Output = Result<T, Error>>>(
        self,
        asked: Result<T, Error>,
        local: impl FnOnce(L, Error) -> F,
    ) -> Result<(Option<T>, Outcome), Error> {
        match (asked, self) {
            (Err(error), Self::FailOpen) if error.is_away() => Ok((None, Outcome::FailedOpen)),
            (Err(error), Self::LocalShare(share)) if error.is_away() => {
                local(share, error).await.map(|lease| (Some(lease), Outcome::LocalShare))
            }
            (asked, _) => asked.map(|lease| (Some(lease), Outcome::Admitted)),
        }
    }
}

/// What sees the leases of requests, one after the other.
pub(crate) type OnLeases<Req> = Vec<Arc<dyn OnLease<Req> + Send + Sync>>;

/// All that a service needs to know; shared by its clones. `P` provides the leases.
pub(crate) struct Config<Req, P, H, R> {
    pub(crate) key: DynKey<Req>,
    pub(crate) provide: P,
    pub(crate) hold: H,
    pub(crate) on_lease: OnLeases<Req>,
    pub(crate) reject: R,
    pub(crate) cancel_when_lost: bool,
}

/// What provides leases, with its type erased.
pub(crate) type DynProvide<Req> = Arc<dyn Provide<Req> + Send + Sync>;

impl<Req, P> Config<Req, P, UntilResponse, AsError> {
    pub(crate) fn new(key: DynKey<Req>, provide: P) -> Self {
        let on_lease = Vec::new();
        Self { key, provide, hold: UntilResponse, on_lease, reject: AsError, cancel_when_lost: true }
    }
}

impl<Req, P, H, R> Config<Req, P, H, R> {
    pub(crate) fn hold<H2>(self, hold: H2) -> Config<Req, P, H2, R> {
        let Self { key, provide, hold: _, on_lease, reject, cancel_when_lost } = self;
        Config { key, provide, hold, on_lease, reject, cancel_when_lost }
    }

    pub(crate) fn reject<R2>(self, reject: R2) -> Config<Req, P, H, R2> {
        let Self { key, provide, hold, on_lease, reject: _, cancel_when_lost } = self;
        Config { key, provide, hold, on_lease, reject, cancel_when_lost }
    }

    /// The service of a layer that has this.
    pub(crate) fn service<S>(&self, inner: S) -> LeaseService<S, Req, H, R>
    where
        Req: 'static,
        P: Provide<Req> + Clone + Send + Sync + 'static,
        H: Clone,
        R: Clone,
    {
        let Self { key, provide, hold, on_lease, reject, cancel_when_lost } = self.clone();
        let provide: DynProvide<Req> = Arc::new(provide);
        LeaseService::new(inner, Config { key, provide, hold, on_lease, reject, cancel_when_lost })
    }
}

impl<Req, P: Clone, H: Clone, R: Clone> Clone for Config<Req, P, H, R> {
    fn clone(&self) -> Self {
        Self {
            key: Arc::clone(&self.key),
            provide: self.provide.clone(),
            hold: self.hold.clone(),
            on_lease: self.on_lease.clone(),
            reject: self.reject.clone(),
            cancel_when_lost: self.cancel_when_lost,
        }
    }
}

impl<Req, P: fmt::Debug, H, R> fmt::Debug for Config<Req, P, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("provide", &self.provide).finish_non_exhaustive()
    }
}

/// The settings that all layers of this kind have.
macro_rules! settings {
    ($layer:ident) => {
        impl<Req, H, R> $layer<Req, H, R> {
            /// Until when the lease is held, by a [`Hold`](crate::lease::Hold). For HTTP there is
            /// `response::UntilBodyEnd`, with limits for bodies that stall or last too long.
            #[must_use]
            pub fn hold<H2>(self, hold: H2) -> $layer<Req, H2, R> {
                $layer { config: self.config.hold(hold) }
            }

            /// Holds the lease until there is a response, and no longer: to the head, where it has a body.
            #[must_use]
            pub fn until_response(self) -> $layer<Req, crate::lease::UntilResponse, R> {
                self.hold(crate::layer::leased::UntilResponse)
            }

            /// Called with a [`LeaseHandle`](crate::LeaseHandle) before the inner service, by a closure of
            /// `(&LeaseHandle, &mut Req)`: the handle has the fencing token, and tells when the lease is lost. For
            /// HTTP there is `web::InsertLease`, which also lets the handler
            /// [take the lease along](crate::lease::LeaseSlot). Several are called in order.
            #[must_use]
            pub fn on_lease(
                mut self,
                on_lease: impl crate::layer::leased::OnLease<Req> + Send + Sync + 'static,
            ) -> Self {
                self.config.on_lease.push(std::sync::Arc::new(on_lease));
                self
            }

            /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
            /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is
            /// `response::refuse()`, for gRPC `grpc::refuse()`.
            #[must_use]
            pub fn reject_with<R2>(self, reject: R2) -> $layer<Req, H, R2> {
                $layer { config: self.config.reject(reject) }
            }

            /// Whether the inner service's future is dropped when the lease is lost, and the request refused as
            /// [`LeaseLost`](crate::RefusalKind::LeaseLost). Ends with the response: for its body there is
            /// `response::LeaseEnd::Abort`. A lease that the handler has [taken along](crate::lease::LeaseSlot) is not
            /// watched.
            #[must_use]
            pub fn cancel_when_lost(mut self, cancel: bool) -> Self {
                self.config.cancel_when_lost = cancel;
                self
            }
        }

        impl<S, Req: 'static, H: Clone, R: Clone> tower_layer::Layer<S> for $layer<Req, H, R> {
            type Service = crate::lease::LeaseService<S, Req, H, R>;

            fn layer(&self, inner: S) -> Self::Service {
                self.config.service(inner)
            }
        }

        impl<Req, H: Clone, R: Clone> Clone for $layer<Req, H, R> {
            fn clone(&self) -> Self {
                Self { config: self.config.clone() }
            }
        }

        impl<Req, H, R> std::fmt::Debug for $layer<Req, H, R> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($layer)).field("config", &self.config).finish()
            }
        }
    };
}
pub(crate) use settings;
