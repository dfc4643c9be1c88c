//! Counts the processes that share a limit. Each of them tells the store from time to time that it is alive.
//!
//! Decisions pay nothing for it: it is one call for each name and process about every 10 s, on the background thread.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::operation::{
    Arguments, Cell, Fields, Garbled, Operation, Repeat, Script, function,
};
use crate::store::scheduler::{PeriodicTask, Signal};
use crate::sync::lock;

/// How often a process tells that it is alive, at most.
const EVERY: Duration = Duration::from_secs(10);

/// How long a process counts after it was alive, in µs. All processes of a fleet use the same.
const TTL: i64 = 30_000_000;

/// How many of the last counts are kept. They cover [`TTL`].
const KEPT: usize = 4;

/// How many processes are counted. Further ones do not make a share smaller.
const MOST: u32 = 10_000;

/// The processes that are alive, and when each was alive last, µs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alive(BTreeMap<Arc<str>, i64>);

impl Cell for Alive {
    fn is_idle(&self, now: i64) -> bool {
        // A time that is too late counts again once the clock has caught up.
        self.0.values().all(|at| *at < now - TTL)
    }

    fn heap_bytes(&self) -> usize {
        self.0.len() * 64
    }
}

/// Notes that a process is alive or leaves. The reply is the number of processes that are alive.
#[derive(Debug)]
pub(super) struct Beat {
    process: Arc<str>,
    leaves: bool,
    most: u32,
}

impl Operation for Beat {
    type Cell = Alive;
    type Reply = u32;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "count_members"; &["fleet"]);
    const PARTS: &'static [&'static str] = &["members"];
    const REPEAT: Repeat = Repeat::Safe;
    // A process that leaves is not alive again by an earlier call.
    const IN_ORDER: bool = true;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.process));
        call.integer(self.leaves.into());
        call.integer(TTL);
        call.integer(self.most.into());
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<u32, Garbled> {
        match fields.integer()? {
            -1 => Err(Garbled(
                "WRONGTYPE the key that counts processes has a value of another type: delete the key",
            )),
            count => {
                u32::try_from(count).map_err(|_| Garbled("a number of processes is out of range"))
            }
        }
    }

    fn apply(self, alive: &mut Alive, now: i64) -> u32 {
        let alive = &mut alive.0;
        alive.retain(|_, at| (now - TTL..=now + TTL).contains(at));
        if self.leaves {
            alive.remove(&self.process);
        } else if alive.len() < self.most as usize || alive.contains_key(&self.process) {
            alive.insert(self.process, now);
        }
        u32::try_from(alive.len()).unwrap_or(u32::MAX)
    }
}

/// The processes that share the limits of one name. This one is among them as long as this value lives.
pub(super) struct Members {
    store: Store,
    client: Client<Beat>,
    process: Arc<str>,
    state: Mutex<State>,
    /// What [`State::count`] was last.
    count: AtomicU32,
}

#[derive(Debug)]
struct State {
    /// The number that counts as well until there are [`KEPT`] counts.
    first: u32,
    /// The last counts.
    counts: VecDeque<u32>,
    /// When the store is told next. `None`: this process has left.
    due: Option<Instant>,
    every: Duration,
}

impl State {
    /// The most of the last counts. A single count may be too low: the store has lost its state, its clock was set, or other
    /// processes start or do not reach it. By the last of the counts, all processes that live have told it again.
    fn count(&self) -> u32 {
        let first = if self.counts.len() < KEPT {
            self.first
        } else {
            0
        };
        self.counts.iter().copied().max().unwrap_or(0).max(first)
    }
}

impl Members {
    /// Returns the processes that share the limits of a name, of which this one is one from [`start`](Self::start) on.
    pub(super) fn join(store: &Store, name: &str) -> Arc<Self> {
        store.shared(name, || {
            let state = State {
                first: 0,
                counts: VecDeque::new(),
                due: None,
                every: EVERY,
            };
            let members = Arc::new(Self {
                client: Namespace::open(store, name).client(),
                process: store.notifier().process().into(),
                state: Mutex::new(state),
                count: AtomicU32::new(0),
                store: store.clone(),
            });
            store.scheduler().join(&members);
            members
        })
    }

    /// Begins to count, unless that has begun. `first`: the number of processes until they are counted.
    pub(super) fn start(&self, first: NonZeroU32) {
        let due = {
            let mut state = lock(&self.state);
            state.first = state.first.max(first.get());
            self.count.store(state.count(), Ordering::Relaxed);
            *state.due.get_or_insert_with(Instant::now)
        };
        self.store.scheduler().schedule(due);
    }

    /// The number of processes, without I/O.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    fn beat(self: &Arc<Self>) {
        {
            let (mut state, now) = (lock(&self.state), Instant::now());
            // Not all at the same time.
            let next = now + state.every.mul_f64(1.0 - clock::fraction() / 10.0);
            match &mut state.due {
                Some(due) if *due <= now => *due = next,
                _ => return,
            }
        }
        let this = Arc::downgrade(self);
        self.client
            .send(None, Key::from(""), self.step(false), move |answer| {
                if let Some(this) = this.upgrade() {
                    this.counted(&answer);
                }
            });
    }

    /// Takes over a count. Without an answer, the last ones remain.
    fn counted(&self, answer: &Result<u32, Error>) {
        let Ok(count) = answer else { return };
        let mut state = lock(&self.state);
        if state.counts.len() == KEPT {
            state.counts.pop_front();
        }
        state.counts.push_back((*count).min(MOST));
        self.count.store(state.count(), Ordering::Relaxed);
    }

    fn leave(&self) {
        if lock(&self.state).due.take().is_some() {
            self.client.detach(Key::from(""), self.step(true));
        }
    }

    fn step(&self, leaves: bool) -> Beat {
        Beat {
            process: Arc::clone(&self.process),
            leaves,
            most: MOST,
        }
    }
}

impl PeriodicTask for Members {
    fn due(&self) -> Option<Instant> {
        lock(&self.state).due
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        match signal {
            Signal::Due => self.beat(),
            Signal::ShutDown => self.leave(),
            Signal::Relinked | Signal::Hurry => {}
        }
    }
}

/// Lets the scheduler's task end.
impl Drop for Members {
    fn drop(&mut self) {
        self.leave();
        self.store.scheduler().look_again();
    }
}

debug!(Members, process, state);

#[cfg(test)]
mod tests;
