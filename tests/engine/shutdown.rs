//! After a shutdown no connection is left, whatever was under way, until the store is called again.

use std::time::Duration;

use futures::poll;
use tokio::runtime::Runtime;
use tower_distributed::{MutexGuard, Store};

use crate::scene::{
    RECOVERY, connections, current_thread, is_free, is_served, long_locks, scripts_run, start_server, timed,
    wide_bucket,
};
use support::redis_server::RedisServer;
use support::{eventually, eventually_blocking};

const LIMIT: Duration = Duration::from_secs(60);

fn open(server: &RedisServer) -> Store {
    Store::redis(&server.url()).unwrap()
}

fn shut_down(store: &Store) {
    current_thread().block_on(store.shutdown(RECOVERY)).unwrap();
}

fn tasks(runtime: &Runtime) -> usize {
    runtime.metrics().num_alive_tasks()
}

/// Drops a guard where its release waits for a runtime that stands still.
fn drop_on(runtime: &Runtime, guard: MutexGuard) {
    let _inside = runtime.enter();
    drop(guard);
}

/// Lets a runtime that has stood still do all its work. One task stays, which waits for its end.
fn goes_on(runtime: &Runtime) {
    runtime.block_on(eventually("its tasks to end", RECOVERY, async || tasks(runtime) <= 1));
}

fn is_left(server: &RedisServer) {
    eventually_blocking("the connections to go", RECOVERY, || connections(server) == 0);
}

/// The background sends it too. Once that is answered, nothing is owed.
#[test]
fn a_release_that_waits_leaves_no_connection() {
    timed(LIMIT, start_server, |server| {
        let (store, runtime) = (open(&server), current_thread());
        let guard = runtime.block_on(long_locks(&store).lock("k")).unwrap();
        let before = tasks(&runtime);
        drop_on(&runtime, guard);
        assert!(tasks(&runtime) > before, "nothing waits");
        shut_down(&store);
        assert!(is_free(&server, "k"));
        goes_on(&runtime);
        is_left(&server);
        assert!(is_served(&runtime.block_on(wide_bucket(&store).allow("k"))));
        assert!(connections(&server) > 0, "a later call connects again, and its connection stays");
    });
}

/// Its reply is read after the shutdown.
#[test]
fn what_is_taken_back_leaves_no_connection() {
    timed(LIMIT, start_server, |server| {
        let (store, runtime) = (open(&server), current_thread());
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
        eventually_blocking("it to be taken back", RECOVERY, || scripts_run(&server) >= 5);
        is_left(&server);
    });
}

#[test]
fn a_connection_that_is_being_made_goes() {
    timed(LIMIT, start_server, |server| {
        for pings in [false, true] {
            let (store, runtime) = (open(&server), current_thread());
            let bucket = wide_bucket(&store);
            let call = async || match pings {
                true => store.ping().await.is_ok(),
                false => is_served(&bucket.allow("k").await),
            };
            server.pause();
            let shut_down = async {
                store.shutdown(RECOVERY).await.unwrap();
                server.resume();
            };
            let (is_answered, ()) = runtime.block_on(async { tokio::join!(call(), shut_down) });
            assert!(is_answered, "the call is cut off");
            goes_on(&runtime);
            is_left(&server);
        }
    });
}

#[test]
fn a_release_that_is_late_leaves_no_connection() {
    timed(LIMIT, start_server, |server| {
        let (store, runtime) = (open(&server), current_thread());
        let guard = runtime.block_on(long_locks(&store).lock("k")).unwrap();
        server.pause();
        drop(guard);
        // Longer than a call and its connection may take.
        runtime.block_on(store.shutdown(Duration::from_secs(3))).unwrap_err();
        server.resume();
        eventually_blocking("the lock to be free", RECOVERY, || is_free(&server, "k"));
        goes_on(&runtime);
        is_left(&server);
    });
}

#[cfg(feature = "sentinel")]
#[test]
fn a_release_that_waits_leaves_no_connection_to_a_sentinel() {
    use support::sentinel::Sentinel;

    timed(
        LIMIT,
        || current_thread().block_on(Sentinel::start()),
        |servers| {
            let store = Store::builder().sentinel(servers.sentinel_urls(), servers.service_name()).unwrap();
            let (before, runtime) = (connections(servers.sentinel()), current_thread());
            let guard = runtime.block_on(long_locks(&store).lock("k")).unwrap();
            assert!(connections(servers.sentinel()) > before, "none asks the Sentinel");
            drop_on(&runtime, guard);
            shut_down(&store);
            goes_on(&runtime);
            eventually_blocking("the Sentinel to be left", RECOVERY, || {
                connections(servers.sentinel()) <= before
            });
        },
    );
}
