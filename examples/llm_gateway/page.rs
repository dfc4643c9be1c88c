//! The page: the levels of the budgets, the streams under way, and how the last ones ended.
//!
//! | | |
//! |---|---|
//! | `GET /`, `/page/{file}` | the page |
//! | `GET /state` | all numbers of the page, as JSON |
//! | `GET /events` | the same, several times a second |
//! | `POST /burst/{read or leave}` | sends a request whose client reads to the end, or leaves |
//! | `POST /traffic/{on or off}` | sends requests of all tenants, while somebody looks |

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::Stream;
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use tower_distributed::{Error, Store};

use crate::TENANTS;
use crate::board::Board;
use crate::budget::{Level, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, Tenants};
use crate::clients::{Clients, Patience};
use crate::pages::{self, EVERY, File, Watchers};

/// The files of this page alone.
const FILES: [File; 3] = [
    ("/", include_str!("index.html")),
    ("/page/llm.css", include_str!("llm.css")),
    ("/page/llm.js", include_str!("llm.js")),
];
/// The tenant that the buttons ask as.
const ASKS: &str = "initech";

/// What the page shows, and what it can change.
pub(crate) struct Page {
    store: Store,
    tenants: Tenants,
    board: Board,
    clients: Clients,
    levels: Mutex<Result<Vec<Level>, String>>,
    watchers: Watchers,
    traffic: AtomicBool,
    asked: AtomicUsize,
    started: Instant,
    /// Tells pages that are open that this is another process than before.
    started_ms: u64,
}

impl Page {
    pub(crate) fn new(store: &Store, board: Board, clients: Clients) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            store: store.clone(),
            tenants: Tenants::new(store)?,
            board,
            clients,
            levels: Mutex::new(Ok(Vec::new())),
            watchers: Watchers::default(),
            traffic: AtomicBool::new(true),
            asked: AtomicUsize::new(0),
            started: Instant::now(),
            started_ms: pages::started_ms(),
        }))
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(crate) fn has_traffic(&self) -> bool {
        self.watchers.is_watched() && self.traffic.load(Ordering::Relaxed)
    }

    fn levels(&self) -> MutexGuard<'_, Result<Vec<Level>, String>> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the store for the levels while somebody looks, until the process is interrupted.
    pub(crate) async fn keep_looking(&self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let looking = async {
            loop {
                ticks.tick().await;
                if self.watchers.is_watched() {
                    self.look().await;
                }
            }
        };
        tokio::select! {
            () = looking => {}
            () = pages::interrupted() => {}
        }
    }

    async fn look(&self) {
        let levels = TENANTS.map(|tenant| self.tenants.level(tenant));
        let levels = futures::future::try_join_all(levels).await;
        *self.levels() = levels.map_err(|error| error.to_string());
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// All that the page shows.
    fn state(&self) -> Value {
        let levels = self.levels();
        let tenant = |(index, name): (usize, &&str)| {
            let level = levels.as_ref().ok().and_then(|levels| levels.get(index));
            let level = level.map(|level| {
                json!({
                    "requests": level.requests, "tokens": level.tokens, "held": level.held, "captured": level.captured,
                })
            });
            json!({ "name": name, "level": level, "counts": self.board.tenant(name) })
        };
        let tenants: Vec<_> = TENANTS.iter().enumerate().map(tenant).collect();
        json!({
            "started_ms": self.started_ms, "now_ms": self.now(), "state": self.store.to_string(),
            "traffic": self.traffic.load(Ordering::Relaxed), "error": levels.as_ref().err(),
            "quota": { "tokens": TOKENS_PER_MINUTE, "requests": REQUESTS_PER_MINUTE },
            "tenants": tenants, "streams": self.board.under_way(), "ended": self.board.ended(),
        })
    }
}

pub(crate) fn routes(page: &Arc<Page>) -> Router {
    pages::files(&FILES)
        .route("/state", get(state))
        .route("/events", get(events))
        .route("/burst/{what}", post(burst))
        .route("/traffic/{to}", post(traffic))
        .route_layer(from_fn(pages::of_no_other_site))
        .with_state(Arc::clone(page))
}

async fn state(State(page): State<Arc<Page>>) -> Json<Value> {
    page.look().await;
    Json(page.state())
}

/// The first event is sent at once, from what is known.
async fn events(
    State(page): State<Arc<Page>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let watching = page.watchers.watch();
    let state = move || {
        // Counted as a watcher for as long as the stream lives.
        let _ = &watching;
        page.state()
    };
    pages::events(state)
}

async fn burst(
    State(page): State<Arc<Page>>,
    Path(what): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let patience = match what.as_str() {
        "read" => Patience::ToTheEnd,
        "leave" => Patience::Little,
        _ => return Err(StatusCode::NOT_FOUND),
    };
    let nth = page.asked.fetch_add(1, Ordering::Relaxed);
    page.clients.send(nth, ASKS, patience);
    Ok(Json(json!({ "sent": 1, "now_ms": page.now() })))
}

async fn traffic(
    State(page): State<Arc<Page>>,
    Path(to): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let on = pages::one_of(&to, "on", "off")?;
    page.traffic.store(on, Ordering::Relaxed);
    Ok(Json(json!({ "traffic": on, "now_ms": page.now() })))
}
