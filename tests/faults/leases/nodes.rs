//! The servers of a quorum.

use futures::future::join_all;
use tower_distributed::{Mutex, Store};

use crate::leases::kinds::{LONG, SOON, hasty};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// Each behind a proxy.
pub(crate) struct Nodes {
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) proxies: Vec<FaultProxy>,
}

impl Nodes {
    pub(crate) async fn start(count: usize) -> Self {
        let servers = join_all((0..count).map(|_| RedisServer::start())).await;
        let proxies = join_all(
            servers
                .iter()
                .map(|server| FaultProxy::start(server.port())),
        )
        .await;
        Self { servers, proxies }
    }

    /// Stores that know nothing of earlier failures, connected and with their scripts known.
    pub(crate) async fn stores(&self) -> Vec<Store> {
        let stores: Vec<_> = self
            .proxies
            .iter()
            .map(|proxy| hasty(&proxy.url(), 1000))
            .collect();
        let warm = Mutex::builder()
            .ttl(LONG)
            .build_quorum(stores.clone(), "warm")
            .unwrap();
        eventually("connections to all", SOON, async || {
            warm.lock("warm").await.unwrap().unlock().await.unwrap();
            self.proxies
                .iter()
                .all(|proxy| proxy.requests_containing(b"{warm:warm}") > 1)
        })
        .await;
        stores
    }

    /// What each node says who holds a key.
    pub(crate) fn votes(&self, family: &str, key: &str) -> Vec<Option<String>> {
        let name = format!("td:{{{family}:{key}}}:lock");
        self.servers
            .iter()
            .map(|server| server.query(&["GET", &name]).unwrap())
            .collect()
    }
}
