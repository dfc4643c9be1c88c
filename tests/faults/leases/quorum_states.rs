//! Five nodes, each of which is up, hangs, or has given the lock to somebody else: all 243 states.

use std::net::TcpListener;

use futures::future::join_all;
use tokio::time::timeout;
use tower_distributed::{Mutex, Store};

use crate::leases::kinds::{LONG, SOON, hasty};
use support::eventually;

const NODES: usize = 5;
/// 600 ms: nodes that are up answer at once, since they are in memory.
const TIMEOUT_FACTOR: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    Up,
    Hangs,
    Taken,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_state_of_five_nodes_gets_the_right_answer() {
    // They accept no connection.
    let silent = [(); NODES].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = silent
        .each_ref()
        .map(|silent| format!("redis://{}", silent.local_addr().unwrap()));
    let states = (0..3_usize.pow(5)).map(|number| {
        let node = |at| [Node::Up, Node::Hangs, Node::Taken][number / 3_usize.pow(at) % 3];
        is_answered(number, [0, 1, 2, 3, 4].map(node), &urls)
    });
    join_all(states).await;
}

/// It is granted if a majority is free, refused if no majority could be had if all answered; else it is the outage. No vote of ours
/// is left, and those of others are.
async fn is_answered(number: usize, nodes: [Node; NODES], silent: &[String; NODES]) {
    let count = |wanted| nodes.iter().filter(|node| **node == wanted).count();
    let (mut stores, mut alone, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (node, silent) in nodes.into_iter().zip(silent) {
        if node == Node::Hangs {
            // Half of them with breakers that open, half without a time-out that is of any use.
            stores.push(hasty(
                silent,
                if number.is_multiple_of(2) {
                    500
                } else {
                    30_000
                },
            ));
            continue;
        }
        let store = Store::in_memory();
        let mutex = Mutex::builder().ttl(LONG).build(&store, "states").unwrap();
        match node {
            Node::Taken => others.push(mutex.try_lock("k").await.unwrap()),
            _ => alone.push(mutex),
        }
        stores.push(store);
    }
    let builder = Mutex::builder().ttl(LONG).timeout_factor(TIMEOUT_FACTOR);
    let builder = builder
        .fail_fast(number % 4 < 2)
        .shuffle_nodes(number % 8 < 4);
    let mutex = builder.build_quorum(stores, "states").unwrap();
    let is_free = count(Node::Up) > NODES / 2;
    match timeout(SOON, mutex.try_lock("k"))
        .await
        .expect("it hangs with its nodes")
    {
        Ok(guard) => {
            assert!(is_free, "{nodes:?}: granted");
            assert!(guard.is_held() && guard.fence() > 0, "{nodes:?}: not held");
            let unlocked = timeout(SOON, guard.unlock())
                .await
                .expect("it hangs with its nodes");
            assert!(unlocked.unwrap(), "{nodes:?}: it was not held to the end");
        }
        Err(error) => {
            assert!(!is_free, "{nodes:?}: {error}");
            assert_eq!(
                error.is_refused(),
                count(Node::Taken) > NODES / 2,
                "{nodes:?}: {error}"
            );
            assert_eq!(
                error.is_unavailable(),
                !error.is_refused(),
                "{nodes:?}: {error}"
            );
        }
    }
    for mutex in alone {
        let what = format!("{nodes:?}: a node to hold nothing of ours");
        eventually(&what, SOON, async || mutex.try_lock("k").await.is_ok()).await;
    }
    for guard in others {
        assert!(
            guard.is_held() && guard.unlock().await.unwrap(),
            "{nodes:?}"
        );
    }
}
