//! [`HeldBody`]: the body of a response, with what lasts as long as it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// What lasts until a body ends: a lease, or a hold of tokens. If the body fails or is dropped, it is dropped.
pub trait Attached<B: Body> {
    /// The error of the body that it is attached to.
    type Error;

    /// Converts an error of the inner body.
    fn inner_error(error: B::Error) -> Self::Error;

    /// Returns the error when the body must be aborted.
    fn poll_abort(&mut self, _context: &mut Context<'_>) -> Poll<Self::Error> {
        Poll::Pending
    }

    /// Called for each frame.
    fn on_frame(&mut self, frame: &Frame<B::Data>, is_last: bool);

    /// Called when the body has ended without an error.
    fn on_end(self);
}

pin_project! {
    /// A body with something that lasts until it ends. [`LeasedBody`](crate::response::LeasedBody) holds a lease,
    /// [`MeteredBody`](crate::response::MeteredBody) holds tokens and counts a usage.
    pub struct HeldBody<B, T> {
        // On drop, the body is dropped first. `None` once it was aborted.
        #[pin]
        body: Option<B>,
        // `None` once the body has ended, or if nothing was held.
        held: Option<T>,
    }
}

impl<B, T> HeldBody<B, T> {
    pub(super) fn new(body: B, held: Option<T>) -> Self {
        Self {
            body: Some(body),
            held,
        }
    }
}

impl<B: Body, T: Attached<B>> Body for HeldBody<B, T> {
    type Data = B::Data;
    type Error = T::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, T::Error>>> {
        let mut this = self.project();
        if let Some(held) = this.held
            && let Poll::Ready(error) = held.poll_abort(context)
        {
            *this.held = None;
            this.body.set(None);
            return Poll::Ready(Some(Err(error)));
        }
        let Some(mut body) = this.body.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        let has_ended = match (&frame, this.held.as_mut()) {
            (Some(Ok(frame)), Some(held)) => {
                let is_last = body.is_end_stream();
                held.on_frame(frame, is_last);
                is_last
            }
            (None, _) => true,
            (Some(Err(_)), _) => {
                *this.held = None;
                false
            }
            (Some(Ok(_)), None) => false,
        };
        if has_ended && let Some(held) = this.held.take() {
            held.on_end();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(T::inner_error)))
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

/// Creates the body of a refusal, which holds nothing.
impl<B: From<String>, T> From<String> for HeldBody<B, T> {
    fn from(text: String) -> Self {
        Self::new(text.into(), None)
    }
}

/// Creates the body of a refusal, which holds nothing.
impl<B: Default, T> Default for HeldBody<B, T> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

debug!(HeldBody<B, T>);
