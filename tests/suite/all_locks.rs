//! Locks of several keys: all of them, or none.

use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::time::timeout;
use tower_distributed::{Key, Mutex};

use crate::stores::{Place, SOON};
use support::eventually;

/// How many of the keys are locked.
async fn locked(mutex: &Mutex, keys: &[&str]) -> usize {
    let locked = join_all(keys.iter().map(|key| mutex.is_locked(*key))).await;
    locked
        .into_iter()
        .filter(|locked| *locked.as_ref().unwrap())
        .count()
}

async fn are_free(mutex: &Mutex, keys: &[&str]) {
    eventually("all are free", SOON, async || {
        locked(mutex, keys).await == 0
    })
    .await;
}

pub(crate) async fn all_are_locked_or_none(place: &Place, name: &str) {
    let (mutex, other) = (
        Mutex::new(place, name).unwrap(),
        Mutex::new(place, name).unwrap(),
    );
    let keys = ["c", "a", "b"];
    let first = mutex.try_lock_all(keys).await.unwrap();
    assert!(
        first.is_held()
            && first
                .iter()
                .map(|guard| guard.key())
                .eq(&keys.map(Key::from))
    );
    assert_eq!(locked(&other, &keys).await, 3);
    assert_eq!(
        first.fences(),
        first.iter().map(|guard| guard.fence()).collect::<Vec<_>>()
    );
    // Nothing of a call that is refused stays.
    let error = other.try_lock_all(["x", "b", "y"]).await.unwrap_err();
    let after = error.retry_after().unwrap();
    assert!(
        error.is_refused() && Duration::ZERO < after && after <= Duration::from_secs(30),
        "{after:?}"
    );
    are_free(&other, &["x", "y"]).await;
    first.extend().await.unwrap();
    let before = first.fences();
    assert!(first.unlock().await.unwrap());
    assert_eq!(locked(&other, &keys).await, 0);
    let second = other.lock_all(keys).await.unwrap();
    assert!(
        second
            .fences()
            .iter()
            .zip(&before)
            .all(|(after, before)| after > before),
        "{second:?}"
    );
    drop(second);
    are_free(&mutex, &keys).await;
    // All are lost with one of them, and one key is as good as several.
    for keys in [&["a", "b"][..], &["a"]] {
        let held = mutex.try_lock_all(keys.iter().copied()).await.unwrap();
        assert!(mutex.try_lock("a").await.unwrap_err().is_refused());
        let holder = &mutex.inspect("a").await.unwrap().holders[0];
        assert!(mutex.revoke("a", holder).await.unwrap());
        assert!(held.extend().await.unwrap_err().is_lost() && !held.is_held());
        timeout(SOON, held.lost()).await.unwrap();
        assert!(!held.unlock().await.unwrap());
        are_free(&mutex, keys).await;
    }
    // Settings are those of each lock.
    let named = Mutex::builder()
        .value_with(|| "host-7".to_owned())
        .build(place, name)
        .unwrap();
    let both = named.lock_all(["a", "b"]).await.unwrap();
    assert!(both.iter().all(|guard| guard.token() == "host-7"));
    assert!(
        named
            .try_lock_all(["b", "c"])
            .await
            .unwrap_err()
            .is_invalid(),
        "the value is in use"
    );
    assert!(both.unlock().await.unwrap());
    let exact = Mutex::builder().exact_names().build(place, name).unwrap();
    assert!(
        exact
            .lock_all(["td.ok", "a}b"])
            .await
            .unwrap_err()
            .is_invalid()
    );
}

pub(crate) async fn who_goes_away_holds_none_of_them(place: &Place, name: &str) {
    let (mutex, keys) = (Mutex::new(place, name).unwrap(), ["a", "b", "c"]);
    for _ in 0..3 {
        // In any state: the call may be under way, or answered.
        let mut locking = Box::pin(mutex.lock_all(keys));
        let _ = poll!(locking.as_mut());
        drop(locking);
        are_free(&mutex, &keys).await;
    }
    let b = mutex.lock("b").await.unwrap();
    let other = mutex.clone();
    let all = tokio::spawn(async move { other.lock_all(keys).await.map(drop) });
    eventually("a is locked", SOON, async || {
        mutex.is_locked("a").await.unwrap()
    })
    .await;
    all.abort();
    are_free(&mutex, &["a", "c"]).await;
    // Locks that are kept for a time are not kept by a call that got only some of them.
    let brief = Mutex::builder()
        .max_wait(Duration::from_millis(50))
        .build(place, name)
        .unwrap();
    let kept = Mutex::builder()
        .ttl(2 * SOON)
        .at_least_for(2 * SOON)
        .build(place, name)
        .unwrap();
    assert!(brief.lock_all(keys).await.unwrap_err().is_waited_too_long());
    are_free(&mutex, &["a", "c"]).await;
    assert!(kept.try_lock_all(keys).await.unwrap_err().is_refused());
    are_free(&mutex, &["a", "c"]).await;
    assert!(b.unlock().await.unwrap());
    mutex.close();
    assert!(mutex.lock_all(keys).await.unwrap_err().is_interrupted());
}

pub(crate) async fn keys_out_of_range_are_told(place: &Place, name: &str) {
    let mutex = Mutex::new(place, name).unwrap();
    let many: Vec<_> = (0..33).collect();
    for (keys, told) in [
        (&[][..], "must be 1 to 32, are 0"),
        (&many, "must be 1 to 32, are more than 32"),
        (&[7, 8, 7], "must differ, \"7\" is given twice"),
    ] {
        let (locked, tried) = (
            mutex.lock_all(keys.to_vec()).await,
            mutex.try_lock_all(keys.to_vec()).await,
        );
        for error in [locked.unwrap_err(), tried.unwrap_err()] {
            assert!(error.is_invalid(), "{error}");
            assert_eq!(error.to_string(), format!("the keys of lock_all {told}"));
        }
    }
    let all = mutex.lock_all(0..32).await.unwrap();
    assert_eq!((all.len(), all.is_held()), (32, true));
    assert!(all.unlock().await.unwrap());
}
