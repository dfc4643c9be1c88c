//! Servers behind the layer: what those who send webhooks get, and who would suppress the messages of others.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_distributed::dedupe::DuplicateAction;
use tower_distributed::extract::header;
use tower_distributed::web::{
    Duplicate, dedupe as once, is_handled as counts_as_handled, mark_duplicate,
};
use tower_distributed::{DedupeLayer, Key, LeaseHandle, grpc};

use crate::dedupe::exact;
use crate::health::{retry_delay, serve_health};
use crate::items::{dedupe, handled, is_handled};
use crate::net::{Answer, ask, client, serve};
use crate::stores::{Stores, on_each_store};

on_each_store!(
    a_duplicate_is_a_conflict,
    a_duplicate_is_marked_or_answered,
    a_duplicate_that_is_sure_is_acknowledged,
    a_sender_cannot_suppress_the_messages_of_another,
    only_ok_counts_as_handled,
);

async fn send(url: &str, fields: &[(&str, &str)]) -> Answer {
    ask(client().post(format!("{url}/")), fields).await
}

/// Tells the fence, and whether it is a duplicate. Counts how often it is called.
fn app() -> (Router, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = async move |lease: Option<Extension<LeaseHandle>>,
                              duplicate: Option<Extension<Duplicate>>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let fence = lease.and_then(|lease| lease.fence()).unwrap_or(0);
        (
            StatusCode::ACCEPTED,
            format!("{fence} {}", duplicate.is_some()),
        )
    };
    (Router::new().route("/", post(handler)), calls)
}

macro_rules! layer {
    ($dedupe:expr) => {
        once($dedupe, header("webhook-id").unwrap().plain())
    };
}

const ID: (&str, &str) = ("webhook-id", "evt_1");

/// The filter alone may be wrong, and then a 2xx would lose a message.
async fn a_duplicate_is_a_conflict(stores: Stores) {
    let (app, calls) = app();
    let url = serve(app.layer(layer!(dedupe(&stores.open())))).await;
    let first = send(&url, &[ID]).await;
    let (fence, duplicate) = first.body.split_once(' ').unwrap();
    assert_eq!((first.status, duplicate), (StatusCode::ACCEPTED, "false"));
    assert!(fence.parse::<u64>().unwrap() > 0, "the handler gets it");
    for _ in 0..2 {
        let answer = send(&url, &[ID]).await;
        assert_eq!(answer.header("duplicate"), None);
        assert_eq!(answer.problem(), (409, None, "Conflict".into()));
    }
    assert_eq!(
        send(&url, &[]).await.status,
        StatusCode::BAD_REQUEST,
        "without a key"
    );
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

async fn a_duplicate_is_marked_or_answered(stores: Stores) {
    handled(&stores, "evt_1").await;
    let (app, _) = app();
    let marked = serve(
        app.clone()
            .layer(layer!(dedupe(&stores.open())).on_duplicate(mark_duplicate)),
    )
    .await;
    for (id, is_duplicate) in [("evt_1", true), ("evt_2", false), ("evt_2", true)] {
        let answer = send(&marked, &[("webhook-id", id)]).await;
        assert_eq!(
            (answer.status, answer.body.ends_with("true")),
            (StatusCode::ACCEPTED, is_duplicate)
        );
        assert_eq!(is_handled(&stores, id).await, Some(true));
    }
    let answers = layer!(dedupe(&stores.open()))
        .on_duplicate(|_, _| DuplicateAction::Answer((StatusCode::OK, "known").into_response()));
    let answered = serve(app.layer(answers)).await;
    let answer = send(&answered, &[ID]).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (StatusCode::OK, "known")
    );
}

/// Who sends webhooks sends again what is not answered 2xx.
async fn a_duplicate_that_is_sure_is_acknowledged(stores: Stores) {
    let looked_up =
        layer!(dedupe(&stores.open())).confirm_duplicate(|_: &Request| std::future::ready(true));
    for layer in [layer!(exact(&stores.open())), looked_up] {
        let (app, calls) = app();
        let url = serve(app.clone().layer(layer.clone())).await;
        let first = send(&url, &[ID]).await;
        assert_eq!(
            (first.status, first.header("duplicate")),
            (StatusCode::ACCEPTED, None)
        );
        for _ in 0..2 {
            let again = send(&url, &[ID]).await;
            let expected = (StatusCode::OK, Some("?1"), "");
            assert_eq!(
                (again.status, again.header("duplicate"), again.body.as_str()),
                expected
            );
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let refusing = serve(app.layer(layer.on_duplicate(|_, _| DuplicateAction::Refuse))).await;
        assert_eq!(send(&refusing, &[ID]).await.status, StatusCode::CONFLICT);
    }
}

#[test]
fn which_statuses_count_as_handled() {
    for status in 200..600_u16 {
        let response = axum::http::Response::builder()
            .status(status)
            .body(())
            .unwrap();
        assert_eq!(
            counts_as_handled(&Ok::<_, Infallible>(response)),
            status < 300,
            "{status}"
        );
    }
}

/// Knows senders by their secrets.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let sender = match request
        .headers()
        .get("secret")
        .map(|secret| secret.as_bytes())
    {
        Some(b"of a") => Sender("a"),
        Some(b"of a:b") => Sender("a:b"),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(sender);
    next.run(request).await
}

#[derive(Clone, Copy)]
struct Sender(&'static str);

/// Whoever guesses an id and cannot authenticate does not even hold it up. The sender that was authenticated is part of the
/// item, and no id reaches over to another's.
async fn a_sender_cannot_suppress_the_messages_of_another(stores: Stores) {
    let (app, calls) = app();
    let sender = |request: &Request| {
        request
            .extensions()
            .get::<Sender>()
            .map(|sender| Key::from(sender.0))
    };
    let layer = once(
        exact(&stores.open()),
        (sender, header("webhook-id").unwrap().plain()),
    );
    let url = serve(app.layer(layer).layer(from_fn(authenticate))).await;
    let messages = [
        ("of a", "b:c"),
        ("of a:b", "c"),
        ("of a", "evt_1"),
        ("of a:b", "evt_1"),
        ("of a", "3:evt_1"),
    ];
    for (_, id) in messages {
        let forged = send(&url, &[("webhook-id", id), ("secret", "guessed")]).await;
        assert_eq!(
            (forged.status, forged.header("duplicate")),
            (StatusCode::UNAUTHORIZED, None)
        );
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    for (secret, id) in messages {
        // Whatever a sender says of itself, it is the one that was authenticated.
        let fields = [
            ("secret", secret),
            ("webhook-id", id),
            ("sender", "another"),
        ];
        assert_eq!(
            send(&url, &fields).await.status,
            StatusCode::ACCEPTED,
            "{secret}: {id}"
        );
    }
    assert_eq!(calls.load(Ordering::SeqCst), messages.len());
    for (secret, id) in messages {
        let again = send(&url, &[("secret", secret), ("webhook-id", id)]).await;
        assert_eq!(
            (again.status, again.header("duplicate")),
            (StatusCode::OK, Some("?1"))
        );
    }
    assert_eq!(calls.load(Ordering::SeqCst), messages.len());
}

/// Over gRPC, and clients get statuses.
async fn only_ok_counts_as_handled(stores: Stores) {
    let layer = DedupeLayer::new(
        dedupe(&stores.open()),
        header("message-id").unwrap().plain(),
    );
    let layer = layer.success(grpc::is_handled).reject_with(grpc::refuse());
    let channel = serve_health!(layer);
    let check = async |service: &str| {
        let mut request = tonic::Request::new(HealthCheckRequest {
            service: service.to_owned(),
        });
        request
            .metadata_mut()
            .insert("message-id", "m1".parse().unwrap());
        HealthClient::new(channel.clone())
            .check(request)
            .await
            .map(drop)
    };
    for _ in 0..2 {
        assert_eq!(check("unknown").await.unwrap_err().code(), Code::NotFound);
        assert_eq!(is_handled(&stores, "m1").await, Some(false));
    }
    check("").await.unwrap();
    assert_eq!(is_handled(&stores, "m1").await, Some(true));
    let status = check("").await.unwrap_err();
    assert_eq!(
        (status.code(), retry_delay(&status)),
        (Code::AlreadyExists, None)
    );
}
