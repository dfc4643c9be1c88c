//! The body of a response that may be shared: the data that was read in advance, followed by the rest.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

#[cfg(test)]
mod tests;

pin_project! {
    /// The body of a response that may be shared: a complete body, a partly read body, or the service's body
    /// unchanged.
    ///
    /// For bodies whose data are [`Bytes`], such as the bodies of axum, hyper, reqwest and tonic. Convert other
    /// bodies with `http_body_util::BodyExt::map_frame`.
    pub struct FlightBody<B>
    where
        B: Body<Data = Bytes>,
    {
        // The data of a complete body, which needs no other allocation.
        data: Bytes,
        // The frames that were already read. An error can only be the last one.
        read: VecDeque<Result<Frame<Bytes>, B::Error>>,
        #[pin]
        rest: Rest<B>,
    }
}

pin_project! {
    #[project = RestProjected]
    enum Rest<B> {
        None,
        // A pinned body of which some frames were already read.
        Begun { body: Pin<Box<B>> },
        Untouched { #[pin] body: B },
    }
}

impl<B: Body<Data = Bytes>> FlightBody<B> {
    /// Wraps a body that was not read yet.
    pub(crate) fn untouched(body: B) -> Self {
        Self {
            data: Bytes::new(),
            read: VecDeque::new(),
            rest: Rest::Untouched { body },
        }
    }

    pub(crate) fn whole(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        let read = trailers.map(Frame::trailers).map(Ok).into_iter().collect();
        Self {
            data: bytes,
            read,
            rest: Rest::None,
        }
    }

    /// Creates a body from the data that was already read and the rest of the body.
    pub(crate) fn begun(read: impl IntoIterator<Item = Bytes>, rest: Pin<Box<B>>) -> Self {
        let read = read.into_iter().map(Frame::data).map(Ok).collect();
        Self {
            data: Bytes::new(),
            read,
            rest: Rest::Begun { body: rest },
        }
    }

    /// Creates a body from the data that was already read and the error that followed.
    pub(crate) fn failed(read: impl IntoIterator<Item = Bytes>, error: B::Error) -> Self {
        let read = read
            .into_iter()
            .map(Frame::data)
            .map(Ok)
            .chain([Err(error)])
            .collect();
        Self {
            data: Bytes::new(),
            read,
            rest: Rest::None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for FlightBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if !this.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(this.data)))));
        }
        if let Some(frame) = this.read.pop_front() {
            return Poll::Ready(Some(frame));
        }
        match this.rest.project() {
            RestProjected::None => Poll::Ready(None),
            RestProjected::Begun { body } => body.as_mut().poll_frame(context),
            RestProjected::Untouched { body } => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty()
            && self.read.is_empty()
            && match &self.rest {
                Rest::None => true,
                Rest::Begun { body } => body.is_end_stream(),
                Rest::Untouched { body } => body.is_end_stream(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let rest = match &self.rest {
            Rest::None => SizeHint::with_exact(0),
            Rest::Begun { body } => body.size_hint(),
            Rest::Untouched { body } => body.size_hint(),
        };
        let data =
            |frame: &Result<Frame<Bytes>, _>| frame.as_ref().ok()?.data_ref().map(Bytes::len);
        let read = self
            .read
            .iter()
            .filter_map(data)
            .chain([self.data.len()])
            .map(|length| length as u64)
            .sum();
        // A server sends an exact length as `Content-Length` and stops there: no trailers and no error would be sent.
        let more_than_data = self.read.iter().any(|frame| data(frame).is_none());
        let upper = rest
            .upper()
            .and_then(|upper| upper.checked_add(read))
            .filter(|_| !more_than_data);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        upper.into_iter().for_each(|upper| hint.set_upper(upper));
        hint
    }
}

/// Creates the body of a refusal.
impl<B: Body<Data = Bytes>> From<String> for FlightBody<B> {
    fn from(text: String) -> Self {
        Self::whole(text.into(), None)
    }
}

/// Creates an empty body.
impl<B: Body<Data = Bytes>> Default for FlightBody<B> {
    fn default() -> Self {
        Self::whole(Bytes::new(), None)
    }
}

impl<B: Body<Data = Bytes>> fmt::Debug for FlightBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightBody")
            .field("size_hint", &self.size_hint())
            .finish_non_exhaustive()
    }
}
