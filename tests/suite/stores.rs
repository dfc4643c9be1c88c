//! The stores under test. The servers are shared by all tests of this binary, which use names of their own.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use futures::poll;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tower_distributed::operator::Operator;
use tower_distributed::{Credentials, Store};

use support::cluster::RedisCluster;
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;
use support::sentinel::Sentinel;

/// Within what time everything that is waited for comes about.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Among the beats of a key stand those who wait, and from this on those who have withdrawn.
const WITHDRAWN: &str = "4503599627370496";

pub(crate) static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
static CLUSTER: OnceCell<RedisCluster> = OnceCell::const_new();
static SENTINEL: OnceCell<Sentinel> = OnceCell::const_new();

/// A store, and the servers behind it for those who look there.
pub(crate) struct Place {
    store: Store,
    pub(crate) prefix: &'static str,
    servers: Servers,
}

enum Servers {
    None,
    One(&'static RedisServer),
    Cluster(&'static RedisCluster),
    Sentinel(&'static Sentinel),
}

pub(crate) async fn in_memory() -> Place {
    Place {
        store: Store::in_memory(),
        prefix: "",
        servers: Servers::None,
    }
}

pub(crate) async fn redis() -> Place {
    let server = SERVER.get_or_init(RedisServer::start).await;
    let store = patient!().credentials(USER()).redis(&server.url()).unwrap();
    add_user(&store, server);
    Place {
        store,
        prefix: "td",
        servers: Servers::One(server),
    }
}

/// A user with no more permissions than the store says that it needs, and those for locks with exact names.
const USER: fn() -> Credentials = || Credentials::new("app", "secret");

fn add_user(store: &Store, server: &RedisServer) {
    server.set_user(
        &store.acl_rule("app").unwrap(),
        &["on", ">secret", "~td.*", "~*:td:*"],
    );
}

/// A pool alone, without a place to subscribe to: those who wait ask now and then.
pub(crate) async fn polling() -> Place {
    let server = SERVER.get_or_init(RedisServer::start).await;
    let pool = support::pools::pool(server.url());
    let store = patient!().prefix("polling").pool(pool).unwrap();
    Place {
        store,
        prefix: "polling",
        servers: Servers::One(server),
    }
}

pub(crate) async fn cluster() -> Place {
    let cluster = CLUSTER.get_or_init(RedisCluster::start).await;
    let store = patient!()
        .credentials(USER())
        .cluster(cluster.urls())
        .unwrap();
    cluster
        .nodes()
        .iter()
        .for_each(|node| add_user(&store, node));
    Place {
        store,
        prefix: "td",
        servers: Servers::Cluster(cluster),
    }
}

pub(crate) async fn sentinel() -> Place {
    let sentinel = SENTINEL.get_or_init(Sentinel::start).await;
    let builder = patient!();
    let store = builder
        .sentinel(sentinel.sentinel_urls(), sentinel.service_name())
        .unwrap();
    Place {
        store,
        prefix: "td",
        servers: Servers::Sentinel(sentinel),
    }
}

impl Place {
    /// Its servers; none in process.
    pub(crate) fn servers(&self) -> Vec<&'static RedisServer> {
        match self.servers {
            Servers::None => Vec::new(),
            Servers::One(server) => vec![server],
            Servers::Cluster(cluster) => cluster.nodes().iter().collect(),
            Servers::Sentinel(sentinel) => vec![sentinel.master()],
        }
    }

    /// An operator of the store. On one Redis and on a Cluster its user has no more permissions than it says that it needs.
    pub(crate) fn operator(&self) -> Operator {
        let builder = || patient!().credentials(Credentials::new("ops", "secret"));
        let store = match self.servers {
            Servers::One(server) if self.prefix == "td" => builder().redis(&server.url()).unwrap(),
            Servers::Cluster(cluster) => builder().cluster(cluster.urls()).unwrap(),
            _ => return Operator::new(&self.store),
        };
        let operator = Operator::new(&store);
        let rule = operator.acl_rule("ops").unwrap();
        self.servers()
            .iter()
            .for_each(|server| server.set_user(&rule, &["on", ">secret"]));
        operator
    }

    /// The name in Redis of a part of the state `family:key`.
    pub(crate) fn part(&self, state: &str, part: &str) -> String {
        format!("{}:{{{state}}}:{part}", self.prefix)
    }

    /// The server that keeps a Redis key; `None` in process.
    pub(crate) fn server_of(&self, key: &str) -> Option<&'static RedisServer> {
        match self.servers {
            Servers::None => None,
            Servers::One(server) => Some(server),
            Servers::Cluster(cluster) => Some(cluster.node_of(key)),
            Servers::Sentinel(sentinel) => Some(sentinel.master()),
        }
    }

    /// Waits until so many wait for the state `family:key`. In process that is so once they were polled.
    pub(crate) async fn lined_up(&self, state: &str, waiters: usize) {
        let beats = self.part(state, "*beats");
        let Some(server) = self.server_of(&beats) else {
            return;
        };
        eventually(
            &format!("{waiters} in line for {state}"),
            SOON,
            async || {
                let lines: Vec<String> = server.query(&["KEYS", &beats]).unwrap();
                let waiting = |line: &String| -> usize {
                    server
                        .query(&["ZCOUNT", line, "-inf", &format!("({WITHDRAWN}")])
                        .unwrap()
                };
                lines.iter().map(waiting).sum::<usize>() == waiters
            },
        )
        .await;
    }

    /// Takes away what is held of the state `family:key`; false in process, where nobody can.
    pub(crate) fn take_away(&self, state: &str) -> bool {
        let holders = self.part(state, "*");
        let Some(server) = self.server_of(&holders) else {
            return false;
        };
        let mut keys: Vec<String> = server.query(&["KEYS", &holders]).unwrap();
        keys.retain(|key| key.ends_with("lock") || key.ends_with("holders"));
        assert_eq!(keys.len(), 1, "{keys:?}");
        server.query(&["DEL", &keys[0]]) == Ok(1)
    }

    /// Makes a call wait for the state `family:key`; returns once it is in line, as the one of this number.
    pub(crate) async fn line_up<F>(
        &self,
        state: &str,
        number: usize,
        call: F,
    ) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut call = Box::pin(call);
        assert!(
            poll!(call.as_mut()).is_pending(),
            "number {number} for {state} has not waited"
        );
        let call = tokio::spawn(call);
        self.lined_up(state, number).await;
        call
    }
}

impl Deref for Place {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}
