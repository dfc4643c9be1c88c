//! What becomes of bodies and header fields on their way to many.

use std::io;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::join_all;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tower_distributed::response::Responses;

use crate::single_flight::messages::{Apps, Received};
use crate::stores::{Stores, on_each_store};

on_each_store!(
    empty_bodies,
    as_long_as_the_limit,
    one_byte_over_the_limit,
    one_chunk_over_the_limit,
    what_cannot_be_published_is_shared_in_process,
    what_cannot_be_published_may_be_for_nobody,
    a_body_that_fails,
    trailers_are_shared,
    chunked_and_whole,
    a_stream_of_events_is_never_held_back,
    head_is_shared_with_its_length,
    a_hundred_get_a_large_one_byte_for_byte,
    statuses_and_repeated_fields_are_kept,
    fields_of_one_connection_are_not_shared,
);

const LIMIT: usize = 1000;

fn limited() -> Responses {
    Responses::default().largest_body(LIMIT)
}

/// Bytes that differ everywhere.
fn bytes(length: usize) -> Bytes {
    (0..length).map(|place| (place * 31 + place / 251) as u8).collect()
}

fn chunked(chunks: Vec<Bytes>) -> Body {
    Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, io::Error>)))
}

fn assert_all(received: &[Received], body: &Bytes) {
    for one in received {
        assert_eq!((one.status, one.complete), (StatusCode::OK, true));
        assert_eq!(one.body.len(), body.len());
        assert!(one.body == *body);
    }
}

async fn empty_bodies(stores: Stores) {
    let apps = Apps::start(&stores, Responses::default(), |flight| flight, Response::default).await;
    let received = apps.ask_all(10).await;
    assert_all(&received, &Bytes::new());
    assert!(received.iter().all(|one| one.headers["content-length"] == "0"));
    assert_eq!(apps.handled(), 1);
}

async fn as_long_as_the_limit(stores: Stores) {
    for whole in [true, false] {
        let answer = move || {
            let (one, other) = (bytes(LIMIT).slice(..LIMIT / 3), bytes(LIMIT).slice(LIMIT / 3..));
            Response::new(if whole { bytes(LIMIT).into() } else { chunked(vec![one, other]) })
        };
        let stores = if whole { &stores } else { &Stores::in_memory() };
        let apps = Apps::start(stores, limited(), |flight| flight, answer).await;
        assert_all(&apps.ask_all(10).await, &bytes(LIMIT));
        assert_eq!(apps.handled(), 1);
    }
}

/// Each gets its own, the whole of it, one after another.
async fn one_byte_over_the_limit(stores: Stores) {
    let answer = || Response::new(bytes(LIMIT + 1).into());
    let apps = Apps::start(&stores, limited(), |flight| flight, answer).await;
    assert_all(&apps.ask_all(10).await, &bytes(LIMIT + 1));
    assert_eq!(apps.handled(), 10);
}

/// Nobody knows before it has been read.
async fn one_chunk_over_the_limit(stores: Stores) {
    let answer = || Response::new(chunked(vec![bytes(LIMIT), bytes(LIMIT), bytes(7)]));
    let apps = Apps::start(&stores, limited(), |flight| flight, answer).await;
    let body = [bytes(LIMIT), bytes(LIMIT), bytes(7)].concat().into();
    assert_all(&apps.ask_all(10).await, &body);
    assert_eq!(apps.handled(), 10);
}

async fn what_cannot_be_published_is_shared_in_process(stores: Stores) {
    let answer = || Response::new(bytes(LIMIT).into());
    let apps =
        Apps::start(&stores, Responses::default(), |flight| flight.largest_answer(LIMIT), answer).await;
    // The header fields count as well.
    let received = apps.ask_all(20).await;
    assert_all(&received, &bytes(LIMIT));
    assert!((2..20).contains(&apps.handled()), "{} of 20", apps.handled());
    assert_all(&apps.ask_all(2).await, &bytes(LIMIT));
}

async fn what_cannot_be_published_may_be_for_nobody(stores: Stores) {
    let answer = || Response::new(bytes(LIMIT).into());
    let set = |flight: crate::single_flight::privacy::Builder| {
        flight.largest_answer(LIMIT).share_unpublished(false)
    };
    let apps = Apps::start(&stores, Responses::default(), set, answer).await;
    assert_all(&apps.ask_all(10).await, &bytes(LIMIT));
    assert_eq!(apps.handled(), 10);
}

/// Each sees that it is not whole; nobody gets the beginning of another's.
async fn a_body_that_fails(stores: Stores) {
    let answer = || {
        let chunks = [Ok(bytes(100)), Err(io::Error::other("broken"))];
        Response::new(Body::from_stream(stream::iter(chunks)))
    };
    let apps = Apps::start(&stores, Responses::default(), |flight| flight, answer).await;
    for one in apps.ask_all(10).await {
        assert!(!one.complete && bytes(100).starts_with(&one.body), "{one:?}");
    }
    assert_eq!(apps.handled(), 10);
}

async fn trailers_are_shared(stores: Stores) {
    let answer = || {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("\"7\""))]);
        let frames = [Ok::<_, io::Error>(Frame::data(bytes(100))), Ok(Frame::trailers(trailers))];
        let mut response = Response::new(Body::new(StreamBody::new(stream::iter(frames))));
        response.headers_mut().insert("trailer", HeaderValue::from_static("etag"));
        response
    };
    let apps = Apps::start(&stores, Responses::default(), |flight| flight, answer).await;
    let received = apps.ask_all(10).await;
    assert_all(&received, &bytes(100));
    for one in &received {
        assert_eq!(one.headers["trailer"], "etag");
        assert!(one.trailers.as_ref().is_none_or(|trailers| trailers["etag"] == "\"7\""));
    }
    assert_eq!(apps.handled(), 1);
}

async fn chunked_and_whole(stores: Stores) {
    let answer = || Response::new(chunked((0..50).map(|_| bytes(10)).collect()));
    let apps = Apps::start(&stores, Responses::default(), |flight| flight, answer).await;
    let received = apps.ask_all(10).await;
    assert_all(&received, &vec![bytes(10); 50].concat().into());
    assert!(received.iter().all(|one| one.headers["content-length"] == "500"), "it is known now");
    assert_eq!(apps.handled(), 1);
}

/// The senders of the streams that are open.
type Open = Arc<Mutex<Vec<UnboundedSender<Result<Bytes, io::Error>>>>>;

async fn a_stream_of_events_is_never_held_back(stores: Stores) {
    let open = Open::default();
    let opened = Arc::clone(&open);
    let answer = move || {
        let (sender, events) = unbounded();
        sender.unbounded_send(Ok(Bytes::from("data: first\n\n"))).unwrap();
        opened.lock().unwrap().push(sender);
        let response = Response::builder().header("content-type", "text/event-stream");
        response.body(Body::from_stream(events.fuse())).unwrap()
    };
    let apps = Apps::start(&stores, Responses::default(), |flight| flight, answer).await;
    let streams = join_all((0..6).map(|number| apps.head(number % 2, "GET"))).await;
    let mut bodies: Vec<_> = streams.into_iter().map(|stream| stream.unwrap().into_body()).collect();
    for text in ["data: first\n\n", "data: second\n\n"] {
        for body in &mut bodies {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), text);
        }
        for sender in &*open.lock().unwrap() {
            sender.unbounded_send(Ok(Bytes::from("data: second\n\n"))).unwrap();
        }
    }
    assert_eq!(apps.handled(), 6);
}

async fn head_is_shared_with_its_length(stores: Stores) {
    let answer = || Response::builder().header("content-length", "123456").body(Body::empty()).unwrap();
    let apps = Apps::start(&stores, Responses::default(), |flight| flight, answer).await;
    for one in join_all((0..10).map(|number| apps.ask(number % 2, "HEAD"))).await {
        assert_eq!((&*one.body, &one.headers["content-length"]), (&b""[..], &"123456".parse().unwrap()));
    }
    assert_eq!(apps.handled(), 1);
}

const LARGE: usize = 1 << 20;

async fn a_hundred_get_a_large_one_byte_for_byte(stores: Stores) {
    let answer = || Response::new(chunked(bytes(LARGE).chunks(10_000).map(Bytes::copy_from_slice).collect()));
    let apps =
        Apps::start(&stores, Responses::default(), |flight| flight.largest_answer(2 * LARGE), answer).await;
    assert_all(&apps.ask_all(100).await, &bytes(LARGE));
    assert_eq!(apps.handled(), 1);
}

async fn statuses_and_repeated_fields_are_kept(stores: Stores) {
    for status in [200, 201, 203, 301, 404, 410] {
        let answer = move || {
            let response = Response::builder().status(status);
            let response = response.header("link", "</a>").header("link", "</b>, </c>").header("x-empty", "");
            let opaque = HeaderValue::from_bytes(b"caf\xe9").unwrap();
            response.header("x-opaque", opaque).body(format!("told with {status}").into()).unwrap()
        };
        let stores = if status == 200 { &stores } else { &Stores::in_memory() };
        let apps = Apps::start(stores, Responses::default(), |flight| flight, answer).await;
        for one in apps.ask_all(6).await {
            assert_eq!(one.status, status);
            let links: Vec<_> = one.headers.get_all("link").iter().collect();
            assert_eq!(links, ["</a>", "</b>, </c>"]);
            assert_eq!(
                (one.headers["x-empty"].as_bytes(), one.headers["x-opaque"].as_bytes()),
                (&b""[..], &b"caf\xe9"[..])
            );
            assert_eq!(one.body, format!("told with {status}"));
        }
        assert_eq!(apps.handled(), 1);
    }
}

async fn fields_of_one_connection_are_not_shared(stores: Stores) {
    let answer = || {
        let response = Response::builder().header("connection", "x-hop").header("x-hop", "1");
        response.header("keep-alive", "timeout=5").header("x-kept", "1").body("hello".into()).unwrap()
    };
    let apps = Apps::start(&stores, Responses::default(), |flight| flight, answer).await;
    let received = apps.ask_all(10).await;
    let has = |name| received.iter().filter(|one| one.headers.contains_key(name)).count();
    assert_eq!((has("x-kept"), has("x-hop"), has("keep-alive")), (10, 1, 1));
    assert_eq!(apps.handled(), 1);
}
