//! A gateway on a store, and what the store said last.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::Router;
use futures::future::join_all;
use serde_json::{Value, json};
use tower_distributed::{BreakerState, Error, Store, TokenBucket, WaitGroup};

use super::board::Seat;

/// How many calls are timed each time that a store is asked.
const TIMED: usize = 5;
/// How many times the page shows the median of: those of 3 s.
const LATENCIES: usize = 20 * TIMED;

/// A gateway on a store.
pub(super) struct Side {
    pub(super) store: Store,
    pub(super) app: Router,
    bucket: TokenBucket,
    /// By the name that the page has for them.
    permits: [(&'static str, WaitGroup); 3],
}

/// What a store said, or why it said nothing.
pub(super) type Answer = Result<Answered, Error>;

pub(super) struct Answered {
    latencies: Vec<Duration>,
    version: Option<String>,
    tokens: BTreeMap<String, u32>,
    in_use: BTreeMap<&'static str, u32>,
}

/// What a store said last.
#[derive(Default)]
pub(super) struct Known {
    latencies: VecDeque<Duration>,
    version: Option<String>,
    tokens: BTreeMap<String, u32>,
    in_use: BTreeMap<&'static str, u32>,
    error: Option<String>,
}

impl Side {
    pub(super) fn new(store: Store, seat: &Seat) -> Result<Self, Error> {
        Ok(Self {
            app: crate::app(&store, seat)?,
            bucket: crate::bucket(&store)?,
            permits: [
                ("exports", crate::leases::exports(&store)?),
                ("fifo", crate::queues::fifo(&store)?),
                ("fair", crate::queues::fair(&store)?),
            ],
            store,
        })
    }

    /// Asks the store as a layer does, so that the breaker is left alone. Pings would close it.
    pub(super) async fn ask(&self, callers: &[String]) -> Answer {
        let latencies = self.latencies().await?;
        let mut in_use = BTreeMap::new();
        for (name, permits) in &self.permits {
            in_use.insert(*name, permits.count("all").await?);
        }
        let peek = async |caller: &String| {
            let state = self.bucket.peek(caller.parse::<IpAddr>().ok()?).await;
            Some((caller.clone(), state.ok()?.remaining()))
        };
        let tokens = join_all(callers.iter().map(peek)).await;
        self.store.ping().await?;
        Ok(Answered {
            latencies,
            version: self.store.stats().server_version,
            tokens: tokens.into_iter().flatten().collect(),
            in_use,
        })
    }

    /// The times of some calls and their answers. The first call is not timed. In memory it takes 140 µs and the next ones 3 µs,
    /// since after a pause it runs from cold caches, and the calls of the other gateway do not: the gateway that is asked first
    /// would seem to be far from its store.
    async fn latencies(&self) -> Result<Vec<Duration>, Error> {
        let [(_, exports), ..] = &self.permits;
        exports.count("all").await?;
        let mut took = Vec::with_capacity(TIMED);
        for _ in 0..TIMED {
            let began = Instant::now();
            exports.count("all").await?;
            took.push(began.elapsed());
        }
        Ok(took)
    }

    /// The state of its breaker. Nobody is asked.
    pub(super) fn breaker(&self) -> &'static str {
        match self.store.stats().breaker {
            BreakerState::Closed => "closed",
            BreakerState::HalfOpen => "half-open",
            _ => "open",
        }
    }
}

impl Known {
    /// Without an answer, nothing is known: what was so before may have changed.
    pub(super) fn update(&mut self, answer: Answer) {
        let mut latencies = std::mem::take(&mut self.latencies);
        *self = match answer {
            Ok(answered) => {
                latencies.extend(answered.latencies);
                latencies.drain(..latencies.len().saturating_sub(LATENCIES));
                Self {
                    latencies,
                    version: answered.version,
                    tokens: answered.tokens,
                    in_use: answered.in_use,
                    error: None,
                }
            }
            Err(error) => Self {
                error: Some(error.to_string()),
                ..Self::default()
            },
        };
    }

    pub(super) fn is_unreachable(&self) -> bool {
        self.error.is_some()
    }

    pub(super) fn state(&self, name: &str, breaker: &str) -> Value {
        let nanos = |latency: Duration| u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        json!({
            "name": name, "breaker": breaker, "error": self.error, "version": self.version,
            "latency_ns": median(self.latencies.iter().copied()).map(nanos),
            "tokens": self.tokens, "in_use": self.in_use,
        })
    }
}

fn median(times: impl IntoIterator<Item = Duration>) -> Option<Duration> {
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}
