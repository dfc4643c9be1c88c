//! What becomes of bodies on their way to many, over sockets.

use std::io;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::join_all;
use futures::{StreamExt as _, stream};
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use tower_distributed::response::Responses;

use crate::single_flight::messages::Apps;
use crate::stores::{Stores, on_each_store};

on_each_store!(all_get_the_whole_of_it, a_stream_of_events_is_never_held_back);

const LIMIT: usize = 1000;
const LARGE: usize = 1 << 20;

/// Bytes that differ everywhere.
fn bytes(length: usize) -> Bytes {
    (0..length).map(|place| (place * 31 + place / 251) as u8).collect()
}

fn chunked(chunks: Vec<Bytes>) -> Body {
    Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, io::Error>)))
}

/// What is too long to be shared, each gets for itself.
async fn all_get_the_whole_of_it(stores: Stores) {
    // The length, the limit, and that of a chunk; how many ask, and whether all get one answer.
    for (length, limit, chunk, asked, is_shared) in [
        (0, LIMIT, 0, 10, true),
        (LIMIT, LIMIT, 0, 10, true),
        (LIMIT, LIMIT, LIMIT / 3, 10, true),
        (LIMIT + 1, LIMIT, 0, 10, false),
        (2 * LIMIT + 7, LIMIT, LIMIT, 10, false),
        (LARGE, 2 * LARGE, 10_000, 100, true),
    ] {
        let answer = move || {
            let bytes = bytes(length);
            Response::new(if chunk == 0 {
                Body::from(bytes)
            } else {
                chunked(bytes.chunks(chunk).map(Bytes::copy_from_slice).collect())
            })
        };
        let responses = Responses::default().largest_body(limit);
        let apps = Apps::start(&stores, responses, |flight| flight.largest_answer(2 * LARGE), answer).await;
        for one in apps.ask_all(asked).await {
            assert_eq!((one.status, one.complete), (StatusCode::OK, true));
            assert!(one.body == bytes(length), "{} of {length} bytes", one.body.len());
            assert!(!is_shared || one.headers["content-length"] == length.to_string());
        }
        assert_eq!(apps.handled(), if is_shared { 1 } else { asked }, "{length}");
    }
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
    let streams = join_all((0..6).map(|number| apps.head(number % 2))).await;
    let mut bodies: Vec<_> = streams.into_iter().map(Response::into_body).collect();
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
