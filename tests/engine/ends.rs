//! Runtimes that end leave no connections behind.

use std::time::Duration;

use tokio::runtime::Runtime;
use tower_distributed::Store;

use crate::scene::{
    RECOVERY, connections, current_thread, is_free, is_served, long_locks, multi_thread, start_server, timed,
    wide_bucket,
};
use support::{eventually, eventually_blocking};

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

/// A release that waits on a runtime that stands still is sent by the background too. Once that is answered, nothing is owed,
/// and what waits connects no more.
#[test]
fn a_release_that_waits_makes_no_connection_after_a_shutdown() {
    timed(LIMIT, start_server, |server| {
        let store = Store::redis(&server.url()).unwrap();
        let runtime = current_thread();
        let guard = runtime.block_on(long_locks(&store).lock("k")).unwrap();
        let inside = runtime.enter();
        drop(guard);
        drop(inside);
        current_thread().block_on(store.shutdown(RECOVERY)).unwrap();
        assert!(is_free(&server, "k"));
        let tasks = || runtime.metrics().num_alive_tasks();
        assert!(tasks() > 1, "the release waits");
        runtime.block_on(eventually("its tasks to end", RECOVERY, async || tasks() <= 1));
        eventually_blocking("the connections to go", RECOVERY, || connections(&server) == 0);
        assert!(is_served(&runtime.block_on(wide_bucket(&store).allow("k"))), "a later call connects");
    });
}

#[test]
fn a_connection_that_is_made_during_a_shutdown_goes() {
    timed(LIMIT, start_server, |server| {
        let store = Store::redis(&server.url()).unwrap();
        server.pause();
        let bucket = wide_bucket(&store);
        let (outcome, ()) = current_thread().block_on(async {
            let outcome = tokio::join!(bucket.allow("k"), async {
                store.shutdown(RECOVERY).await.unwrap();
                server.resume();
            });
            eventually("the connection to go", RECOVERY, async || connections(&server) == 0).await;
            outcome
        });
        assert!(is_served(&outcome), "who waits for it is served: {outcome:?}");
    });
}
