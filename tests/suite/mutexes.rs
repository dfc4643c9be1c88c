//! Mutexes: fences, tries, and locks as other libraries know them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::Mutex;

use crate::stores::Place;

pub(crate) async fn one_at_a_time_and_each_with_a_greater_fence(place: &Place, name: &str) {
    let mutex = Mutex::new(place, name).unwrap();
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let worker = |_| {
        let (mutex, inside, last) = (mutex.clone(), Arc::clone(&inside), Arc::clone(&last));
        tokio::spawn(async move {
            for _ in 0..6 {
                let guard = mutex.lock("k").await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                let before = last.swap(guard.fence(), Ordering::SeqCst);
                assert!(guard.fence() > before, "{} after {before}", guard.fence());
                assert_eq!(guard.handle().fence(), Some(guard.fence()));
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                assert!(guard.unlock().await.unwrap());
            }
        })
    };
    for outcome in join_all((0..12).map(worker)).await {
        outcome.unwrap();
    }
    let (other, guard) = (Mutex::new(place, name).unwrap(), mutex.lock("k").await.unwrap());
    assert!(mutex.is_locked("k").await.unwrap() && other.is_locked("k").await.unwrap());
    assert!(!other.is_locked("l").await.unwrap() && guard.unlock().await.unwrap());
    assert!(!mutex.is_locked("k").await.unwrap());
}

pub(crate) async fn work_is_done_under_the_lock(place: &Place, name: &str) {
    let [one, other] = [(); 2].map(|()| Mutex::new(place, name).unwrap());
    let (mutex, skips) = (one.clone(), other.clone());
    let lock = one.try_lock("k").await.unwrap();
    let billed = lock
        .run(|lease| async move {
            assert!(lease.is_held() && lease.fence().is_some());
            let error = skips.try_lock("k").await.unwrap_err();
            assert!(error.is_refused() && error.retry_after().is_some(), "{error}");
            mutex.is_locked("k").await.unwrap()
        })
        .await;
    assert!(billed.unwrap());
    assert!(!one.is_locked("k").await.unwrap());
}

pub(crate) async fn tries_end_in_a_refusal(place: &Place, name: &str) {
    let asked = Arc::new(StdMutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let delay = move |tried| {
        noted.lock().unwrap().push(tried);
        Duration::from_millis(20)
    };
    let mutex = Mutex::builder().tries(3).retry_delay(delay).build(place, name).unwrap();
    let guard = mutex.lock("k").await.unwrap();
    asked.lock().unwrap().clear();
    let began = Instant::now();
    let error = mutex.lock("k").await.unwrap_err();
    assert!(error.is_waited_too_long() && error.is_refused(), "{error}");
    assert!(error.retry_after().is_some());
    assert!(began.elapsed() >= Duration::from_millis(40), "two pauses: {:?}", began.elapsed());
    assert_eq!(asked.lock().unwrap()[..2], [1, 2]);
    assert!(!mutex.try_lock("k").await.unwrap_err().is_waited_too_long(), "one try is no wait");
    assert!(guard.unlock().await.unwrap());
}

pub(crate) async fn tries_go_on_until_it_is_free(place: &Place, name: &str) {
    let retry = |_| Duration::from_millis(5);
    let mutex = Mutex::builder().tries(u32::MAX).retry_delay(retry).build(place, name).unwrap();
    let guard = mutex.lock("k").await.unwrap();
    let (tried, waiting) = (tokio::sync::mpsc::unbounded_channel(), mutex.clone());
    let (sender, mut tries) = tried;
    let delay = move |tried| {
        let _ = sender.send(tried);
        Duration::from_millis(5)
    };
    let patient = Mutex::builder().tries(u32::MAX).retry_delay(delay).build(place, name).unwrap();
    let waiter = tokio::spawn(async move { patient.lock("k").await.unwrap() });
    while tries.recv().await.unwrap() < 3 {}
    assert!(guard.unlock().await.unwrap());
    assert!(waiter.await.unwrap().unlock().await.unwrap());
    assert!(waiting.lock("k").await.unwrap().unlock().await.unwrap());

    let bounded = Mutex::builder().tries(u32::MAX).retry_delay(retry).max_wait(Duration::from_millis(50));
    let bounded = bounded.build(place, name).unwrap();
    let guard = mutex.lock("k").await.unwrap();
    assert!(bounded.lock("k").await.unwrap_err().is_waited_too_long());
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock("k").await.map(drop) });
    mutex.close();
    assert!(waiter.await.unwrap().unwrap_err().is_interrupted());
    assert!(guard.unlock().await.unwrap());
}

pub(crate) async fn values_are_those_of_the_function(place: &Place, name: &str) {
    let count = AtomicU64::new(0);
    let value = move || format!("worker:{}", count.fetch_add(1, Ordering::SeqCst));
    let mutex = Mutex::builder().value_with(value).build(place, name).unwrap();
    let guard = mutex.lock("k").await.unwrap();
    assert_eq!(guard.token(), "worker:0");
    let lock = place.part(&format!("{name}:k"), "lock");
    if let Some(server) = place.server_of(&lock) {
        assert_eq!(server.cli(&["GET", &lock]), "worker:0");
    }
    assert!(mutex.try_lock("k").await.unwrap_err().is_refused(), "another value is another holder");
    let waiting = mutex.clone();
    let state = format!("{name}:k");
    let waiter = place.line_up(&state, 1, async move { waiting.lock("k").await.unwrap() }).await;
    assert!(guard.unlock().await.unwrap());
    let guard = waiter.await.unwrap();
    assert_eq!(guard.token(), "worker:2");
    assert!(guard.extend().await.is_ok() && guard.unlock().await.unwrap());

    let nameless = Mutex::builder().value_with(String::new).build(place, name).unwrap();
    assert!(nameless.lock("k").await.unwrap_err().is_invalid());
}

pub(crate) async fn a_value_is_in_use_once_at_a_time(place: &Place, name: &str) {
    let mutex = || Mutex::builder().value_with(|| "me".into()).build(place, name).unwrap();
    let (one, other) = (mutex(), mutex());
    let guard = one.lock("k").await.unwrap();
    for error in [other.try_lock("k").await.unwrap_err(), one.lock("k").await.unwrap_err()] {
        assert!(error.is_invalid() && error.to_string().contains("\"me\""), "{error}");
    }
    assert!(guard.is_held() && guard.extend().await.is_ok());
    let elsewhere = one.lock("l").await.unwrap();
    // However it was given back, the value is free for whoever comes next.
    assert!(guard.unlock().await.unwrap());
    for _ in 0..50 {
        drop(other.lock("k").await.unwrap());
    }
    let guard = one.lock("k").await.unwrap();
    assert!(guard.unlock().await.unwrap() && elsewhere.unlock().await.unwrap());
}

pub(crate) async fn exact_names_are_shared_by_all_families(place: &Place, name: &str) {
    let exact = |family: &str| Mutex::builder().exact_names().build(place, family).unwrap();
    let (one, other) = (exact("one"), exact("other"));
    let key = format!("{}.{name}", place.prefix);
    let guard = one.lock(&key).await.unwrap();
    assert!(other.try_lock(&key).await.unwrap_err().is_refused());
    assert!(other.is_locked(&key).await.unwrap());
    assert!(Mutex::new(place, name).unwrap().try_lock(&key).await.is_ok(), "but not by others");
    if let Some(server) = place.server_of(&key) {
        assert_eq!(server.cli(&["GET", &key]), guard.token());
    }
    let (waiting, name) = (other.clone(), key.clone());
    let waiter = tokio::spawn(async move { waiting.lock(name).await.unwrap() });
    let fence = guard.fence();
    assert!(guard.unlock().await.unwrap());
    let guard = waiter.await.unwrap();
    assert!(guard.fence() > fence);
    assert!(guard.unlock().await.unwrap());
    for bad in ["", "a}b"] {
        assert!(one.lock(bad).await.unwrap_err().is_invalid(), "{bad:?}");
    }
}

/// The other library: SET NX PX, and DEL where the value is still its own.
pub(crate) async fn exact_names_exclude_locks_of_others(place: &Place, name: &str) {
    for in_a_queue in [false, true] {
        exclude_locks_of_others(place, name, in_a_queue).await;
    }
}

async fn exclude_locks_of_others(place: &Place, name: &str, in_a_queue: bool) {
    let key = format!("{}.{name}", place.prefix);
    let Some(server) = place.server_of(&key) else { return };
    let (sender, mut tries) = tokio::sync::mpsc::unbounded_channel();
    let delay = move |tried| {
        let _ = sender.send(tried);
        Duration::from_millis(5)
    };
    let mut builder = Mutex::builder().exact_names().retry_delay(delay).ttl(Duration::from_secs(6));
    if in_a_queue {
        builder = builder.strict_fifo();
    }
    let mutex = builder.build(place, name).unwrap();
    let foreign = |ttl: &str| server.cli(&["SET", &key, "theirs", "NX", "PX", ttl]);
    while tries.try_recv().is_ok() {}

    assert_eq!(foreign("60000"), "OK");
    assert!(mutex.is_locked(&key).await.unwrap());
    let error = mutex.try_lock(&key).await.unwrap_err();
    assert!(error.is_refused() && error.retry_after() > Some(Duration::from_secs(30)), "{error}");
    let (waiting, lock) = (mutex.clone(), key.clone());
    let waiter = tokio::spawn(async move { waiting.lock(lock).await.unwrap() });
    if in_a_queue {
        place.eventually_exists(&format!("{{{key}}}:{}:waiters", place.prefix)).await;
    } else {
        while tries.recv().await.unwrap() < 2 {}
    }
    assert_eq!(server.cli(&["DEL", &key]), "1");
    let guard = waiter.await.unwrap();
    assert_eq!(foreign("60000"), "", "ours keeps theirs out");

    // Taken away, and by somebody else: it is lost, and theirs is left alone.
    let until = guard.until();
    server.cli(&["SET", &key, "theirs", "PX", "60000"]);
    guard.lost().await;
    assert!(tokio::time::Instant::now() < until);
    assert!(guard.extend().await.unwrap_err().is_lost());
    assert!(!guard.unlock().await.unwrap());
    assert_eq!(server.cli(&["GET", &key]), "theirs");
    server.cli(&["DEL", &key]);

    // And one that runs out.
    let began = Instant::now();
    assert_eq!(foreign("300"), "OK");
    assert!(mutex.lock(&key).await.unwrap().unlock().await.unwrap());
    assert!(began.elapsed() >= Duration::from_millis(299), "{:?}", began.elapsed());
}
