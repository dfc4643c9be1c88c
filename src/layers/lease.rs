//! The layer that handles requests under leases: its settings, how a request acquires its lease, and how long it holds
//! it. The layers of [permits](crate::ConcurrencyLimitLayer), locks and claims are based on it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use derive_where::derive_where;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tower::Service;
use tower_layer::Layer;

use crate::error::Error;
use crate::key::Key;
use crate::layers::key::{DynKey, Extracted, KeyExtractor};
use crate::layers::refusal::{AsError, Reject, refused};
use crate::layers::{Answer, Called, Finish, Layered, NextState, Policy, Stages, State, at_once};
use crate::lease::handle::{Lease, LeaseHandle, LeaseState, Slot};
use crate::lease::watch::Watch;
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

/// The progress of a request's acquire.
#[expect(
    missing_debug_implementations,
    reason = "it has a future, and cannot be named outside of the crate"
)]
pub enum Waiting<G> {
    /// The acquire begins at the first poll. `None` once it has begun.
    Key(Option<Extracted>),
    Lease(BoxFuture<'static, Acquired<G>>),
}

impl<G> Waiting<G> {
    /// Starts the acquire at the first poll. Also returns whether it was complete at that poll.
    pub(crate) fn poll(
        &mut self,
        start: impl FnOnce(Extracted) -> Acquiring<G>,
        context: &mut Context<'_>,
    ) -> Poll<(Acquired<G>, bool)> {
        if let Self::Key(key) = self {
            let Some(key) = key.take() else {
                return Poll::Pending;
            };
            match start(key) {
                Acquiring::Ready(acquired) => return Poll::Ready((acquired, true)),
                Acquiring::Pending(acquiring) => *self = Self::Lease(acquiring),
            }
        }
        match self {
            Self::Key(_) => Poll::Pending,
            Self::Lease(acquiring) => acquiring
                .poll_unpin(context)
                .map(|acquired| (acquired, false)),
        }
    }
}

/// The lease of a request while the inner service handles it. `None`: the request passed without a lease.
pub struct Held<L, A> {
    lease: Option<LeaseSlot>,
    sample: Option<A>,
    /// Drops the inner future when the lease is lost, if the settings say so.
    watch: Watch,
    layer: Arc<L>,
}

debug!(Held<L, A>, lease);

impl<Req, A: Observes, H, R> Stages for LeaseLayer<Req, Leased<A, H>, R> {
    type Waiting = Waiting<Lease>;
    type Held = Held<Self, A::Sample>;
}

impl<S, Req, A, H, R> Policy<S, Req> for LeaseLayer<Req, Leased<A, H>, R>
where
    S: Service<Req> + Clone,
    A: Provide<Req> + Observe<Req, S::Response, S::Error>,
    H: Hold<S::Response>,
    R: Reject<S::Response, S::Error>,
{
    type Response = H::Response;
    type Error = R::Error;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn begin(self: &Arc<Self>, inner: &mut S, request: Req) -> NextState<Self, S, Req> {
        match self.key.extract(&request) {
            Extracted::Ready(Ok(None)) => State::calling(inner, request, self.without_lease()),
            key => State::waiting(self, Waiting::Key(Some(key)), inner, request),
        }
    }

    fn poll_waiting(
        self: &Arc<Self>,
        waiting: &mut Waiting<Lease>,
        call: &mut Option<(S, Req)>,
        context: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Req>> {
        let Some((_, request)) = call else {
            return Poll::Pending;
        };
        let source = &self.provide.from;
        let start = |key| source.lease(key, request, self.max_wait);
        let (acquired, is_fresh) = ready!(waiting.poll(start, context));
        let Some((mut inner, request)) = call.take() else {
            return Poll::Pending;
        };
        let lease = match acquired {
            Ok(Some(lease)) => lease,
            Ok(None) => {
                let state = State::calling(&mut inner, request, self.without_lease());
                return Poll::Ready(state);
            }
            Err(error) => {
                let answer = self.refuse::<S::Response, S::Error>(error);
                return Poll::Ready(State::answered(answer));
            }
        };
        let (sample, mut request) = source.began(&lease, request);
        let (lease, handle) = self.open(lease, &mut request);
        let held = Held {
            lease: Some(lease),
            sample: Some(sample),
            watch: Watch::new(handle).fresh(is_fresh),
            layer: Arc::clone(self),
        };
        Poll::Ready(State::calling(&mut inner, request, held))
    }

    fn poll_call(
        held: &mut Self::Held,
        mut future: Pin<&mut S::Future>,
        context: &mut Context<'_>,
    ) -> Poll<Called<Self, S, Req>> {
        loop {
            match ready!(held.watch.poll(future.as_mut(), context)) {
                Ok(outcome) => {
                    // The inner future, which is dropped next, can no longer take the lease.
                    let lease = held.lease.take().and_then(LeaseSlot::into_lease);
                    held.lease = lease.map(LeaseSlot::Kept);
                    return Poll::Ready(Ok(outcome));
                }
                // The handler has taken the lease, so the layer no longer watches it.
                Err(_) if held.lease.as_ref().is_some_and(LeaseSlot::is_taken) => {
                    held.watch = Watch::new(None);
                }
                Err(lost) => {
                    let answer = held.layer.refuse::<S::Response, S::Error>(lost);
                    return Poll::Ready(Err(answer));
                }
            }
        }
    }

    fn finish(
        held: Self::Held,
        outcome: Result<S::Response, S::Error>,
    ) -> Finish<Answer<Self, S, Req>> {
        let Leased { from, hold } = &held.layer.provide;
        if let Some(sample) = held.sample {
            from.ended(sample, &outcome);
        }
        let lease = held.lease.and_then(LeaseSlot::into_lease);
        let response = outcome.map(|response| hold.hold(response, lease));
        Finish::Now(response.map_err(R::inner_error))
    }
}

impl<Req, A: Observes, H, R> LeaseLayer<Req, Leased<A, H>, R> {
    fn without_lease(self: &Arc<Self>) -> Held<Self, A::Sample> {
        Held {
            lease: None,
            sample: None,
            watch: Watch::new(None),
            layer: Arc::clone(self),
        }
    }

    /// Calls the hooks. Also returns the handle by which the lease is watched, if its loss ends the request.
    fn open(&self, lease: Lease, request: &mut Req) -> (LeaseSlot, Option<LeaseHandle>) {
        if self.on_lease.is_empty() {
            let handle = self.cancel_when_lost.then(|| lease.handle());
            return (LeaseSlot::Kept(lease), handle);
        }
        let (lease, handle) = LeaseSlot::new(lease);
        for hook in &self.on_lease {
            hook.on_lease(&handle, request);
        }
        (lease, self.cancel_when_lost.then_some(handle))
    }

    fn refuse<Res, E>(&self, error: Error) -> Result<H::Response, R::Error>
    where
        H: Hold<Res>,
        R: Reject<Res, E>,
    {
        let response = refused(&self.reject, error)?;
        Ok(self.provide.hold.hold(response, None))
    }
}

debug!(Leased<A: std::fmt::Debug, H>, from);

/// Observes each request while it is handled. It does not depend on the types of requests and responses, for the same
/// reason as [`Stages`].
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
enum LeaseSlot {
    /// The lease cannot be taken.
    Kept(Lease),
    /// Handles can take the lease from its state.
    Open(TakesBack),
}

/// Takes the lease out of its state when it is dropped.
#[derive(Debug)]
struct TakesBack(Option<Arc<LeaseState>>);

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
