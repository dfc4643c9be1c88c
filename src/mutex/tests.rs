//! Handover within a process: for a limited time, the waiters of one process get the lock from each other.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::task::JoinHandle;

use super::{Mutex, MutexGuard};
use crate::error::Error;
use crate::lease::operations::Release;
use crate::lease::process::entry::LONGEST_TURN;
use crate::store::Store;
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
    eventually("the waiter to have its place", LONG, async || {
        leases.is_placed(&"k".into())
    })
    .await;
    waiter
}

async fn got(waiter: JoinHandle<Result<MutexGuard, Error>>) -> MutexGuard {
    tokio::time::timeout(LONG, waiter)
        .await
        .expect("the waiter was never served")
        .unwrap()
        .unwrap()
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
        builder
            .exact_names()
            .build_quorum(stores.clone(), "exact-quorum"),
    ] {
        let mutex = mutex.unwrap();
        let _held = mutex.lock(mutex.name()).await.unwrap();
        assert!(
            mutex
                .lock(mutex.name())
                .await
                .unwrap_err()
                .is_waited_too_long()
        );
        assert_eq!(
            std::mem::take(&mut *asked.lock().unwrap()),
            [1, 2],
            "{}",
            mutex.name()
        );
    }
}

/// One step releases some leases, also those that are never renewed, and acquires again for the waiters behind others.
#[tokio::test]
async fn all_locks_are_given_back_at_once_and_who_waits_gets_them() {
    let server = RedisServer::start().await;
    for (store, watchdog) in [(Store::in_memory(), false), (patient!(server.url()), true)] {
        let mutex = Mutex::builder()
            .watchdog(watchdog)
            .build(&store, "m")
            .unwrap();
        let keys: Vec<_> = (0..10).map(|n| n.to_string()).collect();
        let guards = join_all(keys.iter().map(|key| mutex.lock(key.as_str()))).await;
        let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
        let mut waiters: Vec<_> = keys
            .iter()
            .step_by(2)
            .map(|key| Box::pin(mutex.lock(key.as_str())))
            .collect();
        for waiter in &mut waiters {
            assert!(poll!(waiter).is_pending());
        }
        let lost = guards[0].lost();
        mutex.leases.namespace.store.scheduler().shut_down();
        tokio::time::timeout(LONG, lost)
            .await
            .expect("the holder was not told");
        assert!(guards.iter().all(|guard| !guard.is_held()));
        let all_are_served = async {
            for waiter in waiters {
                assert!(waiter.await.unwrap().unlock().await.unwrap());
            }
            for key in &keys {
                assert!(
                    mutex
                        .lock(key.as_str())
                        .await
                        .unwrap()
                        .unlock()
                        .await
                        .unwrap()
                );
            }
        };
        tokio::time::timeout(LONG, all_are_served)
            .await
            .expect("a lock is not free");
    }
}

/// The code that runs after a reply may be a user's, such as a recorder of metrics.
#[tokio::test]
async fn a_panic_in_what_follows_an_answer_loses_no_other_answer() {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&patient!(server.url()), "m").unwrap();
    let namespace = &mutex.leases.namespace;
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let release = Release::new(&"k".into(), &"t".into(), false, LONG, LONG);
    for n in 0..8 {
        let answered = answered.clone();
        let release = namespace.release_operation(&release);
        namespace
            .acquire_release
            .send(None, "k".into(), release, move |answer| {
                answered.send(answer.is_ok()).unwrap();
                panic!("after answer {n}");
            });
    }
    for _ in 0..8 {
        let answer = tokio::time::timeout(LONG, answers.recv())
            .await
            .expect("an answer is lost");
        assert_eq!(answer, Some(true));
    }
}
