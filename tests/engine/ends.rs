//! Runtimes and stores that end leave no connections behind.

use futures::future::join_all;
use tokio::runtime::Runtime;
use tower_distributed::TokenBucket;

use crate::scene::{
    SOON, are_left, blocking, connections, current_thread, is_served, long_locks, multi_thread,
    open, subscribed, wide_bucket,
};
use support::{eventually, eventually_blocking};

/// What a store may keep without any runtime: a connection of its own for what is owed, and the subscription.
const OF_THE_STORE: usize = 2;

#[test]
fn a_runtime_for_each_call_leaves_no_connections_behind() {
    blocking(|server| {
        let store = open(&server.url());
        let (bucket, mutex) = (wide_bucket(&store), long_locks(&store));
        for call in 0..100 {
            let runtime = if call % 10 == 9 {
                multi_thread()
            } else {
                current_thread()
            };
            let outcome = runtime.block_on(bucket.allow("k"));
            assert!(is_served(&outcome), "call {call}: {outcome:?}");
            drop(runtime);
            // The server may notice a little later.
            are_left(&server, 10);
        }
        for _ in 0..20 {
            let guard = current_thread().block_on(mutex.lock("k")).unwrap();
            assert!(
                current_thread()
                    .block_on(mutex.try_lock("k"))
                    .unwrap_err()
                    .is_refused()
            );
            assert!(current_thread().block_on(guard.unlock()).unwrap());
        }
        are_left(&server, OF_THE_STORE);
    });
}

/// Each runtime has a few connections of its own at most, and they go with it, however it ends.
#[test]
fn connections_go_with_their_runtimes() {
    blocking(|server| {
        let bucket = wide_bucket(&open(&server.url()));
        let runtimes: Vec<_> = (0..8).map(|_| current_thread()).collect();
        for round in 0..20 {
            for runtime in &runtimes {
                let calls = join_all((0..10).map(|call| bucket.allow(round * 10 + call)));
                assert!(runtime.block_on(calls).iter().all(is_served));
            }
        }
        // Twice that while one connection for big answers is made on each.
        let (open, bound) = (connections(&server), 2 * runtimes.len() + OF_THE_STORE);
        assert!(
            open <= bound,
            "{open} connections of {} runtimes",
            runtimes.len()
        );
        runtimes.into_iter().for_each(Runtime::shutdown_background);
        are_left(&server, OF_THE_STORE);
    });
}

async fn are_served(bucket: &TokenBucket, key: u64) -> bool {
    join_all((0..20).map(|_| bucket.allow(key)))
        .await
        .iter()
        .all(is_served)
}

/// Another one on the same URL has calls under way, and goes on.
#[test]
fn a_store_that_is_dropped_leaves_no_connections_behind() {
    blocking(|server| {
        let (runtime, kept) = (multi_thread(), wide_bucket(&open(&server.url())));
        for round in 0_u64..10 {
            let store = open(&server.url());
            let (bucket, mutex) = (wide_bucket(&store), long_locks(&store));
            runtime.block_on(async {
                let (own, others) = tokio::join!(are_served(&bucket, round), are_served(&kept, round));
                assert!(own && others);
                let guard = mutex.lock("k").await.unwrap();
                tokio::select! {
                    _ = mutex.lock("k") => panic!("two holders at a time"),
                    () = eventually("the subscription", SOON, async || subscribed(&server) == 1) => {}
                }
                assert!(guard.unlock().await.unwrap());
                drop((store, bucket, mutex));
                assert!(is_served(&kept.allow(round).await));
            });
            eventually_blocking("the subscription to go", SOON, || subscribed(&server) == 0);
        }
        drop(kept);
        are_left(&server, 0);
    });
}
