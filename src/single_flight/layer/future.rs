//! The response future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;

use super::{Capture, SingleFlightLayer};
use crate::Reject;

pin_project! {
    /// The future of a [`SingleFlightLayer`]'s service.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Fut, L, Res, Err> {
        #[pin]
        state: State<Fut, L, Res, Err>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<Fut, L, Res, Err> {
        Passing {
            #[pin]
            future: Fut,
            layer: Arc<L>,
        },
        Served {
            response: Option<Res>,
        },
        Flying {
            // Boxed, since the type of the flight's future cannot be named.
            flight: BoxFuture<'static, Result<Res, Err>>,
        },
    }
}

impl<Fut, L, Res, Err> ResponseFuture<Fut, L, Res, Err> {
    pub(super) fn passing(future: Fut, layer: Arc<L>) -> Self {
        Self {
            state: State::Passing { future, layer },
        }
    }

    pub(super) fn served(response: Res) -> Self {
        Self {
            state: State::Served {
                response: Some(response),
            },
        }
    }

    pub(super) fn flying(flight: BoxFuture<'static, Result<Res, Err>>) -> Self {
        Self {
            state: State::Flying { flight },
        }
    }
}

impl<Fut, Req, A, F, C, R, Response, E> Future
    for ResponseFuture<Fut, SingleFlightLayer<Req, A, F, C, R>, C::Response, R::Error>
where
    Fut: Future<Output = Result<Response, E>>,
    C: Capture<Req, Response, E>,
    R: Reject<C::Response, E>,
{
    type Output = Result<C::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Passing { future, layer } => {
                Poll::Ready(match ready!(future.poll(context)) {
                    Ok(response) => Ok(layer.capture.pass(response)),
                    Err(error) => Err(R::inner_error(error)),
                })
            }
            StateProjection::Served { response } => response
                .take()
                .map_or(Poll::Pending, |response| Poll::Ready(Ok(response))),
            StateProjection::Flying { flight } => flight.as_mut().poll(context),
        }
    }
}

debug!(ResponseFuture<Fut, L, Res, Err>);
