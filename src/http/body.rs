//! [`LeasedBody`]: the body of a response, which holds the lease of its request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::BoxError;

use crate::http::until_body_end::{TimedLease, UntilBodyEnd};
use crate::layers::lease::Hold;
use crate::lease::handle::Lease;

pin_project! {
    /// A body that holds a lease until it ends; see [`UntilBodyEnd`].
    ///
    /// Its error is a [`BoxError`] that contains the error of the inner body, or an [`Error`](crate::Error) if the
    /// body was [aborted](crate::response::LeaseEnd::Abort).
    pub struct LeasedBody<B> {
        // `None` once the body was aborted.
        #[pin]
        body: Option<B>,
        lease: Option<TimedLease>,
    }
}

impl<B> LeasedBody<B> {
    fn new(body: B, lease: Option<TimedLease>) -> Self {
        Self {
            body: Some(body),
            lease,
        }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for LeasedBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        if let Some(lease) = this.lease
            && let Poll::Ready(error) = lease.poll_abort(context)
        {
            *this.lease = None;
            this.body.set(None);
            return Poll::Ready(Some(Err(error.into())));
        }
        let Some(mut body) = this.body.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            *this.lease = None;
        } else if let Some(lease) = this.lease {
            lease.progressed();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body> Hold<Response<B>> for UntilBodyEnd {
    type Response = Response<LeasedBody<B>>;

    fn hold(&self, response: Response<B>, lease: Option<Lease>) -> Self::Response {
        let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        response.map(|body| {
            let lease = lease.filter(|_| !is_upgrade && !body.is_end_stream());
            LeasedBody::new(body, lease.map(|lease| self.timed(lease)))
        })
    }
}

/// Creates the body of a refusal, which holds no lease.
impl<B: From<String>> From<String> for LeasedBody<B> {
    fn from(text: String) -> Self {
        Self::new(text.into(), None)
    }
}

/// Creates the body of a refusal, which holds no lease.
impl<B: Default> Default for LeasedBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

debug!(LeasedBody<B>, lease);
