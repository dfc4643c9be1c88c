//! A link: the place of one connection, shared by all calls on a runtime. A failed connection is replaced.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::failure::disconnected;
use super::source::{Connection, Source};
use super::version;
use crate::error::Outage;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use crate::telemetry::Server;

#[derive(Debug)]
pub(super) struct Link {
    source: Source,
    connect_timeout: Duration,
    telemetry: Server,
    /// The process that the link belongs to.
    process: u32,
    state: Mutex<State>,
    began: Instant,
    /// When the last reply arrived, in µs since `began`; 0: never.
    answered: AtomicU64,
    /// Whether an attempt has failed since the last reply.
    failing: AtomicBool,
    /// How many switches of the master are known to its calls.
    switches: AtomicU64,
    /// Whether it has had a connection.
    has_connected: AtomicBool,
}

#[derive(Debug)]
enum State {
    Idle,
    Connecting(watch::Receiver<Attempt>),
    Ready(Arc<Ready>),
}

/// A connection. Each call uses a clone of it.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) connection: Connection,
    version: Option<String>,
    /// After how many switches of the master it was made.
    pub(super) switches: u64,
}

type Attempt = Option<Result<Arc<Ready>, Outage>>;

impl Link {
    pub(super) fn new(source: Source, connect_timeout: Duration, process: u32, telemetry: Server) -> Self {
        Self {
            source,
            connect_timeout,
            telemetry,
            process,
            state: Mutex::new(State::Idle),
            began: Instant::now(),
            answered: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            switches: AtomicU64::new(0),
            has_connected: AtomicBool::new(false),
        }
    }

    /// Returns the connection. If there is none, it connects first, on `runtime`, to which the link belongs. Ends
    /// within the connect timeout. Cancel safe: a started attempt continues without the caller.
    pub(super) async fn hold(self: &Arc<Self>, runtime: &Handle) -> Result<Arc<Ready>, Outage> {
        if std::process::id() != self.process {
            return Err(disconnected(
                "this process is a fork of the process that made the store: make a new store",
            ));
        }
        let mut attempt = {
            let mut state = lock(&self.state);
            match &*state {
                State::Ready(ready) if ready.switches == self.source.switches() => {
                    return Ok(Arc::clone(ready));
                }
                State::Connecting(attempt) => attempt.clone(),
                State::Idle | State::Ready(_) => {
                    let attempt = self.connect(runtime);
                    *state = State::Connecting(attempt.clone());
                    attempt
                }
            }
        };
        if let Ok(outcome) = attempt.wait_for(Option::is_some).await
            && let Some(outcome) = &*outcome
        {
            return outcome.clone();
        }
        // The attempt ended without a result: its runtime ended, or it panicked.
        let mut state = lock(&self.state);
        if matches!(&*state, State::Connecting(other) if other.same_channel(&attempt)) {
            *state = State::Idle;
        }
        Err(disconnected("the runtime ended while it was connecting"))
    }

    /// Whether there is another master since the last call of this method.
    pub(super) fn has_switched(&self) -> bool {
        let switches = self.source.switches();
        switches > 0 && self.switches.swap(switches, Ordering::Relaxed) != switches
    }

    /// Notes that a reply has arrived.
    pub(super) fn answered(&self) {
        self.answered.store(self.micros(Instant::now()).max(1), Ordering::Relaxed);
        if self.failing.load(Ordering::Relaxed) {
            self.failing.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that an attempt has failed: no connection, or no reply.
    pub(super) fn failed(&self) {
        self.failing.store(true, Ordering::Relaxed);
    }

    /// Whether the server answers, as far as is known: a reply arrived within this time, or nothing has failed
    /// since the last reply. An overloaded process reads replies late.
    pub(super) fn answers(&self, within: Duration) -> bool {
        !self.failing.load(Ordering::Relaxed) || self.answered_within(within)
    }

    /// Whether a reply arrived within this time.
    pub(super) fn answered_within(&self, span: Duration) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        let since = self.micros(Instant::now()).saturating_sub(answered);
        answered > 0 && u128::from(since) <= span.as_micros()
    }

    /// Returns when the last reply arrived, if that was at `time` or later.
    pub(super) fn answered_since(&self, time: Instant) -> Option<Instant> {
        let answered = self.answered.load(Ordering::Relaxed);
        (answered > 0 && answered >= self.micros(time)).then(|| self.began + Duration::from_micros(answered))
    }

    fn micros(&self, time: Instant) -> u64 {
        u64::try_from(time.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    /// The version of the server, if there is a connection and the server reports it.
    pub(super) fn version(&self) -> Option<String> {
        match &*lock(&self.state) {
            State::Ready(ready) => ready.version.clone(),
            _ => None,
        }
    }

    /// Closes the connection; with `held` only if it is that one, and was not replaced yet. The next call makes another.
    pub(super) fn close(&self, held: Option<&Arc<Ready>>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Ready(ready) if held.is_none_or(|held| Arc::ptr_eq(ready, held))) {
            *state = State::Idle;
        }
    }

    fn connect(self: &Arc<Self>, runtime: &Handle) -> watch::Receiver<Attempt> {
        let (done, attempt) = watch::channel(None);
        let link = Arc::clone(self);
        runtime.spawn(async move {
            let making = AssertUnwindSafe(link.make()).catch_unwind();
            let outcome = match timeout(link.connect_timeout, making).await {
                Ok(Ok(outcome)) => outcome.map(Arc::new),
                // The client library panics if rustls has no cryptography, since another crate has enabled it there.
                Ok(Err(_)) => Err(disconnected(
                    "connecting has panicked: for TLS, enable the feature `rustls` of tower-distributed, or install a \
                     rustls::crypto::CryptoProvider",
                )),
                Err(_) => {
                    let Self { source, connect_timeout, .. } = &*link;
                    let hint = source.hint();
                    Err(disconnected(format!("no connection to {source} within {connect_timeout:?}{hint}")))
                }
            };
            *lock(&link.state) = match &outcome {
                Ok(ready) => State::Ready(Arc::clone(ready)),
                Err(_) => State::Idle,
            };
            done.send_replace(Some(outcome));
        });
        attempt
    }

    async fn make(&self) -> Result<Ready, Outage> {
        loop {
            let switches = self.source.switches();
            let mut connection = self.source.connect().await?;
            let version = version::check(&mut connection).await?;
            // If the master has changed meanwhile, the connection may lead to the former one.
            if switches == self.source.switches() {
                self.answered();
                self.telemetry.connected(self.has_connected.swap(true, Ordering::Relaxed));
                return Ok(Ready { connection, version, switches });
            }
        }
    }
}
