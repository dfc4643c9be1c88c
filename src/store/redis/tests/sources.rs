//! The destinations of calls: one server, the masters of a Cluster, or those of a pool.

use support::cluster::RedisCluster;
use support::pools::{pool, pool_of_cluster};
use support::program::since_7_0;
use support::requires;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::*;
use crate::error::reasons::Cause;
use crate::store::redis::errors;
use crate::store::stats::BreakerState;

const URL: &str = "redis://127.0.0.1:1";

#[tokio::test]
async fn only_the_end_of_a_connection_tells_a_pool_of_a_cluster_that_a_master_is_lost() {
    let store = Store::from(pool_of_cluster([URL.into()]));
    let source = &store.on_redis().unwrap().source;
    let plain = Store::from(pool(URL));
    let plain = &plain.on_redis().unwrap().source;
    for (cause, of_pool, of_server) in [
        (Cause::Disconnected, true, true),
        (Cause::TimedOut, false, true),
        (Cause::NotServing, false, true),
        (Cause::Denied, false, false),
    ] {
        assert_eq!(
            [source, plain].map(|source| source.is_lost(cause)),
            [of_pool, of_server],
            "{cause:?}"
        );
    }
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn a_server_that_is_silent_over_tls_may_not_speak_it() {
    for (scheme, is_hinted) in [("redis", false), ("rediss", true)] {
        let url = format!("{scheme}://127.0.0.1:1");
        let stores = [
            Store::redis(&url).unwrap(),
            Store::builder().cluster([&url]).unwrap(),
        ];
        let hints = stores.map(|store| store.on_redis().unwrap().source.hint());
        assert_eq!(
            hints.map(|hint| hint.contains("TLS")),
            [is_hinted; 2],
            "{scheme}"
        );
    }
}

/// A reply of one node does not show the state of the others.
#[tokio::test]
async fn an_answer_to_a_ping_leaves_the_breaker_of_a_pool_for_a_cluster_as_it_is() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = Store::from(pool_of_cluster(cluster.urls()));
    let links = store.on_redis().unwrap().links(&Handle::current());
    links
        .route(0)
        .breaker
        .failed(Instant::now(), &errors::of(Cause::NotSent, "x"), true);
    store.ping().await.unwrap();
    assert_ne!(links.breaker(), BreakerState::Closed);
    assert!(links.server_version().is_some(), "each node tells it");
}
