//! The callers of one process lock and unlock for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::Barrier;

use crate::contestants::Contestant;
use crate::load::Load;

/// So many pairs each caller makes before the clock starts.
const WARM_UP: usize = 4;

/// What the callers of one process did.
#[derive(Default)]
pub struct Tally {
    /// How many pairs each caller made.
    pub pairs: Vec<u64>,
    /// How long each lock took to get, ns.
    pub waits: Vec<u32>,
    pub took: Duration,
}

/// Calls `ready` when all are warm; they begin when it returns.
pub fn run<C: Contestant>(
    runtime: &Runtime,
    contestant: &C,
    load: Load,
    length: Duration,
    ready: impl FnOnce(),
) -> Tally {
    let callers = load.callers();
    let gate = Arc::new(Barrier::new(callers + 1));
    let neighbours = Arc::new(Neighbours::new(callers));
    let call = |caller| {
        let (gate, neighbours) = (gate.clone(), neighbours.clone());
        let mut caller = Caller {
            contestant: contestant.clone(),
            key: load.key(caller),
            waits: Vec::new(),
        };
        async move {
            for _ in 0..WARM_UP {
                caller.pair().await;
            }
            caller.waits.clear();
            gate.wait().await;
            gate.wait().await;
            let (pairs, took) = match load.in_a_row() {
                Some(pairs) => caller.evenly(pairs, length, &neighbours).await,
                None => caller.greedily(length).await,
            };
            (pairs, caller.waits, took)
        }
    };
    let tasks: Vec<_> = (0..callers)
        .map(|caller| runtime.spawn(call(caller)))
        .collect();
    runtime.block_on(gate.wait());
    ready();
    runtime.block_on(gate.wait());
    let mut tally = Tally::default();
    for task in tasks {
        let (pairs, waits, took) = runtime.block_on(task).unwrap();
        tally.pairs.push(pairs);
        tally.waits.extend(waits);
        tally.took = tally.took.max(took);
    }
    tally
}

struct Caller<C> {
    contestant: C,
    key: &'static str,
    waits: Vec<u32>,
}

impl<C: Contestant> Caller<C> {
    async fn pair(&mut self) {
        let since = Instant::now();
        let guard = self.contestant.lock(self.key).await;
        self.waits
            .push(u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX));
        C::unlock(guard).await;
    }

    /// As many pairs as fit in.
    async fn greedily(&mut self, length: Duration) -> (u64, Duration) {
        let end = Instant::now() + length;
        let mut pairs = 0;
        while Instant::now() < end {
            self.pair().await;
            pairs += u64::from(Instant::now() < end);
        }
        (pairs, length)
    }

    /// As many as the neighbours make; the last is later than `length`.
    async fn evenly(
        &mut self,
        in_a_row: usize,
        length: Duration,
        neighbours: &Neighbours,
    ) -> (u64, Duration) {
        let began = Instant::now();
        let mut pairs = 0;
        while neighbours.go_on(began + length).await {
            for _ in 0..in_a_row {
                self.pair().await;
            }
            pairs += in_a_row as u64;
        }
        (pairs, began.elapsed())
    }
}

/// Decides for all callers at once whether they go on.
struct Neighbours {
    all: Barrier,
    over: AtomicBool,
}

impl Neighbours {
    fn new(callers: usize) -> Self {
        Self {
            all: Barrier::new(callers),
            over: AtomicBool::new(false),
        }
    }

    /// Waits for everybody.
    async fn go_on(&self, end: Instant) -> bool {
        if self.all.wait().await.is_leader() {
            self.over.store(Instant::now() >= end, Ordering::Relaxed);
        }
        self.all.wait().await;
        !self.over.load(Ordering::Relaxed)
    }
}
