//! An axum server behind the layer: what those who send webhooks to it get.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Router, response::IntoResponse};
use tokio::sync::Notify;
use tower_distributed::dedupe::DuplicateAction;
use tower_distributed::extract::header;
use tower_distributed::web::{Duplicate, dedupe as once, mark_duplicate};
use tower_distributed::{LeaseHandle, StoreFailure};
use tower_http::catch_panic::CatchPanicLayer;

use crate::items::{becomes_free, claim, dedupe, handled, is_handled};
use crate::net::{Answer, ask, client, serve};
use crate::stores::{SOON, Stores, away, on_each_store};

on_each_store!(
    a_duplicate_is_a_conflict,
    a_duplicate_is_marked_or_answered,
    what_is_in_flight_is_a_conflict_for_a_while,
    what_is_in_flight_is_waited_for,
    which_statuses_count_as_handled,
    a_forged_message_does_not_suppress_the_genuine_one,
    a_duplicate_that_was_looked_up_is_acknowledged,
    a_handler_that_panics_may_be_called_again,
    a_client_that_goes_away_may_send_again,
    the_handler_gets_a_fence,
);

async fn send(url: &str, path: &str, id: &str) -> Answer {
    ask(client().post(format!("{url}{path}")), &[("webhook-id", id)]).await
}

/// `/status/n` answers so, `/panic` panics, `/lease` tells the fence, `/duplicate` whether it is one.
fn app() -> Router {
    Router::new()
        .route(
            "/status/{status}",
            post(async |Path(status): Path<u16>| StatusCode::from_u16(status).unwrap()),
        )
        .route("/panic", post(async || std::panic::resume_unwind(Box::new("a handler panics")) as ()))
        .route(
            "/lease",
            post(async |lease: Extension<LeaseHandle>| {
                (StatusCode::ACCEPTED, lease.fence().unwrap().to_string())
            }),
        )
        .route(
            "/duplicate",
            post(async |duplicate: Option<Extension<Duplicate>>| duplicate.is_some().to_string()),
        )
}

macro_rules! layer {
    ($stores:expr) => {
        once(dedupe(&$stores.open()), header("webhook-id").unwrap().plain())
    };
}

async fn a_duplicate_is_a_conflict(stores: Stores) {
    let url = serve(app().layer(layer!(stores))).await;
    assert_eq!(send(&url, "/status/200", "evt_1").await.status, StatusCode::OK);
    for _ in 0..2 {
        let answer = send(&url, "/status/200", "evt_1").await;
        assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::CONFLICT, None));
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.json()["status"], 409);
    }
    let without = client().post(format!("{url}/status/200"));
    assert_eq!(without.send().await.unwrap().status(), StatusCode::BAD_REQUEST, "without a key");
}

async fn a_duplicate_is_marked_or_answered(stores: Stores) {
    handled(&stores, "evt_1").await;
    let marked = serve(app().layer(layer!(stores).on_duplicate(mark_duplicate))).await;
    assert_eq!(send(&marked, "/duplicate", "evt_1").await.body, "true");
    assert_eq!(send(&marked, "/duplicate", "evt_2").await.body, "false");
    assert_eq!(send(&marked, "/duplicate", "evt_2").await.body, "true");
    let known = || DuplicateAction::Answer((StatusCode::OK, "known").into_response());
    let answered = serve(app().layer(layer!(stores).on_duplicate(move |_, _| known()))).await;
    let answer = send(&answered, "/status/500", "evt_1").await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, "known"));
}

async fn what_is_in_flight_is_a_conflict_for_a_while(stores: Stores) {
    let other = claim(&stores, "evt_1").await;
    let url = serve(app().layer(layer!(stores))).await;
    let answer = send(&url, "/status/200", "evt_1").await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(after, 5, "an estimate");
    let brief = layer!(stores).max_wait(Duration::from_millis(20));
    let answer = send(&serve(app().layer(brief)).await, "/status/200", "evt_1").await;
    assert_ne!(answer.status, StatusCode::OK);
    assert!(other.release().await.unwrap());
    assert_eq!(send(&url, "/status/200", "evt_1").await.status, StatusCode::OK);
}

async fn what_is_in_flight_is_waited_for(stores: Stores) {
    for (id, is_confirmed) in [("evt_1", true), ("evt_2", false)] {
        let other = claim(&stores, id).await;
        let url = serve(app().layer(layer!(stores).max_wait(SOON))).await;
        let waiting = tokio::spawn(async move { send(&url, "/status/202", id).await });
        if is_confirmed {
            assert!(other.confirm().await.unwrap());
            assert_eq!(waiting.await.unwrap().status, StatusCode::CONFLICT);
        } else {
            assert!(other.release().await.unwrap());
            assert_eq!(waiting.await.unwrap().status, StatusCode::ACCEPTED);
        }
    }
}

async fn which_statuses_count_as_handled(stores: Stores) {
    let url = serve(app().layer(layer!(stores))).await;
    for (status, counts) in [
        (200, true),
        (202, true),
        (206, true),
        (302, false),
        (400, false),
        (401, false),
        (404, false),
        (408, false),
        (409, false),
        (423, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let id = format!("evt_{status}");
        assert_eq!(send(&url, &format!("/status/{status}"), &id).await.status.as_u16(), status);
        assert_eq!(is_handled(&stores, &id).await, Some(counts), "{status}");
    }
    let also_gone =
        layer!(stores).success(|outcome: &Result<axum::response::Response, std::convert::Infallible>| {
            outcome.as_ref().is_ok_and(|response| response.status() == StatusCode::GONE)
        });
    let url = serve(app().layer(also_gone)).await;
    assert_eq!(send(&url, "/status/410", "evt_a").await.status, StatusCode::GONE);
    assert_eq!(is_handled(&stores, "evt_a").await, Some(true));
}

/// Who guesses the id of a message and cannot sign it does not keep the genuine one from being handled.
async fn a_forged_message_does_not_suppress_the_genuine_one(stores: Stores) {
    let app = Router::new().route(
        "/signed",
        post(async |headers: axum::http::HeaderMap| match headers.contains_key("signature") {
            true => StatusCode::OK,
            false => StatusCode::UNAUTHORIZED,
        }),
    );
    let url = serve(app.layer(layer!(stores))).await;
    assert_eq!(send(&url, "/signed", "evt_1").await.status, StatusCode::UNAUTHORIZED);
    let genuine =
        client().post(format!("{url}/signed")).header("webhook-id", "evt_1").header("signature", "s");
    assert_eq!(genuine.send().await.unwrap().status(), StatusCode::OK);
    assert_eq!(is_handled(&stores, "evt_1").await, Some(true));
}

/// Who sends webhooks sends again what is not answered 2xx. The filter alone may be wrong, and then 2xx would lose a message.
async fn a_duplicate_that_was_looked_up_is_acknowledged(stores: Stores) {
    for id in ["evt_1", "evt_2"] {
        handled(&stores, id).await;
    }
    let look_up = |request: &axum::extract::Request| {
        let is_known = request.headers()["webhook-id"] == "evt_1";
        async move { is_known }
    };
    let url = serve(app().layer(layer!(stores).confirm_duplicate(look_up))).await;
    let known = send(&url, "/status/202", "evt_1").await;
    assert_eq!(
        (known.status, known.header("duplicate"), known.body.as_str()),
        (StatusCode::OK, Some("?1"), "")
    );
    let new = send(&url, "/status/202", "evt_2").await;
    assert_eq!((new.status, new.header("duplicate")), (StatusCode::ACCEPTED, None));
    let url = serve(app().layer(layer!(stores))).await;
    let perhaps = send(&url, "/status/202", "evt_1").await;
    assert_eq!((perhaps.status, perhaps.header("duplicate")), (StatusCode::CONFLICT, None));
    let sure = |_: &axum::extract::Request| std::future::ready(true);
    let all = layer!(stores).confirm_duplicate(sure).on_duplicate(|_, _| DuplicateAction::Refuse);
    let refused = send(&serve(app().layer(all)).await, "/status/202", "evt_1").await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
}

async fn a_handler_that_panics_may_be_called_again(stores: Stores) {
    let outside = app().layer(layer!(stores)).layer(CatchPanicLayer::new());
    let inside = app().layer(CatchPanicLayer::new()).layer(layer!(stores));
    for app in [outside, inside] {
        let url = serve(app).await;
        assert_eq!(send(&url, "/panic", "evt_1").await.status, StatusCode::INTERNAL_SERVER_ERROR);
        becomes_free(&stores, "evt_1").await;
    }
}

async fn a_client_that_goes_away_may_send_again(stores: Stores) {
    let reached = Arc::new(Notify::new());
    let noted = reached.clone();
    let app = Router::new().route(
        "/hang",
        post(async move || {
            noted.notify_one();
            std::future::pending::<()>().await;
        }),
    );
    let url = serve(app.layer(layer!(stores))).await;
    let sending = tokio::spawn(async move { send(&url, "/hang", "evt_1").await });
    reached.notified().await;
    assert_eq!(is_handled(&stores, "evt_1").await, None);
    sending.abort();
    becomes_free(&stores, "evt_1").await;
}

async fn the_handler_gets_a_fence(stores: Stores) {
    let url = serve(app().layer(layer!(stores))).await;
    let answer = send(&url, "/lease", "evt_1").await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    assert!(answer.body.parse::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn an_outage_is_no_conflict() {
    let stores = || once(dedupe(&away()), header("webhook-id").unwrap().plain());
    let refusing = serve(app().layer(stores())).await;
    assert_eq!(send(&refusing, "/status/200", "evt_1").await.status, StatusCode::SERVICE_UNAVAILABLE);
    let admitting = serve(app().layer(stores().on_store_failure(StoreFailure::FailOpen))).await;
    assert_eq!(send(&admitting, "/status/200", "evt_1").await.status, StatusCode::OK);
    assert_eq!(send(&admitting, "/duplicate", "evt_1").await.body, "false");
}
