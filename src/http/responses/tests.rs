use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream;
use http::{HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, StreamBody};

use super::*;

type Stream = StreamBody<stream::Iter<std::vec::IntoIter<io::Result<Frame<Bytes>>>>>;

fn stream(frames: Vec<io::Result<Frame<Bytes>>>) -> Stream {
    StreamBody::new(stream::iter(frames))
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

fn full(text: &'static str) -> Full<Bytes> {
    Full::new(Bytes::from_static(text.as_bytes()))
}

fn get() -> Request<()> {
    Request::new(())
}

fn with<T>(
    mut message: T,
    headers: fn(&mut T) -> &mut HeaderMap,
    fields: &[(&'static str, &'static str)],
) -> T {
    for (name, value) in fields {
        headers(&mut message).append(*name, HeaderValue::from_static(value));
    }
    message
}

fn request(fields: &[(&'static str, &'static str)]) -> Request<()> {
    with(get(), Request::headers_mut, fields)
}

fn response<B>(body: B, fields: &[(&'static str, &'static str)]) -> Response<B> {
    with(Response::new(body), Response::headers_mut, fields)
}

type Done<B> = (Response<FlightBody<B>>, Option<Answer>);

/// The answer to a request without fields.
async fn capture<B>(responses: &Responses, response: Response<B>) -> Done<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    capture_for(responses, &get(), response).await
}

async fn capture_for<B>(
    responses: &Responses,
    request: &Request<()>,
    response: Response<B>,
) -> Done<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let context = Capture::<_, Response<B>, Infallible>::context(responses, request);
    let Captured { own, shared } =
        Capture::<Request<()>, _, Infallible>::capture(responses, context, response).await;
    (own, shared.answer())
}

fn restore(answer: Answer) -> Response<FlightBody<Full<Bytes>>> {
    Capture::<Request<()>, Response<Full<Bytes>>, Infallible>::restore(
        &Responses::default(),
        answer,
    )
}

fn variant(request: &Request<()>, answer: &Answer) -> Option<String> {
    type Of = Response<Full<Bytes>>;
    Capture::<_, Of, Infallible>::variant(&Responses::default(), request, answer)
        .map(|bytes| String::from_utf8(bytes).unwrap())
}

async fn text<B>(response: Response<B>) -> String
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    String::from_utf8(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec(),
    )
    .unwrap()
}

/// A body that panics when it is read.
struct Unread(SizeHint);

impl Body for Unread {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body was read")
    }

    fn size_hint(&self) -> SizeHint {
        self.0
    }
}

mod asked;
mod bodies;
mod chosen;
mod fields;
