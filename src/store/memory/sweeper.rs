//! The sweeper: one task per store drops expired state, in the background of the store.
//!
//! In each round it visits all namespaces that have cells. It locks one shard at a time, for as long as scanning it
//! takes: 0.4 % of the cells of the namespace. Between rounds it rests for at least 100 times the duration of a round,
//! and longer while nothing changes. It ends when nothing is stored; the next cell starts it again.

#[cfg(interleavings)]
pub(crate) mod interleavings;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::store::background::Background;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};

/// The shortest rest of the sweeper, unless the store is full.
const SHORTEST_REST: Duration = Duration::from_secs(1);

/// The longest rest, unless a round takes longer than 1 % of this.
const LONGEST_REST: Duration = Duration::from_secs(20);

/// The shortest rest when the store is full. The rest is also at least 20 times the duration of a round.
const REST_WHEN_FULL: Duration = Duration::from_millis(50);

/// The number of cells after which the sweeper yields to other tasks on the background thread.
const CELLS_PER_TURN: usize = 1024;

/// The interface of a namespace's cells for the sweeper.
pub(super) trait Sweep: Send + Sync {
    /// Drops the expired cells in the next shards. `None` at the end.
    fn sweep(&self, shard: &mut usize, by: By) -> Option<Visit>;

    /// Whether there is certainly no cell. Does not wait for a lock.
    fn is_empty(&self) -> bool;

    /// Whether these cells are in the list of the sweeper.
    fn is_listed(&self) -> &AtomicBool;
}

/// The caller of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// A step at this time. It may have locked a shard, so the sweep skips locked shards.
    Step(i64),
    Sweeper,
}

/// The position of a shard in a store.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    namespace: usize,
    shard: usize,
}

/// The numbers of cells and expired cells found at one position.
#[derive(Debug, Default)]
pub(super) struct Visit {
    pub(super) cells: usize,
    pub(super) expired: usize,
}

/// The shared state of a store's sweeper.
pub(super) struct Sweeper {
    home: Background,
    list: Mutex<List>,
    /// Notified when the store is full, or the sweeper was dropped.
    pressed: Arc<Notify>,
}

#[derive(Default)]
struct List {
    namespaces: Vec<Listed>,
    /// Whether the store was dropped. Namespaces then live only as long as they are referenced.
    disowned: bool,
    /// Whether the sweeper task is running.
    running: bool,
}

/// A namespace that had cells at the last visit. `keep_alive` keeps its state alive without other references.
struct Listed {
    cells: Weak<dyn Sweep>,
    keep_alive: Option<Arc<dyn Sweep>>,
}

impl Sweeper {
    pub(super) fn new(home: Background) -> Self {
        Self {
            home,
            list: Mutex::default(),
            pressed: Arc::default(),
        }
    }

    /// Records that the store was dropped.
    pub(super) fn disown(&self) {
        let mut list = lock(&self.list);
        list.disowned = true;
        let keeps: Vec<_> = list
            .namespaces
            .iter_mut()
            .map(|listed| listed.keep_alive.take())
            .collect();
        drop(list);
        drop(keeps);
    }

    /// Adds cells that are no longer empty to the list.
    pub(super) fn list(self: &Arc<Self>, cells: Arc<dyn Sweep>) {
        let mut list = lock(&self.list);
        if cells.is_listed().swap(true, Ordering::Relaxed) {
            return;
        }
        let weak = Arc::downgrade(&cells);
        let keep_alive = (!list.disowned).then_some(cells);
        list.namespaces.push(Listed {
            cells: weak,
            keep_alive,
        });
        let start = !list.running;
        list.running = true;
        // If the task cannot be spawned, it is dropped at once, and its drop locks the list.
        drop(list);
        if start {
            let home = self.home.for_a_task();
            let task = Task {
                sweeper: Some(Arc::downgrade(self)),
                pressed: self.pressed.clone(),
                _home: home.clone(),
            };
            home.spawn(task.run());
        }
    }

    /// Makes the sweeper start a round soon.
    pub(super) fn press(&self) {
        self.pressed.notify_one();
    }

    /// Sweeps at a cursor and advances it. `None` at the end of the list.
    pub(super) fn visit(&self, cursor: &mut Cursor, by: By) -> Option<Visit> {
        let cells = lock(&self.list)
            .namespaces
            .get(cursor.namespace)?
            .cells
            .upgrade();
        let visit = cells
            .as_ref()
            .and_then(|cells| cells.sweep(&mut cursor.shard, by));
        if visit.is_none() {
            cursor.shard = 0;
            let is_over =
                matches!(by, By::Sweeper) && self.unlist(cursor.namespace, cells.as_deref());
            // Otherwise the last namespace of the list is now at this position.
            cursor.namespace += usize::from(!is_over);
        }
        // This may be the last reference to the cells, so they are dropped here, without a lock.
        drop(cells);
        Some(visit.unwrap_or_default())
    }

    /// Removes empty cells from the list. Only the task calls this.
    fn unlist(&self, position: usize, cells: Option<&dyn Sweep>) -> bool {
        let mut list = lock(&self.list);
        if let Some(cells) = cells {
            // An inserting step reads this flag after it has unlocked the shard. So either its cell is found below, or
            // the step reads `false` here.
            cells.is_listed().store(false, Ordering::Relaxed);
            if !cells.is_empty() {
                cells.is_listed().store(true, Ordering::Relaxed);
                return false;
            }
        }
        let listed = list.namespaces.swap_remove(position);
        if list.namespaces.len() < list.namespaces.capacity() / 4 {
            let few = 2 * list.namespaces.len();
            list.namespaces.shrink_to(few);
        }
        drop(list);
        drop(listed);
        true
    }

    /// Whether the task has nothing to do and must end.
    fn ends(&self) -> bool {
        let mut list = lock(&self.list);
        list.running = !list.namespaces.is_empty();
        !list.running
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.pressed.notify_one();
    }
}

/// The sweeper task. It does not keep_alive the store alive.
struct Task {
    /// Keeps the thread running as long as the task.
    _home: Background,
    /// `None` after the task has ended normally.
    sweeper: Option<Weak<Sweeper>>,
    pressed: Arc<Notify>,
}

#[derive(Default)]
struct Round {
    cursor: Cursor,
    busy: Duration,
    cells: usize,
    expired: usize,
}

impl Task {
    async fn run(mut self) {
        let mut rest = SHORTEST_REST;
        let mut round = Round::default();
        loop {
            let when_full = rest.min(REST_WHEN_FULL.max(20 * round.busy));
            sleep(when_full).await;
            tokio::select! {
                () = sleep(rest - when_full) => {}
                () = self.pressed.notified() => {}
            }
            let before = std::mem::take(&mut round);
            while let Some(sweeper) = self.sweeper()
                && round.advance(&sweeper)
            {
                drop(sweeper);
                tokio::task::yield_now().await;
            }
            if self.sweeper().is_none_or(|sweeper| sweeper.ends()) {
                self.sweeper = None;
                return;
            }
            let quiet = round.expired == 0 && round.cells == before.cells;
            rest = if quiet { 2 * rest } else { SHORTEST_REST };
            rest = rest.min(LONGEST_REST).max(100 * round.busy);
        }
    }

    fn sweeper(&self) -> Option<Arc<Sweeper>> {
        self.sweeper.as_ref()?.upgrade()
    }
}

impl Round {
    /// Sweeps for one turn. Returns whether there is more.
    fn advance(&mut self, sweeper: &Sweeper) -> bool {
        let begin = Instant::now();
        let mut cells = 0;
        let mut more = true;
        while more && cells < CELLS_PER_TURN {
            let visit = sweeper.visit(&mut self.cursor, By::Sweeper);
            more = visit.is_some();
            let visit = visit.unwrap_or_default();
            // An empty shard costs as much as some cells.
            cells += visit.cells.max(64);
            self.cells += visit.cells - visit.expired;
            self.expired += visit.expired;
        }
        self.busy += begin.elapsed();
        more
    }
}

impl Drop for Task {
    /// If the background runtime has ended or never started, the next listed cells start a new task.
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper() {
            lock(&sweeper.list).running = false;
        }
    }
}
