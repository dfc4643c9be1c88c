//! Single flights: who runs, and who gets what came of it.

pub(crate) mod answers;
pub(crate) mod followers;
pub(crate) mod leaders;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod stale;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::poll;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::BoxError;
use tower_distributed::SingleFlight;
use tower_distributed::single_flight::{Codec, Postcard, RunError, SingleFlightBuilder};

use crate::stores::{Place, SOON};
use support::eventually;

/// So long that it is not by this that anything ends.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// What is run: each run has a number, its answer. Never two at a time, unless that is to be.
#[derive(Clone)]
pub(crate) struct Origin(Arc<State>);

struct State {
    runs: AtomicU64,
    gate: Semaphore,
    inside: AtomicBool,
    alone: bool,
}

impl Origin {
    /// Runs end at once.
    pub(crate) fn open() -> Self {
        Self::new(Semaphore::MAX_PERMITS, true)
    }

    /// Runs end as they are let go.
    pub(crate) fn shut() -> Self {
        Self::new(0, true)
    }

    /// The same, any number at a time.
    pub(crate) fn crowded() -> Self {
        Self::new(0, false)
    }

    fn new(permits: usize, alone: bool) -> Self {
        let state = State {
            runs: AtomicU64::new(0),
            gate: Semaphore::new(permits),
            inside: AtomicBool::new(false),
            alone,
        };
        Self(Arc::new(state))
    }

    pub(crate) fn work(&self) -> impl FnOnce() -> BoxFuture<'static, u64> + Send + use<> {
        let state = Arc::clone(&self.0);
        move || {
            Box::pin(async move {
                let run = state.runs.fetch_add(1, Ordering::SeqCst) + 1;
                let inside = Inside::enter(&state);
                state.gate.acquire().await.unwrap().forget();
                drop(inside);
                run
            })
        }
    }

    /// The same, where the first so many runs fail with their numbers.
    pub(crate) fn failing(
        &self,
        first: u64,
    ) -> impl FnOnce() -> BoxFuture<'static, Result<u64, String>> + Send + use<> {
        let work = self.work();
        move || {
            Box::pin(async move {
                match work().await {
                    run if run <= first => Err(run.to_string()),
                    run => Ok(run),
                }
            })
        }
    }

    pub(crate) fn let_go(&self, runs: usize) {
        self.0.gate.add_permits(runs);
    }

    pub(crate) fn runs(&self) -> u64 {
        self.0.runs.load(Ordering::SeqCst)
    }

    /// Waits until so many have begun.
    pub(crate) async fn began(&self, runs: u64) {
        eventually(&format!("run {runs} to begin"), SOON, async || {
            self.runs() >= runs
        })
        .await;
    }
}

struct Inside<'a>(&'a State);

impl<'a> Inside<'a> {
    fn enter(state: &'a State) -> Self {
        assert!(
            !state.inside.swap(true, Ordering::SeqCst) || !state.alone,
            "two run at a time"
        );
        Self(state)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::SeqCst);
    }
}

/// A codec of which nothing is read.
pub(crate) struct OneCodec {
    name: &'static str,
    encode: fn() -> Result<Vec<u8>, BoxError>,
}

impl Codec<u64> for OneCodec {
    fn name(&self) -> &str {
        self.name
    }

    fn encode(&self, _: &u64) -> Result<Vec<u8>, BoxError> {
        (self.encode)()
    }

    fn decode(&self, _: &[u8]) -> Result<u64, BoxError> {
        unreachable!("nothing of it is published")
    }
}

/// Answers live for long, and a leader is not given up soon.
pub(crate) fn builder<E: Send + Sync + 'static>() -> SingleFlightBuilder<u64, E> {
    SingleFlight::builder(Postcard)
        .ttl(LONG)
        .lease_ttl(LONG)
        .max_wait(LONG)
}

/// Several of one name, which know of each other by the store alone.
pub(crate) fn several<E: Send + Sync + 'static>(
    place: &Place,
    name: &str,
    count: usize,
    builder: impl Fn() -> SingleFlightBuilder<u64, E>,
) -> Vec<SingleFlight<u64, E>> {
    (0..count)
        .map(|_| builder().build(place, name).unwrap())
        .collect()
}

/// Several whose callers can be seen to wait: without a server, those of one process.
pub(crate) fn visible<E: Send + Sync + 'static>(
    place: &Place,
    name: &str,
    count: usize,
    builder: impl Fn() -> SingleFlightBuilder<u64, E>,
) -> Vec<SingleFlight<u64, E>> {
    if place.server_of(name).is_some() {
        return several(place, name, count, builder);
    }
    vec![builder().build(place, name).unwrap(); count]
}

/// Begins a call, so that it takes part in its process, and lets it go on.
pub(crate) async fn begin<F>(call: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let mut call = Box::pin(call);
    match poll!(call.as_mut()) {
        std::task::Poll::Ready(outcome) => tokio::spawn(async move { outcome }),
        std::task::Poll::Pending => tokio::spawn(call),
    }
}

pub(crate) async fn call(
    flight: &SingleFlight<u64>,
    origin: &Origin,
) -> JoinHandle<Result<u64, tower_distributed::Error>> {
    let (flight, work) = (flight.clone(), origin.work());
    begin(async move { flight.run("k", work).await }).await
}

/// The same, where the first so many runs fail.
pub(crate) async fn call_failing(
    flight: &SingleFlight<u64, String>,
    origin: &Origin,
    first: u64,
) -> JoinHandle<Result<u64, RunError<String>>> {
    let (flight, work) = (flight.clone(), origin.failing(first));
    begin(async move { flight.try_run("k", work).await }).await
}

/// A caller whose work runs, which is not let go yet; further ones in its process.
pub(crate) async fn begin_run(
    flight: &SingleFlight<u64>,
    origin: &Origin,
) -> JoinHandle<Result<u64, tower_distributed::Error>> {
    let next = origin.runs() + 1;
    let mut caller = call(flight, origin).await;
    tokio::select! {
        () = origin.began(next) => caller,
        ended = &mut caller => panic!("a call ended before its run began: {ended:?}"),
    }
}

pub(crate) async fn ended<T>(caller: JoinHandle<T>) -> T {
    timeout(SOON, caller)
        .await
        .expect("a caller is forgotten")
        .unwrap()
}

/// What all of them got.
pub(crate) async fn all_ended<T, E: Debug>(callers: Vec<JoinHandle<Result<T, E>>>) -> Vec<T> {
    let mut outcomes = Vec::new();
    for caller in callers {
        outcomes.push(ended(caller).await.unwrap());
    }
    outcomes
}

/// Whether each is another.
pub(crate) fn all_differ(answers: &[u64]) -> bool {
    answers.iter().collect::<BTreeSet<_>>().len() == answers.len()
}
