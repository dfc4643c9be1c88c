//! The response future of a [`LeaseLayer`]: acquires, calls the inner service, and finishes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tower::Service;

use crate::error::Error;
use crate::layers::key::{Extracted, KeyExtractor as _};
use crate::layers::lease::{Acquired, Acquiring, LeaseLayer};
use crate::layers::refusal::{Reject, refused};
use crate::layers::{Middleware, take_ready};
use crate::lease::handle::LeaseHandle;
use crate::lease::watch::Watch;

/// The types of a request's lease while the request is handled.
///
/// It does not depend on the request type: otherwise the compiler cannot prove in an async block that a
/// [`ResponseFuture`] is `Send` if requests have a lifetime.
pub trait Holds {
    /// The result of the acquire.
    type Granted;
    /// The lease while the inner service handles the request.
    type Guard;
    /// The lease after the inner service has returned, unless the handler took it.
    type Held;
    /// The work that remains after the inner service has returned.
    type Finishing;
}

/// The steps before and after the inner service handles a request.
pub trait Lifecycle<Req, Res, E>: Holds + Sized {
    /// The response of the layer's service.
    type Response;

    /// Acquires for a request after its key is known.
    fn acquire<R>(
        layer: &LeaseLayer<Req, Self, R>,
        key: Extracted,
        request: &Req,
    ) -> Acquiring<Self::Granted>;

    /// Decides what to do with a request that has acquired.
    fn admit<R>(
        layer: &LeaseLayer<Req, Self, R>,
        granted: Self::Granted,
        request: Req,
    ) -> Next<Self::Granted, Self::Guard, Req, Self::Response>;

    /// Decides what to do with a request after its acquire has succeeded, passed without a lease, or failed.
    fn next<R>(
        layer: &LeaseLayer<Req, Self, R>,
        acquired: Acquired<Self::Granted>,
        request: Req,
    ) -> Next<Self::Granted, Self::Guard, Req, Self::Response> {
        match acquired {
            Ok(Some(granted)) => Self::admit(layer, granted, request),
            Ok(None) => Next::Call(None, request),
            Err(error) => Next::Refuse(error),
        }
    }

    /// Whether the inner service has taken the lease out of the guard.
    fn is_taken(_: &Self::Guard) -> bool {
        false
    }

    /// Prevents the inner service from taking the lease, before its future is dropped.
    fn close(guard: Self::Guard) -> Option<Self::Held>;

    /// Processes the outcome of the inner service. `held` is `None` for a request that passed.
    fn finish<R>(
        layer: &LeaseLayer<Req, Self, R>,
        held: Option<Self::Held>,
        outcome: Result<Res, E>,
    ) -> Finish<Self::Finishing, Self::Response, E>;

    fn poll_finish(
        finishing: &mut Self::Finishing,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::Response, E>>;
}

/// The next step for a request.
#[expect(
    missing_debug_implementations,
    reason = "it has futures, and cannot be named outside of the crate"
)]
pub enum Next<G, Guard, Req, Res> {
    /// Call the inner service, with the lease if there is one. The handle watches the lease, if the loss of the lease
    /// ends the call.
    Call(Option<(Guard, Option<LeaseHandle>)>, Req),
    /// Run another acquire first.
    Acquire(BoxFuture<'static, Acquired<G>>, Req),
    Answer(Res),
    Refuse(Error),
}

/// The end of a request.
#[derive(Debug)]
pub enum Finish<F, Res, E> {
    Now(Result<Res, E>),
    Later(F),
}

pin_project! {
    /// The future of a [`LeaseLayer`]'s service.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, P, R>
    where
        S: Service<Req>,
        P: Holds,
    {
        layer: Arc<LeaseLayer<Req, P, R>>,
        #[pin]
        state: State<S, Req, P>,
    }
}

/// The progress of a request's acquire.
enum Waiting<G> {
    /// `None` once the lease is acquired with it.
    Key(Option<Extracted>),
    Lease(BoxFuture<'static, Acquired<G>>),
}

impl<G> Waiting<G> {
    /// Starts the acquire at the first poll. Also returns whether the lease was acquired at that poll.
    fn poll<P, Req, Res, E, R>(
        &mut self,
        layer: &LeaseLayer<Req, P, R>,
        request: &Req,
        context: &mut Context<'_>,
    ) -> Poll<(Acquired<G>, bool)>
    where
        P: Lifecycle<Req, Res, E, Granted = G>,
    {
        if let Self::Key(key) = self {
            let Some(key) = key.take() else {
                return Poll::Pending;
            };
            match P::acquire(layer, key, request) {
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

pin_project! {
    #[project = StateProjection]
    enum State<S, Req, P>
    where
        S: Service<Req>,
        P: Holds,
    {
        Waiting {
            waiting: Waiting<P::Granted>,
            // The ready service and the request. `None` after the call.
            call: Option<(S, Req)>,
        },
        Calling {
            #[pin]
            future: S::Future,
            // `None` if the request passed without a lease.
            guard: Option<P::Guard>,
            // Drops the inner future when the lease is lost, if the settings say so.
            watch: Watch,
        },
        Finishing {
            finishing: P::Finishing,
        },
        Done,
    }
}

impl<S, Req, P, R> Middleware<S, Req> for LeaseLayer<Req, P, R>
where
    S: Service<Req> + Clone,
    P: Lifecycle<Req, S::Response, S::Error>,
    R: Reject<P::Response, S::Error>,
{
    type Response = P::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, P, R>;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, request: Req) -> Self::Future {
        let state = match self.key.extract(&request) {
            Extracted::Ready(Ok(None)) => State::called(inner, request, None),
            key => State::Waiting {
                waiting: Waiting::Key(Some(key)),
                call: Some((take_ready(inner), request)),
            },
        };
        ResponseFuture {
            layer: Arc::clone(self),
            state,
        }
    }
}

impl<S, Req, P> State<S, Req, P>
where
    S: Service<Req>,
    P: Holds,
{
    /// Calls the inner service.
    fn called(inner: &mut S, request: Req, watched: Option<(P::Guard, Watch)>) -> Self {
        let (guard, watch) = watched.unzip();
        Self::Calling {
            future: inner.call(request),
            guard,
            watch: watch.unwrap_or(Watch::new(None)),
        }
    }
}

impl<S, Req, P, R> Future for ResponseFuture<S, Req, P, R>
where
    S: Service<Req>,
    P: Lifecycle<Req, S::Response, S::Error>,
    R: Reject<P::Response, S::Error>,
{
    type Output = Result<P::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let layer = &**this.layer;
        let outcome = loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Waiting { waiting, call } => {
                    let Some((_, request)) = call else {
                        return Poll::Pending;
                    };
                    let (acquired, is_fresh) = ready!(
                        waiting.poll::<P, Req, S::Response, S::Error, R>(layer, request, context)
                    );
                    let Some((mut inner, request)) = call.take() else {
                        return Poll::Pending;
                    };
                    match P::next(layer, acquired, request) {
                        Next::Call(lease, request) => {
                            let watch = |(guard, lease)| (guard, Watch::new(lease).fresh(is_fresh));
                            State::called(&mut inner, request, lease.map(watch))
                        }
                        Next::Acquire(acquiring, request) => State::Waiting {
                            waiting: Waiting::Lease(acquiring),
                            call: Some((inner, request)),
                        },
                        Next::Answer(response) => break Ok(Ok(response)),
                        Next::Refuse(error) => break Err(error),
                    }
                }
                StateProjection::Calling {
                    future,
                    guard,
                    watch,
                } => {
                    let outcome = match ready!(watch.poll(future, context)) {
                        Ok(outcome) => outcome,
                        // The handler has taken the lease, so the layer no longer watches it.
                        Err(_) if guard.as_ref().is_some_and(P::is_taken) => {
                            *watch = Watch::new(None);
                            continue;
                        }
                        Err(lost) => break Err(lost),
                    };
                    let held = guard.take().and_then(P::close);
                    this.state.set(State::Done);
                    match P::finish(layer, held, outcome) {
                        Finish::Now(outcome) => break Ok(outcome),
                        Finish::Later(finishing) => State::Finishing { finishing },
                    }
                }
                StateProjection::Finishing { finishing } => {
                    break Ok(ready!(P::poll_finish(finishing, context)));
                }
                StateProjection::Done => return Poll::Pending,
            };
            this.state.set(next);
        };
        // Drops the inner future before the caller gets a refusal, and keeps a later poll from acquiring again.
        this.state.set(State::Done);
        Poll::Ready(match outcome {
            Ok(outcome) => outcome.map_err(R::inner_error),
            Err(refusal) => refused(&layer.reject, refusal),
        })
    }
}

debug!(ResponseFuture<S: Service<Req>, Req, P: Holds, R>);
