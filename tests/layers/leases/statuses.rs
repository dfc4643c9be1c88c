//! How refusals are told over HTTP: status, Retry-After, and a problem document.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get as on_get;
use http::StatusCode;
use tower_distributed::response::refuse;
use tower_distributed::web::{concurrency_limit, rw_lock};
use tower_distributed::{RwLock, Store, WaitGroup};

use crate::families::{Other, locks, permits};
use crate::net::{get, serve};
use crate::stores::{Stores, away, on_each_store, started};

on_each_store!(permits_that_are_not_to_be_had, locks_that_are_held, what_can_never_be, those_that_are_closed);

fn everything(_: &Request) -> &'static str {
    "everything"
}

/// Serves behind a layer.
macro_rules! behind {
    ($layer:expr) => {
        serve(Router::new().route("/", on_get(async || "hello").put(async || "done")).layer($layer)).await
    };
}

const REDUCED: &str = "Temporarily reduced capacity";

async fn permits_that_are_not_to_be_had(stores: Stores) {
    let other = Other::holds(&stores, "everything").await;
    let limit = || concurrency_limit(permits(&stores.open(), 1), everything);
    let (status, after, title) = get(&behind!(limit()), &[]).await.problem();
    assert_eq!((status, &*title), (503, REDUCED));
    assert_eq!(after, None, "nothing is known of how long permits are held");
    let url = behind!(limit().reject_with(refuse().permits_per_client()));
    let (status, after, title) = get(&url, &[]).await.problem();
    assert_eq!((status, &*title), (429, "Too Many Requests"));
    assert_eq!(after, None);

    let url = behind!(limit().max_wait(Duration::from_millis(20)));
    assert_eq!(get(&url, &[]).await.problem(), (503, None, REDUCED.into()));
    other.leaves().await;
    assert_eq!(get(&url, &[]).await.body, "hello");
}

async fn locks_that_are_held(stores: Stores) {
    let other = Other::holds(&stores, "everything").await;
    let lock = || rw_lock(locks(&stores.open()), everything);
    let url = behind!(lock());
    let (status, after, title) = get(&url, &[]).await.problem();
    assert_eq!((status, &*title), (423, "Locked"));
    assert_eq!(after, Some(5), "an estimate");
    let waiting = behind!(lock().max_wait(Duration::from_millis(20)));
    assert_eq!(get(&waiting, &[]).await.problem(), (503, None, REDUCED.into()));
    other.leaves().await;
    assert_eq!(get(&url, &[]).await.body, "hello");
}

/// What ends within the second is told as one second, never as none.
#[tokio::test]
async fn retry_after_is_never_zero() {
    let store = Store::in_memory();
    let short = Duration::from_millis(300);
    let group = WaitGroup::builder(1).ttl(short).build(&store, "permits").unwrap();
    let lock = RwLock::builder().ttl(short).build(&store, "locks").unwrap();
    assert!(group.add("everything").await.unwrap().done().await.unwrap());
    let (_permit, _guard) = (group.add("everything").await.unwrap(), lock.write("everything").await.unwrap());
    let limited = get(&behind!(concurrency_limit(group, everything)), &[]).await.problem();
    assert_eq!((limited.0, limited.1), (503, Some(1)));
    let locked = get(&behind!(rw_lock(lock, everything)), &[]).await.problem();
    assert_eq!((locked.0, locked.1), (423, Some(1)));
}

async fn what_can_never_be(stores: Stores) {
    let limit = concurrency_limit(permits(&stores.open(), 2), everything);
    let refused = get(&behind!(limit.clone().weight(|_: &Request| 3)), &[]).await;
    assert_eq!(refused.problem(), (400, None, "Bad Request".into()));
    assert!(refused.json()["detail"].as_str().unwrap().contains("limit of 2"), "{refused:?}");
    let closed = get(&behind!(limit.limit(|_: &Request| Some(0))), &[]).await;
    assert_eq!(closed.problem().0, 503);
    assert_eq!(closed.json()["detail"], "no permit: the limit is 0", "it is a kill switch");
}

async fn those_that_are_closed(stores: Stores) {
    let (group, lock) = (permits(&stores.open(), 1), locks(&stores.open()));
    let limited = behind!(concurrency_limit(group.clone(), everything));
    let locked = behind!(rw_lock(lock.clone(), everything));
    assert_eq!(get(&limited, &[]).await.status, StatusCode::OK);
    assert_eq!(get(&locked, &[]).await.status, StatusCode::OK);
    group.close();
    lock.close();
    for url in [limited, locked] {
        assert_eq!(get(&url, &[]).await.problem(), (503, None, REDUCED.into()));
    }
}

#[tokio::test]
async fn an_outage_is_a_503_and_tells_no_cause() {
    let limited = behind!(concurrency_limit(permits(&away(), 1), everything));
    let locked = behind!(rw_lock(locks(&away()), everything));
    for url in [limited, locked] {
        let refused = get(&url, &[]).await;
        assert_eq!(refused.problem(), (503, Some(1), "Service Unavailable".into()));
        assert!(!refused.body.contains("127.0.0.1"), "the cause is ours alone: {}", refused.body);
    }
}

#[tokio::test]
async fn a_lock_that_is_lost_is_a_503() {
    let (redis, store) = started().await;
    let lock = RwLock::builder().ttl(Duration::from_secs(1)).build(&store, "locks").unwrap();
    let arrived = std::sync::Arc::new(tokio::sync::Notify::new());
    let arriving = std::sync::Arc::clone(&arrived);
    let hang = on_get(move || {
        arriving.notify_one();
        std::future::pending::<StatusCode>()
    });
    let url = serve(Router::new().route("/", hang).layer(rw_lock(lock, everything))).await;
    let call = tokio::spawn(async move { get(&url, &[]).await });
    arrived.notified().await;
    let held: Vec<String> = redis.query(&["KEYS", "td:{locks:everything}:*holders"]).unwrap();
    assert_eq!(redis.query(&["DEL", &held[0]]), Ok(1));
    assert_eq!(call.await.unwrap().problem(), (503, None, REDUCED.into()));
}
