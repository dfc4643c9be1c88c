//! Counts the processes that share a limit, by the heartbeats that each of them sends to the store.
//!
//! Decisions do no work for it: it is one call for each name and process about every 10 s, on the background thread.

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

/// The longest interval between two heartbeats.
const EVERY: Duration = Duration::from_secs(10);

/// How long a process counts after a heartbeat, in µs. All processes of a fleet must use the same value.
const TTL: i64 = 30_000_000;

/// The number of recent counts that are kept. They cover [`TTL`].
const KEPT: usize = 4;

/// The maximum number of processes that are counted. Further ones do not make a share smaller.
const MOST: u32 = 10_000;

/// The live processes, and the last heartbeat of each, µs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes(BTreeMap<Arc<str>, i64>);

impl Cell for Processes {
    fn is_idle(&self, now: i64) -> bool {
        // A time in the future counts again once the clock has caught up.
        self.0.values().all(|at| *at < now - TTL)
    }

    fn heap_bytes(&self) -> usize {
        self.0.len() * 64
    }
}

/// A heartbeat of a process, or its departure. The reply is the number of live processes.
#[derive(Debug)]
pub(super) struct Presence {
    process: Arc<str>,
    leaves: bool,
    most: u32,
}

impl Operation for Presence {
    type Cell = Processes;
    type Reply = u32;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "count_members"; &["fleet"]);
    const PARTS: &'static [&'static str] = &["members"];
    const REPEAT: Repeat = Repeat::Safe;
    // An earlier call must not add a process again after it has left.
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

    fn apply(self, alive: &mut Processes, now: i64) -> u32 {
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

/// The processes that share the limits of one name. This process is one of them as long as this value lives.
pub(super) struct Members {
    store: Store,
    client: Client<Presence>,
    process: Arc<str>,
    state: Mutex<State>,
    /// The last result of [`State::count`].
    count: AtomicU32,
}

#[derive(Debug)]
struct State {
    /// The number that counts in addition until there are [`KEPT`] counts.
    first: u32,
    /// The last counts.
    counts: VecDeque<u32>,
    /// When the next heartbeat is due. `None`: this process has left.
    due: Option<Instant>,
    every: Duration,
}

impl State {
    /// Returns the largest of the last counts. A single count may be too low: the store has lost its state, its clock
    /// was set, or other processes are starting or cannot reach it. All live processes have sent a heartbeat again by
    /// the time of the last count.
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
    /// Returns the processes that share the limits of a name. This process joins them with [`start`](Self::start).
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

    /// Starts to count, unless it has already started. `first`: the number of processes until they are counted.
    pub(super) fn start(&self, first: NonZeroU32) {
        let due = {
            let mut state = lock(&self.state);
            state.first = state.first.max(first.get());
            self.count.store(state.count(), Ordering::Relaxed);
            *state.due.get_or_insert_with(Instant::now)
        };
        self.store.scheduler().schedule(due);
    }

    /// Returns the number of processes, without I/O.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    fn beat(self: &Arc<Self>) {
        {
            let (mut state, now) = (lock(&self.state), Instant::now());
            // Randomized, so that processes do not send heartbeats at the same time.
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

    /// Stores a count. Without a reply, the last counts stay.
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

    fn step(&self, leaves: bool) -> Presence {
        Presence {
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
