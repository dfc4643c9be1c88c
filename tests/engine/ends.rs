//! Runtimes that end leave no connections behind.

use std::time::Duration;

use tokio::runtime::Runtime;
use tower_distributed::Store;

use crate::scene::{
    RECOVERY, connections, current_thread, is_served, long_locks, multi_thread, start_server, timed,
    wide_bucket,
};
use support::eventually_blocking;

const LIMIT: Duration = Duration::from_secs(60);

/// What a store may keep without any runtime: a connection of its own for what is owed, and the subscription.
const OF_THE_STORE: usize = 2;

#[test]
fn a_runtime_for_each_call_leaves_no_connections_behind() {
    timed(LIMIT, start_server, |server| {
        let bucket = wide_bucket(&Store::redis(&server.url()).unwrap());
        let mut most = 0;
        for call in 0..100 {
            let runtime = if call % 10 == 9 { multi_thread() } else { current_thread() };
            let outcome = runtime.block_on(bucket.allow("k"));
            assert!(is_served(&outcome), "call {call}: {outcome:?}");
            drop(runtime);
            most = most.max(connections(&server));
        }
        // The server may notice a little later.
        assert!(most <= 10, "{most} connections, though there was one runtime at a time");
        eventually_blocking("the connections to go", RECOVERY, || connections(&server) <= OF_THE_STORE);
    });
}

#[test]
fn a_lock_taken_and_released_on_a_runtime_each() {
    timed(LIMIT, start_server, |server| {
        let mutex = long_locks(&Store::redis(&server.url()).unwrap());
        for _ in 0..20 {
            let guard = current_thread().block_on(mutex.lock("k")).unwrap();
            assert!(current_thread().block_on(mutex.try_lock("k")).unwrap_err().is_refused());
            assert!(current_thread().block_on(guard.unlock()).unwrap());
        }
        eventually_blocking("the connections to go", RECOVERY, || connections(&server) <= OF_THE_STORE);
    });
}

/// Each runtime has a few connections of its own at most, and they go with it, however it ends.
#[test]
fn connections_go_with_their_runtimes() {
    timed(LIMIT, start_server, |server| {
        let bucket = wide_bucket(&Store::redis(&server.url()).unwrap());
        let runtimes: Vec<_> = (0..8).map(|_| current_thread()).collect();
        for round in 0..20 {
            for runtime in &runtimes {
                let calls = futures::future::join_all((0..10).map(|call| bucket.allow(round * 10 + call)));
                assert!(runtime.block_on(calls).iter().all(is_served));
            }
        }
        // Twice that while one connection for big answers is made on each.
        let (open, bound) = (connections(&server), 2 * runtimes.len() + OF_THE_STORE);
        assert!(open <= bound, "{open} connections of {} runtimes", runtimes.len());
        runtimes.into_iter().for_each(Runtime::shutdown_background);
        eventually_blocking("the connections to go", RECOVERY, || connections(&server) <= OF_THE_STORE);
    });
}

#[test]
fn a_store_that_is_dropped_leaves_no_connections_behind() {
    timed(LIMIT, start_server, |server| {
        let runtime = multi_thread();
        for _ in 0..10 {
            let store = Store::redis(&server.url()).unwrap();
            let (bucket, mutex) = (wide_bucket(&store), long_locks(&store));
            runtime.block_on(async {
                assert!(is_served(&bucket.allow("k").await));
                let guard = mutex.lock("k").await.unwrap();
                let waiting = tokio::time::timeout(Duration::from_millis(20), mutex.lock("k")).await;
                assert!(waiting.is_err(), "two holders at a time");
                assert!(guard.unlock().await.unwrap());
            });
        }
        eventually_blocking("all connections to go", RECOVERY, || connections(&server) == 0);
    });
}
