//! The page: what the browser asks for.
//!
//! | | |
//! |---|---|
//! | `GET /`, `/page/{file}` | the page |
//! | `GET /state` | all numbers of the page, as JSON |
//! | `GET /events` | the same, several times a second |
//! | `POST /burst/{what}` | sends some requests to both gateways |
//! | `POST /traffic/{on or off}` | sends requests to every layer all the time, while somebody looks |
//! | `POST /store/{away or back}` | cuts the way to the store |
//!
//! All other requests are for gateway A.

pub(crate) mod board;
mod bursts;
mod fleet;
mod link;
mod side;
pub(crate) mod tenants;
mod traffic;

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::Stream;
use serde_json::{Value, json};

pub(crate) use self::fleet::Fleet;
use crate::pages::{self, File};

/// The files of this page alone.
const FILES: [File; 9] = [
    ("/", include_str!("index.html")),
    ("/page/gateway.css", include_str!("gateway.css")),
    ("/page/gateway.js", include_str!("gateway.js")),
    ("/page/history.js", include_str!("history.js")),
    ("/page/limits.js", include_str!("limits.js")),
    ("/page/queues.js", include_str!("queues.js")),
    ("/page/requests.js", include_str!("requests.js")),
    ("/page/store.js", include_str!("store.js")),
    ("/page/timeline.js", include_str!("timeline.js")),
];

pub(crate) fn routes(fleet: &Arc<Fleet>) -> Router {
    let first = Arc::clone(fleet);
    pages::files(&FILES)
        .route("/state", get(state))
        .route("/events", get(events))
        .route("/burst/{what}", post(burst))
        .route("/traffic/{to}", post(traffic))
        .route("/store/{to}", post(store))
        .route_layer(from_fn(pages::of_no_other_site))
        .with_state(Arc::clone(fleet))
        .fallback(move |request: Request| {
            let fleet = Arc::clone(&first);
            async move { fleet.answer(0, request).await }
        })
}

async fn state(State(fleet): State<Arc<Fleet>>) -> Json<Value> {
    fleet.ask_stores().await;
    Json(fleet.state())
}

/// The first event is sent at once, from what is known.
async fn events(
    State(fleet): State<Arc<Fleet>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let watching = fleet.board().watch();
    let state = move || {
        // Counted as a watcher for as long as the stream lives.
        let _ = &watching;
        fleet.state()
    };
    pages::events(state)
}

#[derive(serde::Deserialize)]
struct Caller {
    /// The caller's address is 127.0.0.`caller`.
    #[serde(default = "first_caller")]
    caller: u8,
}

fn first_caller() -> u8 {
    1
}

/// Answers at once; the page shows what becomes of the requests.
async fn burst(
    State(fleet): State<Arc<Fleet>>,
    Path(what): Path<String>,
    Query(Caller { caller }): Query<Caller>,
) -> Result<Json<Value>, StatusCode> {
    let calls = bursts::calls(&what, fleet.board().now(), caller).ok_or(StatusCode::NOT_FOUND)?;
    let sent = calls.len();
    calls.into_iter().for_each(|call| fleet.send(call));
    Ok(Json(json!({ "sent": sent, "now_ms": fleet.board().now() })))
}

async fn traffic(
    State(fleet): State<Arc<Fleet>>,
    Path(to): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let on = pages::one_of(&to, "on", "off")?;
    fleet.send_traffic(on);
    Ok(Json(
        json!({ "traffic": on, "now_ms": fleet.board().now() }),
    ))
}

async fn store(
    State(fleet): State<Arc<Fleet>>,
    Path(to): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let away = pages::one_of(&to, "away", "back")?;
    fleet.take_store_away(away);
    Ok(Json(json!({ "away": away, "now_ms": fleet.board().now() })))
}
