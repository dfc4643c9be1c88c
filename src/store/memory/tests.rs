//! Tests of the whole store: expired state is dropped, live state stays, and the bound on keys holds.

mod bytes;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use support::eventually_blocking;

use super::*;

/// A state that is kept until a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Until(pub i64);

impl Cell for Until {
    fn is_idle(&self, now: i64) -> bool {
        self.0 <= now
    }
}

impl Cells<Until> {
    fn keep(&self, key: impl ToString, until: i64) {
        self.try_keep(key, until).unwrap();
    }

    fn try_keep(&self, key: impl ToString, until: i64) -> Result<(), crate::error::Error> {
        self.step(key.to_string().as_bytes(), |cell, _| cell.0 = until)
    }

    fn get(&self, key: impl ToString) -> i64 {
        self.step(key.to_string().as_bytes(), |cell, _| cell.0)
            .unwrap()
    }
}

/// A store whose clock the test sets.
pub(super) fn manual(max_keys: Option<usize>) -> (InMemory, Arc<AtomicI64>) {
    let time = Arc::new(AtomicI64::new(0));
    (
        InMemory::new(Clock::Manual(time.clone()), Bounds::keys(max_keys)),
        time,
    )
}

fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_blocking(what, Duration::from_secs(60), is_so);
}

#[test]
fn expired_state_is_given_back() {
    let (store, time) = manual(None);
    let cells = store.cells::<Until>("a");
    for i in 0..50_000 {
        cells.keep(i, 10 + i % 2);
    }
    assert!(cells.size().1 >= 50_000);
    time.store(10, Ordering::Relaxed);
    eventually("half of the cells have expired", || {
        cells.size().0 == 25_000
    });
    assert!((0..50_000).all(|i| cells.get(i) == if i % 2 == 1 { 11 } else { 0 }));
    time.store(11, Ordering::Relaxed);
    eventually("the memory of expired state is given back", || {
        cells.size() == (0, 0)
    });
    // The sweeper has ended, or is about to end.
    cells.keep("again", 12);
    time.store(12, Ordering::Relaxed);
    eventually("the sweeper starts again", || cells.size() == (0, 0));
}

#[test]
fn a_namespace_without_state_that_nobody_holds_is_freed() {
    let (store, time) = manual(None);
    store.cells::<Until>("kept").keep("key", 10);
    for i in 0..1000 {
        drop(store.cells::<Until>(&format!("unused-{i}")));
    }
    let namespaces = || store.namespaces.of_type::<Cells<Until>>().len();
    assert_eq!(namespaces(), 1, "without state they are freed at once");
    assert!(store.namespaces.capacity() < 100);
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(
        store.cells::<Until>("kept").get("key"),
        10,
        "state outlives the handle that made it"
    );
    time.store(10, Ordering::Relaxed);
    eventually("a namespace whose state has expired is freed", || {
        namespaces() == 0
    });
}

#[test]
fn cells_outlive_their_store_and_are_still_swept() {
    let (store, time) = manual(None);
    let (held, dropped) = (
        store.cells::<Until>("held"),
        store.cells::<Until>("dropped"),
    );
    dropped.keep("key", 10);
    held.keep("key", 10);
    let (gone, shared) = (Arc::downgrade(&dropped), Arc::downgrade(&store.shared));
    drop(dropped);
    assert_eq!(gone.strong_count(), 1);
    drop(store);
    assert_eq!(gone.strong_count(), 0, "it is dropped with its store");
    time.store(10, Ordering::Relaxed);
    eventually("held cells are swept", || held.size() == (0, 0));
    drop(held);
    eventually("the store is freed", || shared.strong_count() == 0);
}

#[test]
fn state_expires_by_the_systems_clock_without_a_step() {
    let store = InMemory::new(Clock::system(), Bounds::NONE);
    let cells = store.cells::<Until>("a");
    for i in 0..1000 {
        cells
            .step(i.to_string().as_bytes(), |cell, now| cell.0 = now + 300_000)
            .unwrap();
    }
    eventually("it is swept", || cells.size() == (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_lives_by_a_paused_clock_is_not_swept() {
    let store = InMemory::new(Clock::system(), Bounds::NONE);
    let cells = store.cells::<Until>("a");
    for i in 0..1000 {
        cells
            .step(i.to_string().as_bytes(), |cell, now| cell.0 = now + 10_000)
            .unwrap();
    }
    tokio::time::advance(Duration::from_millis(9)).await;
    cells.keep("another", i64::MAX);
    // Real time passes, and the sweeper runs.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(cells.size().0, 1001, "the caller's clock stands still");
    tokio::time::advance(Duration::from_millis(1)).await;
    // At least one step on each shard.
    assert!((0..1000).all(|key| cells.get(key) == 0));
    eventually("cells that a step has seen as expired are swept", || {
        cells.size().0 == 1
    });
    assert_eq!(cells.get("another"), i64::MAX);
}

#[test]
fn a_full_store_takes_no_new_key() {
    let (store, time) = manual(Some(3));
    let (a, b) = (store.cells::<Until>("a"), store.cells::<Until>("b"));
    a.keep("1", 10);
    a.keep("2", 20);
    b.keep("1", 20);
    let error = b.try_keep("2", 20).unwrap_err();
    assert!(
        error.is_overloaded() && !error.is_unavailable() && !error.is_refused(),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "store overloaded: it already has state for 3 keys, the maximum (max_keys)"
    );
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    assert_eq!((b.get("2"), a.get("1")), (0, 10), "a read takes no room");
    a.keep("1", 15);
    assert!(b.try_keep("2", 20).is_err());
    a.keep("1", 0);
    b.keep("2", 20);
    assert!(
        a.try_keep("1", 20).is_err(),
        "the room of the released key is taken"
    );
    time.store(20, Ordering::Relaxed);
    // For 1 ms after a search that found nothing, there is no other search.
    time.fetch_add(1000, Ordering::Relaxed);
    for key in 0..3 {
        a.keep(format!("new-{key}"), 5000);
    }
    assert!(a.try_keep("1", 5000).is_err());
    assert_eq!(store.shared.bound.cells(), 3);
}

#[test]
fn dropped_cells_are_not_counted() {
    let (store, _) = manual(Some(2));
    let (held, dropped) = (
        store.cells::<Until>("held"),
        store.cells::<Until>("dropped"),
    );
    dropped.keep("1", 10);
    dropped.keep("2", 10);
    drop(store);
    drop(dropped);
    held.keep("1", 10);
    held.keep("2", 10);
    assert!(held.try_keep("3", 10).is_err());
}
