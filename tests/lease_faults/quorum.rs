//! A quorum with a minority of its nodes away, or a majority.

use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower_distributed::{Mutex, MutexGuard};

use crate::kinds::{Family, LONG, SOON};
use crate::nodes::Nodes;
use support::eventually;
use support::keys::keys_without_ttl;

const HOUR: u64 = 3_600_000_000;

/// A node's clock runs ahead, and then this node is away: who holds later has the greater fence all the same.
#[tokio::test]
async fn fences_rise_whatever_minority_is_away() {
    let nodes = Nodes::start(5).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    let (mut last, mut rounds) = (0, 0);
    for first in 0..5 {
        for second in (0..5).filter(|second| *second != first) {
            let mutex = Mutex::builder().build_quorum(nodes.stores().await, "fences").unwrap();
            let away = [&nodes.proxies[first], &nodes.proxies[second]];
            away.iter().for_each(|proxy| proxy.cut());
            // A leap that one of those who are there has made alone.
            let leap = now + (rounds / 4 + 1) * HOUR;
            if rounds % 4 == 0 {
                let ahead = (0..5).find(|node| ![first, second].contains(node)).unwrap();
                let mark = ["SET", "td:{fences:k}:fence", &leap.to_string(), "PX", "600000"];
                nodes.servers[ahead].cli(&mark);
            }
            let guard = mutex.lock("k").await.unwrap();
            assert!(guard.fence() > last && guard.fence() > leap, "{} after {last}", guard.fence());
            last = guard.fence();
            rounds += 1;
            assert!(guard.unlock().await.unwrap());
            away.iter().for_each(|proxy| proxy.heal());
        }
    }
    for server in &nodes.servers {
        assert_eq!(keys_without_ttl(server), [""; 0]);
    }
    println!("{rounds} fences, each above the last");
}

async fn locked(nodes: &Nodes) -> (Mutex, MutexGuard) {
    let builder = Mutex::builder().ttl(LONG).watchdog(false);
    let mutex = builder.build_quorum(nodes.stores().await, "held").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    (mutex, guard)
}

/// More locks than calls are withdrawn at once.
#[tokio::test]
async fn a_shutdown_gives_back_every_lock() {
    let nodes = Nodes::start(3).await;
    let stores = nodes.stores().await;
    let mutex = Mutex::builder().ttl(LONG).build_quorum(stores.clone(), "many").unwrap();
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

#[tokio::test]
async fn extending_without_a_majority_fails_and_releases_nothing() {
    let nodes = Nodes::start(5).await;
    let (mutex, guard) = locked(&nodes).await;
    let (before, votes) = (guard.until(), nodes.votes("held", "k"));
    assert!(votes.iter().all(|vote| vote.as_deref() == Some(guard.token())));
    nodes.proxies[1..4].iter().for_each(|proxy| proxy.cut());
    for _ in 0..3 {
        let error = guard.extend().await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_lost(), "{error}");
    }
    assert!(guard.is_held() && guard.until() == before);
    assert_eq!(nodes.votes("held", "k"), votes);
    let error = mutex.try_lock("k").await.unwrap_err();
    assert!(error.is_refused() || error.is_unavailable(), "{error}");
    nodes.proxies.iter().for_each(|proxy| proxy.heal());
    eventually("an extension", SOON, async || guard.extend().await.is_ok()).await;
    assert!(guard.until() > before);
    assert!(guard.unlock().await.unwrap());
}

/// Two of five forget: the others are still a majority. Three: it is lost, and what is left is given back.
#[tokio::test]
async fn a_lock_outlives_the_memory_of_a_minority() {
    let nodes = Nodes::start(5).await;
    let (mutex, guard) = locked(&nodes).await;
    for server in &nodes.servers[..2] {
        server.restart().await;
    }
    eventually("an extension", SOON, async || guard.extend().await.is_ok()).await;
    assert!(mutex.try_lock("k").await.is_err_and(|error| error.is_refused() || error.is_unavailable()));
    assert!(mutex.is_locked("k").await.unwrap());
    nodes.servers[2].cli(&["DEL", "td:{held:k}:lock"]);
    eventually("the attempt of above to be taken back", SOON, async || {
        nodes.votes("held", "k").iter().flatten().count() == 2
    })
    .await;
    let error = guard.extend().await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(!guard.is_held());
    assert!(!guard.unlock().await.unwrap());
    assert_eq!(nodes.votes("held", "k"), vec![None; 5]);
}

/// The vote of a slow node comes after the lock was got without it, and given back.
#[tokio::test]
async fn a_vote_that_comes_after_the_unlock_is_none() {
    let nodes = Nodes::start(3).await;
    for fail_fast in [false, true] {
        let builder = Mutex::builder().ttl(LONG).timeout_factor(0.005).fail_fast(fail_fast);
        let mutex = builder.build_quorum(nodes.stores().await, "slow").unwrap();
        nodes.proxies[0].hold_back();
        let guard = mutex.try_lock("k").await.unwrap();
        let token = guard.token().to_owned();
        assert!(guard.unlock().await.unwrap());
        eventually("the release over another connection", SOON, async || {
            nodes.proxies[0].requests_containing(token.as_bytes()) > 0
        })
        .await;
        assert!(nodes.proxies[0].held_back() > 0, "no vote is late");
        nodes.proxies[0].let_through();
        assert_eq!(nodes.votes("slow", "k"), vec![None; 3]);
    }
}

/// The same where there is no majority, and where nobody hears of it.
#[tokio::test]
async fn votes_that_come_after_the_attempt_are_none() {
    let nodes = Nodes::start(3).await;
    for dropped in [false, true] {
        let builder = Mutex::builder().ttl(LONG).timeout_factor(if dropped { 0.5 } else { 0.005 });
        let mutex = builder.build_quorum(nodes.stores().await, "late").unwrap();
        let slow = &nodes.proxies[1..];
        slow.iter().for_each(|proxy| proxy.hold_back());
        let (key, family) = (format!("dropped {dropped}"), Family::Mutex(mutex.clone()));
        if dropped {
            let mut call = task::spawn(mutex.try_lock(&key));
            eventually("the votes to be on their way", SOON, async || {
                assert_pending!(call.poll());
                slow.iter().all(|proxy| proxy.held_back() > 0)
            })
            .await;
        } else {
            let error = mutex.try_lock(&key).await.unwrap_err();
            assert!(error.is_unavailable() && !error.is_refused(), "{error}");
        }
        for server in &nodes.servers[1..] {
            eventually("the withdrawal", SOON, async || family.withdrawn(server, &key) == 1).await;
        }
        slow.iter().for_each(|proxy| proxy.let_through());
        eventually("all votes to be taken back", SOON, async || {
            nodes.votes("late", &key).iter().flatten().count() == 0
        })
        .await;
        assert!(mutex.lock(&key).await.unwrap().unlock().await.unwrap());
    }
}
