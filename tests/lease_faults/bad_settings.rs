//! Settings that are not allowed are told as early as can be: what they are, and what is allowed.

use std::time::Duration;

use tower_distributed::{Error, Mutex, RwLock, Store, WaitGroup};

use crate::kinds::open;
use support::redis_server::RedisServer;

fn is_told(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    assert!(
        error.is_invalid() && parts.iter().all(|part| text.contains(part)),
        "{text:?} names no {parts:?}"
    );
}

/// Nothing is listening there, and nobody asks.
fn stores() -> [Store; 2] {
    [Store::in_memory(), Store::redis("redis://127.0.0.1:1").unwrap()]
}

#[tokio::test]
async fn times_to_live() {
    let day = Duration::from_secs(86_400);
    let bad = [Duration::ZERO, Duration::from_nanos(9_999_999), day + Duration::from_nanos(1), Duration::MAX];
    for store in stores() {
        for ttl in bad {
            let told = |error: Error| is_told(&error, &["10 ms to 1 day", &format!("{ttl:?}")]);
            told(WaitGroup::builder(1).ttl(ttl).build(&store, "x").unwrap_err());
            told(Mutex::builder().ttl(ttl).build(&store, "x").unwrap_err());
            told(Mutex::builder().ttl(ttl).build_quorum([store.clone()], "x").unwrap_err());
            told(RwLock::builder().ttl(ttl).build(&store, "x").unwrap_err());
        }
        for ttl in [Duration::from_millis(10), day] {
            assert!(WaitGroup::builder(1).ttl(ttl).build(&store, "x").is_ok());
            assert!(Mutex::builder().ttl(ttl).build(&store, "x").is_ok());
            assert!(RwLock::builder().ttl(ttl).build(&store, "x").is_ok());
        }
    }
}

#[tokio::test]
async fn spans_for_which_fences_are_kept() {
    let (second, year) = (Duration::from_secs(1), Duration::from_secs(365 * 86_400));
    for store in stores() {
        for bad in
            [Duration::ZERO, second - Duration::from_nanos(1), year + Duration::from_nanos(1), Duration::MAX]
        {
            let told = |error: Error| is_told(&error, &["fence_ttl", "1 s to 365 days", &format!("{bad:?}")]);
            told(Mutex::builder().fence_ttl(bad).build(&store, "x").unwrap_err());
            told(Mutex::builder().fence_ttl(bad).build_quorum([store.clone()], "x").unwrap_err());
            told(RwLock::builder().fence_ttl(bad).build(&store, "x").unwrap_err());
        }
        let told = |error: Error| is_told(&error, &["fence_ttl", "at least the ttl (30s)", "29s"]);
        told(Mutex::builder().fence_ttl(29 * second).build(&store, "x").unwrap_err());
        told(RwLock::builder().fence_ttl(29 * second).build(&store, "x").unwrap_err());
        for good in [second, year] {
            assert!(Mutex::builder().ttl(second).fence_ttl(good).build(&store, "x").is_ok());
            assert!(RwLock::builder().ttl(second).fence_ttl(good).build(&store, "x").is_ok());
        }
    }
}

#[tokio::test]
async fn names() {
    for store in stores() {
        for name in ["", "a b", "a:b", "{x}", "ä", &"x".repeat(65), "\0"] {
            let told = |error: Error| is_told(&error, &["1 to 64", &format!("{name:?}")]);
            told(WaitGroup::new(&store, name, 1).unwrap_err());
            told(Mutex::new(&store, name).unwrap_err());
            told(Mutex::builder().build_quorum([store.clone()], name).unwrap_err());
            told(RwLock::new(&store, name).unwrap_err());
            told(RwLock::new(&store, "x").unwrap().with_group(name).unwrap_err());
        }
        for app_id in [vec![], vec![b'x'; 65]] {
            let length = app_id.len().to_string();
            let error = RwLock::builder().app_id(app_id).build(&store, "x").unwrap_err();
            is_told(&error, &["1 to 64 bytes", &length]);
        }
    }
}

#[tokio::test]
async fn limits_and_weights() {
    for store in stores() {
        is_told(&WaitGroup::new(&store, "x", 0).unwrap_err(), &["limit", "at least 1", "0"]);
        let permits = WaitGroup::new(&store, "x", 3).unwrap();
        for error in [permits.add_n("k", 0).await.unwrap_err(), permits.try_add_n("k", 0).await.unwrap_err()]
        {
            is_told(&error, &["at least 1", "0"]);
        }
        for n in [4, u32::MAX] {
            for error in
                [permits.add_n("k", n).await.unwrap_err(), permits.try_add_n("k", n).await.unwrap_err()]
            {
                let text = error.to_string();
                assert!(error.is_exceeds_limit() && !error.is_refused(), "{text}");
                assert!(text.contains(&n.to_string()) && text.contains('3'), "{text}");
            }
        }
        is_told(
            &RwLock::builder().most_writers(0).build(&store, "x").unwrap_err(),
            &["writers", "at least 1", "0"],
        );
    }
}

#[tokio::test]
async fn tries_and_factors() {
    for store in stores() {
        let told = |builder: tower_distributed::mutex::MutexBuilder, parts: &[&str]| {
            is_told(&builder.clone().build(&store, "x").unwrap_err(), parts);
            is_told(&builder.build_quorum([store.clone()], "x").unwrap_err(), parts);
        };
        told(Mutex::builder().tries(0), &["tries", "at least 1", "0"]);
        for factor in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let factor_text = factor.to_string();
            told(Mutex::builder().drift_factor(factor), &["drift", "from 0 to below 1", &factor_text]);
            told(
                Mutex::builder().timeout_factor(factor),
                &["timeout_factor", "above 0 and below 1", &factor_text],
            );
        }
        told(Mutex::builder().timeout_factor(0.0), &["timeout_factor", "above 0 and below 1", "0"]);
        for builder in [Mutex::builder().drift_factor(0.0), Mutex::builder().drift_factor(0.5)] {
            assert!(builder.build(&store, "x").is_ok());
        }
    }
}

/// None, or one twice. An even number is allowed, and of four three must agree.
#[tokio::test]
async fn nodes_of_a_quorum() {
    is_told(&Mutex::builder().build_quorum([], "x").unwrap_err(), &["at least one", "none"]);
    let (one, other) = (Store::in_memory(), Store::in_memory());
    is_told(
        &Mutex::builder().build_quorum([one.clone(), other.clone(), one.clone()], "x").unwrap_err(),
        &["same", "0", "2"],
    );
    let url = |number| Store::redis(&format!("redis://127.0.0.1:1/{number}")).unwrap();
    is_told(&Mutex::builder().build_quorum([url(0), url(1), url(1)], "x").unwrap_err(), &["same", "1", "2"]);
    assert!(Mutex::builder().build_quorum([url(0), url(1), url(2)], "x").is_ok());

    let servers = futures::future::join_all((0..2).map(|_| RedisServer::start())).await;
    let mut stores = vec![one.clone(), other.clone()];
    stores.extend(servers.iter().map(|server| open(&server.url())));
    let four = Mutex::builder().watchdog(false).build_quorum(stores.clone(), "x").unwrap();
    let guard = four.lock("k").await.unwrap();
    servers[0].cli(&["DEL", "td:{x:k}:lock"]);
    guard.extend().await.unwrap();
    servers[1].cli(&["DEL", "td:{x:k}:lock"]);
    assert!(guard.extend().await.unwrap_err().is_lost(), "two of four are no majority");
    assert!(!guard.unlock().await.unwrap());
    // Of one, one is a majority; of two, both.
    for nodes in [1, 2] {
        let few = Mutex::builder().build_quorum(stores[4 - nodes..].to_vec(), "few").unwrap();
        let guard = few.lock("k").await.unwrap();
        assert!(few.try_lock("k").await.unwrap_err().is_refused());
        servers[1].cli(&["DEL", "td:{few:k}:lock"]);
        assert!(!guard.unlock().await.unwrap());
    }
}
