//! The response future.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;

use super::{Capture, Config};
use crate::Reject;

pin_project! {
    /// The future of [`Flying`](super::Flying), of a request of type `Req`.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Fut, Req, K, A, F, C, N, R, Res, Err> {
        #[pin]
        state: State<Fut, K, A, F, C, N, R, Res, Err>,
        request: PhantomData<fn(Req)>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<Fut, K, A, F, C, N, R, Res, Err> {
        Passing {
            #[pin]
            future: Fut,
            config: Arc<Config<K, A, F, C, N, R>>,
        },
        Served {
            response: Option<Res>,
        },
        Flying {
            // In a box, as the flight has to be told apart from the request anyway.
            flight: BoxFuture<'static, Result<Res, Err>>,
        },
    }
}

impl<Fut, Req, K, A, F, C, N, R, Res, Err> ResponseFuture<Fut, Req, K, A, F, C, N, R, Res, Err> {
    pub(super) fn passing(future: Fut, config: Arc<Config<K, A, F, C, N, R>>) -> Self {
        Self { state: State::Passing { future, config }, request: PhantomData }
    }

    pub(super) fn served(response: Res) -> Self {
        Self { state: State::Served { response: Some(response) }, request: PhantomData }
    }

    pub(super) fn flying(flight: BoxFuture<'static, Result<Res, Err>>) -> Self {
        Self { state: State::Flying { flight }, request: PhantomData }
    }
}

impl<Fut, Req, K, A, F, C, N, R, Response, E> Future
    for ResponseFuture<Fut, Req, K, A, F, C, N, R, C::Response, R::Error>
where
    Fut: Future<Output = Result<Response, E>>,
    C: Capture<Req, Response, E>,
    R: Reject<C::Response, E>,
{
    type Output = Result<C::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Passing { future, config } => Poll::Ready(match ready!(future.poll(context)) {
                Ok(response) => Ok(config.capture.pass(response)),
                Err(error) => Err(config.reject.inner_error(error)),
            }),
            StateProjection::Served { response } => {
                response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
            StateProjection::Flying { flight } => flight.as_mut().poll(context),
        }
    }
}

impl<Fut, Req, K, A, F, C, N, R, Res, Err> fmt::Debug
    for ResponseFuture<Fut, Req, K, A, F, C, N, R, Res, Err>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
