//! A lane: one connection, taken from the pool once, shared by all calls and replaced when it fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::pool::{Connection, Pool};
use super::version;
use crate::error::{Cause, Outage};
use crate::store::in_memory::lock;

/// How long an attempt to connect goes on in the background; callers leave at their own deadline.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Lane {
    pool: Pool,
    state: Mutex<State>,
    began: Instant,
    /// When an answer came last, ms since `began`.
    last_used: AtomicU64,
}

#[derive(Debug)]
enum State {
    Idle,
    Connecting(watch::Receiver<Attempt>),
    Ready(Arc<Ready>),
}

#[derive(Debug)]
struct Ready(Connection);

type Attempt = Option<Result<Arc<Ready>, Outage>>;

/// The connection of a lane as one call holds it.
pub(super) struct Held {
    pub(super) connection: Connection,
    from: Arc<Ready>,
}

impl Lane {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, state: Mutex::new(State::Idle), began: Instant::now(), last_used: AtomicU64::new(0) }
    }

    /// The connection; connects first where there is none. Cancel safe: an attempt goes on without the caller.
    pub(super) async fn hold(self: &Arc<Self>) -> Result<Held, Outage> {
        let mut attempt = {
            let mut state = lock(&self.state);
            match &*state {
                State::Ready(ready) => return Ok(Held::new(ready)),
                // An attempt whose runtime is gone will not end.
                State::Connecting(attempt) if attempt.has_changed().is_ok() => attempt.clone(),
                _ => {
                    let attempt = self.connect();
                    *state = State::Connecting(attempt.clone());
                    attempt
                }
            }
        };
        let outcome = match attempt.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        match outcome {
            Some(Ok(ready)) => Ok(Held::new(&ready)),
            Some(Err(outage)) => Err(outage),
            None => Err(disconnected("the runtime that was connecting is gone")),
        }
    }

    /// Notes that an answer came.
    pub(super) fn used(&self) {
        self.last_used.store(self.now(), Ordering::Relaxed);
    }

    /// How long no answer has come.
    pub(super) fn idle_for(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.last_used.load(Ordering::Relaxed)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Gives up a connection that failed, unless it is replaced already.
    pub(super) fn discard(&self, held: &Held) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Ready(ready) if Arc::ptr_eq(ready, &held.from)) {
            *state = State::Idle;
        }
    }

    fn connect(self: &Arc<Self>) -> watch::Receiver<Attempt> {
        let (done, attempt) = watch::channel(None);
        let lane = Arc::clone(self);
        tokio::spawn(async move {
            let connect = async {
                let mut connection = lane.pool.take().await?;
                version::check(&mut connection).await?;
                Ok(connection)
            };
            let outcome = match tokio::time::timeout(CONNECT, connect).await {
                Ok(outcome) => outcome.map(|connection| Arc::new(Ready(connection))),
                Err(_) => Err(disconnected("connecting took longer than 5 s")),
            };
            *lock(&lane.state) = match &outcome {
                Ok(ready) => State::Ready(Arc::clone(ready)),
                Err(_) => State::Idle,
            };
            done.send_replace(Some(outcome));
        });
        attempt
    }
}

impl Held {
    fn new(ready: &Arc<Ready>) -> Self {
        Self { connection: ready.0.clone(), from: Arc::clone(ready) }
    }
}

fn disconnected(text: &'static str) -> Outage {
    Outage { cause: Cause::Disconnected, text: text.into(), source: None }
}
