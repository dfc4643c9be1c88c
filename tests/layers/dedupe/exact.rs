//! Exact mode behind an axum server, and senders who would suppress the messages of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tower_distributed::dedupe::{Claimed, DuplicateAction};
use tower_distributed::extract::header;
use tower_distributed::web::dedupe as once;
use tower_distributed::{Dedupe, Key, Store};

use crate::net::{Answer, ask, client, serve};
use crate::stores::{Stores, on_each_store};

on_each_store!(
    a_duplicate_is_acknowledged,
    what_is_in_flight_is_a_conflict_for_a_while,
    a_forged_message_is_refused_before_it_claims_an_id,
    a_sender_cannot_suppress_the_messages_of_another,
);

fn exact(store: &Store) -> Dedupe {
    let builder = Dedupe::exact(store, "exact").capacity(1000);
    builder.remember_for(Duration::from_secs(86_400)).build().unwrap()
}

async fn send(url: &str, fields: &[(&str, &str)]) -> Answer {
    ask(client().post(format!("{url}/")), fields).await
}

/// Counts how often it is called.
fn app() -> (Router, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = post(async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        (StatusCode::ACCEPTED, "handled")
    });
    (Router::new().route("/", handler), calls)
}

async fn a_duplicate_is_acknowledged(stores: Stores) {
    let (app, calls) = app();
    let layer = || once(exact(&stores.open()), header("webhook-id").unwrap().plain());
    let url = serve(app.clone().layer(layer())).await;
    let first = send(&url, &[("webhook-id", "evt_1")]).await;
    assert_eq!((first.status, first.header("duplicate")), (StatusCode::ACCEPTED, None));
    for _ in 0..2 {
        let again = send(&url, &[("webhook-id", "evt_1")]).await;
        let expected = (StatusCode::OK, Some("?1"), "");
        assert_eq!((again.status, again.header("duplicate"), again.body.as_str()), expected);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let refusing = serve(app.layer(layer().on_duplicate(|_, _| DuplicateAction::Refuse))).await;
    assert_eq!(send(&refusing, &[("webhook-id", "evt_1")]).await.status, StatusCode::CONFLICT);
}

async fn what_is_in_flight_is_a_conflict_for_a_while(stores: Stores) {
    let (app, calls) = app();
    let url = serve(app.layer(once(exact(&stores.open()), header("webhook-id").unwrap().plain()))).await;
    let Claimed::New(claim) = exact(&stores.open()).try_claim("evt_1").await.unwrap() else { panic!() };
    let refused = send(&url, &[("webhook-id", "evt_1")]).await;
    assert_eq!((refused.status, refused.header("duplicate")), (StatusCode::CONFLICT, None));
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&after), "{after}");
    assert!(claim.release().await.unwrap());
    assert_eq!(send(&url, &[("webhook-id", "evt_1")]).await.status, StatusCode::ACCEPTED);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// Knows senders by their secrets.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let sender = match request.headers().get("secret").map(|secret| secret.as_bytes()) {
        Some(b"of a") => Sender("a"),
        Some(b"of a:b") => Sender("a:b"),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(sender);
    next.run(request).await
}

#[derive(Clone, Copy)]
struct Sender(&'static str);

/// Whoever guesses an id and cannot authenticate does not even hold it up.
async fn a_forged_message_is_refused_before_it_claims_an_id(stores: Stores) {
    let (app, calls) = app();
    let layer = once(exact(&stores.open()), header("webhook-id").unwrap().plain());
    let url = serve(app.layer(layer).layer(from_fn(authenticate))).await;
    for _ in 0..3 {
        let forged = send(&url, &[("webhook-id", "evt_1"), ("secret", "guessed")]).await;
        assert_eq!((forged.status, forged.header("duplicate")), (StatusCode::UNAUTHORIZED, None));
    }
    let genuine = send(&url, &[("webhook-id", "evt_1"), ("secret", "of a")]).await;
    assert_eq!((genuine.status, calls.load(Ordering::SeqCst)), (StatusCode::ACCEPTED, 1));
}

/// The sender that was authenticated is part of the item, and no id reaches over to another's.
async fn a_sender_cannot_suppress_the_messages_of_another(stores: Stores) {
    let (app, calls) = app();
    let sender = |request: &Request| request.extensions().get::<Sender>().map(|sender| Key::from(sender.0));
    let layer = once(exact(&stores.open()), (sender, header("webhook-id").unwrap().plain()));
    let url = serve(app.layer(layer).layer(from_fn(authenticate))).await;
    let messages =
        [("of a", "b:c"), ("of a:b", "c"), ("of a", "evt_1"), ("of a:b", "evt_1"), ("of a", "3:evt_1")];
    for (secret, id) in messages {
        // Whatever a sender says of itself, it is the one that was authenticated.
        let fields = [("secret", secret), ("webhook-id", id), ("sender", "another")];
        assert_eq!(send(&url, &fields).await.status, StatusCode::ACCEPTED, "{secret}: {id}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), messages.len());
    for (secret, id) in messages {
        let again = send(&url, &[("secret", secret), ("webhook-id", id)]).await;
        assert_eq!((again.status, again.header("duplicate")), (StatusCode::OK, Some("?1")));
    }
    assert_eq!(calls.load(Ordering::SeqCst), messages.len());
}
