//! `Idempotency-Key` behind an axum server. What was handled is not handled again, also if there is no room for its response.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tower_distributed::web::{IdempotencyBuilder, idempotency};
use tower_distributed::{Key, Refusal, Store, StoreFailure};

use crate::net::{Answer, ask, client, serve};
use crate::stores::{SOON, Stores, away, on_each_store};
use support::redis_server::RedisServer;
use support::{eventually, patient};

on_each_store!(
    the_same_request_gets_the_same_response,
    nobody_gets_the_response_of_another,
    bodies_are_bounded,
);

/// Who was authenticated.
#[derive(Clone)]
struct User(String);

/// Takes anybody for whom it says to be, where it says so.
async fn authenticate(mut request: Request, next: Next) -> Response {
    if let Some(user) = request
        .headers()
        .get("user")
        .map(|user| user.to_str().unwrap().to_owned())
    {
        request.extensions_mut().insert(User(user));
    }
    next.run(request).await
}

fn by_user(request: &Request) -> Option<Key> {
    request
        .extensions()
        .get::<User>()
        .map(|user| Key::from(&user.0))
}

fn layer(store: &Store) -> IdempotencyBuilder<axum::body::Body> {
    idempotency(store, "payments", by_user)
}

/// Answers with the number of the call and what it got, and has a status of its path.
struct App {
    router: Router,
    calls: Arc<AtomicUsize>,
}

fn app() -> App {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = async move |Path(status): Path<u16>, headers: HeaderMap, body: String| {
        let call = counted.fetch_add(1, Ordering::SeqCst) + 1;
        let user = headers
            .get("user")
            .map_or("nobody", |user| user.to_str().unwrap());
        let fields = [("call", call.to_string()), ("set-cookie", "a=1".into())];
        (
            StatusCode::from_u16(status).unwrap(),
            fields,
            format!("{user}: {body}"),
        )
            .into_response()
    };
    App {
        router: Router::new().route("/{status}", post(handler.clone()).get(handler)),
        calls,
    }
}

impl App {
    /// With the layer, behind what authenticates.
    async fn serve(&self, builder: IdempotencyBuilder<axum::body::Body>) -> String {
        let router = self.router.clone().layer(builder.build().unwrap());
        serve(router.layer(from_fn(authenticate))).await
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

async fn send(url: &str, fields: &[(&str, &str)], body: &str) -> Answer {
    ask(client().post(url).body(body.to_owned()), fields).await
}

const ANN: (&str, &str) = ("user", "ann");
const KEY: (&str, &str) = ("idempotency-key", "\"8e03978e-40d5\"");

async fn the_same_request_gets_the_same_response(stores: Stores) {
    let app = app();
    let (one, other) = (
        app.serve(layer(&stores.open())).await,
        app.serve(layer(&stores.open())).await,
    );
    for (status, call) in [("201", "1"), ("302", "2"), ("422", "3")] {
        let key = ("idempotency-key", status);
        let first = send(&format!("{one}/{status}"), &[ANN, key], "10 EUR").await;
        assert_eq!(
            (first.header("call"), first.header("idempotency-replayed")),
            (Some(call), None)
        );
        for url in [&one, &other, &one] {
            let again = send(&format!("{url}/{status}"), &[ANN, key], "10 EUR").await;
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            for field in ["call", "set-cookie", "content-type"] {
                assert_eq!(again.header(field), first.header(field));
            }
            assert_eq!(again.header("idempotency-replayed"), Some("?1"));
        }
    }
    assert_eq!(app.calls(), 3);
    // Methods that are idempotent by themselves pass.
    for _ in 0..2 {
        let got = client()
            .get(format!("{one}/200"))
            .header(ANN.0, ANN.1)
            .header(KEY.0, KEY.1);
        assert!(
            !got.send()
                .await
                .unwrap()
                .headers()
                .contains_key("idempotency-replayed")
        );
    }
    assert_eq!(app.calls(), 5);
    // Others may be sent again, if not set otherwise.
    let all =
        layer(&stores.open()).keep_when(|parts| parts.status == StatusCode::SERVICE_UNAVAILABLE);
    let url = format!("{}/503", app.serve(all).await);
    for replayed in [None, Some("?1")] {
        eventually("it to be handled", SOON, async || {
            let answer = send(&url, &[ANN, (KEY.0, "kept")], "").await;
            answer.header("idempotency-replayed") == replayed
        })
        .await;
    }
}

async fn nobody_gets_the_response_of_another(stores: Stores) {
    let app = app();
    let url = format!(
        "{}/200",
        app.serve(layer(&stores.open()).required(true)).await
    );
    for (call, user) in ["ann", "bob", "ann8e03978e", ""].into_iter().enumerate() {
        let answer = send(&url, &[("user", user), KEY], "the same").await;
        assert_eq!(
            answer.header("call"),
            Some(&*(call + 1).to_string()),
            "{user}"
        );
        assert_eq!(answer.body, format!("{user}: the same"));
    }
    for user in ["bob", "ann"] {
        let again = send(&url, &[("user", user), KEY], "the same").await;
        let expected = (format!("{user}: the same"), Some("?1"));
        assert_eq!(
            (again.body.clone(), again.header("idempotency-replayed")),
            expected
        );
    }
    // Of those whom nobody knows, nothing is kept.
    for call in ["5", "6"] {
        assert_eq!(
            send(&url, &[KEY], "the same").await.header("call"),
            Some(call)
        );
    }
}

async fn bodies_are_bounded(stores: Stores) {
    let app = app();
    let bounded = layer(&stores.open())
        .largest_request(100)
        .largest_response(50);
    let url = format!("{}/200", app.serve(bounded).await);
    let refused = send(&url, &[ANN, KEY], &"x".repeat(101)).await;
    assert_eq!(
        (refused.status, app.calls()),
        (StatusCode::PAYLOAD_TOO_LARGE, 0)
    );
    let large = "x".repeat(100);
    let sent = send(&url, &[ANN, KEY], &large).await;
    assert_eq!(
        (sent.status, sent.body),
        (StatusCode::OK, format!("ann: {large}"))
    );
    for _ in 0..2 {
        let again = send(&url, &[ANN, KEY], &large).await;
        assert_eq!(
            (again.status, again.header("retry-after"), app.calls()),
            (StatusCode::CONFLICT, None, 1)
        );
        assert!(
            again.json()["detail"]
                .as_str()
                .unwrap()
                .contains("was not stored")
        );
    }
}

#[tokio::test]
async fn in_an_outage_requests_are_handled_as_set() {
    const REPLICAS: NonZeroU32 = NonZeroU32::new(3).unwrap();
    let (open, share) = (
        StoreFailure::FailOpen,
        StoreFailure::LocalShare { replicas: REPLICAS },
    );
    for (away_as, status, replayed, calls) in [
        (None, 503, None, 0),
        (Some(open), 200, None, 2),
        (Some(share), 200, Some("?1"), 1),
    ] {
        let (app, layer) = (app(), layer(&away()));
        let layer = match away_as {
            Some(away_as) => layer.on_store_failure(away_as),
            None => layer,
        };
        let url = format!("{}/200", app.serve(layer).await);
        for replayed in [None, replayed] {
            let answer = send(&url, &[ANN, KEY], "10 EUR").await;
            assert_eq!(
                (
                    answer.status.as_u16(),
                    answer.header("idempotency-replayed")
                ),
                (status, replayed)
            );
        }
        assert_eq!(app.calls(), calls);
        assert_eq!(
            send(&url, &[ANN], "").await.status,
            StatusCode::OK,
            "without a key"
        );
    }
}

#[tokio::test]
async fn refusals_are_as_set() {
    let refused = |refusal: Refusal| {
        let body = axum::body::Body::from(format!("{:?}: {refusal}", refusal.kind()));
        http::Response::builder()
            .status(StatusCode::IM_A_TEAPOT)
            .body(body)
            .unwrap()
    };
    let once = layer(&Store::in_memory())
        .required(true)
        .largest_request(100)
        .reject_with(refused);
    let app = app();
    let router = app
        .router
        .clone()
        .layer(once.build().unwrap())
        .layer(from_fn(authenticate));
    let url = serve(router).await;
    let large = "x".repeat(101);
    for (path, fields, body, told) in [
        (
            "200",
            &[ANN][..],
            "",
            "MissingPart: Idempotency-Key is missing",
        ),
        (
            "200",
            &[ANN, KEY, KEY],
            "",
            "BadRequest: Idempotency-Key must be sent only once",
        ),
        (
            "200",
            &[ANN, KEY],
            &large,
            "RequestTooLarge: the request body is larger than 100 bytes",
        ),
        ("200", &[ANN, KEY], "10 EUR", "ann: 10 EUR"),
        (
            "201",
            &[ANN, KEY],
            "10 EUR",
            "KeyReused: the idempotency key was used for another request, with another host, path or query",
        ),
    ] {
        assert_eq!(
            send(&format!("{url}/{path}"), fields, body).await.body,
            told
        );
    }
    assert_eq!(app.calls(), 1);
}

/// axum takes the prefix off the path that the layers of a nested router see.
#[cfg(feature = "axum")]
#[tokio::test]
async fn nested_routers_do_not_replay_each_other() {
    let (app, layer) = (app(), layer(&Store::in_memory()).build().unwrap());
    let version = || app.router.clone().layer(layer.clone());
    let router = Router::new().nest("/v1", version()).nest("/v2", version());
    let url = serve(router.layer(from_fn(authenticate))).await;
    let pay = async |version| send(&format!("{url}/{version}/200"), &[ANN, KEY], "pay").await;
    for _ in 0..2 {
        assert_eq!(pay("v1").await.status, StatusCode::OK);
    }
    let refused = pay("v2").await;
    assert_eq!(
        refused.header("call"),
        None,
        "another request under the same key"
    );
    assert_eq!(refused.problem().0, 422);
    assert_eq!(app.calls(), 1);
}

/// Pays by a service that answers with so many bytes, after it has done something. Returns the answer to the same payment
/// once it is known to be handled.
async fn twice(
    store: &Store,
    bytes: usize,
    done: impl Fn() + Clone + Send + Sync + 'static,
) -> Answer {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        done();
        let body = "a".repeat(bytes);
        async { body }
    };
    let layer = idempotency(store, "payments", |_: &Request| "ann")
        .build()
        .unwrap();
    let url = format!(
        "{}/",
        serve(Router::new().route("/", post(handler)).layer(layer)).await
    );
    let pay = async || {
        ask(
            client().post(&url).body("10 EUR"),
            &[("idempotency-key", "key-1")],
        )
        .await
    };
    assert_eq!(pay().await.status, StatusCode::OK);
    let mut again = None;
    eventually("the payment to be recorded", SOON, async || {
        let answer = pay().await;
        let is_known = answer.header("retry-after").is_none();
        again = Some(answer);
        is_known
    })
    .await;
    assert_eq!(calls.load(Ordering::SeqCst), 1, "it is handled once");
    again.unwrap()
}

/// A small one is stored whole.
#[tokio::test]
async fn a_store_without_room_records_the_request() {
    let store = Store::builder().max_bytes(1 << 16).in_memory().unwrap();
    let again = twice(&store, 100_000, || ()).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert!(
        again.body.contains("its response was not stored"),
        "{}",
        again.body
    );
    for bytes in [100_000, 10] {
        let server = Arc::new(RedisServer::start().await);
        let store = patient!(server.url());
        let full = Arc::clone(&server);
        let done = move || drop(full.cli(&["CONFIG", "SET", "maxmemory", "1"]));
        let again = twice(&store, bytes, done).await;
        if bytes == 10 {
            assert_eq!(
                (again.status, again.header("idempotency-replayed")),
                (StatusCode::OK, Some("?1"))
            );
        } else {
            assert!(
                again.body.contains("its response was not stored"),
                "{}",
                again.body
            );
        }
    }
}
