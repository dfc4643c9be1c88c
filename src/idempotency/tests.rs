use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _, once, pending};
use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};

use super::*;
use crate::dedupe::replay::Replay;
use crate::idempotency::layer::IdempotencyLayer;
use crate::idempotency::upload::RequestTrailers;
use crate::response::FlightBody;

const MIB: usize = 1 << 20;

fn builder(store: &Store) -> IdempotencyBuilder<Body> {
    idempotency(store, "payments", |_: &Request<Body>| "ann")
}

fn post(key: &str, body: Body) -> Request<Body> {
    Request::post("/")
        .header("idempotency-key", key)
        .body(body)
        .unwrap()
}

/// A layer with a separate store, and the number of calls of the service behind it.
fn alone() -> (IdempotencyLayer<Body>, Arc<AtomicUsize>) {
    (
        builder(&Store::in_memory()).build().unwrap(),
        Arc::default(),
    )
}

/// Sends a request to a service that counts its calls.
async fn send(
    layer: &IdempotencyLayer<Body>,
    calls: &Arc<AtomicUsize>,
    request: Request<Body>,
) -> Response<FlightBody<Body>> {
    answers(layer, calls, |_| Response::new(Body::from("paid")))(request).await
}

/// A body that never ends.
fn stalled(bytes: usize) -> Body {
    let chunk = move |_| Ok::<_, Infallible>(Bytes::from(vec![b'x'; bytes / 16]));
    Body::from_stream(
        futures_util::stream::iter(0..16)
            .map(chunk)
            .chain(pending()),
    )
}

/// A version of this crate with another format of records stores them under the same keys.
#[tokio::test]
async fn a_record_of_another_format_is_neither_an_error_nor_handled_again() {
    let (store, calls) = (Store::in_memory(), Arc::default());
    let replays =
        Replays::open(&store, "payments", "idempotency/0+http/1", DAY / 2880, DAY).unwrap();
    let Replay::New(claim) = Arc::new(replays)
        .claim(record::key(&"ann".into(), b"key-1"), None)
        .await
        .unwrap()
    else {
        panic!("the key is new")
    };
    claim
        .keep(b"a record".as_slice().into(), b"".as_slice().into())
        .await
        .unwrap();
    let layer = builder(&store).build().unwrap();
    for _ in 0..2 {
        let response = send(&layer, &calls, post("key-1", Body::from("10 EUR"))).await;
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        assert!(
            !response.headers().contains_key("retry-after"),
            "it stays so"
        );
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(
        send(&layer, &calls, post("key-2", Body::empty()))
            .await
            .status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn uploads_that_stall_are_bounded_together() {
    let (layer, calls) = alone();
    let mut uploads = FuturesUnordered::new();
    for upload in 0..100 {
        uploads.push(send(
            &layer,
            &calls,
            post(&format!("key-{upload}"), stalled(MIB)),
        ));
    }
    let mut refused = 0;
    while let Some(response) = futures_util::FutureExt::now_or_never(uploads.next()).flatten() {
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "1");
        refused += 1;
    }
    assert!(
        (30..100).contains(&(100 - refused)) && refused >= 36,
        "{refused} of 100 were refused"
    );
    drop(uploads);
    assert_eq!(
        send(&layer, &calls, post("key", Body::from("10 EUR")))
            .await
            .status(),
        StatusCode::OK
    );
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn uploads_that_stall_are_ended() {
    let (layer, calls) = alone();
    let upload = send(&layer, &calls, post("key", stalled(1024)));
    let response = tokio::time::timeout(DAY, upload)
        .await
        .expect("it never ends");
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let whole = Body::from_stream(once(async {
        Ok::<_, Infallible>(Bytes::from_static(b"10 EUR"))
    }));
    assert_eq!(
        send(&layer, &calls, post("key", whole)).await.status(),
        StatusCode::OK
    );
}

/// A service that returns the given response, each time with the number of the call.
fn answers<F>(
    layer: &IdempotencyLayer<Body>,
    calls: &Arc<AtomicUsize>,
    answer: F,
) -> impl AsyncFn(Request<Body>) -> Response<FlightBody<Body>> + use<F>
where
    F: Fn(Request<Body>) -> Response<Body> + Clone + Send + 'static,
{
    let (layer, calls) = (layer.clone(), Arc::clone(calls));
    move |request| {
        let (calls, answer) = (Arc::clone(&calls), answer.clone());
        let inner = service_fn(move |request: Request<Body>| {
            let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
            let mut response = answer(request);
            response.headers_mut().insert("call", call.into());
            async { Ok::<_, Infallible>(response) }
        });
        let layer = layer.clone();
        async move { layer.layer(inner).oneshot(request).await.unwrap() }
    }
}

fn told(response: &Response<FlightBody<Body>>) -> (u16, Option<&str>, bool) {
    let call = response
        .headers()
        .get("call")
        .map(|call| call.to_str().unwrap());
    (
        response.status().as_u16(),
        call,
        response.headers().contains_key("idempotency-replayed"),
    )
}

/// The head is sent at once, although the body never ends. The key counts as used.
#[tokio::test]
async fn streams_are_passed_on_and_not_stored() {
    let named = |parts: &http::response::Parts| parts.headers.contains_key("x-stream");
    for (field, value, is_stream) in [
        ("content-type", "text/event-stream", true),
        ("content-type", "Application/X-NDJSON; charset=utf-8", true),
        ("content-type", "application/jsonl", true),
        ("content-type", "application/grpc+proto", true),
        ("x-stream", "1", true),
        ("content-type", "application/json", false),
        ("content-encoding", "gzip", false),
    ] {
        for confirms in [true, false] {
            let layer = builder(&Store::in_memory())
                .stream_when(named)
                .confirm_streams(confirms);
            let (layer, calls) = (layer.build().unwrap(), Arc::default());
            let send = answers(&layer, &calls, move |_| {
                let head = Response::builder().header(field, value);
                // Its length is not known.
                let body = if is_stream { stalled(16) } else { chunked() };
                head.body(body).unwrap()
            });
            let first = send(post("key", Body::empty())).await;
            assert_eq!(told(&first), (200, Some("1"), false), "{value}");
            drop(first);
            let again = send(post("key", Body::empty())).await;
            let expected = match (is_stream, confirms) {
                (false, _) => (200, Some("1"), true),
                (true, true) => (409, None, false),
                (true, false) => (200, Some("2"), false),
            };
            assert_eq!(told(&again), expected, "{value}");
        }
    }
}

fn chunked() -> Body {
    let chunks = [
        Ok::<_, Infallible>(Bytes::from_static(b"a")),
        Ok(Bytes::from_static(b"b")),
    ];
    Body::from_stream(futures_util::stream::iter(chunks))
}

/// Errors of gRPC in the head: errors that may change are not stored, and are not streams.
#[tokio::test]
async fn a_stream_that_failed_in_its_head_may_be_sent_again() {
    for (status, calls_after) in [("14", 2), ("8", 2), ("0", 1), ("3", 1)] {
        let (layer, calls) = alone();
        let send = answers(&layer, &calls, move |_| {
            let head = Response::builder().header("content-type", "application/grpc");
            head.header("grpc-status", status)
                .body(Body::empty())
                .unwrap()
        });
        for _ in 0..2 {
            send(post("key", Body::empty())).await;
        }
        assert_eq!(calls.load(Ordering::SeqCst), calls_after, "{status}");
    }
}

/// A frame with the trailers of a body, after its data.
fn with_trailers(trailers: &'static [(&'static str, &'static str)]) -> Body {
    use http_body::Frame;
    let data = Frame::data(Bytes::from_static(b"body"));
    let fields = trailers
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let frames = [
        Ok::<_, Infallible>(data),
        Ok(Frame::trailers(http::HeaderMap::from_iter(fields))),
    ];
    Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(
        frames,
    )))
}

#[tokio::test]
async fn a_stream_ends_when_its_client_leaves() {
    let (layer, calls) = alone();
    let (events, body) = futures::channel::mpsc::unbounded::<Result<Bytes, Infallible>>();
    let body = Arc::new(std::sync::Mutex::new(Some(Body::from_stream(body))));
    let send = answers(&layer, &calls, move |_| {
        let head = Response::builder().header("content-type", "text/event-stream");
        head.body(body.lock().unwrap().take().unwrap()).unwrap()
    });
    let response = send(post("key", Body::empty())).await;
    assert!(!events.is_closed());
    drop(response);
    while !events.is_closed() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn trailers_reach_the_handler_and_are_replayed() {
    use http_body_util::BodyExt as _;
    let (layer, calls) = alone();
    let seen = Arc::new(std::sync::Mutex::new(None));
    let see = Arc::clone(&seen);
    let send = answers(&layer, &calls, move |request| {
        let (parts, body) = request.into_parts();
        let extension = parts
            .extensions
            .get::<RequestTrailers>()
            .map(|trailers| trailers.0.clone());
        *see.lock().unwrap() = Some((extension, body));
        let head = Response::builder()
            .header("trailer", "grpc-status")
            .header("set-cookie", "a=1");
        let head = head
            .header("date", "now")
            .header("retry-after", "1")
            .header("x-ratelimit-remaining", "0");
        head.body(with_trailers(&[
            ("grpc-status", "14"),
            ("x-ratelimit-remaining", "7"),
        ]))
        .unwrap()
    });
    for (is_replayed, limit) in [(false, Some("7")), (true, None)] {
        let response = send(post("key", with_trailers(&[("digest", "x")]))).await;
        assert_eq!(told(&response).2, is_replayed);
        assert_eq!(response.headers()["trailer"], "grpc-status");
        // Fields of one exchange are not replayed.
        let has = |name| response.headers().contains_key(name);
        assert!(has("set-cookie") && has("date"));
        assert_eq!(
            ["retry-after", "x-ratelimit-remaining"].map(has),
            [!is_replayed; 2]
        );
        let whole = response.into_body().collect().await.unwrap();
        let trailers = whole.trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "14");
        assert_eq!(
            trailers
                .get("x-ratelimit-remaining")
                .map(|left| left.to_str().unwrap()),
            limit
        );
        assert_eq!(whole.to_bytes(), "body");
    }
    let (extension, body) = seen.lock().unwrap().take().unwrap();
    assert_eq!(extension.unwrap()["digest"], "x");
    let whole = body.collect().await.unwrap();
    #[cfg(feature = "axum")]
    assert_eq!(whole.trailers().unwrap()["digest"], "x");
    assert_eq!(whole.to_bytes(), "body");
}

#[tokio::test]
async fn honest_retries_are_the_same_and_what_counts_can_be_chosen() {
    let send_to =
        |layer: &IdempotencyLayer<Body>| answers(layer, &Arc::default(), |_| Response::default());
    let with = |host: &str, content_type: &str, body: &str| {
        let request = Request::post("/")
            .header("idempotency-key", "key")
            .header("host", host);
        request
            .header("content-type", content_type)
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    let part = |boundary: &str, amount: &str| {
        format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=a\r\n\r\n{amount}\r\n--{boundary}--\r\n"
        )
    };
    let send = send_to(&builder(&Store::in_memory()).build().unwrap());
    let form = |host, boundary: &str, amount| {
        with(
            host,
            &format!("multipart/form-data; boundary={boundary}"),
            &part(boundary, amount),
        )
    };
    assert_eq!(
        send(form("Shop.example", "x1", "10")).await.status(),
        StatusCode::OK
    );
    assert_eq!(
        told(&send(form("shop.example:443", "y2", "10")).await),
        (200, Some("1"), true)
    );
    let refused = send(form("shop.example", "x1", "11")).await;
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);

    let store = Store::in_memory();
    let by_path = builder(&store).compare_by(|parts, _| parts.uri.path().as_bytes().to_vec());
    let send = send_to(&by_path.build().unwrap());
    assert_eq!(
        send(with("a", "text/plain", "1")).await.status(),
        StatusCode::OK
    );
    assert_eq!(
        told(&send(with("b", "text/html", "2")).await),
        (200, Some("1"), true)
    );
    let mut other = with("a", "text/plain", "1");
    *other.uri_mut() = "/other".parse().unwrap();
    assert_eq!(send(other).await.status(), StatusCode::UNPROCESSABLE_ENTITY);
    // Half of the fleet compares in another way: neither 422 nor handled again.
    let send = send_to(&builder(&store).build().unwrap());
    assert_eq!(
        send(with("a", "text/plain", "1")).await.status(),
        StatusCode::CONFLICT
    );
}

#[tokio::test]
async fn methods_and_the_header_field_can_be_chosen() {
    use http::Method;
    let chosen = builder(&Store::in_memory())
        .methods([Method::PUT, Method::DELETE])
        .header("X-Request-Token")
        .required(true);
    let (layer, calls) = (chosen.build().unwrap(), Arc::default());
    let send = answers(&layer, &calls, |_| Response::default());
    let request = |method: Method, field: &str| {
        Request::builder()
            .method(method)
            .header(field, "key")
            .body(Body::empty())
            .unwrap()
    };
    let handled = |call| (200, Some(call), false);
    let refused = |status| (status, None, false);
    let (token, usual) = ("x-request-token", "idempotency-key");
    for (method, field, first, again) in [
        (Method::PUT, token, handled("1"), (200, Some("1"), true)),
        (Method::DELETE, token, refused(422), refused(422)),
        (Method::DELETE, usual, refused(400), refused(400)),
        (Method::POST, token, handled("2"), handled("3")),
    ] {
        for expected in [first, again] {
            assert_eq!(
                told(&send(request(method.clone(), field)).await),
                expected,
                "{method} {field}"
            );
        }
    }
    let missing = send(request(Method::PUT, usual)).await;
    let body = http_body_util::BodyExt::collect(missing.into_body())
        .await
        .unwrap()
        .to_bytes();
    assert!(
        std::str::from_utf8(&body)
            .unwrap()
            .contains("X-Request-Token is missing"),
        "{body:?}"
    );
    let store = Store::in_memory();
    for (bad, text) in [
        (builder(&store).methods([]), "at least one method"),
        (
            builder(&store).methods([Method::POST, Method::GET]),
            "has GET",
        ),
        (builder(&store).methods([Method::CONNECT]), "has CONNECT"),
        (builder(&store).header("a key"), "\"a key\""),
    ] {
        let error = bad.build().unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(text),
            "{error}"
        );
    }
}

/// A service that responds when it is signalled, and the number of its calls.
struct Gate {
    layer: IdempotencyLayer<Body>,
    calls: Arc<AtomicUsize>,
    opens: Arc<tokio::sync::Notify>,
}

impl Gate {
    fn new(builder: IdempotencyBuilder<Body>) -> Self {
        Self {
            layer: builder.build().unwrap(),
            calls: Arc::default(),
            opens: Arc::default(),
        }
    }

    fn send(&self) -> futures_util::future::BoxFuture<'static, StatusCode> {
        let (calls, opens) = (Arc::clone(&self.calls), Arc::clone(&self.opens));
        let inner = service_fn(move |_: Request<Body>| {
            calls.fetch_add(1, Ordering::SeqCst);
            let opens = Arc::clone(&opens);
            async move {
                opens.notified().await;
                Ok::<_, Infallible>(Response::new(Body::from("paid")))
            }
        });
        let sent = self.layer.layer(inner).oneshot(post("key", Body::empty()));
        Box::pin(async { sent.await.unwrap().status() })
    }

    /// Sends a request and lets it be handled, as this call.
    async fn begin(&self, call: usize) -> tokio::task::JoinHandle<StatusCode> {
        let sent = tokio::spawn(self.send());
        while self.calls.load(Ordering::SeqCst) < call {
            tokio::task::yield_now().await;
        }
        sent
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_the_first_as_long_as_is_set() {
    let second = Duration::from_secs(1);
    let gate = Gate::new(builder(&Store::in_memory()).max_wait(10 * second));
    let first = gate.begin(1).await;
    let began = tokio::time::Instant::now();
    assert_eq!(gate.send().await, StatusCode::SERVICE_UNAVAILABLE);
    assert!((10..11).contains(&began.elapsed().as_secs()));
    let duplicate = tokio::spawn(gate.send());
    tokio::time::sleep(second).await;
    gate.opens.notify_one();
    assert_eq!(
        (first.await.unwrap(), duplicate.await.unwrap()),
        (StatusCode::OK, StatusCode::OK)
    );
    assert_eq!(gate.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_without_its_client_ends_at_its_time_limit() {
    let minute = Duration::from_secs(60);
    let store = Store::in_memory();
    let gate = Gate::new(builder(&store).max_detached(minute));
    let first = gate.begin(1).await;
    // As long as the client is there, nothing ends it.
    tokio::time::sleep(10 * minute).await;
    assert!(!first.is_finished());
    first.abort();
    tokio::time::sleep(minute - Duration::from_secs(1)).await;
    assert_eq!(gate.send().await, StatusCode::CONFLICT);
    assert!(
        store
            .shutdown(Duration::ZERO)
            .await
            .unwrap_err()
            .to_string()
            .contains("payments")
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    store.shutdown(Duration::ZERO).await.unwrap();
    let again = gate.begin(2).await;
    gate.opens.notify_one();
    assert_eq!(again.await.unwrap(), StatusCode::OK);
}

/// The handler has done its work. Only the body of its response never ends.
#[tokio::test(start_paused = true)]
async fn what_was_handled_is_not_handled_again_if_its_response_is_not_read() {
    let (layer, calls) = alone();
    let send = answers(&layer, &calls, |_| Response::new(stalled(16)));
    assert!(
        tokio::time::timeout(Duration::from_secs(1), send(post("key", Body::empty())))
            .await
            .is_err()
    );
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert_eq!(
        told(&send(post("key", Body::empty())).await),
        (409, None, false)
    );
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
