//! The service of all layers ([`Layered`]), what a layer does with a request ([`Policy`]), and the future that does it
//! ([`LayerFuture`]). The layers, their key extractors and their refusals are in submodules.

#[cfg(feature = "rate-limit")]
pub(crate) mod budget;
#[cfg(feature = "concurrency-limit")]
pub(crate) mod concurrency_limit;
#[cfg(feature = "dedupe")]
pub(crate) mod dedupe;
pub(crate) mod extract;
pub(crate) mod key;
pub(crate) mod lease;
#[cfg(feature = "mutex")]
pub(crate) mod mutex;
#[cfg(feature = "rate-limit")]
pub(crate) mod rate_limit;
pub(crate) mod refusal;
#[cfg(feature = "rw-lock")]
pub(crate) mod rw_lock;
#[cfg(feature = "single-flight")]
pub(crate) mod single_flight;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use derive_where::derive_where;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tokio::task::coop::{consume_budget, has_budget_remaining};
use tower::Service;

/// The [`Service`] of a layer `L` of this crate, around the service `S`.
///
/// It can be named, so a struct can hold it:
///
/// ```
/// use std::convert::Infallible;
/// use std::pin::Pin;
/// use tower::{Layer, Service, ServiceExt, util::BoxCloneSyncService};
/// use tower_distributed::{Layered, Quota, RateLimitLayer, Store, TokenBucket};
///
/// type Sender = BoxCloneSyncService<String, (), Infallible>;
///
/// struct Mailer {
///     send: Layered<Sender, RateLimitLayer<String, ()>>,
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(5))?;
/// let limit = RateLimitLayer::new(bucket, |address: &String| address.clone());
/// let send = tower::service_fn(async |_: String| Ok(()));
/// let mut mailer = Mailer { send: limit.layer(Sender::new(send)) };
/// mailer.send.ready().await?.call("ann@example.com".into()).await?;
/// # Ok(()) }
/// ```
///
/// The inner service must be `Clone`. It is ready when this service is.
#[derive(Debug)]
#[derive_where(Clone; S)]
pub struct Layered<S, L> {
    inner: S,
    layer: Arc<L>,
}

/// The types of a request's stages in a layer.
///
/// They do not depend on the inner service and on the request type: otherwise the compiler cannot prove in an async
/// block that a [`LayerFuture`] is `Send` if requests have a lifetime.
pub trait Stages {
    /// What a request waits for before the inner service is called.
    type Waiting;
    /// What lasts while the inner service handles a request.
    type Held;
}

/// How a layer handles the requests of its service. [`LayerFuture`] runs it: a request is admitted at once or after a
/// wait, the inner service is called, and the outcome becomes the answer.
///
/// `Err` of an [`Answer`] is an error of the inner service, or a refusal, as the layer's
/// [`Reject`](crate::Reject) decides.
pub trait Policy<S: Service<Req>, Req>: Stages + Sized {
    /// The response of the layer's service.
    type Response;
    /// The error of the layer's service.
    type Error;

    /// Converts an error of the inner service.
    fn inner_error(error: S::Error) -> Self::Error;

    /// Begins a request, and decides it if this needs no wait. `inner` was polled ready.
    fn begin(self: &Arc<Self>, inner: &mut S, request: Req) -> NextState<Self, S, Req>;

    /// Returns the next state of a request that waits. `call` is present until it is taken.
    fn poll_waiting(
        self: &Arc<Self>,
        waiting: &mut Self::Waiting,
        call: &mut Option<(S, Req)>,
        context: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Req>>;

    /// Polls the inner service. `Err`: the call is given up, and this is the answer.
    fn poll_call(
        _held: &mut Self::Held,
        future: Pin<&mut S::Future>,
        context: &mut Context<'_>,
    ) -> Poll<Called<Self, S, Req>> {
        future.poll(context).map(Ok)
    }

    /// Converts the outcome of the inner service, whose future was dropped.
    fn finish(
        held: Self::Held,
        outcome: Result<S::Response, S::Error>,
    ) -> Finish<Answer<Self, S, Req>>;
}

/// What the service of a layer returns for a request.
pub(crate) type Answer<P, S, Req> =
    Result<<P as Policy<S, Req>>::Response, <P as Policy<S, Req>>::Error>;

/// The outcome of the inner service; `Err`: the answer to a call that was given up.
pub(crate) type Called<P, S, Req> =
    Result<Result<<S as Service<Req>>::Response, <S as Service<Req>>::Error>, Answer<P, S, Req>>;

/// What a policy makes of a request.
pub(crate) type NextState<P, S, Req> = State<S, Req, P, Answer<P, S, Req>>;

/// The end of a request.
#[expect(
    missing_debug_implementations,
    reason = "it has a future, and cannot be named outside of the crate"
)]
pub enum Finish<T> {
    Now(T),
    /// The answer is returned after this work.
    After(BoxFuture<'static, ()>, T),
}

pin_project! {
    /// The future of a layer's service: runs the policy `P` and returns its answer `T`.
    #[must_use = "futures do nothing unless polled"]
    pub struct LayerFuture<S, Req, P, T>
    where
        S: Service<Req>,
        P: Stages,
    {
        #[pin]
        state: State<S, Req, P, T>,
    }
}

pin_project! {
    /// The state of a request in a layer.
    #[project = StateProjection]
    pub enum State<S, Req, P, T>
    where
        S: Service<Req>,
        P: Stages,
    {
        /// It waits until it is admitted.
        Waiting {
            policy: Arc<P>,
            waiting: P::Waiting,
            // The ready service and the request. `None` after the call.
            call: Option<(S, Req)>,
        },
        /// The inner service handles it. If this is dropped, the inner future is dropped first.
        Calling {
            #[pin]
            future: S::Future,
            // `None` once the inner service has returned.
            held: Option<P::Held>,
        },
        /// A task handles it, or a future whose type cannot be named.
        Running {
            running: BoxFuture<'static, T>,
        },
        /// It has its answer, which is returned after the work. `None`: it was returned.
        Answering {
            work: Option<BoxFuture<'static, ()>>,
            answer: Option<T>,
        },
    }
}

impl<S, Req, P, T> State<S, Req, P, T>
where
    S: Service<Req>,
    P: Stages,
{
    const DONE: Self = Self::Answering {
        work: None,
        answer: None,
    };

    /// Waits, with the instance of the inner service that was polled ready.
    pub(crate) fn waiting(policy: &Arc<P>, waiting: P::Waiting, inner: &mut S, request: Req) -> Self
    where
        S: Clone,
    {
        Self::Waiting {
            policy: Arc::clone(policy),
            waiting,
            call: Some((take_ready(inner), request)),
        }
    }

    /// Calls the inner service.
    pub(crate) fn calling(inner: &mut S, request: Req, held: P::Held) -> Self {
        Self::Calling {
            future: inner.call(request),
            held: Some(held),
        }
    }

    /// The request is not passed on.
    pub(crate) fn answered(answer: T) -> Self {
        Self::Answering {
            work: None,
            answer: Some(answer),
        }
    }
}

impl<S, Req, P> Future for LayerFuture<S, Req, P, Answer<P, S, Req>>
where
    S: Service<Req>,
    P: Policy<S, Req>,
{
    type Output = Answer<P, S, Req>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Waiting {
                    policy,
                    waiting,
                    call,
                } => {
                    if call.is_none() {
                        return Poll::Pending;
                    }
                    ready!(policy.poll_waiting(waiting, call, context))
                }
                StateProjection::Calling { future, held } => {
                    let Some(guard) = held else {
                        return Poll::Pending;
                    };
                    let outcome = ready!(P::poll_call(guard, future, context));
                    let held = held.take();
                    // Drops the inner future before its lease or its hold ends.
                    state.set(State::DONE);
                    match (outcome, held) {
                        (Err(refused), _) => return Poll::Ready(refused),
                        (Ok(outcome), Some(held)) => match P::finish(held, outcome) {
                            Finish::Now(answer) => return Poll::Ready(answer),
                            Finish::After(work, answer) => State::Answering {
                                work: Some(work),
                                answer: Some(answer),
                            },
                        },
                        (Ok(_), None) => return Poll::Pending,
                    }
                }
                StateProjection::Running { running } => return running.as_mut().poll(context),
                StateProjection::Answering { work, answer } => {
                    match work {
                        Some(work) => ready!(work.as_mut().poll(context)),
                        // Yields to other tasks now and then, because this path never waits.
                        None => ready!(pin!(consume_budget()).poll(context)),
                    }
                    return answer.take().map_or(Poll::Pending, Poll::Ready);
                }
            };
            state.set(next);
        }
    }
}

debug!(LayerFuture<S: Service<Req>, Req, P: Stages, T>);

impl<S, L> Layered<S, L> {
    pub(crate) fn new(inner: S, layer: impl Into<Arc<L>>) -> Self {
        Self {
            inner,
            layer: layer.into(),
        }
    }

    /// Returns a reference to the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, L, Req> Service<Req> for Layered<S, L>
where
    S: Service<Req> + Clone,
    L: Policy<S, Req>,
{
    type Response = L::Response;
    type Error = L::Error;
    type Future = LayerFuture<S, Req, L, Answer<L, S, Req>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(L::inner_error)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let state = self.layer.begin(&mut self.inner, request);
        if matches!(state, State::Answering { .. }) {
            discard_ready(&mut self.inner);
        }
        LayerFuture { state }
    }
}

/// Takes the instance that was polled ready, which must be the one that is called. The clone that replaces it is not
/// ready yet.
pub(crate) fn take_ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}

/// Drops the instance that was polled ready, because it will not be called. Such an instance can hold a resource that
/// other requests wait for, such as a permit of tower's `ConcurrencyLimit`.
fn discard_ready<S: Clone>(inner: &mut S) {
    drop(take_ready(inner));
}

/// A closure of the user that chooses something for a request.
pub(crate) type Choose<Req, T> = Arc<dyn Fn(&Req) -> T + Send + Sync>;

/// Returns the output of `asked` if it is ready at the first poll. An operation on an in-memory store that does not
/// wait is ready at once, so its future need not be stored. `None`: the future has to wait, for example because the
/// task's budget is spent. It is then dropped, which withdraws its operation, and the caller starts the operation
/// again.
pub(crate) fn at_once<F: Future>(asked: Pin<&mut F>) -> Option<F::Output> {
    if has_budget_remaining() {
        asked.now_or_never()
    } else {
        None
    }
}
