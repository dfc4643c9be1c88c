//! A response body that holds a lease.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::Lease;
use crate::leased::Hold;

/// Holds the lease of a request until its response's body has ended, failed, or been dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilBodyEnd;

impl<B: Body> Hold<Response<B>> for UntilBodyEnd {
    type Response = Response<LeasedBody<B>>;

    fn hold(&self, response: Response<B>, lease: Option<Lease>) -> Self::Response {
        response.map(|body| LeasedBody { lease: lease.filter(|_| !body.is_end_stream()), body })
    }
}

pin_project! {
    /// A body that holds a lease until it ends.
    pub struct LeasedBody<B> {
        #[pin]
        body: B,
        lease: Option<Lease>,
    }
}

impl<B> LeasedBody<B> {
    fn without(body: B) -> Self {
        Self { body, lease: None }
    }
}

impl<B: Body> Body for LeasedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(context));
        if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
            *this.lease = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// For refusals, which hold nothing.
impl<B: From<String>> From<String> for LeasedBody<B> {
    fn from(text: String) -> Self {
        Self::without(text.into())
    }
}

/// For refusals, which hold nothing.
impl<B: Default> Default for LeasedBody<B> {
    fn default() -> Self {
        Self::without(B::default())
    }
}

impl<B> fmt::Debug for LeasedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedBody").field("lease", &self.lease).finish_non_exhaustive()
    }
}
