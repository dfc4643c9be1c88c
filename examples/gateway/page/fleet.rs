//! Two gateways on one store, what they know of it, and the traffic between.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use futures::future::{join, join_all};
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_distributed::fleet::{RefusedKey, RefusedKeys};
use tower_distributed::{BreakerState, Error, Store, TokenBucket, WaitGroup};

use super::board::{Board, Seat};
use super::bursts::{self, Call};
use super::link::Link;
use super::tenants::Queues;

/// No server listens there.
const NOWHERE: &str = "redis://127.0.0.1:1/";
/// The time between two requests of the traffic: 8.3 per second to each limit.
const TRAFFIC_EVERY: Duration = Duration::from_millis(120);
/// The address that the traffic comes from: 127.0.0.2.
const TRAFFIC_FROM: u8 = 2;
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
}

struct Gateway {
    name: &'static str,
    on_store: Side,
    /// The same on a store that cannot be reached, where the way to the store cannot be cut.
    on_nothing: Option<Side>,
    known: Mutex<Known>,
}

/// A gateway on a store.
struct Side {
    store: Store,
    app: Router,
    bucket: TokenBucket,
    exports: WaitGroup,
}

/// What the store said last.
#[derive(Default)]
struct Known {
    latency: Option<Duration>,
    version: Option<String>,
    error: Option<String>,
    tokens: BTreeMap<String, u32>,
    permits: Option<u32>,
}

impl Side {
    fn new(store: Store, seat: &Seat) -> Result<Self, Error> {
        let (bucket, exports) = (crate::bucket(&store)?, crate::leases::exports(&store)?);
        Ok(Self {
            app: crate::app(&store, seat)?,
            bucket,
            exports,
            store,
        })
    }

    /// Asks the store as a layer does, so that the breaker is left alone. Pings would close it.
    async fn ask(&self, callers: &[String]) -> Known {
        let began = Instant::now();
        let permits = match self.exports.count("all").await {
            Ok(permits) => permits,
            Err(error) => return Known::unavailable(&error),
        };
        let latency = Some(began.elapsed());
        let peek = async |caller: &String| {
            let state = self
                .bucket
                .peek(caller.parse::<IpAddr>().ok()?)
                .await
                .ok()?;
            Some((caller.clone(), state.remaining()))
        };
        let tokens = join_all(callers.iter().map(peek))
            .await
            .into_iter()
            .flatten()
            .collect();
        match self.store.ping().await {
            Ok(_) => {
                let version = self.store.stats().server_version;
                Known {
                    latency,
                    version,
                    error: None,
                    tokens,
                    permits: Some(permits),
                }
            }
            Err(error) => Known::unavailable(&error),
        }
    }

    /// The state of its breaker. Nobody is asked.
    fn breaker(&self) -> &'static str {
        match self.store.stats().breaker {
            BreakerState::Closed => "closed",
            BreakerState::HalfOpen => "half-open",
            _ => "open",
        }
    }
}

impl Known {
    fn unavailable(error: &Error) -> Self {
        Self {
            error: Some(error.to_string()),
            ..Self::default()
        }
    }
}

impl Gateway {
    fn side(&self, link: &Link) -> &Side {
        self.on_nothing
            .as_ref()
            .filter(|_| link.is_away())
            .unwrap_or(&self.on_store)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, link: &Link) -> Value {
        let known = self.known();
        json!({
            "name": self.name, "reachable": known.latency.is_some(), "version": known.version,
            "latency_us": known.latency.map(|latency| u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)),
            "breaker": self.side(link).breaker(), "error": known.error, "tokens": known.tokens, "permits": known.permits,
        })
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
            let (queues, refused) = (queues.clone(), refused.clone());
            let seat = Seat {
                board: board.clone(),
                gateway: name,
                queues,
                refused,
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
        let (board, traffic) = (board.clone(), AtomicBool::new(true));
        let fleet = Arc::new(Self {
            gateways,
            link,
            board,
            queues,
            refused,
            traffic,
        });
        tokio::spawn(Arc::clone(&fleet).keep_asking());
        tokio::spawn(Arc::clone(&fleet).keep_calling());
        Ok(fleet)
    }

    pub(crate) fn state_is_in(&self) -> &Store {
        &self.gateways[0].on_store.store
    }

    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    pub(super) fn send_traffic(&self, on: bool) {
        self.traffic.store(on, Ordering::Relaxed);
    }

    pub(super) fn take_store_away(&self, away: bool) {
        self.link.take_away(away);
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
            "now_ms": self.board.now(), "state": self.state_is_in().to_string(), "away": self.link.is_away(),
            "cut": self.link.is_forwarded(),
            "traffic": self.traffic.load(Ordering::Relaxed), "gateways": gateways, "batches": { "operations": operations, "batches": batches },
            "limited": { "rate": 5, "burst": 10 }, "exports": { "limit": 2 },
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
            let known = gateway.side(&self.link).ask(&callers).await;
            *gateway.known() = known;
        };
        join(ask(&self.gateways[0]), ask(&self.gateways[1])).await;
    }

    async fn keep_asking(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(super::EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            if self.board.is_watched() {
                self.ask_stores().await;
            }
        }
    }

    async fn keep_calling(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TRAFFIC_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        for turn in 0.. {
            ticks.tick().await;
            if !self.board.is_watched() || !self.traffic.load(Ordering::Relaxed) {
                continue;
            }
            let limited = bursts::limited(turn, TRAFFIC_FROM);
            // Without the store nobody waits.
            let queued = (!self.link.is_away())
                .then(|| self.queues.calls(turn))
                .into_iter()
                .flatten();
            for Call {
                gateway, request, ..
            } in bursts::policies(turn, TRAFFIC_FROM)
                .into_iter()
                .chain([limited])
                .chain(queued)
            {
                let fleet = Arc::clone(&self);
                tokio::spawn(async move { fleet.answer(gateway, request).await });
            }
        }
    }
}
