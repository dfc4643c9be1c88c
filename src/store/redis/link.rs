//! A link: one connection, shared by all calls on a runtime, which is replaced when it fails.
//!
//! The links of a runtime are made on first use and dropped with the runtime. A call depends only on the runtime that
//! awaits it: runtimes share no connection, no queue and no breaker.

mod connect;

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::RedisError;
use tokio::runtime::{Handle, Id};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::error::reasons::Outage;
use crate::store::redis::breaker::Breaker;
use crate::store::redis::budget::Budget;
use crate::store::redis::connection::Connection;
#[cfg(feature = "sentinel")]
use crate::store::redis::errors;
use crate::store::redis::errors::disconnected;
use crate::store::redis::functions::Functions;
use crate::store::redis::library::Library;
use crate::store::redis::limits::Limits;
use crate::store::redis::slots::OnMasters;
use crate::store::redis::source::Source;
use crate::store::stats::BreakerState;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use crate::telemetry::server::Server;

/// The slot for one connection.
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
    /// The number of switches of the master that its calls have noticed.
    switches: AtomicU64,
    /// Whether it has had a connection.
    has_connected: AtomicBool,
    /// The library; `None`: calls are sent as scripts.
    library: Option<Arc<Library>>,
    /// The number of connections in a row that were closed when they checked for functions.
    closed_at_functions: AtomicU64,
    /// The number of connections in a row that were closed when they loaded the library.
    closed_at_load: AtomicU64,
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
    pub(super) functions: Functions,
    /// The number of switches of the master when it was made.
    pub(super) switches: u64,
}

type Attempt = Option<Result<Arc<Ready>, Outage>>;

impl Link {
    pub(super) fn new(
        source: Source,
        connect_timeout: Duration,
        process: u32,
        telemetry: Server,
        library: Option<Arc<Library>>,
    ) -> Self {
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
            library,
            closed_at_functions: AtomicU64::new(0),
            closed_at_load: AtomicU64::new(0),
        }
    }

    /// Returns the connection, if there is one to the current master.
    pub(super) fn connected(&self) -> Option<Arc<Ready>> {
        // In a fork, the lock may be held by a thread that does not exist there.
        if std::process::id() != self.process {
            return None;
        }
        match &*lock(&self.state) {
            State::Ready(ready) if ready.switches == self.switches() => Some(Arc::clone(ready)),
            _ => None,
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
                State::Ready(ready) if ready.switches == self.switches() => {
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

    /// Returns the number of times that Sentinels reported another master. Connections that were made before the last
    /// time must be closed.
    fn switches(&self) -> u64 {
        match &self.source {
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => sentinels.switches(),
            _ => 0,
        }
    }

    /// Awaits a reply on a connection that was made after `since` switches. It fails at the next switch: the reply of a
    /// former master does not count.
    pub(super) async fn unless_switched<T>(
        &self,
        since: u64,
        reply: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T, RedisError> {
        #[cfg(feature = "sentinel")]
        if let Source::Sentinel(sentinels) = &self.source {
            return tokio::select! {
                biased;
                () = sentinels.switched(since) => Err(errors::another_master()),
                reply = reply => reply,
            };
        }
        let _ = since;
        reply.await
    }

    /// Whether the master was switched since the last call of this method.
    pub(super) fn has_switched(&self) -> bool {
        let switches = self.switches();
        switches > 0 && self.switches.swap(switches, Ordering::Relaxed) != switches
    }

    /// Records that a reply has arrived.
    pub(super) fn answered(&self) {
        self.answered
            .store(self.micros(Instant::now()).max(1), Ordering::Relaxed);
        if self.failing.load(Ordering::Relaxed) {
            self.failing.store(false, Ordering::Relaxed);
        }
    }

    /// Records that an attempt has failed: no connection, or no reply.
    pub(super) fn failed(&self) {
        self.failing.store(true, Ordering::Relaxed);
    }

    /// Whether the server replies, as far as is known: a reply arrived within this time, or nothing has failed since
    /// the last reply. An overloaded process reads replies late.
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
        (answered > 0 && answered >= self.micros(time))
            .then(|| self.began + Duration::from_micros(answered))
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

    /// Whether calls are sent as functions, if there is a connection.
    pub(super) fn has_functions(&self) -> Option<bool> {
        match &*lock(&self.state) {
            State::Ready(ready) => Some(ready.functions.are_there()),
            _ => None,
        }
    }

    /// Closes the connection; with `held`, only if it is still that connection. The next call makes another one.
    pub(super) fn close(&self, held: Option<&Arc<Ready>>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Ready(ready) if held.is_none_or(|held| Arc::ptr_eq(ready, held)))
        {
            *state = State::Idle;
        }
    }
}

/// The link to a master, with its breaker. On a Cluster each master has its own connection, so that a master that is
/// down or slow does not affect the others.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) link: Arc<Link>,
    pub(super) breaker: Breaker,
    /// The number of the master.
    pub(super) master: usize,
}

/// The connections, breakers and budget of a store on one runtime.
pub(super) struct RuntimeLinks {
    pub(super) id: Id,
    pub(super) runtime: Handle,
    settings: LinkSettings,
    /// The routes, by master and then by link. There are as many links as `connections`, and one more for bulk
    /// operations. Made on first use.
    routes: Mutex<Vec<Option<Arc<Route>>>>,
    /// The bound on the operations that wait on this runtime.
    pub(super) budget: Arc<Budget>,
    /// Closed when the runtime has ended.
    ends: oneshot::Sender<()>,
}

/// The common settings of all links of a store.
pub(super) struct LinkSettings {
    pub(super) source: Source,
    pub(super) limits: Limits,
    /// The process that made the store.
    pub(super) process: u32,
    pub(super) telemetry: Server,
    /// `None`: calls are sent as scripts.
    pub(super) library: Option<Arc<Library>>,
}

impl RuntimeLinks {
    /// Makes the links of a runtime. `on_end` runs when the runtime ends.
    pub(super) fn new(
        runtime: &Handle,
        settings: LinkSettings,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        let (ends, dropped) = oneshot::channel::<()>();
        let mut watch = EndOfRuntime {
            dropped,
            on_end: Some(on_end),
        };
        // Ends with the store or with the runtime.
        runtime.spawn(async move { drop((&mut watch.dropped).await) });
        let LinkSettings { limits, .. } = settings;
        let links = Arc::new(Self {
            id: runtime.id(),
            runtime: runtime.clone(),
            settings,
            routes: Mutex::default(),
            budget: Arc::new(Budget::new(limits.max_queued, limits.max_queued_bytes)),
            ends,
        });
        if let Some(masters) = links.settings.source.masters() {
            let weak: Weak<Self> = Arc::downgrade(&links);
            masters.add(weak);
        }
        links
    }

    /// Whether these are the links of this runtime, and it has not ended. The ids of ended runtimes are reused.
    pub(super) fn is_of(&self, runtime: Id) -> bool {
        self.id == runtime && !self.ends.is_closed()
    }

    /// Whether the runtime has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ends.is_closed()
    }

    /// Closes the breakers of a runtime that has ended. Tasks that still refer to them make no more calls.
    pub(super) fn retire(&self) {
        lock(&self.routes)
            .iter()
            .flatten()
            .for_each(|route| route.breaker.retire());
    }

    /// Lets the next call on each route pass as a probe, because the server has replied on another runtime.
    pub(super) fn half_open(&self) {
        lock(&self.routes)
            .iter()
            .flatten()
            .for_each(|route| route.breaker.half_open());
    }

    /// Closes the connections.
    pub(super) fn close(&self) {
        lock(&self.routes)
            .iter()
            .flatten()
            .for_each(|route| route.link.close(None));
    }

    /// The number of a route, by master and link. Links are numbered from 0; the last link is the one for bulk
    /// operations.
    pub(super) fn number(&self, master: usize, link: usize) -> usize {
        master * (self.settings.limits.connections + 1) + link
    }

    pub(super) fn route(&self, number: usize) -> Arc<Route> {
        let mut routes = lock(&self.routes);
        if routes.len() <= number {
            routes.resize(number + 1, None);
        }
        if let Some(route) = &routes[number] {
            return Arc::clone(route);
        }
        let LinkSettings {
            limits,
            process,
            telemetry,
            library,
            source,
        } = &self.settings;
        let master = number / (limits.connections + 1);
        let link = Link::new(
            source.to_master(master),
            limits.connect_timeout,
            *process,
            telemetry.clone(),
            library.clone(),
        );
        let route = Arc::new(Route {
            link: Arc::new(link),
            breaker: Breaker::new(limits.connect_timeout + limits.timeout, telemetry.clone()),
            master,
        });
        routes[number] = Some(Arc::clone(&route));
        drop(routes);
        // This master may replace one that no longer has slots.
        self.leave_former();
        route
    }

    /// Closes the connections to masters that no longer have slots, and their breakers: no later call would close
    /// these.
    pub(super) fn leave_former(&self) {
        let routes = lock(&self.routes);
        for route in routes
            .iter()
            .flatten()
            .filter(|route| !self.settings.source.is_current(route.master))
        {
            route.link.close(None);
            route.breaker.retire();
        }
    }

    /// The worst state of its breakers.
    pub(super) fn breaker(&self) -> BreakerState {
        let routes = lock(&self.routes);
        let current = routes
            .iter()
            .flatten()
            .filter(|route| self.settings.source.is_current(route.master));
        let states = current.map(|route| route.breaker.state());
        states.max().unwrap_or_default()
    }

    /// The version of a server to which it is connected.
    pub(super) fn server_version(&self) -> Option<String> {
        lock(&self.routes)
            .iter()
            .flatten()
            .find_map(|route| route.link.version())
    }

    /// Whether calls are sent as functions; `None` without a connection.
    pub(super) fn have_functions(&self) -> Option<bool> {
        lock(&self.routes)
            .iter()
            .flatten()
            .find_map(|route| route.link.has_functions())
    }
}

impl OnMasters for RuntimeLinks {
    fn masters_changed(&self) {
        self.leave_former();
    }
}

/// Dropped when its runtime ends.
struct EndOfRuntime<F: FnOnce()> {
    dropped: oneshot::Receiver<()>,
    on_end: Option<F>,
}

impl<F: FnOnce()> Drop for EndOfRuntime<F> {
    fn drop(&mut self) {
        self.dropped.close();
        if let Some(on_end) = self.on_end.take() {
            on_end();
        }
    }
}
