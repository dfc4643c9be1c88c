//! Mutexes: fences, tries, and locks as other libraries know them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tower_distributed::Mutex;

use crate::stores::{Place, SOON};
use support::eventually;

/// What many do at a time is in the worlds, and in the table of faults.
pub(crate) async fn one_at_a_time_and_each_with_a_greater_fence(place: &Place, name: &str) {
    let [mutex, other] = [(); 2].map(|()| Mutex::new(place, name).unwrap());
    let mut last = 0;
    for mutex in [&mutex, &mutex, &other, &mutex] {
        let guard = mutex.lock("k").await.unwrap();
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        assert_eq!(guard.handle().fence(), Some(guard.fence()));
        assert!(other.try_lock("k").await.unwrap_err().is_refused());
        last = guard.fence();
        assert!(guard.unlock().await.unwrap());
    }
    // Work is done under the lock.
    let (here, there) = (mutex.clone(), other.clone());
    let work = mutex.lock("k").await.unwrap().run(|lease| async move {
        assert!(lease.is_held() && lease.fence().is_some() && !there.is_locked("l").await.unwrap());
        here.is_locked("k").await.unwrap() && there.is_locked("k").await.unwrap()
    });
    assert!(work.await.unwrap());
    assert!(!mutex.is_locked("k").await.unwrap() && !other.is_locked("k").await.unwrap());
}

/// So many times, or until the longest wait is over.
pub(crate) async fn tries_go_on_until_it_is_free(place: &Place, name: &str) {
    let pause = Duration::from_millis(20);
    let (sender, mut tries) = mpsc::unbounded_channel();
    let builder = move || {
        let sender = sender.clone();
        Mutex::builder().retry_delay(move |tried| {
            let _ = sender.send(tried);
            pause
        })
    };
    let mutex = Mutex::new(place, name).unwrap();
    let guard = mutex.lock("k").await.unwrap();
    let thrice = builder().tries(3).build(place, name).unwrap();
    while tries.try_recv().is_ok() {}
    let began = Instant::now();
    let error = thrice.lock("k").await.unwrap_err();
    assert!(
        error.is_waited_too_long() && error.is_refused() && error.retry_after().is_some(),
        "{error}"
    );
    assert!(
        began.elapsed() >= 2 * pause,
        "two pauses: {:?}",
        began.elapsed()
    );
    assert_eq!([tries.try_recv(), tries.try_recv()], [Ok(1), Ok(2)]);
    assert!(
        !thrice.try_lock("k").await.unwrap_err().is_waited_too_long(),
        "one try is no wait"
    );
    let bounded = builder()
        .tries(u32::MAX)
        .max_wait(3 * pause)
        .build(place, name)
        .unwrap();
    assert!(bounded.lock("k").await.unwrap_err().is_waited_too_long());

    let patient = builder().tries(u32::MAX).build(place, name).unwrap();
    while tries.try_recv().is_ok() {}
    let lock = || {
        let patient = patient.clone();
        tokio::spawn(async move { patient.lock("k").await })
    };
    let waiter = lock();
    while tries.recv().await.unwrap() < 3 {}
    assert!(guard.unlock().await.unwrap());
    let guard = waiter.await.unwrap().unwrap();
    let waiter = lock();
    patient.close();
    assert!(waiter.await.unwrap().unwrap_err().is_interrupted());
    assert!(guard.unlock().await.unwrap());
}

/// A value is in use once at a time.
pub(crate) async fn values_are_those_of_the_function(place: &Place, name: &str) {
    let count = AtomicU64::new(0);
    let value = move || format!("worker:{}", count.fetch_add(1, Ordering::SeqCst));
    let mutex = Mutex::builder()
        .value_with(value)
        .build(place, name)
        .unwrap();
    let guard = mutex.lock("k").await.unwrap();
    assert_eq!(guard.token(), "worker:0");
    assert!(
        mutex.try_lock("k").await.unwrap_err().is_refused(),
        "another value is another holder"
    );
    let waiting = mutex.clone();
    let waiter = async move { waiting.lock("k").await.unwrap() };
    let waiter = place.line_up(&format!("{name}:k"), 1, waiter).await;
    assert!(guard.unlock().await.unwrap());
    let guard = waiter.await.unwrap();
    assert_eq!(guard.token(), "worker:2");
    assert!(guard.extend().await.is_ok() && guard.unlock().await.unwrap());

    let [one, other] = [(); 2].map(|()| {
        let mutex = Mutex::builder().value_with(|| "me".into());
        mutex.build(place, &format!("{name}.me")).unwrap()
    });
    let guard = one.lock("k").await.unwrap();
    for error in [
        other.try_lock("k").await.unwrap_err(),
        one.lock("k").await.unwrap_err(),
    ] {
        assert!(
            error.is_invalid() && error.to_string().contains("\"me\""),
            "{error}"
        );
    }
    assert!(guard.is_held() && guard.extend().await.is_ok());
    // However it was given back, the value is free for whoever comes next.
    assert!(guard.unlock().await.unwrap());
    for _ in 0..50 {
        drop(other.lock("k").await.unwrap());
    }
    assert!(one.lock("k").await.unwrap().unlock().await.unwrap());
    let nameless = Mutex::builder()
        .value_with(String::new)
        .build(place, name)
        .unwrap();
    assert!(nameless.lock("k").await.unwrap_err().is_invalid());
}

pub(crate) async fn exact_names_are_shared_by_all_families(place: &Place, name: &str) {
    let exact = |family: &str| Mutex::builder().exact_names().build(place, family).unwrap();
    let (one, other) = (exact("one"), exact("other"));
    let key = format!("{}.{name}", place.prefix);
    let guard = one.lock(&key).await.unwrap();
    assert!(other.try_lock(&key).await.unwrap_err().is_refused());
    assert!(other.is_locked(&key).await.unwrap());
    assert!(
        Mutex::new(place, name)
            .unwrap()
            .try_lock(&key)
            .await
            .is_ok(),
        "but not by others"
    );
    let waiter = tokio::spawn(async move { other.lock(key).await.unwrap() });
    let fence = guard.fence();
    assert!(guard.unlock().await.unwrap());
    let guard = waiter.await.unwrap();
    assert!(guard.fence() > fence && guard.unlock().await.unwrap());
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
    let Some(server) = place.server_of(&key) else {
        return;
    };
    let (sender, mut tries) = mpsc::unbounded_channel();
    let delay = move |tried| {
        let _ = sender.send(tried);
        Duration::from_millis(5)
    };
    let mut builder = Mutex::builder()
        .exact_names()
        .retry_delay(delay)
        .ttl(Duration::from_secs(6));
    if in_a_queue {
        builder = builder.strict_fifo();
    }
    let mutex = builder.build(place, name).unwrap();
    let foreign = |ttl: &str| server.cli(&["SET", &key, "theirs", "NX", "PX", ttl]);
    while tries.try_recv().is_ok() {}

    assert_eq!(foreign("60000"), "OK");
    assert!(mutex.is_locked(&key).await.unwrap());
    let error = mutex.try_lock(&key).await.unwrap_err();
    assert!(
        error.is_refused() && error.retry_after() > Some(Duration::from_secs(30)),
        "{error}"
    );
    let (waiting, lock) = (mutex.clone(), key.clone());
    let waiter = tokio::spawn(async move { waiting.lock(lock).await.unwrap() });
    if in_a_queue {
        let waiters = format!("{{{key}}}:{}:waiters", place.prefix);
        eventually(&waiters, SOON, async || {
            server.query(&["EXISTS", &waiters]) == Ok(1)
        })
        .await;
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
    assert!(
        began.elapsed() >= Duration::from_millis(299),
        "{:?}",
        began.elapsed()
    );
}
