//! What the page shows of requests: who waits, who works, and how it ended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::{LeaseHandle, Store};

use super::tenants::Queues;
use crate::pages::{Watchers, Watching};

/// How many requests of a route are remembered, and for how long after their end.
const REMEMBERED: usize = 60;
const REMEMBERED_FOR: Duration = Duration::from_secs(16);
/// Addresses beyond this number are counted as one.
const CALLERS: usize = 200;
/// How many characters of a text of the client are shown. A header may have 400 KB, and each event has all of them.
const SHOWN: usize = 80;

/// Everything that has happened. Clones share it.
#[derive(Clone)]
pub(crate) struct Board(Arc<Shared>);

struct Shared {
    began: Instant,
    log: Mutex<Log>,
    watchers: Watchers,
}

#[derive(Default)]
struct Log {
    arrived: u64,
    routes: BTreeMap<String, Visits>,
    /// How often each status was answered, by route, gateway and address of the caller.
    counts: BTreeMap<(String, &'static str, String), BTreeMap<u16, u64>>,
}

/// The requests to one route.
#[derive(Default)]
struct Visits {
    latest: VecDeque<Visit>,
    /// All that have not ended, by id.
    present: HashMap<u64, Present>,
    arrived: u64,
    worked: u64,
    /// Answered with success, and without work of its own.
    spared: u64,
}

struct Present {
    method: Method,
    works: bool,
}

/// One request. It waits until it works; what never works was refused, or got the answer of another.
struct Visit {
    id: u64,
    gateway: &'static str,
    method: String,
    path: String,
    webhook: Option<String>,
    arrived: Instant,
    began_work: Option<Instant>,
    ended: Option<Instant>,
    status: Option<u16>,
    lease: Option<LeaseHandle>,
}

/// The board as one gateway writes on it.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) board: Board,
    pub(crate) gateway: &'static str,
    pub(crate) queues: Queues,
    /// What the rate limits of both gateways refuse, by address: the page shows addresses anyway.
    pub(crate) refused: RefusedKeys,
    /// What this gateway counts alone.
    pub(crate) alone: Store,
}

impl Default for Board {
    fn default() -> Self {
        Self(Arc::new(Shared {
            began: Instant::now(),
            log: Mutex::default(),
            watchers: Watchers::default(),
        }))
    }
}

impl Board {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the start.
    fn at(&self, time: Instant) -> u64 {
        u64::try_from(time.duration_since(self.0.began).as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// Counts a listener for as long as the value lives.
    pub(crate) fn watch(&self) -> Watching {
        self.0.watchers.watch()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.0.watchers.is_watched()
    }

    /// The addresses that have called a route.
    pub(crate) fn callers(&self, route: &str) -> Vec<String> {
        let log = self.log();
        let mut callers: Vec<_> = log
            .counts
            .keys()
            .filter(|key| key.0 == route)
            .map(|key| key.2.clone())
            .collect();
        callers.sort_unstable();
        callers.dedup();
        callers
    }

    pub(crate) fn counts(&self) -> Value {
        let counts = |((route, gateway, caller), status): (
            &(String, &str, String),
            &BTreeMap<u16, u64>,
        )| json!({ "route": route, "gateway": gateway, "caller": caller, "status": status });
        self.log().counts.iter().map(counts).collect()
    }

    /// The requests that have not ended, or not long ago.
    pub(crate) fn requests(&self) -> Value {
        let (log, now) = (self.log(), Instant::now());
        let is_shown =
            |visit: &&Visit| visit.ended.is_none_or(|ended| now - ended < REMEMBERED_FOR);
        let requests = log.routes.iter().flat_map(|(route, visits)| {
            visits
                .latest
                .iter()
                .filter(is_shown)
                .map(move |visit| self.request(route, visit, now))
        });
        requests.collect()
    }

    /// How many requests of each route arrived, worked, and were spared the work, and how many wait and work now.
    pub(crate) fn routes(&self) -> Value {
        let log = self.log();
        let routes = log.routes.iter().map(|(route, visits)| {
            let Visits { arrived, worked, spared, present, .. } = visits;
            let mut working = BTreeMap::<&str, u64>::new();
            for visit in present.values().filter(|visit| visit.works) {
                *working.entry(visit.method.as_str()).or_default() += 1;
            }
            let waiting = present.values().filter(|visit| !visit.works).count();
            let route_now = json!({
                "arrived": arrived, "worked": worked, "spared": spared, "waiting": waiting, "working": working,
            });
            (route.clone(), route_now)
        });
        Value::Object(routes.collect())
    }

    fn request(&self, route: &str, visit: &Visit, now: Instant) -> Value {
        let at = |time: Option<Instant>| time.map(|time| self.at(time));
        let lease = visit.lease.as_ref().filter(|_| visit.ended.is_none()).map(|lease| {
            let left = lease.until().saturating_duration_since(now).as_millis();
            json!({ "held": lease.is_held(), "left_ms": u64::try_from(left).unwrap_or(u64::MAX) })
        });
        json!({
            "id": visit.id, "route": route, "gateway": visit.gateway, "method": visit.method,
            "path": visit.path, "webhook": visit.webhook, "arrived_ms": self.at(visit.arrived), "began_work_ms": at(visit.began_work),
            "ended_ms": at(visit.ended), "status": visit.status, "lease": lease,
            "fence": visit.lease.as_ref().and_then(LeaseHandle::fence),
        })
    }
}
/// A request on its way, which changes its visit.
#[derive(Clone)]
struct OnItsWay {
    board: Board,
    route: String,
    id: u64,
}

impl OnItsWay {
    fn change(&self, change: impl FnOnce(&mut Visits)) {
        if let Some(visits) = self.board.log().routes.get_mut(&self.route) {
            change(visits);
        }
    }
}

impl Visits {
    /// The visit, if it is among the latest.
    fn visit(&mut self, id: u64) -> Option<&mut Visit> {
        self.latest.iter_mut().find(|visit| visit.id == id)
    }
}

/// Ends the visit, also of a client that goes away.
struct Leaves(OnItsWay);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.change(|visits| {
            visits.present.remove(&self.0.id);
            if let Some(visit) = visits.visit(self.0.id) {
                visit.ended = Some(Instant::now());
            }
        });
    }
}

/// The beginning of a text of the client.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn route(request: &Request) -> String {
    request
        .extensions()
        .get::<MatchedPath>()
        .map_or("", MatchedPath::as_str)
        .to_owned()
}

/// Outside of all layers: counts the answers by status.
pub(crate) async fn count(State(seat): State<Seat>, request: Request, next: Next) -> Response {
    let (route, caller) = (
        route(&request),
        request
            .extensions()
            .get::<ConnectInfo<SocketAddr>>()
            .cloned(),
    );
    let caller = caller.map_or_else(String::new, |info| info.0.ip().to_string());
    let response = next.run(request).await;
    let mut log = seat.board.log();
    let mut key = (route, seat.gateway, caller);
    if log.counts.len() >= CALLERS && !log.counts.contains_key(&key) {
        "others".clone_into(&mut key.2);
    }
    *log.counts
        .entry(key)
        .or_default()
        .entry(response.status().as_u16())
        .or_default() += 1;
    response
}

/// Outside of a layer: a request arrives, and later it has its response.
pub(crate) async fn follow(State(seat): State<Seat>, mut request: Request, next: Next) -> Response {
    let (board, route) = (seat.board, route(&request));
    let id = {
        let mut log = board.log();
        log.arrived += 1;
        let id = log.arrived;
        let (method, path) = (
            shown(request.method().as_str()),
            shown(request.uri().path()),
        );
        let webhook = request
            .headers()
            .get("webhook-id")
            .and_then(|id| id.to_str().ok())
            .map(shown);
        let (began_work, ended, status, lease) = (None, None, None, None);
        let (gateway, arrived) = (seat.gateway, Instant::now());
        let visit = Visit {
            id,
            gateway,
            method,
            path,
            webhook,
            arrived,
            began_work,
            ended,
            status,
            lease,
        };
        let visits = log.routes.entry(route.clone()).or_default();
        visits.arrived += 1;
        visits.present.insert(
            id,
            Present {
                method: request.method().clone(),
                works: false,
            },
        );
        visits.latest.push_back(visit);
        if visits.latest.len() > REMEMBERED {
            visits.latest.pop_front();
        }
        id
    };
    let on_its_way = OnItsWay { board, route, id };
    request.extensions_mut().insert(on_its_way.clone());
    let leaves = Leaves(on_its_way);
    let response = next.run(request).await;
    leaves.0.change(|visits| {
        let waited = visits.present.get(&id).is_some_and(|visit| !visit.works);
        visits.spared += u64::from(response.status().is_success() && waited);
        if let Some(visit) = visits.visit(id) {
            visit.status = Some(response.status().as_u16());
        }
    });
    response
}

/// Inside of a layer: the request was let through, and works.
pub(crate) async fn work(request: Request, next: Next) -> Response {
    let lease = request.extensions().get::<LeaseHandle>().cloned();
    if let Some(on_its_way) = request.extensions().get::<OnItsWay>() {
        on_its_way.change(|visits| {
            visits.worked += 1;
            if let Some(visit) = visits.present.get_mut(&on_its_way.id) {
                visit.works = true;
            }
            if let Some(visit) = visits.visit(on_its_way.id) {
                (visit.began_work, visit.lease) = (Some(Instant::now()), lease);
            }
        });
    }
    next.run(request).await
}
