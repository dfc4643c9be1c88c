use std::io;

use futures::stream;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};

use super::*;

type Frames = Vec<io::Result<Frame<Bytes>>>;
type Stream = StreamBody<stream::Iter<std::vec::IntoIter<io::Result<Frame<Bytes>>>>>;

fn stream(frames: Frames) -> Stream {
    StreamBody::new(stream::iter(frames))
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

/// The bounds of the length of a body.
fn bounds<B: Body>(body: &B) -> (u64, Option<u64>) {
    (body.size_hint().lower(), body.size_hint().upper())
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::header::ETAG, "\"7\"".parse().unwrap())])
}

/// Returns the data, the trailers and the error of a body.
async fn all<B: Body<Data = Bytes>>(
    body: FlightBody<B>,
) -> (Vec<Bytes>, Option<HeaderMap>, Option<B::Error>) {
    let mut body = Box::pin(body);
    let (mut chunks, mut trailers) = (vec![], None);
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => chunks.push(data),
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return (chunks, trailers, Some(error)),
        }
    }
    assert_eq!(body.size_hint().lower(), 0);
    (chunks, trailers, None)
}

/// The body has these data, and trailers.
async fn assert_trailers<B>(body: FlightBody<B>, data: &[&str])
where
    B: Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let (chunks, last, error) = all(body).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(chunks, data);
    assert_eq!(last, Some(trailers()));
}

#[tokio::test]
async fn whole_bytes_are_one_frame_whose_length_is_known_unless_trailers_follow() {
    let body = FlightBody::<Stream>::whole("whole".into(), None);
    assert_eq!(body.size_hint().exact(), Some(5));
    assert!(!body.is_end_stream());
    assert_eq!(all(body).await.0, ["whole"]);

    let body = FlightBody::<Stream>::whole("whole".into(), Some(trailers()));
    assert_eq!(bounds(&body), (5, None));
    assert_trailers(body, &["whole"]).await;

    for body in [
        FlightBody::<Stream>::default(),
        FlightBody::from(String::new()),
    ] {
        assert_eq!(
            (body.size_hint().exact(), body.is_end_stream()),
            (Some(0), true)
        );
        assert!(all(body).await.0.is_empty());
    }
}

#[tokio::test]
async fn an_untouched_body_is_as_it_was() {
    let body = FlightBody::untouched(Full::new(Bytes::from_static(b"full")));
    assert_eq!(body.size_hint().exact(), Some(4));
    assert!(!body.is_end_stream());
    assert_eq!(all(body).await.0, ["full"]);
    assert!(FlightBody::untouched(Empty::<Bytes>::new()).is_end_stream());

    let frames = vec![
        Ok(data("a")),
        Ok(data("b")),
        Ok(Frame::trailers(trailers())),
    ];
    assert_trailers(FlightBody::untouched(stream(frames)), &["a", "b"]).await;
}

#[tokio::test]
async fn what_was_read_comes_before_the_rest() {
    let rest = Box::pin(Full::new(Bytes::from_static(b"the rest")));
    let mut body = FlightBody::begun(vec!["read, ".into(), "and ".into()], rest);
    assert_eq!(body.size_hint().exact(), Some(18));
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(
        (first, body.size_hint().exact()),
        ("read, ".into(), Some(12))
    );
    assert_eq!(all(body).await.0, ["and ", "the rest"]);

    let rest = Box::pin(stream(vec![
        Ok(data("more")),
        Ok(Frame::trailers(trailers())),
    ]));
    let body = FlightBody::begun(vec!["read".into()], rest);
    assert_eq!(bounds(&body), (4, None));
    assert_trailers(body, &["read", "more"]).await;
}

#[tokio::test]
async fn an_error_follows_what_was_read() {
    let body = FlightBody::<Stream>::failed(vec!["read".into()], io::Error::other("broken"));
    assert_eq!(bounds(&body), (4, None));
    let (chunks, _, error) = all(body).await;
    assert_eq!(
        (chunks, error.unwrap().to_string()),
        (vec!["read".into()], "broken".into())
    );

    let mut body = FlightBody::<Stream>::failed(vec![], io::Error::other("broken"));
    assert!(!body.is_end_stream());
    assert!(body.frame().await.unwrap().is_err());
    assert!(body.frame().await.is_none() && body.is_end_stream());
}
