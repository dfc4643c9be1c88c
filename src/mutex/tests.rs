//! Handover within a process: for a limited time, the waiters of one process get the lock from each other.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::task::JoinHandle;

use super::{Mutex, MutexGuard};
use crate::lease::LONGEST_TURN;
use crate::lease::tokens::Release;
use crate::{Error, Store};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

const LONG: Duration = Duration::from_secs(20);

/// Starts a waiter behind the earlier ones, and waits until the process has a place in the queue of the store.
async fn waiter(mutex: &Mutex) -> JoinHandle<Result<MutexGuard, Error>> {
    let mut call = Box::pin({
        let mutex = mutex.clone();
        async move { mutex.lock("k").await }
    });
    assert!(poll!(call.as_mut()).is_pending());
    let waiter = tokio::spawn(call);
    let leases = &mutex.leases;
    eventually("the waiter to have its place", LONG, async || leases.is_placed(&"k".into())).await;
    waiter
}

async fn got(waiter: JoinHandle<Result<MutexGuard, Error>>) -> MutexGuard {
    tokio::time::timeout(LONG, waiter).await.expect("the waiter was never served").unwrap().unwrap()
}

/// Two stores act as two processes: they share only the server.
#[tokio::test]
async fn the_process_that_has_waited_longest_has_its_turn_after_a_while() {
    let server = RedisServer::start().await;
    let mutex = || Mutex::new(&patient!(server.url()), "m").unwrap();
    let (here, there) = (mutex(), mutex());
    let guard = here.lock("k").await.unwrap();
    let first = waiter(&here).await;
    let second = waiter(&there).await;
    let third = waiter(&here).await;
    tokio::time::sleep(LONGEST_TURN).await;
    drop(guard);
    let second = got(second).await;
    assert!(!first.is_finished() && !third.is_finished());
    drop(second);
    let first = got(first).await;
    assert!(!third.is_finished());
    drop(first);
    drop(got(third).await);
}

#[tokio::test]
async fn a_line_whose_lock_is_lost_asks_anew() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let mutex = Mutex::builder().ttl(Duration::from_millis(600)).build(&store, "m").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    let first = waiter(&mutex).await;
    let second = waiter(&mutex).await;
    let third = waiter(&mutex).await;
    drop(guard);
    let first = got(first).await;
    server.cli(&["DEL", "td:{m:k}:lock"]);
    // The first waiter keeps its guard. The next waiters do not wait for the guard to be dropped.
    let second = got(second).await;
    assert!(!first.is_held() && !third.is_finished(), "two hold at once");
    assert!(!first.unlock().await.unwrap());
    drop(second);
    drop(got(third).await);
}

#[test]
fn what_is_held_and_waited_for_outlives_the_runtime_it_began_on() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (server, mutex, guard) = first.block_on(async {
        let server = RedisServer::start().await;
        let store = patient!(server.url());
        let mutex = Mutex::builder().ttl(Duration::from_millis(600)).build(&store, "m").unwrap();
        let guard = mutex.lock("k").await.unwrap();
        // This also starts the subscription.
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
        let elsewhere = Mutex::new(&patient!(server.url()), "m").unwrap();
        assert!(elsewhere.try_lock("k").await.unwrap_err().is_refused());
        drop(guard);
        drop(got(waiter).await);
    });
}

/// The function of `retry_delay` is called once for each pause.
#[tokio::test]
async fn a_pause_is_asked_for_once() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let delay = {
        let asked = Arc::clone(&asked);
        move |failed| {
            asked.lock().unwrap().push(failed);
            Duration::from_millis(1)
        }
    };
    let stores = [(); 3].map(|()| Store::in_memory());
    let builder = Mutex::builder().tries(3).retry_delay(delay);
    for mutex in [
        builder.clone().build(&stores[0], "one"),
        builder.clone().exact_names().build(&stores[0], "exact"),
        builder.clone().build_quorum(stores.clone(), "quorum"),
        builder.exact_names().build_quorum(stores.clone(), "exact-quorum"),
    ] {
        let mutex = mutex.unwrap();
        let _held = mutex.lock(mutex.name()).await.unwrap();
        assert!(mutex.lock(mutex.name()).await.unwrap_err().is_waited_too_long());
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), [1, 2], "{}", mutex.name());
    }
}

/// As when a request outlives the server that is shut down.
#[tokio::test]
async fn shutdown_ends_the_leases_that_are_still_held() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let mutex = Mutex::new(&store, "m").unwrap();
    let job = Mutex::builder().at_least_for(Duration::from_secs(20)).build(&store, "job").unwrap();
    drop(job.lock("k").await.unwrap());
    let guard = mutex.lock("k").await.unwrap();
    let lost = guard.lost();
    store.shutdown(LONG).await.unwrap();
    tokio::time::timeout(LONG, lost).await.expect("the holder was not told");
    assert!(!guard.is_held());
    let elsewhere = patient!(server.url());
    assert!(Mutex::new(&elsewhere, "m").unwrap().try_lock("k").await.is_ok(), "the lock stays for its ttl");
    let job = Mutex::new(&elsewhere, "job").unwrap();
    assert!(job.try_lock("k").await.unwrap_err().is_refused(), "a lock that is kept for a time was released");
}

/// One step releases some leases, and acquires again for the waiters behind others.
#[tokio::test]
async fn all_locks_are_given_back_at_once_and_who_waits_gets_them() {
    let server = RedisServer::start().await;
    for store in [Store::in_memory(), patient!(server.url())] {
        let mutex = Mutex::new(&store, "m").unwrap();
        let leases = &mutex.leases;
        let keys: Vec<_> = (0..10).map(|n| n.to_string()).collect();
        let guards = join_all(keys.iter().map(|key| mutex.lock(key.as_str()))).await;
        let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
        let mut waiters: Vec<_> =
            keys.iter().step_by(2).map(|key| Box::pin(mutex.lock(key.as_str()))).collect();
        for waiter in &mut waiters {
            assert!(poll!(waiter).is_pending());
        }
        leases.admission.store.scheduler().shut_down();
        assert!(guards.iter().all(|guard| !guard.is_held()));
        let waiters = async {
            for waiter in waiters {
                assert!(waiter.await.unwrap().unlock().await.unwrap());
            }
        };
        tokio::time::timeout(LONG, waiters).await.expect("a waiter is not served");
        for key in &keys {
            let lock =
                tokio::time::timeout(LONG, mutex.lock(key.as_str())).await.expect("a lock is not free");
            assert!(lock.unwrap().unlock().await.unwrap());
        }
    }
}

/// What follows an answer may be code of a user, such as a recorder of metrics.
#[tokio::test]
async fn a_panic_in_what_follows_an_answer_loses_no_other_answer() {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&patient!(server.url()), "m").unwrap();
    let leases = &mutex.leases;
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..8_u32 {
        let answered = answered.clone();
        let release = leases.admission.release_operation(&Release {
            key: "k".into(),
            token: "t".into(),
            withdrawn: false,
            renews: false,
            ttl: 1_000_000,
            left: LONG,
        });
        leases.admission.acquire_release.send(None, "k".into(), release, move |answer| {
            answered.send((n, answer.is_ok())).unwrap();
            panic!("after answer {n}");
        });
    }
    let mut all = Vec::new();
    for _ in 0..8 {
        all.push(tokio::time::timeout(LONG, answers.recv()).await.expect("an answer is lost").unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..8).map(|n| (n, true)).collect::<Vec<_>>());
}
