//! The sweeper: one task per store drops expired state on the background thread.
//!
//! It goes round all namespaces that have cells, and locks one shard at a time, for as long as it takes to look through
//! one table (at most 900 cells) or to merge two. It rests for 100 times as long as a round took, longer while nothing
//! changes, and ends when nothing is stored; the next cell starts it anew.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::lock;
use crate::store::background::Background;

/// How long the sweeper rests at least, unless the store is full.
const SHORTEST_REST: Duration = Duration::from_secs(1);

/// How long it rests at most, unless a round takes longer than 1 % of this.
const LONGEST_REST: Duration = Duration::from_secs(20);

/// The same where the store is full, and for 20 times as long as a round took.
const REST_WHEN_FULL: Duration = Duration::from_millis(50);

/// After so many cells, others on the background thread have their turn.
const CELLS_PER_TURN: usize = 1024;

/// What the sweeper goes through: the cells of a namespace.
pub(super) trait Sweep: Send + Sync {
    /// Drops what has expired in one table, or moves on to the next shard; `None` at the end.
    fn sweep(&self, place: &mut Place, by: By) -> Option<Visit>;

    /// Whether there is certainly no cell. Waits for no lock.
    fn is_empty(&self) -> bool;

    /// Whether the sweeper knows of it.
    fn is_listed(&self) -> &AtomicBool;
}

/// Who sweeps.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// A step at this time, which may have locked a shard: it passes over those that are locked.
    Step(i64),
    Sweeper,
}

/// A table of a namespace.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) shard: usize,
    pub(super) table: usize,
}

impl Place {
    pub(super) fn next_shard(&mut self) {
        *self = Self { shard: self.shard + 1, table: 0 };
    }
}

/// A table of a store.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    namespace: usize,
    place: Place,
}

/// What was found in one place.
#[derive(Debug, Default)]
pub(super) struct Visit {
    pub(super) cells: usize,
    pub(super) expired: usize,
}

/// What the sweeper of a store knows of.
#[derive(Default)]
pub(super) struct Sweeper {
    list: Mutex<List>,
    /// The store is full, or the sweeper is gone.
    pressed: Arc<Notify>,
}

#[derive(Default)]
struct List {
    namespaces: Vec<Listed>,
    /// Whether the store is gone: namespaces then live only as long as somebody holds them.
    disowned: bool,
    /// Whether there is a task.
    running: bool,
}

/// A namespace that had cells when it was looked at last. `keep` is why its state outlives who made it.
struct Listed {
    cells: Weak<dyn Sweep>,
    keep: Option<Arc<dyn Sweep>>,
}

impl Sweeper {
    /// The store is gone.
    pub(super) fn disown(&self) {
        let mut list = lock(&self.list);
        list.disowned = true;
        let keeps: Vec<_> = list.namespaces.iter_mut().map(|listed| listed.keep.take()).collect();
        drop(list);
        drop(keeps);
    }

    /// Lists cells that are no longer empty.
    pub(super) fn list(self: &Arc<Self>, cells: Arc<dyn Sweep>) {
        let mut list = lock(&self.list);
        if cells.is_listed().swap(true, Ordering::Relaxed) {
            return;
        }
        let weak = Arc::downgrade(&cells);
        let keep = (!list.disowned).then_some(cells);
        list.namespaces.push(Listed { cells: weak, keep });
        let start = !list.running;
        list.running = true;
        // Where it cannot be spawned, the task is dropped at once, and locks the list.
        drop(list);
        if start {
            let thread = Background::thread();
            let (sweeper, pressed) = (Some(Arc::downgrade(self)), self.pressed.clone());
            let task = Task { sweeper, pressed, _thread: thread.clone() };
            thread.spawn(task.run());
        }
    }

    /// Has the sweeper come soon.
    pub(super) fn press(&self) {
        self.pressed.notify_one();
    }

    /// Sweeps at a cursor and moves it on; `None` at the end of the list.
    pub(super) fn visit(&self, cursor: &mut Cursor, by: By) -> Option<Visit> {
        let cells = lock(&self.list).namespaces.get(cursor.namespace)?.cells.upgrade();
        let visit = cells.as_ref().and_then(|cells| cells.sweep(&mut cursor.place, by));
        if visit.is_none() {
            cursor.place = Place::default();
            let is_over = matches!(by, By::Sweeper) && self.unlist(cursor.namespace, cells.as_deref());
            // Else the last of the list is in this place now.
            cursor.namespace += usize::from(!is_over);
        }
        // These may be the last who hold the cells: they are dropped here, with nothing locked.
        drop(cells);
        Some(visit.unwrap_or_default())
    }

    /// Takes cells that are empty off the list. The task alone does this.
    fn unlist(&self, position: usize, cells: Option<&dyn Sweep>) -> bool {
        let mut list = lock(&self.list);
        if let Some(cells) = cells {
            // Who inserts looks at this after having unlocked the shard: either the cell is seen below, or `false` by
            // whoever inserted it.
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

    /// Whether the task has nothing to do and is to end.
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

/// The task. It keeps no store alive.
struct Task {
    /// Kept as long as the task runs on it.
    _thread: Background,
    /// `None` once it has ended as it should.
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
    /// Sweeps for one turn. Whether there is more.
    fn advance(&mut self, sweeper: &Sweeper) -> bool {
        let begin = Instant::now();
        let (mut cells, mut more) = (0, true);
        while more && cells < CELLS_PER_TURN {
            let visit = sweeper.visit(&mut self.cursor, By::Sweeper);
            more = visit.is_some();
            let visit = visit.unwrap_or_default();
            // An empty place costs as much as a few cells.
            cells += visit.cells.max(4);
            self.cells += visit.cells - visit.expired;
            self.expired += visit.expired;
        }
        self.busy += begin.elapsed();
        more
    }
}

impl Drop for Task {
    /// The background runtime ended first, or never was: the next who lists cells begins anew.
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper() {
            lock(&sweeper.list).running = false;
        }
    }
}
