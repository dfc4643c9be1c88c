//! After a shutdown no connection is left, whatever was under way, until the store is called again.

use std::time::Duration;

use futures::poll;
use tokio::runtime::Runtime;
use tower_distributed::{MutexGuard, Store};

use crate::scene::{
    SOON, are_left, blocking, connections, current_thread, is_free, is_served, long_locks, open,
    scripts_run, wide_bucket,
};
use support::{eventually, eventually_blocking};

fn shut_down(store: &Store) {
    current_thread().block_on(store.shutdown(SOON)).unwrap();
}

fn tasks(runtime: &Runtime) -> usize {
    runtime.metrics().num_alive_tasks()
}

/// Drops a guard where its release waits for a runtime that stands still.
fn drop_on(runtime: &Runtime, guard: MutexGuard) {
    let before = tasks(runtime);
    let _inside = runtime.enter();
    drop(guard);
    assert!(tasks(runtime) > before, "nothing waits");
}

/// Lets a runtime that has stood still do all its work. One task stays, which waits for its end.
fn goes_on(runtime: &Runtime) {
    runtime.block_on(eventually("its tasks to end", SOON, async || {
        tasks(runtime) <= 1
    }));
}

/// The background sends it too. Once that is answered, nothing is owed.
#[test]
fn a_release_that_waits_leaves_no_connection() {
    blocking(|server| {
        let (store, runtime) = (open(&server.url()), current_thread());
        let guard = runtime.block_on(long_locks(&store).lock("k")).unwrap();
        drop_on(&runtime, guard);
        shut_down(&store);
        assert!(is_free(&server, "k"));
        goes_on(&runtime);
        are_left(&server, 0);
        assert!(is_served(&runtime.block_on(wide_bucket(&store).allow("k"))));
        assert!(
            connections(&server) > 0,
            "a later call connects again, and its connection stays"
        );
    });
}

/// Its reply is read after the shutdown.
#[test]
fn what_is_taken_back_leaves_no_connection() {
    blocking(|server| {
        let (store, runtime) = (open(&server.url()), current_thread());
        let bucket = wide_bucket(&store);
        assert!(is_served(&runtime.block_on(bucket.allow("k"))));
        server.pause();
        runtime.block_on(async {
            let mut call = Box::pin(bucket.reserve("k"));
            assert!(poll!(&mut call).is_pending());
        });
        server.resume();
        shut_down(&store);
        goes_on(&runtime);
        // The warm-up and its text, the reservation, and what takes it back, and its text.
        eventually_blocking("it to be taken back", SOON, || scripts_run(&server) >= 5);
        are_left(&server, 0);
    });
}

#[test]
fn a_connection_that_is_being_made_goes() {
    blocking(|server| {
        for pings in [false, true] {
            let (store, runtime) = (open(&server.url()), current_thread());
            let bucket = wide_bucket(&store);
            let call = async || match pings {
                true => store.ping().await.is_ok(),
                false => is_served(&bucket.allow("k").await),
            };
            server.pause();
            let shut_down = async {
                store.shutdown(SOON).await.unwrap();
                server.resume();
            };
            let (is_answered, ()) = runtime.block_on(async { tokio::join!(call(), shut_down) });
            assert!(is_answered, "the call is cut off");
            goes_on(&runtime);
            are_left(&server, 0);
        }
    });
}

/// The shutdown ends by its limit.
#[test]
fn a_release_that_is_late_leaves_no_connection() {
    blocking(|server| {
        let (store, runtime) = (Store::redis(&server.url()).unwrap(), current_thread());
        let guard = runtime.block_on(long_locks(&store).lock("k")).unwrap();
        server.pause();
        drop(guard);
        // Longer than a call and its connection may take.
        runtime
            .block_on(store.shutdown(Duration::from_secs(3)))
            .unwrap_err();
        server.resume();
        eventually_blocking("the lock to be free", SOON, || is_free(&server, "k"));
        goes_on(&runtime);
        are_left(&server, 0);
    });
}
