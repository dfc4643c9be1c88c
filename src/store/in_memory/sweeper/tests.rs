//! Rounds of the sweeper, one step at a time.

use std::sync::atomic::AtomicI64;

use super::*;
use crate::store::in_memory::{Bounds, Cells, Clock, InMemory};
use crate::store::operation::Cell;

#[derive(Clone, Debug, Default)]
struct Until(i64);

impl Cell for Until {
    fn is_idle(&self, now: i64) -> bool {
        self.0 <= now
    }
}

/// A store whose sweeper begins no task by itself, and its clock.
fn store() -> (InMemory, Arc<AtomicI64>) {
    bounded(None)
}

fn bounded(max_keys: Option<usize>) -> (InMemory, Arc<AtomicI64>) {
    let time = Arc::new(AtomicI64::new(0));
    let store = InMemory::new(Clock::Manual(time.clone()), Bounds::keys(max_keys));
    lock(&store.shared.sweeper.list).running = true;
    (store, time)
}

fn try_keep(cells: &Cells<Until>, keys: std::ops::Range<u64>, until: i64) -> Result<(), crate::Error> {
    keys.into_iter().try_for_each(|key| cells.step(&key.to_le_bytes(), |cell, _| cell.0 = until))
}

fn keep(cells: &Cells<Until>, keys: std::ops::Range<u64>, until: i64) {
    try_keep(cells, keys, until).unwrap();
}

/// A round, and its number of turns.
fn round(store: &InMemory) -> (Round, usize) {
    let (mut round, mut turns) = (Round::default(), 1);
    while round.advance(&store.shared.sweeper) {
        turns += 1;
    }
    (round, turns)
}

#[test]
fn a_round_counts_what_it_finds_and_takes_turns_with_other_tasks() {
    let (store, time) = store();
    let (one, other) = (store.cells::<Until>("one"), store.cells::<Until>("other"));
    keep(&one, 0..2000, 10);
    keep(&one, 2000..4000, 20);
    keep(&other, 0..6000, 20);
    time.store(10, Ordering::Relaxed);
    let (round, turns) = round(&store);
    assert_eq!((round.cells, round.expired), (8000, 2000));
    assert!(round.busy > Duration::ZERO);
    // 1024 cells a turn, or a little more.
    assert!((7..=10).contains(&turns), "{turns} turns");
    assert_eq!((one.size().0, other.size().0), (2000, 6000));
}

#[test]
fn a_namespace_is_on_the_list_while_it_has_cells() {
    let (store, time) = store();
    let listed = || lock(&store.shared.sweeper.list).namespaces.len();
    let cells = store.cells::<Until>("a");
    assert_eq!(listed(), 0);
    keep(&cells, 0..2, 10);
    cells.step_all(&["x"], |cells, _| cells[0].0 = 10).unwrap();
    assert_eq!(listed(), 1);
    round(&store);
    assert_eq!(listed(), 1);
    assert!(!store.shared.sweeper.ends());
    time.store(10, Ordering::Relaxed);
    round(&store);
    assert_eq!(listed(), 0);
    assert!(store.shared.sweeper.ends());
    cells.step_all(&["x"], |cells, _| cells[0].0 = 20).unwrap();
    assert_eq!(listed(), 1, "it has a cell again");
}

#[test]
fn the_list_gives_its_memory_back() {
    let (store, time) = store();
    let many: Vec<_> = (0..1000).map(|number| store.cells::<Until>(&number.to_string())).collect();
    many.iter().for_each(|cells| keep(cells, 0..1, 10));
    time.store(10, Ordering::Relaxed);
    let (round, _) = round(&store);
    assert_eq!(round.expired, 1000);
    assert!(lock(&store.shared.sweeper.list).namespaces.capacity() < 100);
}

#[test]
fn a_full_store_is_searched_until_there_is_room() {
    let (store, time) = bounded(Some(5000));
    let (cells, bound) = (store.cells::<Until>("a"), &store.shared.bound);
    keep(&cells, 0..5000, 10);
    assert!(bound.is_full(0));
    time.store(10, Ordering::Relaxed);
    keep(&cells, 5000..5001, 20);
    assert!(!bound.is_full(0) && bound.cells() > 4000);
    cells.step_all(&["x", "y"], |cells, _| cells.iter_mut().for_each(|cell| cell.0 = 20)).unwrap();
    for first in (6000..16_000).step_by(50) {
        let keys: Vec<_> = (first..first + 50).map(u64::to_le_bytes).collect();
        cells.step_all(&keys, |cells, _| cells.iter_mut().for_each(|cell| cell.0 = 20)).unwrap_or_default();
    }
    assert_eq!(bound.cells(), cells.size().0, "each is counted once");
    assert!((4950..=5000).contains(&bound.cells()));
}

#[test]
fn a_search_goes_on_where_the_last_one_ended() {
    let (store, time) = bounded(Some(5000));
    let (cells, last) = (store.cells::<Until>("a"), store.cells::<Until>("b"));
    keep(&cells, 0..4999, i64::MAX);
    keep(&last, 0..1, 10);
    time.store(10, Ordering::Relaxed);
    let mut searches = 1;
    while try_keep(&cells, 5000..5001, i64::MAX).is_err() {
        searches += 1;
        // The next search may begin a millisecond after one that found nothing.
        time.fetch_add(1000, Ordering::Relaxed);
    }
    assert!((3..10).contains(&searches), "{searches} searches of 1024 keys or a little more");
}

#[test]
fn room_that_is_there_ends_no_search() {
    let (store, time) = bounded(Some(2));
    let cells = store.cells::<Until>("a");
    keep(&cells, 0..2, 10);
    time.store(10, Ordering::Relaxed);
    keep(&cells, 2..3, 20);
}

/// How long until the cells are swept, by the clock of tokio.
async fn swept(cells: &Cells<Until>) -> Duration {
    let began = tokio::time::Instant::now();
    while cells.size().0 > 0 {
        sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

/// How long it takes until cells are swept that end while their number grows, while nothing changes, and in a full store; and
/// until the task ends with its store.
async fn spans() -> [Duration; 4] {
    const LONG: Duration = Duration::from_secs(100);
    let (store, time) = store();
    let cells = store.cells::<Until>("a");
    let begin = || {
        let sweeper = &store.shared.sweeper;
        lock(&sweeper.list).running = true;
        let (home, pressed) = (sweeper.home.for_a_task(), sweeper.pressed.clone());
        tokio::spawn(Task { _home: home, sweeper: Some(Arc::downgrade(sweeper)), pressed }.run())
    };
    let is_running = || lock(&store.shared.sweeper.list).running;
    let task = begin();
    for key in 0..100 {
        keep(&cells, key..key + 1, 10);
        sleep(LONG / 100).await;
    }
    time.store(10, Ordering::Relaxed);
    let growing = swept(&cells).await;
    task.await.unwrap();
    assert!(lock(&store.shared.sweeper.list).namespaces.is_empty() && !is_running());

    drop(begin());
    keep(&cells, 0..1, 20);
    sleep(LONG).await;
    time.store(20, Ordering::Relaxed);
    let quiet = swept(&cells).await;

    drop(begin());
    keep(&cells, 0..1, 30);
    sleep(LONG).await;
    time.store(30, Ordering::Relaxed);
    store.shared.sweeper.press();
    let full = swept(&cells).await;

    // The next cells start the task again if its runtime ends.
    let task = begin();
    sleep(LONG / 1000).await;
    assert!(is_running());
    task.abort();
    assert!(task.await.is_err() && !is_running());

    let task = begin();
    keep(&cells, 0..1, 40);
    sleep(LONG).await;
    drop((store, cells));
    let dropped = tokio::time::Instant::now();
    task.await.unwrap();
    [growing, quiet, full, dropped.elapsed()]
}

/// The task runs by the paused clock here, by which its rounds take no time.
#[tokio::test(start_paused = true)]
async fn rounds_are_rare_while_nothing_changes() {
    let [growing, quiet, full, dropped] = spans().await;
    assert!(growing < 3 * SHORTEST_REST, "{growing:?}");
    assert!((3 * SHORTEST_REST..=LONGEST_REST).contains(&quiet), "{quiet:?}");
    assert!(full.max(dropped) < SHORTEST_REST, "{full:?} {dropped:?}");
}
