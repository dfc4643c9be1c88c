//! The shared part of the layers that handle requests under a lease:
//! [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), [`MutexLayer`](crate::MutexLayer) and
//! [`RwLockLayer`](crate::RwLockLayer).

mod future;
mod hold;
mod service;
mod slot;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;

pub use self::future::ResponseFuture;
pub use self::hold::{Hold, UntilResponse};
pub use self::service::LeaseService;
pub use self::slot::LeaseSlot;

use crate::layer::at_once;
use crate::layer::key::DynKey;
use crate::telemetry::Decisions;
use crate::{AsError, Error, Extracted, Key, Lease, LeaseHandle};

/// The lease of a request. `None`: the request passes without one.
pub(crate) type Leased = Result<Option<Lease>, Error>;

/// A lease, or the future that acquires it.
pub(crate) enum Leasing {
    Ready(Leased),
    Pending(BoxFuture<'static, Leased>),
}

impl Leasing {
    /// Acquires a lease of a key.
    pub(crate) fn new<A: Acquire>(from: &A, key: Extracted, asked: A::Asked) -> Self {
        if from.is_immediate(asked)
            && let Extracted::Ready(Ok(Some(key))) = &key
            && let Some(leased) = at_once(from.take(key.clone(), asked))
        {
            return Self::Ready(leased);
        }
        let from = from.clone();
        Self::Pending(Box::pin(async move {
            let Some(key) = from.decisions().extracted(key.await)? else { return Ok(None) };
            from.take(key, asked).await
        }))
    }
}

/// Acquires leases of keys.
pub(crate) trait Acquire: Clone + Send + Sync + 'static {
    /// What a request asks for.
    type Asked: Copy + Send + 'static;

    fn decisions(&self) -> &Decisions;

    /// Whether the answer is there at once: the store is in memory, and the request does not wait.
    fn is_immediate(&self, asked: Self::Asked) -> bool;

    /// Acquires a lease, and counts the decision.
    fn take(&self, key: Key, asked: Self::Asked) -> impl Future<Output = Leased> + Send;
}

/// Acquires the leases of requests.
pub(crate) trait Provide<Req> {
    /// Acquires the lease of a request after its key is known.
    fn lease(&self, key: Extracted, request: &Req) -> Leasing;
}

/// A hook that is called when a request has its lease, before the inner service is called.
///
/// Functions and closures with the arguments `(&LeaseHandle, &mut Req)` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be called with the lease of a `{Req}`",
    note = "pass a closure with typed arguments: `|lease: &LeaseHandle, request: &mut Request| ...`"
)]
pub trait OnLease<Req> {
    /// Called with a handle of the lease.
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Req);

    /// Called with a handle of the lease, and with a slot from which the inner service can take the lease.
    ///
    /// [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), [`MutexLayer`](crate::MutexLayer) and
    /// [`RwLockLayer`](crate::RwLockLayer) call this method instead of [`on_lease`](Self::on_lease). By default, it
    /// calls `on_lease`.
    fn on_slot(&self, lease: &LeaseHandle, _slot: &LeaseSlot, request: &mut Req) {
        self.on_lease(lease, request);
    }
}

impl<Req, F: Fn(&LeaseHandle, &mut Req)> OnLease<Req> for F {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Req) {
        self(lease, request);
    }
}

/// The hooks of a layer, called in this order.
pub(crate) type OnLeases<Req> = Vec<Arc<dyn OnLease<Req> + Send + Sync>>;

/// The settings of a layer, shared by the clones of a service. `P` provides the leases.
pub(crate) struct Config<Req, P, H, R> {
    pub(crate) key: DynKey<Req>,
    pub(crate) provide: P,
    pub(crate) hold: H,
    pub(crate) on_lease: OnLeases<Req>,
    pub(crate) reject: R,
    pub(crate) cancel_when_lost: bool,
}

/// A type-erased [`Provide`].
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

    /// Builds the service of a layer with these settings.
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

/// The methods and impls that all these layers share.
macro_rules! settings {
    ($layer:ident) => {
        impl<Req, H, R> $layer<Req, H, R> {
            /// Sets how long the lease is held. Default: until the response is returned.
            ///
            /// For HTTP, `response::UntilBodyEnd` holds it until the end of the response body, with limits for bodies
            /// that stall or take too long. See [`Hold`](crate::lease::Hold) for other rules.
            #[must_use]
            pub fn hold<H2>(self, hold: H2) -> $layer<Req, H2, R> {
                $layer { config: self.config.hold(hold) }
            }

            /// Holds the lease until the response is returned. If the response has a body, the lease is released
            /// with the head.
            #[must_use]
            pub fn until_response(self) -> $layer<Req, crate::lease::UntilResponse, R> {
                self.hold(crate::layer::leased::UntilResponse)
            }

            /// Adds a closure of `(&LeaseHandle, &mut Req)` that is called before the inner service.
            ///
            /// The [`LeaseHandle`](crate::LeaseHandle) has the fencing token and signals the loss of the lease. For
            /// HTTP, `web::InsertLease` adds it to the extensions of the request, and also lets the handler [take
            /// the lease](crate::lease::LeaseSlot). Several closures are called in the order in which they were
            /// added.
            #[must_use]
            pub fn on_lease(
                mut self,
                on_lease: impl crate::layer::leased::OnLease<Req> + Send + Sync + 'static,
            ) -> Self {
                self.config.on_lease.push(std::sync::Arc::new(on_lease));
                self
            }

            /// Turns refusals into responses, with a closure from [`Refusal`](crate::Refusal) to the response, or
            /// with another [`Reject`](crate::Reject). Default: a refusal is a boxed error.
            ///
            /// With a closure, the error type of the service is that of the inner service. For HTTP, use
            /// `response::refuse()`; for gRPC, `grpc::refuse()`.
            #[must_use]
            pub fn reject_with<R2>(self, reject: R2) -> $layer<Req, H, R2> {
                $layer { config: self.config.reject(reject) }
            }

            /// Sets whether the loss of the lease drops the inner future and refuses the request as
            /// [`LeaseLost`](crate::RefusalKind::LeaseLost). Default: `true` for locks, `false` for
            /// [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer).
            ///
            /// This applies until the response is returned. For the response body, use `response::LeaseEnd::Abort`.
            /// It does not apply to a lease that the handler has [taken](crate::lease::LeaseSlot).
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
