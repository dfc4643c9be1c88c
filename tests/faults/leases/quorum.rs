//! A quorum with a minority of its nodes away, or a majority.

use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use tower_distributed::{Mutex, Store};

use crate::leases::kinds::{LONG, SOON, open};
use crate::leases::nodes::Nodes;
use support::eventually;
use support::keys::keys_without_ttl;

const HOUR: u64 = 3_600_000_000;

/// A node's clock runs ahead, and then this node is away: who holds later has the greater fence all the same.
#[tokio::test]
async fn fences_rise_whatever_minority_is_away() {
    let nodes = Nodes::start(5).await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros() as u64;
    let pairs = (0..5).flat_map(|first| (0..5).map(move |second| [first, second]));
    let (mut last, mut rounds) = (0, 0);
    for away in pairs.filter(|[first, second]| first != second) {
        let mutex = Mutex::builder()
            .build_quorum(nodes.stores().await, "fences")
            .unwrap();
        away.iter().for_each(|node| nodes.proxies[*node].cut());
        // A leap that one of those who are there has made alone.
        let leap = now + (rounds / 4 + 1) * HOUR;
        if rounds % 4 == 0 {
            let ahead = (0..5).find(|node| !away.contains(node)).unwrap();
            nodes.servers[ahead].cli(&[
                "SET",
                "td:{fences:k}:fence",
                &leap.to_string(),
                "PX",
                "600000",
            ]);
        }
        let guard = mutex.lock("k").await.unwrap();
        assert!(
            guard.fence() > last && guard.fence() > leap,
            "{} after {last}",
            guard.fence()
        );
        last = guard.fence();
        rounds += 1;
        assert!(guard.unlock().await.unwrap());
        away.iter().for_each(|node| nodes.proxies[*node].heal());
    }
    assert_eq!(rounds, 20);
    for server in &nodes.servers {
        assert_eq!(keys_without_ttl(server), [""; 0]);
    }
}

/// More locks than calls are withdrawn at once.
#[tokio::test]
async fn a_shutdown_gives_back_every_lock() {
    let nodes = Nodes::start(3).await;
    let stores = nodes.stores().await;
    let mutex = Mutex::builder()
        .ttl(LONG)
        .build_quorum(stores.clone(), "many")
        .unwrap();
    let guards = join_all((0..200).map(|key| mutex.lock(key.to_string()))).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    for store in &stores {
        store.shutdown(SOON).await.unwrap();
    }
    for guard in &guards {
        assert!(!guard.is_held());
        let key = std::str::from_utf8(guard.key().as_bytes()).unwrap();
        assert_eq!(nodes.votes("many", key), [None, None, None], "{key}");
    }
}

/// Without a majority it cannot be extended, and stays as it was. If two of five forget it, the others are still a majority.
/// Three: it is lost, and what is left is given back.
#[tokio::test]
async fn a_lock_outlives_the_absence_and_the_memory_of_nodes() {
    let nodes = Nodes::start(5).await;
    let mutex = Mutex::builder().ttl(LONG).watchdog(false);
    let mutex = mutex.build_quorum(nodes.stores().await, "held").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    let (before, votes) = (guard.until(), nodes.votes("held", "k"));
    assert!(
        votes
            .iter()
            .all(|vote| vote.as_deref() == Some(guard.token()))
    );
    let is_not_free = async || {
        mutex
            .try_lock("k")
            .await
            .is_err_and(|error| error.is_refused() || error.is_unavailable())
    };
    nodes.proxies[1..4].iter().for_each(|proxy| proxy.cut());
    for _ in 0..3 {
        let error = guard.extend().await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_lost(), "{error}");
    }
    assert!(guard.is_held() && guard.until() == before);
    assert_eq!(nodes.votes("held", "k"), votes);
    assert!(is_not_free().await);
    nodes.proxies.iter().for_each(|proxy| proxy.heal());
    eventually("an extension", SOON, async || guard.extend().await.is_ok()).await;
    assert!(guard.until() > before);

    for server in &nodes.servers[..2] {
        server.restart().await;
    }
    eventually("an extension", SOON, async || guard.extend().await.is_ok()).await;
    assert!(is_not_free().await && mutex.is_locked("k").await.unwrap());
    nodes.servers[2].cli(&["DEL", "td:{held:k}:lock"]);
    let are_held = async || nodes.votes("held", "k").iter().flatten().count() == 2;
    eventually("the attempt of above to be taken back", SOON, are_held).await;
    let error = guard.extend().await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(!guard.is_held() && !guard.unlock().await.unwrap());
    assert_eq!(nodes.votes("held", "k"), vec![None; 5]);
}

/// An even number is allowed: of four three must agree, and of two both. Of one, one is a majority.
#[tokio::test]
async fn more_than_half_of_the_nodes_must_agree() {
    let nodes = Nodes::start(2).await;
    let mut stores = vec![Store::in_memory(), Store::in_memory()];
    stores.extend(nodes.servers.iter().map(|server| open(&server.url())));
    let forget = |node: usize, key: &str| nodes.servers[node].cli(&["DEL", key]);
    let four = Mutex::builder()
        .watchdog(false)
        .build_quorum(stores.clone(), "x")
        .unwrap();
    let guard = four.lock("k").await.unwrap();
    forget(0, "td:{x:k}:lock");
    guard.extend().await.unwrap();
    forget(1, "td:{x:k}:lock");
    assert!(
        guard.extend().await.unwrap_err().is_lost(),
        "two of four are no majority"
    );
    assert!(!guard.unlock().await.unwrap());
    for count in [1, 2] {
        let few = Mutex::builder()
            .build_quorum(stores[4 - count..].to_vec(), "few")
            .unwrap();
        let guard = few.lock("k").await.unwrap();
        assert!(few.try_lock("k").await.unwrap_err().is_refused());
        forget(1, "td:{few:k}:lock");
        assert!(!guard.unlock().await.unwrap());
    }
}
