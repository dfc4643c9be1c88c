//! What the page shows of a queue of tenants, and the traffic in it: one tenant always has calls that wait, nine others have one
//! call now and then.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::bursts;
use crate::queues::{PERMITS, TENANT};

/// The tenants of the traffic, and all others: names that clients choose are not shown.
const TENANTS: [&str; 11] = [
    "greedy", "modest-1", "modest-2", "modest-3", "modest-4", "modest-5", "modest-6", "modest-7",
    "modest-8", "modest-9", "others",
];
/// Where the modest tenants are.
const MODEST: std::ops::Range<usize> = 1..10;
/// How many calls of the greedy tenant are in a queue at most, and how many it sends at once.
const GREEDY: usize = 40;
const AT_ONCE: usize = 8;
/// How many turns of the traffic are between two calls of modest tenants.
const MODEST_EVERY: usize = 5;
/// How long calls are remembered: at most 267, since each holds one of the permits for 150 ms.
const LATELY: Duration = Duration::from_secs(10);

/// The calls of one limit, in both gateways. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Queue(Arc<Mutex<Log>>);

/// One for each limit.
#[derive(Clone, Default)]
pub(crate) struct Queues {
    pub(crate) fifo: Queue,
    pub(crate) fair: Queue,
}

#[derive(Default)]
struct Log {
    /// By tenant: how many calls wait, and how many work.
    waiting: [usize; TENANTS.len()],
    working: [usize; TENANTS.len()],
    /// How many calls have begun to work.
    served: u64,
    latest: VecDeque<Served>,
}

/// A call that was let through.
struct Served {
    tenant: usize,
    at: Instant,
    waited: Duration,
    turns: u64,
}

/// A call on its way. Its end is that of the value, also if its client goes away.
pub(crate) struct Call {
    queue: Queue,
    tenant: usize,
    arrived: Instant,
    served_before: u64,
    works: AtomicBool,
}

impl Queue {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrive(&self, name: Option<&[u8]>) -> Arc<Call> {
        let known = TENANTS
            .iter()
            .position(|tenant| name == Some(tenant.as_bytes()));
        let tenant = known.unwrap_or(TENANTS.len() - 1);
        let mut log = self.log();
        log.waiting[tenant] += 1;
        let (queue, arrived, works) = (self.clone(), Instant::now(), AtomicBool::new(false));
        Arc::new(Call {
            queue,
            tenant,
            arrived,
            served_before: log.served,
            works,
        })
    }

    /// To gateways A and B in turn. A modest tenant has one call at once.
    fn calls(&self, path: &str, turn: usize) -> Vec<bursts::Call> {
        let log = self.log();
        let present = |tenant: usize| log.waiting[tenant] + log.working[tenant];
        let greedy = GREEDY.saturating_sub(present(0)).min(AT_ONCE);
        let modest = MODEST.start + turn / MODEST_EVERY % MODEST.len();
        let is_due = turn.is_multiple_of(MODEST_EVERY) && present(modest) == 0;
        let calls = std::iter::repeat_n(0, greedy).chain(is_due.then_some(modest));
        (turn..)
            .zip(calls)
            .map(|(gateway, tenant)| bursts::of_tenant(gateway, path, TENANTS[tenant]))
            .collect()
    }

    /// By tenant, for all that have calls or had some of late: who waits, who works, and what they got.
    fn state(&self) -> Value {
        let (log, now) = (self.log(), Instant::now());
        let tenant = |(tenant, name)| {
            let (waiting, working) = (log.waiting[tenant], log.working[tenant]);
            let lately = log.lately(now, |other| other == tenant);
            let is_idle = waiting + working == 0 && lately["served"] == 0;
            let state =
                json!({ "name": name, "waiting": waiting, "working": working, "lately": lately });
            (!is_idle).then_some(state)
        };
        let tenants: Vec<_> = TENANTS.iter().enumerate().filter_map(tenant).collect();
        json!({
            "permits": PERMITS, "tenants": tenants, "modest": log.lately(now, |tenant| MODEST.contains(&tenant)),
        })
    }
}

impl Queues {
    /// The same traffic for both: the calls that a turn of it adds.
    pub(super) fn calls(&self, turn: usize) -> impl Iterator<Item = bursts::Call> {
        let fair = self.fair.calls("GET /queue/fair", turn);
        self.fifo
            .calls("GET /queue/fifo", turn)
            .into_iter()
            .chain(fair)
    }

    pub(super) fn state(&self) -> Value {
        json!({ "fifo": self.fifo.state(), "fair": self.fair.state() })
    }
}

impl Log {
    /// How many calls of some tenants were let through of late, and the means of how long they waited and of how many others
    /// were let through meanwhile.
    fn lately(&self, now: Instant, is_of: impl Fn(usize) -> bool) -> Value {
        let (mut served, mut waited, mut turns) = (0, Duration::ZERO, 0);
        for call in self
            .latest
            .iter()
            .filter(|call| now - call.at < LATELY && is_of(call.tenant))
        {
            (served, waited, turns) = (served + 1, waited + call.waited, turns + call.turns);
        }
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        json!({ "served": served, "wait_ms": waited.checked_div(served), "turns": turns.checked_div(served) })
    }
}

impl Call {
    /// The call was let through. Returns how many others were let through since it came.
    pub(crate) fn work(&self) -> u64 {
        let (mut log, at) = (self.queue.log(), Instant::now());
        self.works.store(true, Ordering::Relaxed);
        log.waiting[self.tenant] -= 1;
        log.working[self.tenant] += 1;
        let turns = log.served - self.served_before;
        log.served += 1;
        while log
            .latest
            .front()
            .is_some_and(|first| at - first.at > LATELY)
        {
            log.latest.pop_front();
        }
        log.latest.push_back(Served {
            tenant: self.tenant,
            at,
            waited: at - self.arrived,
            turns,
        });
        turns
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut log = self.queue.log();
        let present = if *self.works.get_mut() {
            &mut log.working
        } else {
            &mut log.waiting
        };
        present[self.tenant] -= 1;
    }
}

/// Outside of a limit: a call arrives.
pub(crate) async fn follow(
    State(queue): State<Queue>,
    mut request: Request,
    next: Next,
) -> Response {
    let call = queue.arrive(
        request
            .headers()
            .get(TENANT)
            .map(|tenant| tenant.as_bytes()),
    );
    request.extensions_mut().insert(Arc::clone(&call));
    let response = next.run(request).await;
    drop(call);
    response
}
