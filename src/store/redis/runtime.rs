//! The links of a store on one tokio runtime. They are made on first use and dropped with the runtime.
//!
//! A call depends only on the runtime that awaits it: runtimes share no connection, no queue and no breaker.

use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::RedisStore;
use super::breaker::Breaker;
use super::budget::Budget;
use super::library::Library;
use super::link::Link;
use super::source::Source;
use crate::store::BreakerState;
use crate::store::builder::Limits;
use crate::sync::lock;
use crate::telemetry::Server;

/// The connections, breakers and budget of a store on one runtime.
pub(super) struct RuntimeLinks {
    pub(super) id: Id,
    pub(super) runtime: Handle,
    source: Source,
    limits: Limits,
    process: u32,
    telemetry: Server,
    library: Option<Arc<Library>>,
    /// By master, then by link. There are as many links as `connections`, and one more for bulk operations. Made on
    /// first use.
    routes: Mutex<Vec<Option<Arc<Route>>>>,
    /// The bound on the operations that wait on this runtime.
    pub(super) budget: Arc<Budget>,
    /// Closed when the runtime has ended.
    ends: oneshot::Sender<()>,
}

/// The link to a master, with its breaker. On a Cluster each master has its own connection, so that one master that is
/// down or slow concerns no other.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) link: Arc<Link>,
    pub(super) breaker: Breaker,
    /// The number of the master.
    pub(super) master: usize,
}

impl RuntimeLinks {
    pub(super) fn new(store: &Arc<RedisStore>, runtime: &Handle) -> Arc<Self> {
        let (ends, dropped) = oneshot::channel::<()>();
        let mut watch = EndOfRuntime {
            store: Arc::downgrade(store),
            id: runtime.id(),
            dropped,
        };
        // Ends with the store or with the runtime.
        runtime.spawn(async move { drop((&mut watch.dropped).await) });
        let limits = store.limits;
        let links = Arc::new(Self {
            id: runtime.id(),
            runtime: runtime.clone(),
            source: store.source.clone(),
            limits,
            process: store.process,
            telemetry: store.telemetry.clone(),
            library: limits.functions.then(|| Arc::clone(&store.library)),
            routes: Mutex::default(),
            budget: Arc::new(Budget::new(limits.max_queued, limits.max_queued_bytes)),
            ends,
        });
        if let Some(masters) = store.source.masters() {
            masters.add(&links);
        }
        links
    }

    /// Whether these are the links of this runtime, and it has not ended. The ids of ended runtimes are reused.
    pub(super) fn is_of(&self, runtime: Id) -> bool {
        self.id == runtime && !self.has_ended()
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

    /// Lets the next call on each route pass as a probe, because the server has answered on another runtime.
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
        master * (self.limits.connections + 1) + link
    }

    pub(super) fn route(&self, number: usize) -> Arc<Route> {
        let mut routes = lock(&self.routes);
        if routes.len() <= number {
            routes.resize(number + 1, None);
        }
        if let Some(route) = &routes[number] {
            return Arc::clone(route);
        }
        let Limits {
            timeout,
            connect_timeout,
            ..
        } = self.limits;
        let master = number / (self.limits.connections + 1);
        let source = self.source.to_master(master);
        let (telemetry, library) = (self.telemetry.clone(), self.library.clone());
        let link = Link::new(source, connect_timeout, self.process, telemetry, library);
        let route = Arc::new(Route {
            link: Arc::new(link),
            breaker: Breaker::new(connect_timeout + timeout, self.telemetry.clone()),
            master,
        });
        routes[number] = Some(Arc::clone(&route));
        drop(routes);
        // It may take the place of a master that has no slots any more.
        self.leave_former();
        route
    }

    /// Closes the connections to masters that have no slots any more, and their breakers: they get no calls that could
    /// close these.
    pub(super) fn leave_former(&self) {
        let routes = lock(&self.routes);
        for route in routes
            .iter()
            .flatten()
            .filter(|route| !self.source.is_current(route.master))
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
            .filter(|route| self.source.is_current(route.master));
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

    /// Whether calls go as functions; `None` without a connection.
    pub(super) fn have_functions(&self) -> Option<bool> {
        lock(&self.routes)
            .iter()
            .flatten()
            .find_map(|route| route.link.has_functions())
    }
}

/// Dropped when its runtime ends. It then drops the links of the runtime.
struct EndOfRuntime {
    store: Weak<RedisStore>,
    id: Id,
    dropped: oneshot::Receiver<()>,
}

impl Drop for EndOfRuntime {
    fn drop(&mut self) {
        self.dropped.close();
        if let Some(store) = self.store.upgrade() {
            store.forget(self.id);
        }
    }
}
