//! Where calls go: to one server, to the masters of a Cluster, or where a pool leads.

use std::time::Duration;

use support::cluster::RedisCluster;
use support::pools::{pool, pool_of_cluster};
use support::program::since_7_0;
use support::requires;
use tokio::runtime::Handle;
use tokio::time::{Instant, advance};

use super::*;
use crate::error::Cause;
use crate::store::BreakerState;
use crate::store::redis::failure;

const URL: &str = "redis://127.0.0.1:1";

#[tokio::test]
async fn the_connections_of_a_pool_find_the_masters_by_themselves() {
    let store = Store::from(pool_of_cluster([URL.into()]));
    let source = &store.on_redis().unwrap().source;
    let halves = vec![(0, 8191, "a:1".to_owned()), (8192, 16383, "b:1".to_owned())];
    source.masters().unwrap().refresh(async { Ok(halves) }).await;
    assert_eq!((source.numbers(), source.all_masters()), (vec![0], vec![0, 1]));
    assert_eq!((source.redirected_to("b:1"), source.address_in_pool(1)), (None, Some("b:1".into())));
    assert!(source.is_pool() && source.is_pool_of_cluster());
    assert!(Namespace::<Nothing>::open(&store, "n").client::<Ask>().may_repeat());
    let plain = Store::from(pool(URL));
    let plain = &plain.on_redis().unwrap().source;
    assert!(plain.is_pool() && !plain.is_pool_of_cluster());
    for (cause, of_pool, of_server) in [
        (Cause::Disconnected, true, true),
        (Cause::TimedOut, false, true),
        (Cause::NotServing, false, true),
        (Cause::Denied, false, false),
    ] {
        assert_eq!([source, plain].map(|source| source.is_lost(cause)), [of_pool, of_server], "{cause:?}");
    }
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn a_server_that_is_silent_over_tls_may_not_speak_it() {
    for (scheme, is_hinted) in [("redis", false), ("rediss", true)] {
        let url = format!("{scheme}://127.0.0.1:1");
        let stores = [Store::redis(&url).unwrap(), Store::builder().cluster([&url]).unwrap()];
        let hints = stores.map(|store| store.on_redis().unwrap().source.hint());
        assert_eq!(hints.map(|hint| hint.contains("TLS")), [is_hinted; 2], "{scheme}");
    }
}

/// One node that answers says nothing of the others.
#[tokio::test]
async fn an_answer_to_a_ping_leaves_the_breaker_of_a_pool_for_a_cluster_as_it_is() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = Store::from(pool_of_cluster(cluster.urls()));
    let links = store.on_redis().unwrap().links(&Handle::current());
    links.route(0).breaker.failed(Instant::now(), &failure::of(Cause::NotSent, "x"), true);
    store.ping().await.unwrap();
    assert_ne!(links.breaker(), BreakerState::Closed);
    assert!(links.server_version().is_some(), "each node tells it");
}

/// A probe may take as long as connecting and the reply.
#[tokio::test(start_paused = true)]
async fn another_call_is_the_probe_once_the_first_has_had_its_time() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let client = client::<Ask>(Store::builder().timeout(TIMEOUT).connect_timeout(2 * TIMEOUT));
    let route = client.store.links(&Handle::current()).route(0);
    let is_free = || route.breaker.check().is_ok();
    route.breaker.failed(Instant::now(), &failure::of(Cause::NotSent, "x"), true);
    route.breaker.half_open();
    assert!(is_free() && !is_free());
    advance(3 * TIMEOUT - Duration::from_millis(1)).await;
    assert!(!is_free());
    advance(Duration::from_millis(1)).await;
    assert!(is_free());
}
