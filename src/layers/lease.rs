//! The layer that handles requests under leases: its settings, how a request acquires its lease, and how long it holds
//! it. The layers of [permits](crate::ConcurrencyLimitLayer), locks and claims are based on it.

pub(crate) mod future;

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use derive_where::derive_where;
use futures_util::future::BoxFuture;
use tower_layer::Layer;

pub(crate) use self::future::{Finish, Holds, Lifecycle, Next};
use crate::error::Error;
use crate::key::Key;
use crate::layers::key::{DynKey, Extracted, KeyExtractor};
use crate::layers::refusal::AsError;
use crate::layers::{Layered, at_once};
use crate::lease::handle::{Lease, LeaseHandle, LeaseState, Slot};
use crate::telemetry::counters::Decisions;

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
    /// Sets how long a request waits for its permit or lock, or for an item that is being handled elsewhere. Default:
    /// it does not wait and is refused.
    ///
    /// A request that waits longer than `max_wait` is refused as [`WaitedTooLong`](crate::RefusalKind::WaitedTooLong).
    /// Requests that wait for a permit are served in the order of arrival. The builder's `max_waiters` limits the
    /// number of requests that wait for a permit or a lock.
    ///
    /// If the other request for an item fails, the waiting request handles the item. If it succeeds, the waiting
    /// request is a duplicate.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Adds a closure of `(&LeaseHandle, &mut Req)` that is called before the inner service, for requests that have a
    /// lease.
    ///
    /// The [`LeaseHandle`](crate::LeaseHandle) has the fencing token and signals the loss of the lease. For HTTP,
    /// `web::InsertLease` adds it to the extensions of the request. The handler can [take](crate::LeaseHandle::take) a
    /// permit or a lock by it. Several closures are called in the order in which they were added.
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

/// The result of an acquire for a request. `None`: the request passes without a lease.
pub(crate) type Acquired<G> = Result<Option<G>, Error>;

/// The result of an acquire, or the future of it.
#[expect(
    missing_debug_implementations,
    reason = "it has a future, and cannot be named outside of the crate"
)]
pub enum Acquiring<G> {
    Ready(Acquired<G>),
    Pending(BoxFuture<'static, Acquired<G>>),
}

/// Acquires for a key. In memory, an acquire that does not wait needs no boxed future.
pub(crate) fn acquire<A: Acquire>(
    from: &A,
    key: Extracted,
    asked: A::Asked,
    max_wait: Option<Duration>,
) -> Acquiring<A::Granted> {
    if from.is_in_memory()
        && max_wait.is_none()
        && let Extracted::Ready(Ok(Some(key))) = &key
        && let Some(acquired) = at_once(pin!(from.acquire(key.clone(), asked, max_wait)))
    {
        return Acquiring::Ready(acquired);
    }
    let from = from.clone();
    Acquiring::Pending(Box::pin(async move {
        let Some(key) = from.decisions().extracted(key.await)? else {
            return Ok(None);
        };
        from.acquire(key, asked, max_wait).await
    }))
}

/// A source of leases or claims for keys.
pub(crate) trait Acquire: Clone + Send + Sync + 'static {
    /// The arguments of an acquire besides the key.
    type Asked: Copy + Send + 'static;
    /// The result of a successful acquire.
    type Granted;

    fn decisions(&self) -> &Decisions;

    fn is_in_memory(&self) -> bool;

    /// Acquires, and counts the decision if it is known. `max_wait` is `None` for a request that does not wait.
    fn acquire(
        &self,
        key: Key,
        asked: Self::Asked,
        max_wait: Option<Duration>,
    ) -> impl Future<Output = Acquired<Self::Granted>> + Send;
}

/// Provides the leases of requests.
pub trait Provide<Req> {
    /// Acquires the lease of a request.
    fn lease(&self, key: Extracted, request: &Req, max_wait: Option<Duration>) -> Acquiring<Lease>;
}

/// Leases that are acquired from `A`, and held as `H` decides. See [`LeaseLayer`].
#[derive(Clone)]
pub struct Leased<A, H = UntilResponse> {
    pub(crate) from: A,
    pub(crate) hold: H,
}

/// Decides how long the lease of a request is held after the response is returned.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold a lease with a response `{Res}`",
    note = "`UntilResponse` holds the lease until a response is returned; `response::UntilBodyEnd` needs an `http::Response`"
)]
pub trait Hold<Res> {
    /// The response that the layer returns.
    type Response;

    /// Attaches the lease to the response, or drops it.
    ///
    /// `lease` is `None` if the request passed without a lease, or if the handler has taken it.
    fn hold(&self, response: Res, lease: Option<Lease>) -> Self::Response;
}

/// Holds the lease until the response is returned. The default outside of HTTP.
///
/// The layers of `web` hold a lease to the end of the body, unless `until_response` is called:
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// // Limits the work until the head of the response; the body streams without a permit.
/// let searches = WaitGroup::new(&Store::in_memory(), "searches", 2)?;
/// let limit = web::concurrency_limit(searches, extract::client_ip()).until_response();
/// let app: Router = Router::new().route("/search", get(async || "all of it")).layer(limit);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilResponse;

impl<Res> Hold<Res> for UntilResponse {
    type Response = Res;

    fn hold(&self, response: Res, lease: Option<Lease>) -> Res {
        drop(lease);
        response
    }
}

impl<A> Leased<A> {
    pub(crate) fn of(from: A) -> Self {
        Self {
            from,
            hold: UntilResponse,
        }
    }
}

impl<A: Observes, H> Holds for Leased<A, H> {
    type Granted = Lease;
    type Guard = (LeaseSlot, A::Sample);
    type Held = (Option<Lease>, A::Sample);
    type Finishing = Infallible;
}

impl<Req, Res, E, A, H> Lifecycle<Req, Res, E> for Leased<A, H>
where
    A: Provide<Req> + Observe<Req, Res, E>,
    H: Hold<Res>,
{
    type Response = H::Response;

    fn acquire<R>(
        layer: &LeaseLayer<Req, Self, R>,
        key: Extracted,
        request: &Req,
    ) -> Acquiring<Lease> {
        layer.provide.from.lease(key, request, layer.max_wait)
    }

    fn admit<R>(
        layer: &LeaseLayer<Req, Self, R>,
        lease: Lease,
        request: Req,
    ) -> Next<Lease, Self::Guard, Req, H::Response> {
        let (sample, mut request) = layer.provide.from.began(&lease, request);
        if layer.on_lease.is_empty() {
            let handle = layer.cancel_when_lost.then(|| lease.handle());
            return Next::Call(Some(((LeaseSlot::Kept(lease), sample), handle)), request);
        }
        let (guard, handle) = LeaseSlot::new(lease);
        layer
            .on_lease
            .iter()
            .for_each(|told| told.on_lease(&handle, &mut request));
        Next::Call(
            Some(((guard, sample), layer.cancel_when_lost.then_some(handle))),
            request,
        )
    }

    fn is_taken((guard, _): &Self::Guard) -> bool {
        guard.is_taken()
    }

    fn close((guard, sample): Self::Guard) -> Option<Self::Held> {
        Some((guard.into_lease(), sample))
    }

    fn finish<R>(
        layer: &LeaseLayer<Req, Self, R>,
        held: Option<Self::Held>,
        outcome: Result<Res, E>,
    ) -> Finish<Infallible, H::Response, E> {
        let (lease, sample) = held.unzip();
        if let Some(sample) = sample {
            Observe::<Req, Res, E>::ended(&layer.provide.from, sample, &outcome);
        }
        let lease = lease.flatten();
        Finish::Now(outcome.map(|response| layer.provide.hold.hold(response, lease)))
    }

    fn poll_finish(never: &mut Infallible, _: &mut Context<'_>) -> Poll<Result<H::Response, E>> {
        match *never {}
    }
}

debug!(Leased<A: std::fmt::Debug, H>, from);

/// Observes each request while it is handled. It does not depend on the types of requests and responses, for the same
/// reason as [`Holds`].
pub trait Observes {
    /// The observation of one request. Dropped if the request ends without an outcome.
    type Sample;
}

/// Observes the outcomes of requests.
pub trait Observe<Req, Res, E>: Observes {
    /// Called when a request has its lease, before it is handled. Returns the request to handle.
    fn began(&self, lease: &Lease, request: Req) -> (Self::Sample, Req);

    /// Called when the inner service has returned an outcome.
    fn ended(&self, sample: Self::Sample, outcome: &Result<Res, E>);
}

/// A source that observes nothing.
pub trait Unobserved {}

impl<T: Unobserved> Observes for T {
    type Sample = ();
}

impl<T: Unobserved, Req, Res, E> Observe<Req, Res, E> for T {
    fn began(&self, _: &Lease, request: Req) -> ((), Req) {
        ((), request)
    }

    fn ended(&self, (): (), _: &Result<Res, E>) {}
}

/// The lease of a request while the inner service runs, unless the handler has taken it.
#[derive(Debug)]
pub enum LeaseSlot {
    /// The lease cannot be taken.
    Kept(Lease),
    /// Handles can take the lease from its state.
    Open(TakesBack),
}

/// Takes the lease out of its state when it is dropped.
#[derive(Debug)]
pub struct TakesBack(Option<Arc<LeaseState>>);

impl LeaseSlot {
    /// Also returns the handle by which the handler can take the lease.
    fn new(lease: Lease) -> (Self, LeaseHandle) {
        let state = Arc::clone(&lease.state);
        let handle = LeaseHandle {
            state: Arc::clone(&state),
            slot: Slot::Here,
        };
        state.put(lease);
        (Self::Open(TakesBack(Some(state))), handle)
    }

    fn is_taken(&self) -> bool {
        matches!(self, Self::Open(TakesBack(Some(state))) if !state.can_be_taken())
    }

    fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Kept(lease) => Some(lease),
            Self::Open(mut back) => back.0.take()?.take(),
        }
    }
}

impl Drop for TakesBack {
    fn drop(&mut self) {
        drop(self.0.take().and_then(|state| state.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutex::Mutex;
    use crate::store::Store;

    /// The memory of the lease, which is stored in its own state, is freed too.
    #[tokio::test]
    async fn a_lease_that_nobody_takes_is_released() {
        let mutex = Mutex::new(&Store::in_memory(), "m").unwrap();
        for is_taken in [false, true] {
            let lease = Lease::from(mutex.try_lock("k").await.unwrap());
            let state = Arc::downgrade(&lease.state);
            let (slotted, handle) = LeaseSlot::new(lease);
            let taken = is_taken.then(|| handle.take()).flatten();
            assert_eq!((taken.is_some(), slotted.is_taken()), (is_taken, is_taken));
            drop(slotted);
            assert_eq!(
                (handle.is_held(), handle.take().is_some()),
                (is_taken, false)
            );
            drop((taken, handle));
            assert!(
                state.upgrade().is_none() && mutex.try_lock("k").await.is_ok(),
                "{is_taken}"
            );
        }
    }
}
