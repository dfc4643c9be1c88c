//! The stores under test. The servers are shared by all tests of this binary, which use names of their own.

use deadpool_redis::Runtime;
use deadpool_redis::cluster::Config as ClusterConfig;
use deadpool_redis::sentinel::{Config as SentinelConfig, SentinelServerType};
use tokio::sync::OnceCell;
use tower_distributed::Store;

use crate::support::cluster::RedisCluster;
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::Sentinel;

pub(crate) static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
pub(crate) static CLUSTER: OnceCell<RedisCluster> = OnceCell::const_new();
static SENTINEL: OnceCell<Sentinel> = OnceCell::const_new();

pub(crate) async fn in_process() -> Store {
    Store::in_process()
}

pub(crate) async fn redis() -> Store {
    Store::redis(&SERVER.get_or_init(RedisServer::start).await.url()).unwrap()
}

pub(crate) async fn cluster() -> Store {
    let cluster = CLUSTER.get_or_init(RedisCluster::start).await;
    ClusterConfig::from_urls(cluster.urls()).create_pool(Some(Runtime::Tokio1)).unwrap().into()
}

pub(crate) async fn sentinel() -> Store {
    let sentinel = SENTINEL.get_or_init(Sentinel::start).await;
    let name = sentinel.service_name().to_owned();
    SentinelConfig::from_urls(sentinel.sentinel_urls(), name, SentinelServerType::Master)
        .create_pool(Some(Runtime::Tokio1))
        .unwrap()
        .into()
}
