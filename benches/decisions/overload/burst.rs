//! Requests with keys that nobody has asked for before.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{Barrier, Semaphore};
use tower::{Layer, Service, ServiceExt};
use tower_distributed::token_bucket::Decision;
use tower_distributed::{RateLimitLayer, Refusal, RefusalKind, StoreFailure, TokenBucket};

/// What came of requests.
#[derive(Default)]
pub struct Tally {
    pub served: u32,
    /// Let through without a decision.
    pub undecided: u32,
    pub overloaded: u32,
    /// Told as an outage.
    pub unavailable: u32,
    /// What the first of those was told.
    pub outage: Option<String>,
}

/// What came of all requests, and how long it took until the last was told.
pub struct Burst {
    pub tally: Tally,
    pub took: Duration,
}

impl Burst {
    pub fn served_per_second(&self) -> f64 {
        f64::from(self.tally.served) / self.took.as_secs_f64()
    }
}

/// What is asked.
pub trait Asked: Clone + Send + 'static {
    fn ask(&mut self, key: String) -> impl Future<Output = Tally> + Send;
}

/// All callers wait for the start before the first of them asks. Each makes its share of the requests one after the other.
pub fn run<A: Asked>(runtime: &Runtime, asked: &A, callers: usize, requests: usize) -> Burst {
    let start = Arc::new(Barrier::new(callers + 1));
    let arrived = Arc::new(AtomicUsize::new(0));
    let each = requests / callers;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (mut asked, start, arrived) = (asked.clone(), start.clone(), arrived.clone());
            runtime.spawn(async move {
                let mut tally = Tally::default();
                arrived.fetch_add(1, Ordering::Relaxed);
                start.wait().await;
                for request in caller * each..(caller + 1) * each {
                    tally += asked.ask(format!("key-{request:016}")).await;
                }
                tally
            })
        })
        .collect();
    while arrived.load(Ordering::Relaxed) < callers {
        thread::sleep(Duration::from_millis(1));
    }
    runtime.block_on(async {
        // Before they are woken: the first are served before the last.
        let (began, mut tally) = (Instant::now(), Tally::default());
        start.wait().await;
        for task in tasks {
            tally += task.await.unwrap();
        }
        Burst {
            tally,
            took: began.elapsed(),
        }
    })
}

impl Asked for TokenBucket {
    async fn ask(&mut self, key: String) -> Tally {
        match self.allow(key).await {
            Ok(decision) => {
                assert!(decision.is_admitted());
                Tally {
                    served: 1,
                    ..Tally::default()
                }
            }
            Err(error) => Tally::of(&error, error.is_overloaded(), error.is_unavailable()),
        }
    }
}

/// A rate limit that fails open, around a service that is shown whether there was a decision.
#[derive(Clone)]
pub struct FailOpen<S>(S);

pub struct Request {
    key: String,
    decided: bool,
}

pub fn fail_open(bucket: TokenBucket) -> impl Asked {
    let layer = RateLimitLayer::new(bucket, |request: &Request| request.key.clone())
        .on_store_failure(StoreFailure::FailOpen)
        .on_admit(|_: &Decision, request: &mut Request| request.decided = true);
    FailOpen(layer.layer(Decided))
}

impl<S> Asked for FailOpen<S>
where
    S: Service<Request, Response = bool, Error = tower::BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
{
    async fn ask(&mut self, key: String) -> Tally {
        let request = Request {
            key,
            decided: false,
        };
        match self.0.ready().await.unwrap().call(request).await {
            Ok(true) => Tally {
                served: 1,
                ..Tally::default()
            },
            Ok(false) => Tally {
                undecided: 1,
                ..Tally::default()
            },
            Err(error) => {
                let kind = error.downcast_ref().map(Refusal::kind);
                let overloaded = kind == Some(RefusalKind::Overloaded);
                Tally::of(
                    &*error,
                    overloaded,
                    kind == Some(RefusalKind::StoreUnavailable),
                )
            }
        }
    }
}

/// Answers whether there was a decision.
#[derive(Clone)]
struct Decided;

impl Service<Request> for Decided {
    type Response = bool;
    type Error = Infallible;
    type Future = Ready<Result<bool, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        ready(Ok(request.decided))
    }
}

impl Tally {
    fn of(error: &(dyn std::error::Error + 'static), overloaded: bool, unavailable: bool) -> Self {
        assert!(overloaded || unavailable, "{error}");
        let outage = unavailable.then(|| error.to_string());
        Self {
            overloaded: overloaded.into(),
            unavailable: unavailable.into(),
            outage,
            ..Self::default()
        }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.served += other.served;
        self.undecided += other.undecided;
        self.overloaded += other.overloaded;
        self.unavailable += other.unavailable;
        self.outage = self.outage.take().or(other.outage);
    }
}

/// Nothing: what the tasks themselves take.
#[derive(Clone)]
pub struct Nothing;

impl Asked for Nothing {
    async fn ask(&mut self, key: String) -> Tally {
        black_box(key);
        Tally::default()
    }
}

/// So many at a time, and the others wait outside.
#[derive(Clone)]
pub struct InTurn<A> {
    asked: A,
    turns: Arc<Semaphore>,
}

impl<A> InTurn<A> {
    pub fn new(asked: A, at_a_time: usize) -> Self {
        Self {
            asked,
            turns: Arc::new(Semaphore::new(at_a_time)),
        }
    }
}

impl<A: Asked + Sync> Asked for InTurn<A> {
    async fn ask(&mut self, key: String) -> Tally {
        let _turn = self.turns.acquire().await.unwrap();
        self.asked.ask(key).await
    }
}
