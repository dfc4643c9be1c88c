//! Rounds of the sweeper, one step at a time.

use std::sync::atomic::AtomicI64;

use super::*;
use crate::store::memory::InMemory;
use crate::store::memory::cells::Cells;
use crate::store::memory::tests::{Until, manual};

/// A store whose sweeper starts no task by itself, and its clock.
fn store(max_keys: Option<usize>) -> (InMemory, Arc<AtomicI64>) {
    let (store, time) = manual(max_keys);
    lock(&store.shared.sweeper.list).running = true;
    (store, time)
}

fn try_keep(
    cells: &Cells<Until>,
    keys: std::ops::Range<u64>,
    until: i64,
) -> Result<(), crate::error::Error> {
    keys.into_iter()
        .try_for_each(|key| cells.step(&key.to_le_bytes(), |cell, _| cell.0 = until))
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
    let (store, time) = store(None);
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
fn a_full_store_is_searched_until_there_is_room() {
    let (store, time) = store(Some(5000));
    let (cells, bound) = (store.cells::<Until>("a"), &store.shared.bound);
    keep(&cells, 0..5000, 10);
    assert!(!bound.has_room(1, 0));
    time.store(10, Ordering::Relaxed);
    keep(&cells, 5000..5001, 20);
    assert!(bound.has_room(1, 0) && bound.cells() > 4000);
    cells
        .step_all(&["x", "y"], |cells, _| {
            cells.iter_mut().for_each(|cell| cell.0 = 20)
        })
        .unwrap();
    for first in (6000..16_000).step_by(50) {
        let keys: Vec<_> = (first..first + 50).map(u64::to_le_bytes).collect();
        cells
            .step_all(&keys, |cells, _| {
                cells.iter_mut().for_each(|cell| cell.0 = 20)
            })
            .unwrap_or_default();
    }
    assert_eq!(bound.cells(), cells.size().0, "each is counted once");
    assert!((4950..=5000).contains(&bound.cells()));
}

#[test]
fn a_search_goes_on_where_the_last_one_ended() {
    let (store, time) = store(Some(5000));
    let (cells, last) = (store.cells::<Until>("a"), store.cells::<Until>("b"));
    keep(&cells, 0..4999, i64::MAX);
    keep(&last, 0..1, 10);
    time.store(10, Ordering::Relaxed);
    let mut searches = 1;
    while try_keep(&cells, 5000..5001, i64::MAX).is_err() {
        searches += 1;
        // The next search may start a millisecond after one that found nothing.
        time.fetch_add(1000, Ordering::Relaxed);
    }
    assert!(
        (3..10).contains(&searches),
        "{searches} searches of 1024 keys or a little more"
    );
}

/// How long until the cells are swept, by the clock of tokio.
async fn swept(cells: &Cells<Until>) -> Duration {
    let began = tokio::time::Instant::now();
    while cells.size().0 > 0 {
        sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

/// The task uses the paused clock here, by which its rounds take no time.
#[tokio::test(start_paused = true)]
async fn rounds_are_rare_while_nothing_changes() {
    const LONG: Duration = Duration::from_secs(100);
    let (store, time) = store(None);
    let cells = store.cells::<Until>("a");
    let begin = || {
        let sweeper = &store.shared.sweeper;
        lock(&sweeper.list).running = true;
        let (home, pressed) = (sweeper.home.for_a_task(), sweeper.pressed.clone());
        tokio::spawn(
            Task {
                _home: home,
                sweeper: Some(Arc::downgrade(sweeper)),
                pressed,
            }
            .run(),
        )
    };
    let is_running = || lock(&store.shared.sweeper.list).running;
    let task = begin();
    for key in 0..100 {
        keep(&cells, key..key + 1, 10);
        sleep(LONG / 100).await;
    }
    time.store(10, Ordering::Relaxed);
    let growing = swept(&cells).await;
    assert!(growing < 3 * SHORTEST_REST, "{growing:?}");
    task.await.unwrap();
    assert!(lock(&store.shared.sweeper.list).namespaces.is_empty() && !is_running());

    drop(begin());
    keep(&cells, 0..1, 20);
    sleep(LONG).await;
    time.store(20, Ordering::Relaxed);
    let quiet = swept(&cells).await;
    assert!(
        (3 * SHORTEST_REST..=LONGEST_REST).contains(&quiet),
        "{quiet:?}"
    );

    drop(begin());
    keep(&cells, 0..1, 30);
    sleep(LONG).await;
    time.store(30, Ordering::Relaxed);
    store.shared.sweeper.press();
    let full = swept(&cells).await;
    assert!(full < SHORTEST_REST, "{full:?}");

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
    assert!(dropped.elapsed() < SHORTEST_REST, "{:?}", dropped.elapsed());
}
