//! The store in memory: every cell is counted once, and the sweeper lists all namespaces with cells.
//!
//! Not covered: a step on a cell, and whether the sweeper's task runs, are each under one lock.

use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::store::memory::InMemory;
use crate::store::memory::bound::Bounds;
use crate::store::memory::cells::Cells;
use crate::store::memory::clock::Clock;
use crate::store::operation::Cell;
use crate::sync::{check, spawn};

/// The time by which cells end. loom runs all threads of a test on one thread.
static NOW: AtomicI64 = AtomicI64::new(0);

#[derive(Clone, Debug, Default)]
struct Until(i64);

impl Cell for Until {
    fn is_idle(&self, _: i64) -> bool {
        self.0 <= NOW.load(Ordering::Relaxed)
    }
}

/// A store whose sweeper starts no task.
fn store(max_keys: Option<usize>) -> (InMemory, Arc<Cells<Until>>) {
    NOW.store(0, Ordering::Relaxed);
    let store = InMemory::new(Clock::system(), Bounds::keys(max_keys));
    lock(&store.shared.sweeper.list).running = true;
    let cells = store.cells("a");
    (store, cells)
}

/// Returns whether there was room.
fn keep(cells: &Cells<Until>, key: &str, until: i64) -> bool {
    cells.step(key.as_bytes(), |cell, _| cell.0 = until).is_ok()
}

/// Sweeps all namespaces once.
fn sweeps(store: &InMemory) -> impl FnOnce() + Send + 'static {
    let sweeper = store.shared.sweeper.clone();
    move || {
        let mut cursor = Cursor::default();
        while sweeper.visit(&mut cursor, By::Sweeper).is_some() {}
    }
}

fn counted(store: &InMemory) -> usize {
    store.shared.bound.cells()
}

/// A namespace that gets a cell while the sweeper removes it from the list as empty is on the list afterwards.
pub(crate) fn a_namespace_with_a_cell_is_listed() {
    check(|| {
        let (store, cells) = store(None);
        keep(&cells, "ends", 1);
        NOW.store(1, Ordering::Relaxed);
        let sweeper = spawn(sweeps(&store));
        keep(&cells, "stays", 2);
        sweeper.join().unwrap();
        assert_eq!(lock(&store.shared.sweeper.list).namespaces.len(), 1);
        assert!(cells.is_listed().load(Ordering::Relaxed));
    });
}

/// Two steps that list a namespace at once list it once.
pub(crate) fn a_namespace_is_listed_once() {
    check(|| {
        let (store, cells) = store(None);
        let other = cells.clone();
        let other = spawn(move || keep(&other, "one", 1));
        keep(&cells, "other", 1);
        other.join().unwrap();
        assert_eq!(lock(&store.shared.sweeper.list).namespaces.len(), 1);
    });
}

/// If keys of two namespaces arrive at the same time, one gets the last place, and the other is refused.
pub(crate) fn a_full_store_takes_no_other_key() {
    check(|| {
        let (store, cells) = store(Some(1));
        let (others, more) = (store.cells("b"), store.cells::<Until>("b"));
        let other = spawn(move || keep(&others, "one", 1));
        let kept = usize::from(keep(&cells, "other", 1)) + usize::from(other.join().unwrap());
        assert_eq!(
            (kept, counted(&store), cells.size().0 + more.size().0),
            (1, 1, 1)
        );
    });
}

/// An expired cell is uncounted once, whether a step or the sweeper finds it.
pub(crate) fn an_ended_cell_is_given_back_once() {
    check(|| {
        let (store, cells) = store(Some(1));
        assert!(keep(&cells, "ends", 1));
        NOW.store(1, Ordering::Relaxed);
        let sweeper = spawn(sweeps(&store));
        let kept = usize::from(keep(&cells, "new", 2));
        sweeper.join().unwrap();
        assert_eq!((counted(&store), cells.size().0), (kept, kept));
        assert!(keep(&cells, "new", 2), "there is room now");
    });
}
