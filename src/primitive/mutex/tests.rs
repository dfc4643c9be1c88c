//! Handing on within a process: those who wait right behind a holder get the lock from it, not from the store.

use std::time::Duration;

use futures::future::select_all;
use futures::poll;
use tokio::task::JoinHandle;

use super::{Mutex, MutexGuard};
use crate::support::eventually;
use crate::support::redis_server::RedisServer;
use crate::{Error, Store};

const LONG: Duration = Duration::from_secs(20);

/// Runs a test in process and on Redis, there as two processes: two stores have nothing in common but the server.
async fn on_both(test: impl AsyncFn(&Mutex, &Mutex)) {
    let store = Store::in_memory();
    let mutex = Mutex::new(&store, "m").unwrap();
    test(&mutex, &mutex.clone()).await;
    let server = RedisServer::start().await;
    let mutex = || Mutex::new(&Store::redis(&server.url()).unwrap(), "m").unwrap();
    test(&mutex(), &mutex()).await;
}

/// How many wait in the store.
async fn waiting(mutex: &Mutex) -> i64 {
    let super::Place::Store(admission) = &mutex.place else { unreachable!() };
    admission.inspect("k".into()).await.unwrap().what.waiting
}

/// One who waits, and stands in the queue.
async fn waiter(mutex: &Mutex) -> JoinHandle<Result<MutexGuard, Error>> {
    let before = waiting(mutex).await;
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock("k").await }
    });
    eventually("the waiter to stand in the queue", LONG, async || waiting(mutex).await > before).await;
    waiter
}

async fn got(waiter: JoinHandle<Result<MutexGuard, Error>>) -> MutexGuard {
    tokio::time::timeout(LONG, waiter).await.expect("it is never served").unwrap().unwrap()
}

#[tokio::test]
async fn the_lock_goes_along_the_line_with_rising_fences() {
    on_both(async |mutex, _| {
        let mut guard = mutex.lock("k").await.unwrap();
        let mut waiters = Vec::new();
        for _ in 0..5 {
            waiters.push(waiter(mutex).await);
        }
        for waiter in waiters {
            let (fence, handle) = (guard.fence(), guard.handle());
            assert!(guard.unlock().await.unwrap());
            guard = got(waiter).await;
            assert!(guard.fence() > fence && guard.is_held());
            assert!(!handle.is_held(), "whoever unlocked holds no longer");
            assert!(mutex.try_lock("k").await.unwrap_err().is_refused());
        }
        assert!(guard.unlock().await.unwrap());
        assert!(!mutex.is_locked("k").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn another_process_has_its_turn_in_between() {
    on_both(async |here, there| {
        let guard = here.lock("k").await.unwrap();
        let first = waiter(here).await;
        let second = waiter(there).await;
        let third = waiter(here).await;
        drop(guard);
        let first = got(first).await;
        assert!(!second.is_finished() && !third.is_finished());
        drop(first);
        let second = got(second).await;
        assert!(!third.is_finished());
        drop(second);
        drop(got(third).await);
    })
    .await;
}

#[tokio::test]
async fn who_goes_away_is_passed_over() {
    on_both(async |mutex, _| {
        let guard = mutex.lock("k").await.unwrap();
        let first = waiter(mutex).await;
        let second = waiter(mutex).await;
        let third = waiter(mutex).await;
        drop(guard);
        let first = got(first).await;
        // The lock is not in the store any more to leave a queue there.
        second.abort();
        eventually("it to be gone", LONG, async || second.is_finished()).await;
        drop(first);
        let third = got(third).await;
        assert!(third.unlock().await.unwrap());
        assert!(!mutex.is_locked("k").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_head_that_goes_away_with_the_lock_leaves_nobody_behind() {
    on_both(async |mutex, _| {
        let guard = mutex.lock("k").await.unwrap();
        // Polled by hand, so that it is granted the lock and does not know.
        let mut head = Box::pin(mutex.lock("k"));
        assert!(poll!(head.as_mut()).is_pending());
        eventually("the head to stand in the queue", LONG, async || {
            let _ = poll!(head.as_mut());
            waiting(mutex).await == 1
        })
        .await;
        let follower = waiter(mutex).await;
        assert!(guard.unlock().await.unwrap());
        eventually("the lock to be granted", LONG, async || waiting(mutex).await == 0).await;
        drop(head);
        drop(got(follower).await);
        eventually("the lock to be free", LONG, async || !mutex.is_locked("k").await.unwrap()).await;
    })
    .await;
}

#[tokio::test]
async fn a_line_whose_lock_is_lost_asks_anew() {
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let mutex = Mutex::builder().ttl(Duration::from_millis(600)).build(&store, "m").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    let first = waiter(&mutex).await;
    let second = waiter(&mutex).await;
    let third = waiter(&mutex).await;
    drop(guard);
    let first = got(first).await;
    server.cli(&["DEL", "td:{m:k}:lock"]);
    // It holds on to its guard, and does not know yet. Of the others each asks on its own.
    let (guard, _, mut last) = tokio::time::timeout(LONG, select_all([second, third])).await.unwrap();
    assert!(!first.is_held(), "two hold at once");
    assert!(!first.unlock().await.unwrap());
    drop(guard);
    drop(got(last.remove(0)).await);
}

#[tokio::test]
async fn followers_outlive_the_beat_of_those_before_them() {
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let mutex = Mutex::builder().ttl(Duration::from_secs(1)).build(&store, "m").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    let first = waiter(&mutex).await;
    let second = waiter(&mutex).await;
    drop(guard);
    let first = got(first).await;
    let fence = first.fence();
    // Renewed several times over.
    let began = first.until();
    eventually("the lock to be renewed", LONG, async || first.until() > began + Duration::from_secs(3)).await;
    assert!(first.is_held() && !second.is_finished());
    assert!(first.unlock().await.unwrap());
    let second = got(second).await;
    assert_eq!(second.fence(), fence + 1, "handed on, not asked for anew");
}

#[test]
fn what_is_held_and_waited_for_outlives_the_runtime_it_began_on() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (server, mutex, guard) = first.block_on(async {
        let server = RedisServer::start().await;
        let store = Store::redis(&server.url()).unwrap();
        let mutex = Mutex::builder().ttl(Duration::from_millis(600)).build(&store, "m").unwrap();
        let guard = mutex.lock("k").await.unwrap();
        // The subscription begins here too.
        waiter(&mutex).await.abort();
        (server, mutex, guard)
    });
    drop(first);
    second.block_on(async {
        let began = guard.until();
        eventually("the lock to be renewed", LONG, async || {
            guard.until() > began + Duration::from_millis(1800)
        })
        .await;
        assert!(guard.is_held());
        let waiter = waiter(&mutex).await;
        let elsewhere = Mutex::new(&Store::redis(&server.url()).unwrap(), "m").unwrap();
        assert!(elsewhere.try_lock("k").await.unwrap_err().is_refused());
        drop(guard);
        drop(got(waiter).await);
    });
}
