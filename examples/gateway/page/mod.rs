//! The page: what the browser asks for.
//!
//! | | |
//! |---|---|
//! | `GET /` | the page, one file |
//! | `GET /state` | all numbers of the page, as JSON |
//! | `GET /events` | the same, several times a second |
//! | `POST /burst/{what}` | sends some requests to both gateways |
//! | `POST /traffic/{on or off}` | sends requests to the rate limits and the queues all the time, while somebody looks |
//! | `POST /store/{away or back}` | cuts the way to the store |
//!
//! All other requests are for gateway A.

pub(crate) mod board;
mod bursts;
mod fleet;
mod link;
pub(crate) mod tenants;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

pub(crate) use self::fleet::Fleet;

/// The time between two events.
const EVERY: Duration = Duration::from_millis(150);
/// The page loads nothing from elsewhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'";

pub(crate) fn routes(fleet: &Arc<Fleet>) -> Router {
    let first = Arc::clone(fleet);
    Router::new()
        .route("/", get(page))
        .route("/state", get(state))
        .route("/events", get(events))
        .route("/burst/{what}", post(burst))
        .route("/traffic/{to}", post(traffic))
        .route("/store/{to}", post(store))
        .route_layer(from_fn(of_no_other_site))
        .with_state(Arc::clone(fleet))
        .fallback(move |request: Request| {
            let fleet = Arc::clone(&first);
            async move { fleet.answer(0, request).await }
        })
}

/// Refuses what other pages in the same browser send: they must not press these buttons.
async fn of_no_other_site(request: Request, next: Next) -> Response {
    let site = request
        .headers()
        .get("sec-fetch-site")
        .map(HeaderValue::as_bytes);
    let is_of_other_site = matches!(site, Some(b"cross-site" | b"same-site"));
    if request.method() == Method::POST && is_of_other_site {
        return StatusCode::FORBIDDEN.into_response();
    }
    next.run(request).await
}

async fn page() -> impl IntoResponse {
    (
        [
            (CACHE_CONTROL, "no-store"),
            (CONTENT_SECURITY_POLICY, POLICY),
        ],
        Html(include_str!("../page.html")),
    )
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
    let mut ticks = tokio::time::interval(EVERY);
    // A slow reader is sent what is now, not what it has missed.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let states = stream::unfold(
        (fleet, ticks, watching),
        async |(fleet, mut ticks, watching)| {
            ticks.tick().await;
            let event = Event::default().data(fleet.state().to_string());
            Some((Ok(event), (fleet, ticks, watching)))
        },
    );
    // A page that is open must not keep the process from ending.
    Sse::new(states.take_until(Box::pin(crate::interrupted())))
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
    for call in calls {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            tokio::time::sleep(call.after).await;
            fleet.answer(call.gateway, call.request).await
        });
    }
    Ok(Json(json!({ "sent": sent })))
}

async fn traffic(
    State(fleet): State<Arc<Fleet>>,
    Path(to): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let on = one_of(&to, "on", "off")?;
    fleet.send_traffic(on);
    Ok(Json(json!({ "traffic": on })))
}

async fn store(
    State(fleet): State<Arc<Fleet>>,
    Path(to): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let away = one_of(&to, "away", "back")?;
    fleet.take_store_away(away);
    Ok(Json(json!({ "away": away })))
}

fn one_of(text: &str, yes: &str, no: &str) -> Result<bool, StatusCode> {
    if text == yes {
        return Ok(true);
    }
    if text == no {
        Ok(false)
    } else {
        Err(StatusCode::NOT_FOUND)
    }
}
