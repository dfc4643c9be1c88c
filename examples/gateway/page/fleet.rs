//! Two gateways on one store, what they know of it, and the traffic between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use futures::future::join;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_distributed::fleet::{RefusedKey, RefusedKeys};
use tower_distributed::{Error, Store};

use super::board::{Board, Seat};
use super::bursts::Call;
use super::link::Link;
use super::side::{Known, Side};
use super::tenants::Queues;
use crate::pages;

/// No server listens there.
const NOWHERE: &str = "redis://127.0.0.1:1/";
/// How many addresses the page shows.
const SHOWN: usize = 6;

/// Two gateways that share their store.
pub(crate) struct Fleet {
    gateways: [Gateway; 2],
    link: Link,
    board: Board,
    queues: Queues,
    refused: RefusedKeys,
    traffic: AtomicBool,
    /// Which gateway is asked first.
    is_second_first: AtomicBool,
    /// Tells pages that are open that this is another process than before.
    started_ms: u64,
}

struct Gateway {
    name: &'static str,
    on_store: Side,
    /// The same on a store that cannot be reached, where the way to the store cannot be cut.
    on_nothing: Option<Side>,
    known: Mutex<Known>,
}

impl Gateway {
    fn side(&self, link: &Link) -> &Side {
        self.on_nothing
            .as_ref()
            .filter(|_| link.is_away())
            .unwrap_or(&self.on_store)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, link: &Link) -> Value {
        let breaker = self.side(link).breaker();
        self.known().state(self.name, breaker)
    }
}

impl Fleet {
    /// Ends both gateways. Tells what they leave behind.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        let ends = self
            .gateways
            .each_ref()
            .map(|gateway| gateway.on_store.store.shutdown(limit));
        for ended in futures::future::join_all(ends).await {
            if let Err(left) = ended {
                eprintln!("{left}");
            }
        }
    }

    /// Starts two gateways on the Redis server at a URL, or on the memory of this process.
    pub(crate) async fn start(
        url: Option<String>,
        board: &Board,
    ) -> Result<Arc<Self>, Box<dyn std::error::Error>> {
        let (link, url) = Link::to(url).await?;
        let stores = match &url {
            Some(url) => [Store::redis(url)?, Store::redis(url)?],
            None => {
                let memory = Store::in_memory();
                [memory.clone(), memory]
            }
        };
        let queues = Queues::default();
        let refused = RefusedKeys::with_plain_keys(&stores[0], "gateway")?;
        let gateway = |name, store: &Store| {
            let seat = Seat {
                board: board.clone(),
                gateway: name,
                queues: queues.clone(),
                refused: refused.clone(),
                alone: Store::in_memory(),
            };
            let on_nothing =
                (!link.is_forwarded()).then(|| Side::new(Store::redis(NOWHERE)?, &seat));
            let (on_store, on_nothing) =
                (Side::new(store.clone(), &seat)?, on_nothing.transpose()?);
            Ok::<_, Error>(Gateway {
                name,
                on_store,
                on_nothing,
                known: Mutex::default(),
            })
        };
        let gateways = [gateway("A", &stores[0])?, gateway("B", &stores[1])?];
        let fleet = Arc::new(Self {
            gateways,
            link,
            board: board.clone(),
            queues,
            refused,
            traffic: AtomicBool::new(true),
            is_second_first: AtomicBool::new(false),
            started_ms: pages::started_ms(),
        });
        tokio::spawn(Arc::clone(&fleet).keep_asking());
        tokio::spawn(super::traffic::keep_calling(Arc::clone(&fleet)));
        Ok(fleet)
    }

    pub(crate) fn state_is_in(&self) -> &Store {
        &self.gateways[0].on_store.store
    }

    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    pub(super) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Whether the switch is off, or the store gave no answer when it was asked last.
    pub(super) fn has_no_store(&self) -> bool {
        self.link.is_away() || self.gateways[0].known().is_unreachable()
    }

    /// Whether traffic is sent: while somebody looks, and has not switched it off.
    pub(super) fn has_traffic(&self) -> bool {
        self.board.is_watched() && self.traffic.load(Ordering::Relaxed)
    }

    pub(super) fn send_traffic(&self, on: bool) {
        self.traffic.store(on, Ordering::Relaxed);
    }

    pub(super) fn take_store_away(&self, away: bool) {
        self.link.take_away(away);
    }

    /// Sends a call when it is due. The page shows what becomes of it.
    pub(super) fn send(self: &Arc<Self>, call: Call) {
        let fleet = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(call.after).await;
            fleet.answer(call.gateway, call.request).await
        });
    }

    /// The answer of gateway A (0) or B (1).
    pub(super) async fn answer(&self, gateway: usize, request: Request) -> Response {
        let app = self.gateways[gateway].side(&self.link).app.clone();
        let Ok(response) = app.oneshot(request).await;
        response
    }

    /// All that the page shows.
    pub(super) fn state(&self) -> Value {
        let gateways: Vec<_> = self
            .gateways
            .iter()
            .map(|gateway| gateway.state(&self.link))
            .collect();
        let stats = self
            .gateways
            .each_ref()
            .map(|gateway| gateway.on_store.store.stats());
        // In memory there are none.
        let operations: u64 = stats.iter().map(|stats| stats.operations).sum();
        let batches: u64 = stats.iter().map(|stats| stats.batches).sum();
        json!({
            "started_ms": self.started_ms, "now_ms": self.board.now(), "state": self.state_is_in().to_string(), "away": self.link.is_away(),
            "cut": self.link.is_forwarded(),
            "traffic": self.traffic.load(Ordering::Relaxed), "gateways": gateways, "batches": { "operations": operations, "batches": batches },
            "limited": { "rate": 5, "burst": 10 }, "counted": { "rate": crate::counting::RATE }, "exports": { "limit": 2 },
            "counts": self.board.counts(), "routes": self.board.routes(),
            "requests": self.board.requests(), "queues": self.queues.state(), "refused": self.refused(),
        })
    }

    /// The keys that the rate limits refused most.
    fn refused(&self) -> Value {
        let key = |one: RefusedKey| json!({ "key": one.key, "at_least": one.at_least, "at_most": one.at_most });
        self.refused.top(SHOWN).into_iter().map(key).collect()
    }

    /// Asks the store of each gateway how it is.
    pub(super) async fn ask_stores(&self) {
        let mut callers = self.board.callers("/limited");
        callers.truncate(SHOWN);
        let ask = async |gateway: &Gateway| {
            let answered = gateway.side(&self.link).ask(&callers).await;
            gateway.known().update(answered);
        };
        // In turn, so that neither has the advantage of the other's warm caches.
        let first = usize::from(self.is_second_first.fetch_not(Ordering::Relaxed));
        join(ask(&self.gateways[first]), ask(&self.gateways[1 - first])).await;
    }

    async fn keep_asking(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(crate::pages::EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            if self.board.is_watched() {
                self.ask_stores().await;
            }
        }
    }
}
