//! What becomes of things that are to be done once when callers, Redis, or the way to it fail.

mod away;
mod crowds;
#[cfg(all(feature = "json", feature = "tracing", feature = "metrics"))]
mod events;
mod local_cache;
mod published;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout;
use tower_distributed::single_flight::{Postcard, RunError, SingleFlightBuilder};
use tower_distributed::{SingleFlight, Store};

use crate::scene::{LONG, SOON, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::redis_server::RedisServer;

/// Among the beats of a key stand those who wait, and from this on those who have withdrawn.
const WITHDRAWN: &str = "(4503599627370496";

/// A store for each of several processes.
struct Place {
    stores: Vec<Store>,
    /// `None`: all are one process.
    server: Option<RedisServer>,
}

impl Place {
    fn in_memory(processes: usize) -> Self {
        Self {
            stores: vec![Store::in_memory(); processes],
            server: None,
        }
    }

    async fn redis(processes: usize) -> Self {
        let server = RedisServer::start().await;
        Self {
            stores: (0..processes).map(|_| open(&server.url())).collect(),
            server: Some(server),
        }
    }

    fn server(&self) -> &RedisServer {
        self.server.as_ref().unwrap()
    }

    /// Flights of each process.
    fn flights(&self) -> Vec<Flight> {
        self.stores
            .iter()
            .map(|store| builder().build(store, "flights").unwrap())
            .collect()
    }

    /// Waits until so many wait.
    async fn lined_up(&self, key: &str, count: u64) {
        let server = self.server();
        eventually(&format!("{count} to wait for {key:?}"), SOON, async || {
            let beats: Vec<String> = server
                .query(&["KEYS", &format!("td:{{*:{key}}}:*beats")])
                .unwrap();
            beats
                .iter()
                .map(|beats| waiting(server, beats))
                .sum::<u64>()
                == count
        })
        .await;
    }

    /// Waits until nobody holds a key or waits for it.
    async fn free(&self, key: &str) {
        let Some(server) = &self.server else { return };
        let is_left = |key: &String| match key.rsplit(':').next() {
            Some("lock" | "waiters") => true,
            Some("beats") => waiting(server, key) > 0,
            _ => false,
        };
        eventually(&format!("{key:?} to be free"), SOON, async || {
            let keys: Vec<String> = server
                .query(&["KEYS", &format!("td:{{*:{key}}}:*")])
                .unwrap();
            !keys.iter().any(is_left)
        })
        .await;
    }

    /// Nothing is left for ever.
    fn leaves_nothing(&self) {
        if let Some(server) = &self.server {
            assert_eq!(keys_without_ttl(server), [""; 0]);
        }
    }
}

fn waiting(server: &RedisServer, beats: &str) -> u64 {
    server.query(&["ZCOUNT", beats, "-inf", WITHDRAWN]).unwrap()
}

/// What is run: each run has a number, its answer, and takes some polls.
#[derive(Clone)]
struct Work(Arc<State>);

struct State {
    runs: AtomicU64,
    /// Each run that is at work has a clone.
    at_work: Arc<()>,
    gate: Semaphore,
}

impl Work {
    /// Runs end by themselves.
    fn open() -> Self {
        Self::new(Semaphore::MAX_PERMITS)
    }

    /// Runs end as they are let go.
    fn shut() -> Self {
        Self::new(0)
    }

    fn new(permits: usize) -> Self {
        let gate = Semaphore::new(permits);
        Self(Arc::new(State {
            runs: AtomicU64::new(0),
            at_work: Arc::default(),
            gate,
        }))
    }

    fn run(&self) -> impl FnOnce() -> BoxFuture<'static, Result<u64, String>> + Send + use<> {
        let state = Arc::clone(&self.0);
        move || {
            Box::pin(async move {
                let run = state.runs.fetch_add(1, Ordering::SeqCst) + 1;
                let at_work = Arc::clone(&state.at_work);
                yield_now().await;
                state.gate.acquire().await.unwrap().forget();
                yield_now().await;
                drop(at_work);
                Ok(run)
            })
        }
    }

    fn let_go(&self, runs: usize) {
        self.0.gate.add_permits(runs);
    }

    /// How many are at work now.
    fn running(&self) -> usize {
        Arc::strong_count(&self.0.at_work) - 1
    }

    fn runs(&self) -> u64 {
        self.0.runs.load(Ordering::SeqCst)
    }

    /// Waits until so many have begun.
    async fn began(&self, runs: u64) {
        eventually(&format!("run {runs} to begin"), SOON, async || {
            self.runs() >= runs
        })
        .await;
    }

    /// Waits until nothing runs.
    async fn is_over(&self) {
        eventually("all runs to end", SOON, async || self.running() == 0).await;
    }
}

type Flight = SingleFlight<u64, String>;
type Outcome = Result<u64, RunError<String>>;

/// Nothing ends by its time.
fn builder() -> SingleFlightBuilder<u64, String> {
    SingleFlight::builder(Postcard)
        .ttl(LONG)
        .lease_ttl(LONG)
        .max_wait(LONG)
}

fn begin(flight: &Flight, key: &str, work: &Work) -> JoinHandle<Outcome> {
    let (flight, key, work) = (flight.clone(), key.to_owned(), work.run());
    tokio::spawn(async move { flight.try_run(key, work).await })
}

/// A call whose work runs.
async fn lead(flight: &Flight, key: &str, work: &Work) -> JoinHandle<Outcome> {
    let runs = work.runs();
    let caller = begin(flight, key, work);
    work.began(runs + 1).await;
    caller
}

async fn ended(caller: JoinHandle<Outcome>) -> Outcome {
    timeout(SOON, caller)
        .await
        .expect("a caller is forgotten")
        .unwrap()
}

/// What comes of a call.
async fn asked(flight: &Flight, key: &str, work: &Work) -> Outcome {
    ended(begin(flight, key, work)).await
}
