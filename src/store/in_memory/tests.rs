//! Tests of the whole store: expired state is dropped, live state stays, and the bound on keys holds.

mod bytes;

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::*;

#[derive(Clone, Debug, Default)]
struct Until(i64);

impl Cell for Until {
    fn is_idle(&self, now: i64) -> bool {
        self.0 <= now
    }
}

impl Cells<Until> {
    fn keep(&self, key: impl ToString, until: i64) {
        self.try_keep(key, until).unwrap();
    }

    fn try_keep(&self, key: impl ToString, until: i64) -> Result<(), crate::Error> {
        self.step(key.to_string().as_bytes(), |cell, _| cell.0 = until)
    }

    fn get(&self, key: impl ToString) -> i64 {
        self.step(key.to_string().as_bytes(), |cell, _| cell.0).unwrap()
    }
}

/// A store whose clock the test sets.
fn manual(max_keys: Option<usize>) -> (InMemory, Arc<AtomicI64>) {
    let time = Arc::new(AtomicI64::new(0));
    (InMemory::new(Clock::Manual(time.clone()), Bounds::keys(max_keys)), time)
}

#[track_caller]
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn idle_cells_do_not_pile_up() {
    let (store, time) = manual(None);
    let cells = store.cells::<Until>("a");
    for i in 0..200_000 {
        time.store(i, Ordering::Relaxed);
        cells.keep(i, i + 10);
        assert!(cells.size().0 <= 64 * 450 || i % 1000 > 0);
    }
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
    eventually("half of the cells have expired", || cells.size().0 == 25_000);
    assert!((0..50_000).all(|i| cells.get(i) == if i % 2 == 1 { 11 } else { 0 }));
    time.store(11, Ordering::Relaxed);
    eventually("the memory of expired state is given back", || cells.size() == (0, 0));
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
    assert_eq!(store.cells::<Until>("kept").get("key"), 10, "state outlives the handle that made it");
    time.store(10, Ordering::Relaxed);
    eventually("a namespace whose state has expired is freed", || namespaces() == 0);
}

#[test]
fn cells_outlive_their_store_and_are_still_swept() {
    let (store, time) = manual(None);
    let (held, dropped) = (store.cells::<Until>("held"), store.cells::<Until>("dropped"));
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
        cells.step(i.to_string().as_bytes(), |cell, now| cell.0 = now + 300_000).unwrap();
    }
    eventually("it is swept", || cells.size() == (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_lives_by_a_paused_clock_is_not_swept() {
    let store = InMemory::new(Clock::system(), Bounds::NONE);
    let cells = store.cells::<Until>("a");
    for i in 0..1000 {
        cells.step(i.to_string().as_bytes(), |cell, now| cell.0 = now + 10_000).unwrap();
    }
    // Real time passes, and the sweeper runs.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(cells.size().0, 1000, "the caller's clock stands still");
    tokio::time::advance(Duration::from_millis(9)).await;
    cells.keep("another", i64::MAX);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(cells.size().0, 1001);
    tokio::time::advance(Duration::from_millis(1)).await;
    // At least one step on each shard.
    assert!((0..1000).all(|key| cells.get(key) == 0));
    eventually("cells that a step has seen as expired are swept", || cells.size().0 == 1);
    assert_eq!(cells.get("another"), i64::MAX);
}

#[tokio::test]
async fn what_lives_by_a_clock_that_is_paused_later_is_not_swept() {
    let store = InMemory::new(Clock::system(), Bounds::NONE);
    let cells = store.cells::<Until>("a");
    cells.step(b"key", |cell, now| cell.0 = now + 500_000).unwrap();
    tokio::time::pause();
    assert_ne!(cells.get("key"), 0);
    std::thread::sleep(Duration::from_millis(2500));
    assert_ne!(cells.get("key"), 0, "the caller's clock stands still");
}

#[test]
fn a_full_store_takes_no_new_key() {
    let (store, time) = manual(Some(3));
    let (a, b) = (store.cells::<Until>("a"), store.cells::<Until>("b"));
    a.keep("1", 10);
    a.keep("2", 20);
    b.keep("1", 20);
    let error = b.try_keep("2", 20).unwrap_err();
    assert!(error.is_overloaded() && !error.is_unavailable() && !error.is_refused(), "{error:?}");
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
    assert!(a.try_keep("1", 20).is_err(), "the room of the released key is taken");
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
fn a_full_store_finds_what_has_expired_elsewhere() {
    let (store, time) = manual(Some(100_000));
    let mut held = Vec::new();
    for name in 0..10 {
        let cells = store.cells::<Until>(&name.to_string());
        for key in 0..10_000 {
            cells.keep(key, if (name, key) == (9, 9999) { 10 } else { i64::MAX });
        }
        held.push(cells);
    }
    assert!(held[0].try_keep("new", i64::MAX).is_err());
    time.store(10, Ordering::Relaxed);
    eventually("the only key that has expired makes room", || {
        time.fetch_add(1, Ordering::Relaxed);
        held[0].try_keep("new", i64::MAX).is_ok()
    });
    assert!(held[0].try_keep("another", i64::MAX).is_err());
}

#[test]
fn the_bound_is_exact_under_concurrency() {
    const MAX: usize = 1000;
    let (store, time) = manual(Some(MAX));
    let (live, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, live, refused, barrier) = (&store, &live, &refused, &barrier);
            scope.spawn(move || {
                let cells = store.cells::<Until>(&(thread % 3).to_string());
                let mut mine = Vec::new();
                barrier.wait();
                for i in 0..20_000 {
                    let key = format!("{thread}-{i}");
                    match cells.try_keep(&key, i64::MAX) {
                        Ok(()) => {
                            assert!(live.fetch_add(1, Ordering::SeqCst) < MAX);
                            mine.push(key);
                        }
                        Err(error) => {
                            assert!(error.is_overloaded());
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if mine.len() > 150 {
                        // Counted before the release, because another thread takes the place at once.
                        live.fetch_sub(1, Ordering::SeqCst);
                        cells.keep(mine.swap_remove(i % 150), 0);
                    }
                }
                assert!(mine.iter().all(|key| cells.get(key) == i64::MAX), "nothing is forgotten");
            });
        }
    });
    // Each thread wants to keep 150 at the end.
    assert!(refused.into_inner() > 0);
    let bound = &store.shared.bound;
    // A store that is not half full keeps the memory of keys without state for a while.
    eventually("keys without state are not counted", || bound.cells() == live.load(Ordering::SeqCst));
    let cells = store.cells::<Until>("0");
    for i in 0..MAX {
        let _ = cells.try_keep(format!("fill-{i}"), 10);
    }
    assert_eq!(bound.cells(), MAX, "exactly this many fit");
    time.store(10, Ordering::Relaxed);
    eventually("expired cells are not counted", || bound.cells() == live.load(Ordering::SeqCst));
}

#[test]
fn dropped_cells_are_not_counted() {
    let (store, _) = manual(Some(2));
    let (held, dropped) = (store.cells::<Until>("held"), store.cells::<Until>("dropped"));
    dropped.keep("1", 10);
    dropped.keep("2", 10);
    drop(store);
    drop(dropped);
    held.keep("1", 10);
    held.keep("2", 10);
    assert!(held.try_keep("3", 10).is_err());
}

#[test]
fn namespaces_of_one_name_share_their_cells() {
    let (store, _) = manual(None);
    let cells = store.cells::<Until>("a");
    assert!(Arc::ptr_eq(&cells, &store.cells::<Until>("a")));
    assert!(!Arc::ptr_eq(&cells, &store.cells::<Until>("b")));
}
