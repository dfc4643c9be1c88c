//! What a store has on one tokio runtime: connections, made on first use and dropped with the runtime.
//!
//! A call depends on nothing but the runtime it is awaited on: runtimes share no connection, no queue and no breaker.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::RedisStore;
use super::breaker::Breaker;
use super::link::Link;
use crate::store::BreakerState;
use crate::store::in_memory::lock;
use crate::telemetry::Server;

/// What a store has on one runtime.
pub(super) struct RuntimeLinks {
    pub(super) id: Id,
    pub(super) runtime: Handle,
    /// As many as the store is set to keep, and then the one for bulk.
    links: Box<[Arc<Link>]>,
    /// By master, then by link; made when they are first used.
    routes: Mutex<Vec<Option<Arc<Route>>>>,
    probe: Duration,
    telemetry: Server,
    /// Closed when the runtime has ended.
    ends: oneshot::Sender<()>,
}

/// The way of some operations: by which link to which master.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) link: Arc<Link>,
    pub(super) breaker: Breaker,
}

impl Route {
    /// How many calls may be in flight, so that the last is answered within half of the time-out even by a server that
    /// takes its time for each.
    pub(super) fn depth(&self, timeout: Duration) -> usize {
        let latency = self.link.latency().as_micros().max(1);
        usize::try_from(timeout.as_micros() / 2 / latency).unwrap_or(usize::MAX).clamp(1, 256)
    }
}

impl RuntimeLinks {
    pub(super) fn new(store: &Arc<RedisStore>, runtime: &Handle) -> Arc<Self> {
        let (ends, dropped) = oneshot::channel::<()>();
        let watch = EndOfRuntime { store: Arc::downgrade(store), id: runtime.id() };
        runtime.spawn(async move {
            let _watch = watch;
            // Ends with the store, or with the runtime.
            let _ = dropped.await;
        });
        let telemetry = &store.telemetry;
        let link =
            || Arc::new(Link::new(store.source.clone(), store.limits.connect_timeout, telemetry.clone()));
        Arc::new(Self {
            id: runtime.id(),
            runtime: runtime.clone(),
            links: (0..=store.limits.connections).map(|_| link()).collect(),
            routes: Mutex::default(),
            probe: store.limits.connect_timeout + store.limits.timeout,
            telemetry: telemetry.clone(),
            ends,
        })
    }

    /// Whether the runtime has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ends.is_closed()
    }

    /// Closes the breakers of a runtime that has ended: whoever still knows them makes no calls by them.
    pub(super) fn retire(&self) {
        lock(&self.routes).iter().flatten().for_each(|route| route.breaker.retire());
    }

    /// Closes the connections.
    pub(super) fn close(&self) {
        self.links.iter().for_each(|link| link.close());
    }

    /// The number of the route by a link to a master. Links are numbered from 0, the last is that for bulk.
    pub(super) fn number(&self, master: usize, link: usize) -> usize {
        master * self.links.len() + link
    }

    pub(super) fn route(&self, number: usize) -> Arc<Route> {
        let mut routes = lock(&self.routes);
        if routes.len() <= number {
            routes.resize(number + 1, None);
        }
        let route = routes[number].get_or_insert_with(|| {
            let link = Arc::clone(&self.links[number % self.links.len()]);
            Arc::new(Route { link, breaker: Breaker::new(self.probe, self.telemetry.clone()) })
        });
        Arc::clone(route)
    }

    /// The worst state of its breakers.
    pub(super) fn breaker(&self) -> BreakerState {
        let routes = lock(&self.routes);
        let states = routes.iter().flatten().map(|route| route.breaker.state());
        states.max().unwrap_or_default()
    }
}

/// Dropped with the runtime it waits on.
struct EndOfRuntime {
    store: Weak<RedisStore>,
    id: Id,
}

impl Drop for EndOfRuntime {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.forget(self.id);
        }
    }
}

impl fmt::Debug for RuntimeLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeLinks").field("id", &self.id).finish_non_exhaustive()
    }
}
