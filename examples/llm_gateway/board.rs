//! What the page shows of requests: the streams under way, how they ended, and what was refused.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower_distributed::token_bucket::Usage;

use crate::TENANTS;

/// How many ended streams are remembered.
const REMEMBERED: usize = 8;
/// Tenants that clients make up are counted as one.
const OTHERS: &str = "others";

/// Everything that has happened. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Board(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    begun: u64,
    under_way: BTreeMap<u64, Stream>,
    ended: VecDeque<Value>,
    /// By tenant: how often each status was answered, and the tokens of the streams that ended.
    tenants: BTreeMap<&'static str, Counts>,
}

#[derive(Default)]
struct Counts {
    statuses: BTreeMap<u16, u64>,
    captured: u64,
    returned: u64,
    left: u64,
}

struct Stream {
    tenant: &'static str,
    gateway: &'static str,
    held: u32,
    usage: Usage,
    began: Instant,
}

impl Board {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn under_way(&self) -> Value {
        let log = self.log();
        let streams = log.under_way.iter().map(|(id, stream)| {
            json!({
                "id": id, "tenant": stream.tenant, "gateway": stream.gateway, "held": stream.held,
                "used": stream.usage.get().unwrap_or(0),
                "age_ms": u64::try_from(stream.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            })
        });
        streams.collect()
    }

    /// The last ones first.
    pub(crate) fn ended(&self) -> Value {
        self.log().ended.iter().rev().cloned().collect()
    }

    /// The counts of a tenant, and how many of its streams are under way.
    pub(crate) fn tenant(&self, name: &str) -> Value {
        let log = self.log();
        let streams = log
            .under_way
            .values()
            .filter(|stream| stream.tenant == name)
            .count();
        let none = Counts::default();
        let counts = log.tenants.get(name).unwrap_or(&none);
        json!({
            "streams": streams, "statuses": counts.statuses, "captured": counts.captured,
            "returned": counts.returned, "left": counts.left,
        })
    }
}

/// The board as one gateway writes on it.
#[derive(Clone)]
pub(crate) struct Seat {
    board: Board,
    gateway: &'static str,
}

impl Seat {
    pub(crate) fn new(board: Board, gateway: &'static str) -> Self {
        Self { board, gateway }
    }

    /// A request was let through, and holds its estimate.
    pub(crate) fn begins(&self, request: &Request, held: u32, usage: Usage) -> UnderWay {
        let mut log = self.board.log();
        log.begun += 1;
        let id = log.begun;
        let stream = Stream {
            tenant: tenant(request),
            gateway: self.gateway,
            held,
            usage,
            began: Instant::now(),
        };
        log.under_way.insert(id, stream);
        UnderWay {
            board: self.board.clone(),
            id,
        }
    }
}

/// A stream under way. It ends with this value: at the end of its body, or when its client leaves.
pub(crate) struct UnderWay {
    board: Board,
    id: u64,
}

impl UnderWay {
    /// Called for each frame, so that the value lives as long as the body.
    pub(crate) fn goes_on(&self) {}
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut log = self.board.log();
        let Some(stream) = log.under_way.remove(&self.id) else {
            return;
        };
        let Stream {
            tenant,
            gateway,
            held,
            usage,
            ..
        } = stream;
        // What counts nothing costs its estimate.
        let captured = usage.get().unwrap_or(held);
        let returned = held.saturating_sub(captured);
        let has_left = !usage.is_complete();
        let counts = log.tenants.entry(tenant).or_default();
        counts.captured += u64::from(captured);
        counts.returned += u64::from(returned);
        counts.left += u64::from(has_left);
        log.ended.push_back(json!({
            "id": self.id, "tenant": tenant, "gateway": gateway, "held": held,
            "captured": captured, "returned": returned, "left": has_left,
        }));
        if log.ended.len() > REMEMBERED {
            log.ended.pop_front();
        }
    }
}

/// One of the tenants that are shown.
fn tenant(request: &Request) -> &'static str {
    let name = request
        .headers()
        .get("x-tenant")
        .map(|name| name.as_bytes());
    let known = TENANTS
        .into_iter()
        .find(|tenant| name == Some(tenant.as_bytes()));
    known.unwrap_or(OTHERS)
}

/// Outside of the budgets: counts the answers by status.
pub(crate) async fn count(State(seat): State<Seat>, request: Request, next: Next) -> Response {
    let tenant = tenant(&request);
    let response = next.run(request).await;
    let mut log = seat.board.log();
    let statuses = &mut log.tenants.entry(tenant).or_default().statuses;
    *statuses.entry(response.status().as_u16()).or_default() += 1;
    drop(log);
    response
}
