//! Settings that are not allowed are told as early as can be: what they are, and what is allowed.

use std::time::Duration;

use tower_distributed::mutex::MutexBuilder;
use tower_distributed::{Error, Mutex, RwLock, Store, WaitGroup};

pub(crate) fn is_told(result: Result<impl std::fmt::Debug, Error>, parts: &[&str]) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_invalid() && parts.iter().all(|part| text.contains(part)),
        "{text:?} names no {parts:?}"
    );
}

/// Told by each builder. The bounds are tested in `lease::options`, `store::key` and `store::builder`.
#[tokio::test]
async fn bad_settings_are_told() {
    let store = &Store::in_memory();
    let (ttl, fence_ttl) = (Duration::from_millis(9), Duration::from_millis(999));
    is_told(
        WaitGroup::builder(1).ttl(ttl).build(store, "x"),
        &["10 ms to 1 day", "9ms"],
    );
    is_told(
        RwLock::builder().ttl(ttl).build(store, "x"),
        &["10 ms to 1 day", "9ms"],
    );
    is_told(
        RwLock::builder().fence_ttl(fence_ttl).build(store, "x"),
        &["1 s to 365 days", "999ms"],
    );
    is_told(WaitGroup::new(store, "a b", 1), &["1 to 64", "\"a b\""]);
    is_told(RwLock::new(store, "a b"), &["1 to 64", "\"a b\""]);
    is_told(
        RwLock::new(store, "x").unwrap().with_group("a b"),
        &["1 to 64", "\"a b\""],
    );
    for app_id in [vec![], vec![b'x'; 65]] {
        let length = app_id.len().to_string();
        is_told(
            RwLock::builder().app_id(app_id).build(store, "x"),
            &["1 to 64 bytes", &length],
        );
    }
    is_told(
        RwLock::builder().most_writers(0).build(store, "x"),
        &["writers", "at least 1", "0"],
    );
    is_told(WaitGroup::new(store, "x", 0), &["limit", "at least 1", "0"]);
    let permits = WaitGroup::new(store, "x", 3).unwrap();
    is_told(permits.add_n("k", 0).await, &["at least 1", "0"]);
    is_told(permits.try_add_n("k", 0).await, &["at least 1", "0"]);
    for n in [4, u32::MAX] {
        for result in [permits.add_n("k", n).await, permits.try_add_n("k", n).await] {
            let error = result.unwrap_err();
            let text = error.to_string();
            assert!(error.is_exceeds_limit() && !error.is_refused(), "{text}");
            assert!(
                text.contains(&n.to_string()) && text.contains('3'),
                "{text}"
            );
        }
    }
}

/// On one store, and on a quorum.
#[tokio::test]
async fn bad_settings_of_a_mutex_are_told() {
    let store = &Store::in_memory();
    let builder = Mutex::builder;
    let told = |builder: MutexBuilder, name: &str, parts: &[&str]| {
        is_told(builder.clone().build(store, name), parts);
        is_told(builder.build_quorum([store.clone()], name), parts);
    };
    told(builder(), "a b", &["1 to 64", "\"a b\""]);
    told(
        builder().ttl(Duration::from_millis(9)),
        "x",
        &["10 ms to 1 day", "9ms"],
    );
    told(
        builder().fence_ttl(Duration::from_millis(999)),
        "x",
        &["fence_ttl", "1 s to 365 days", "999ms"],
    );
    told(builder().tries(0), "x", &["tries", "at least 1", "0"]);
    told(
        builder().timeout_factor(0.0),
        "x",
        &["timeout_factor", "above 0 and below 1", "0"],
    );
    for factor in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let text = factor.to_string();
        told(
            builder().drift_factor(factor),
            "x",
            &["drift", "from 0 to below 1", &text],
        );
        told(
            builder().timeout_factor(factor),
            "x",
            &["timeout_factor", "above 0 and below 1", &text],
        );
    }
    let exact = builder()
        .exact_names()
        .build_quorum([store.clone()], "x")
        .unwrap();
    is_told(exact.lock("a}b").await, &["\"a}b\"", "empty", "hash tag"]);
}

/// None, or one twice.
#[tokio::test]
async fn nodes_of_a_quorum_are_others() {
    let quorum =
        |stores: &[&Store]| Mutex::builder().build_quorum(stores.iter().copied().cloned(), "x");
    is_told(quorum(&[]), &["at least one", "none"]);
    let (one, other) = (Store::in_memory(), Store::in_memory());
    is_told(quorum(&[&one, &other, &one]), &["same", "0", "2"]);
    let [a, b, c] =
        [0, 1, 2].map(|number| Store::redis(&format!("redis://127.0.0.1:1/{number}")).unwrap());
    let again = Store::redis("redis://127.0.0.1:1/1").unwrap();
    is_told(
        quorum(&[&a, &b, &again]),
        &["independent", "the same", "1", "2"],
    );
    assert!(quorum(&[&a, &b, &c]).is_ok());
}
