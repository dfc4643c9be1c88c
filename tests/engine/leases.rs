//! Leases do not depend on the runtime that took them, nor on the value they were taken through.

use std::time::Duration;

use tower_distributed::{Mutex, MutexGuard, Store};

use crate::scene::{
    MACHINE, RECOVERY, current_thread, is_free, long_locks, multi_thread, start_server, timed,
};
use support::patient;
use support::redis_server::RedisServer;
use support::{eventually_blocking, within};

const LIMIT: Duration = Duration::from_secs(40);
const SHORT: Duration = Duration::from_millis(1200);
const MANY: usize = 20;

fn scene() -> (RedisServer, Mutex) {
    let server = start_server();
    let mutex = long_locks(&patient!(server.url()));
    (server, mutex)
}

async fn take_many(mutex: &Mutex) -> Vec<MutexGuard> {
    let locks = (0..MANY).map(|key| mutex.lock(key.to_string()));
    futures::future::try_join_all(locks).await.unwrap()
}

fn all_are_free_soon(server: &RedisServer) {
    let all_free = || (0..MANY).all(|key| is_free(server, &key.to_string()));
    eventually_blocking("all locks to be free", RECOVERY, all_free);
}

/// A guard dropped inside `block_on`, and then nobody drives the runtime.
#[test]
fn a_guard_dropped_on_a_runtime_that_then_idles_is_released() {
    timed(LIMIT, scene, |(server, mutex)| {
        let runtime = current_thread();
        runtime.block_on(async { drop(mutex.lock("k").await.unwrap()) });
        eventually_blocking("the lock to be free", RECOVERY, || is_free(&server, "k"));
        drop(runtime);
    });
}

#[test]
fn a_guard_dropped_outside_of_its_idle_runtime_is_released() {
    timed(LIMIT, scene, |(server, mutex)| {
        let runtime = current_thread();
        let guard = runtime.block_on(mutex.lock("k")).unwrap();
        drop(guard);
        eventually_blocking("the lock to be free", RECOVERY, || is_free(&server, "k"));
        drop(runtime);
    });
}

#[test]
fn a_store_dropped_on_an_idle_runtime_releases_its_locks() {
    timed(LIMIT, scene, |(server, mutex)| {
        let runtime = current_thread();
        runtime.block_on(async {
            let guards = take_many(&mutex).await;
            drop(mutex);
            drop(guards);
        });
        all_are_free_soon(&server);
        drop(runtime);
    });
}

#[test]
fn a_store_dropped_with_its_runtime_releases_its_locks() {
    timed(LIMIT, scene, |(server, mutex)| {
        let runtime = multi_thread();
        let guards = runtime.block_on(take_many(&mutex));
        let holder = runtime.spawn(async move {
            let _held = (mutex, guards);
            std::future::pending::<()>().await;
        });
        // The task goes with the runtime, and the store and its guards with the task.
        runtime.shutdown_background();
        all_are_free_soon(&server);
        drop(holder);
    });
}

#[test]
fn a_store_dropped_outside_of_a_runtime_releases_its_locks() {
    timed(LIMIT, scene, |(server, mutex)| {
        let guards = current_thread().block_on(take_many(&mutex));
        drop(mutex);
        drop(guards);
        all_are_free_soon(&server);
    });
}

#[test]
fn a_store_dropped_on_a_busy_runtime_releases_its_locks() {
    timed(LIMIT, scene, |(server, mutex)| {
        let runtime = multi_thread();
        runtime.block_on(async {
            let guards = take_many(&mutex).await;
            drop(mutex);
            drop(guards);
        });
        all_are_free_soon(&server);
    });
}

/// As defect 1: renewals ran on a runtime that stands still.
#[test]
fn a_lease_is_renewed_though_its_runtime_idles() {
    timed(LIMIT, start_server, |server| {
        let store = patient!(server.url());
        let mutex = Mutex::builder().ttl(SHORT).build(&store, "locks").unwrap();
        let runtime = current_thread();
        let guard = runtime.block_on(mutex.lock("k")).unwrap();
        let first = guard.until();
        eventually_blocking("the lease to be renewed twice", RECOVERY, || guard.until() > first + SHORT);
        assert!(guard.is_held() && !is_free(&server, "k"));
        drop(runtime);
    });
}

#[test]
fn a_lease_is_renewed_though_its_runtime_has_ended() {
    timed(LIMIT, start_server, |server| {
        let store = patient!(server.url());
        let mutex = Mutex::builder().ttl(SHORT).build(&store, "locks").unwrap();
        let guard = current_thread().block_on(mutex.lock("k")).unwrap();
        let first = guard.until();
        eventually_blocking("the lease to be renewed twice", RECOVERY, || guard.until() > first + SHORT);
        assert!(guard.is_held() && !is_free(&server, "k"));
        assert!(current_thread().block_on(guard.unlock()).unwrap());
    });
}

/// The release is pushed to a waiter on another runtime, whatever the runtime does that the store was first used on.
#[test]
fn a_waiter_is_woken_though_another_runtime_idles() {
    let _turn = MACHINE.blocking_read();
    let (server, mutex) = scene();
    let other = long_locks(&patient!(server.url()));
    within(LIMIT, "the test", move || {
        let (idle, waiting) = (current_thread(), multi_thread());
        // The subscription began here.
        let refused = idle.block_on(async {
            let _guard = mutex.lock("first").await.unwrap();
            tokio::time::timeout(Duration::from_millis(100), mutex.lock("first")).await
        });
        assert!(refused.is_err(), "two holders at a time");
        let holding = multi_thread();
        let guard = holding.block_on(other.lock("k")).unwrap();
        let mutex = mutex.clone();
        let waiter = waiting.spawn(async move { mutex.lock("k").await.map(drop) });
        let lined_up = || server.query::<Vec<String>>(&["KEYS", "td:{locks:k}:*beats"]).unwrap().len() == 1;
        eventually_blocking("the waiter to be in line", RECOVERY, lined_up);
        assert!(holding.block_on(guard.unlock()).unwrap());
        let woken = waiting.block_on(async { tokio::time::timeout(Duration::from_secs(2), waiter).await });
        woken.expect("a message was not delivered").unwrap().unwrap();
        drop(idle);
    });
}

/// A runtime of the user's that works in the background ends while a line asks through it: nobody hangs.
#[test]
fn a_line_hears_that_its_background_runtime_has_ended() {
    timed(LIMIT, start_server, |server| {
        let (runtime, background) = (multi_thread(), multi_thread());
        let store = Store::builder().background(background.handle().clone()).redis(&server.url()).unwrap();
        let mutex = Mutex::new(&store, "m").unwrap();
        // With another time to live, so that the line asks anew rather than to be handed the lock.
        let other = Mutex::builder().ttl(SHORT).build(&store, "m").unwrap();
        runtime.block_on(async {
            let guard = mutex.lock("k").await.unwrap();
            let mut call = Box::pin(other.lock("k"));
            assert!(futures::poll!(call.as_mut()).is_pending());
            background.shutdown_background();
            drop(guard.unlock().await);
            assert!(call.await.is_err(), "nobody is left who could have asked");
            assert!(mutex.lock("l").await.is_ok(), "other keys suffer");
        });
    });
}
