//! The layer that handles requests under leases: [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer),
//! [`MutexLayer`](crate::MutexLayer), [`RwLockLayer`](crate::RwLockLayer) and [`DedupeLayer`](crate::DedupeLayer).

mod acquire;
mod future;
mod hold;
mod observe;
mod slot;

use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;
use tower_layer::Layer;

pub use self::hold::{Hold, UntilResponse};

pub(crate) use self::acquire::{Acquire, Acquired, Acquiring, Provide, acquire};
pub(crate) use self::future::{Finish, Holds, Lifecycle, Next};
pub(crate) use self::hold::Leased;
pub(crate) use self::observe::{Observe, Observes, Unobserved};

use crate::middleware::Layered;
use crate::middleware::key::DynKey;
use crate::{AsError, KeyExtractor, LeaseHandle};

/// A [`Layer`] that handles each request under a lease: a [permit](crate::ConcurrencyLimitLayer), a lock of a
/// [mutex](crate::MutexLayer) or of a [reader-writer lock](crate::RwLockLayer), or a [claim](crate::DedupeLayer) on an
/// item.
///
/// The type parameters are the request type, what provides the leases, and how
/// [refusals](Self::reject_with) are returned.
#[derive_where(Clone; P, R)]
pub struct LeaseLayer<Req, P, R = AsError> {
    pub(crate) key: DynKey<Req>,
    pub(crate) provide: P,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) on_lease: OnLeases<Req>,
    pub(crate) cancel_when_lost: bool,
    pub(crate) reject: R,
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
}

impl<Req, F: Fn(&LeaseHandle, &mut Req)> OnLease<Req> for F {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Req) {
        self(lease, request);
    }
}

/// The hooks of a layer, called in this order.
pub(crate) type OnLeases<Req> = Vec<Arc<dyn OnLease<Req> + Send + Sync>>;

impl<Req, P> LeaseLayer<Req, P> {
    pub(crate) fn of(provide: P, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        Self {
            key: Arc::new(key),
            provide,
            max_wait: None,
            on_lease: Vec::new(),
            cancel_when_lost: false,
            reject: AsError,
        }
    }
}

impl<Req, A, H, R> LeaseLayer<Req, Leased<A, H>, R> {
    /// Sets how long the lease is held. Default: until the response is returned.
    ///
    /// For HTTP, `response::UntilBodyEnd` holds it until the end of the response body, with limits for bodies
    /// that stall or take too long. See [`Hold`](crate::lease::Hold) for other rules.
    #[must_use]
    pub fn hold<H2>(self, hold: H2) -> LeaseLayer<Req, Leased<A, H2>, R> {
        let Self {
            key,
            provide: Leased { from, hold: _ },
            max_wait,
            on_lease,
            cancel_when_lost,
            reject,
        } = self;
        let provide = Leased { from, hold };
        LeaseLayer {
            key,
            provide,
            max_wait,
            on_lease,
            cancel_when_lost,
            reject,
        }
    }

    /// Holds the lease until the response is returned. If the response has a body, the lease is released
    /// with the head.
    #[must_use]
    pub fn until_response(self) -> LeaseLayer<Req, Leased<A>, R> {
        self.hold(UntilResponse)
    }
}

impl<Req, P, R> LeaseLayer<Req, P, R> {
    /// Sets how long a request waits for its permit or lock, or for an item that is being handled elsewhere. Default: it
    /// does not wait and is refused.
    ///
    /// A request that waits longer than `max_wait` is refused as [`WaitedTooLong`](crate::RefusalKind::WaitedTooLong).
    /// Requests that wait for a permit are served in the order of arrival. The builder's `max_waiters` limits the number of
    /// requests that wait for a permit or a lock.
    ///
    /// If the other request for an item fails, the waiting request handles the item. If it succeeds, the waiting request
    /// is a duplicate.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Adds a closure of `(&LeaseHandle, &mut Req)` that is called before the inner service, for requests that have a
    /// lease.
    ///
    /// The [`LeaseHandle`](crate::LeaseHandle) has the fencing token and signals the loss of the lease. For
    /// HTTP, `web::InsertLease` adds it to the extensions of the request. The handler can
    /// [take](crate::LeaseHandle::take) a permit or a lock by it. Several closures are called in the order in which they were
    /// added.
    #[must_use]
    pub fn on_lease(mut self, on_lease: impl OnLease<Req> + Send + Sync + 'static) -> Self {
        self.on_lease.push(Arc::new(on_lease));
        self
    }

    /// Turns refusals into responses, with a closure from [`Refusal`](crate::Refusal) to the response, or with
    /// another [`Reject`](crate::Reject). Default: a refusal is a boxed error.
    ///
    /// With a closure, the error type of the service is that of the inner service. For HTTP, use
    /// `response::refuse()`; for gRPC, `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> LeaseLayer<Req, P, R2> {
        let Self {
            key,
            provide,
            max_wait,
            on_lease,
            cancel_when_lost,
            reject: _,
        } = self;
        LeaseLayer {
            key,
            provide,
            max_wait,
            on_lease,
            cancel_when_lost,
            reject,
        }
    }

    /// Sets whether the loss of the lease drops the inner future and refuses the request as
    /// [`LeaseLost`](crate::RefusalKind::LeaseLost). Default: `true` for locks, `false` for
    /// [permits](crate::ConcurrencyLimitLayer) and [claims](crate::DedupeLayer).
    ///
    /// This applies until the response is returned. For the response body, use `response::LeaseEnd::Abort`.
    /// It does not apply to a permit or a lock that the handler has [taken](crate::LeaseHandle::take).
    #[must_use]
    pub fn cancel_when_lost(mut self, cancel: bool) -> Self {
        self.cancel_when_lost = cancel;
        self
    }
}

impl<S, Req, P: Clone, R: Clone> Layer<S> for LeaseLayer<Req, P, R> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(inner, self.clone())
    }
}

debug!(LeaseLayer<Req, P: std::fmt::Debug, R>, provide);
