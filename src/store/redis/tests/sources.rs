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
use crate::store::redis::source::Source;
use crate::store::redis::{failure, slots};
use crate::{Quota, TokenBucket};

const URL: &str = "redis://127.0.0.1:1";

fn cluster() -> Store {
    Store::builder().cluster([URL]).unwrap()
}

/// Has a store know two masters, of a half of the slots each.
async fn learn(source: &Source, addresses: [&str; 2]) {
    let [one, other] = addresses.map(str::to_owned);
    source.masters().unwrap().refresh(async { Ok(vec![(0, 8191, one), (8192, 16383, other)]) }).await;
}

#[tokio::test]
async fn calls_of_a_cluster_go_to_the_masters_of_their_slots() {
    let store = cluster();
    let source = &store.on_redis().unwrap().source;
    assert_eq!((source.numbers(), source.all_masters(), source.is_pool()), (vec![0], vec![0], false));
    learn(source, ["a:1", "b:1"]).await;
    assert_eq!((source.numbers(), source.all_masters()), (vec![0, 1], vec![0, 1]));
    assert_eq!([None, Some(0), Some(8191), Some(8192)].map(|slot| source.master(slot)), [0, 0, 0, 1]);
    assert_eq!((source.redirected_to("c:1"), source.address_in_pool(0)), (Some(2), None));
    assert_eq!([0, 1, 2].map(|number| source.is_current(number)), [true, true, false]);
    let places = [0, 1, 7].map(|number| source.to_master(number).to_string());
    assert_eq!(places, ["a:1", "b:1", "the cluster of 127.0.0.1:1"]);
    let namespace = Namespace::<Nothing>::open(&store, "n");
    assert_eq!(namespace.slot(&"k".into()), Some(slots::slot(b"td:{n:k}:")));
    assert!(!namespace.client::<Ask>().may_repeat());
    let refused = &store.on_redis().unwrap().refused;
    let _refusal = refused.note(namespace.slot(&"k".into()), &failure::of(Cause::Moving, "x"), None);
    assert!(namespace.refused(&"k".into()).is_some() && namespace.refused(&"other".into()).is_none());
}

#[tokio::test]
async fn the_connections_of_a_pool_find_the_masters_by_themselves() {
    let store = Store::from(pool_of_cluster([URL.into()]));
    let source = &store.on_redis().unwrap().source;
    learn(source, ["a:1", "b:1"]).await;
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

#[tokio::test]
async fn one_server_has_all_keys() {
    let store = Store::redis(URL).unwrap();
    let source = &store.on_redis().unwrap().source;
    assert!(source.masters().is_none() && !source.is_pool());
    assert_eq!((source.master(Some(7)), source.numbers()), (0, vec![0]));
    assert_eq!(source.to_string(), "127.0.0.1:1");
    assert!(source.is_current(7) && source.redirected_to("a:1").is_none());
    for store in [&store, &Store::in_memory()] {
        let namespace = Namespace::<Nothing>::open(store, "n");
        assert_eq!(namespace.slot(&"k".into()), None);
        assert!(namespace.refused(&"k".into()).is_none() && !namespace.client::<Ask>().may_repeat());
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

#[tokio::test]
async fn a_master_without_slots_is_left_with_its_breaker() {
    let store = cluster();
    let store = store.on_redis().unwrap();
    let links = store.links(&Handle::current());
    // Those of another runtime are left, too.
    let _others = store.links(&store.background.handle().unwrap());
    learn(&store.source, ["a:1", "b:1"]).await;
    let routes = [0, 1].map(|master| links.route(links.number(master, 0)));
    for route in &routes {
        route.breaker.failed(Instant::now(), &failure::of(Cause::NotSent, "x"), true);
    }
    learn(&store.source, ["a:1", "c:1"]).await;
    let is_closed = routes.map(|route| route.breaker.state() == BreakerState::Closed);
    assert_eq!(is_closed, [false, true]);
}

#[tokio::test]
async fn a_user_that_may_not_read_the_masters_is_told_without_asking_again() {
    let store = cluster();
    let Source::Cluster(cluster, _) = &store.on_redis().unwrap().source else { unreachable!() };
    assert!(cluster.connect(0).await.err().unwrap().text.contains("no connection to 127.0.0.1:1"));
    // On a busy machine the pause may be over before it connects.
    for _ in 0..100 {
        cluster.masters.refresh(async { Err(failure::of(Cause::Denied, "x")) }).await;
        if cluster.connect(0).await.err().unwrap().cause == Cause::Denied {
            return;
        }
    }
    panic!("it asked each time");
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

#[tokio::test]
async fn a_call_that_goes_to_the_wrong_master_is_sent_to_the_right_one() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = Store::builder().cluster(cluster.urls()).unwrap();
    let masters = store.on_redis().unwrap().source.masters().unwrap();
    let bucket = TokenBucket::new(&store, "b", Quota::per_hour(1)).unwrap();
    let keys = ["a", "b", "c", "d"];
    for key in keys {
        assert!(bucket.allow(key).await.unwrap().is_admitted());
    }
    for address in masters.addresses() {
        for key in keys {
            let address = address.clone();
            masters.refresh(async { Ok(vec![(0, 16383, address)]) }).await;
            assert!(!bucket.allow(key).await.unwrap().is_admitted());
        }
    }
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
