//! Settings that are not allowed are told as early as can be: what they are, and what is allowed.

use std::time::Duration;

use tower_distributed::{Error, Mutex, RwLock, Store, WaitGroup};

pub(crate) fn is_told(result: Result<impl std::fmt::Debug, Error>, parts: &[&str]) {
    let error = result.unwrap_err();
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

/// A ttl, and for how long fences are kept: told by each builder. The bounds are tested in `lease::options`.
#[tokio::test]
async fn spans() {
    let (ttl, fence_ttl) = (Duration::from_millis(9), Duration::from_millis(999));
    for store in &stores() {
        let parts = ["10 ms to 1 day", "9ms"];
        is_told(WaitGroup::builder(1).ttl(ttl).build(store, "x"), &parts);
        is_told(Mutex::builder().ttl(ttl).build(store, "x"), &parts);
        is_told(Mutex::builder().ttl(ttl).build_quorum([store.clone()], "x"), &parts);
        is_told(RwLock::builder().ttl(ttl).build(store, "x"), &parts);
        let parts = ["fence_ttl", "1 s to 365 days", "999ms"];
        is_told(Mutex::builder().fence_ttl(fence_ttl).build(store, "x"), &parts);
        is_told(Mutex::builder().fence_ttl(fence_ttl).build_quorum([store.clone()], "x"), &parts);
        is_told(RwLock::builder().fence_ttl(fence_ttl).build(store, "x"), &parts);
    }
}

#[tokio::test]
async fn names() {
    for store in &stores() {
        for name in ["", "a b", "a:b", "{x}", "ä", &"x".repeat(65), "\0"] {
            let parts = ["1 to 64", &format!("{name:?}")];
            is_told(WaitGroup::new(store, name, 1), &parts);
            is_told(Mutex::new(store, name), &parts);
            is_told(Mutex::builder().build_quorum([store.clone()], name), &parts);
            is_told(RwLock::new(store, name), &parts);
            is_told(RwLock::new(store, "x").unwrap().with_group(name), &parts);
        }
        for app_id in [vec![], vec![b'x'; 65]] {
            let length = app_id.len().to_string();
            is_told(RwLock::builder().app_id(app_id).build(store, "x"), &["1 to 64 bytes", &length]);
        }
    }
}

#[tokio::test]
async fn numbers() {
    for store in &stores() {
        is_told(WaitGroup::new(store, "x", 0), &["limit", "at least 1", "0"]);
        is_told(RwLock::builder().most_writers(0).build(store, "x"), &["writers", "at least 1", "0"]);
        let permits = WaitGroup::new(store, "x", 3).unwrap();
        is_told(permits.add_n("k", 0).await, &["at least 1", "0"]);
        is_told(permits.try_add_n("k", 0).await, &["at least 1", "0"]);
        for n in [4, u32::MAX] {
            for result in [permits.add_n("k", n).await, permits.try_add_n("k", n).await] {
                let error = result.unwrap_err();
                let text = error.to_string();
                assert!(error.is_exceeds_limit() && !error.is_refused(), "{text}");
                assert!(text.contains(&n.to_string()) && text.contains('3'), "{text}");
            }
        }
        let told = |builder: tower_distributed::mutex::MutexBuilder, parts: &[&str]| {
            is_told(builder.clone().build(store, "x"), parts);
            is_told(builder.build_quorum([store.clone()], "x"), parts);
        };
        told(Mutex::builder().tries(0), &["tries", "at least 1", "0"]);
        for factor in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let text = factor.to_string();
            told(Mutex::builder().drift_factor(factor), &["drift", "from 0 to below 1", &text]);
            told(Mutex::builder().timeout_factor(factor), &["timeout_factor", "above 0 and below 1", &text]);
        }
        told(Mutex::builder().timeout_factor(0.0), &["timeout_factor", "above 0 and below 1", "0"]);
        for builder in [Mutex::builder().drift_factor(0.0), Mutex::builder().drift_factor(0.5)] {
            assert!(builder.build(store, "x").is_ok());
        }
    }
}

/// None, or one twice.
#[tokio::test]
async fn nodes_of_a_quorum() {
    let quorum = |stores: &[&Store]| Mutex::builder().build_quorum(stores.iter().copied().cloned(), "x");
    is_told(quorum(&[]), &["at least one", "none"]);
    let (one, other) = (Store::in_memory(), Store::in_memory());
    is_told(quorum(&[&one, &other, &one]), &["same", "0", "2"]);
    let [a, b, c] = [0, 1, 2].map(|number| Store::redis(&format!("redis://127.0.0.1:1/{number}")).unwrap());
    let again = Store::redis("redis://127.0.0.1:1/1").unwrap();
    is_told(quorum(&[&a, &b, &again]), &["same", "1", "2"]);
    assert!(quorum(&[&a, &b, &c]).is_ok());
}
