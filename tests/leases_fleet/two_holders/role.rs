//! One of the processes: locks from many tasks, and tells what it believes to hold.

use std::fmt::Display;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, Script};
use tokio::time::{Instant, sleep, timeout};

use super::clock::Clock;
use super::locks::{Guard, Kind, Locks, span};
use crate::fleet::store_of_role;
use crate::referee::connect;
use support::processes::{setting, tell};
use support::role;

const TASKS: usize = 12;
/// Of each kind.
const KEYS: usize = 2;
/// How long most wait for a lock.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Who has waited in vain for so long takes it that a killed process holds the key for long, and leaves it to that.
const BLOCKED: Duration = Duration::from_millis(1500);
/// Nothing is held for longer.
const LONGEST_HOLD: Duration = Duration::from_millis(500);

/// The resource that checks fences: writes down each visit, in the order in which it has them.
static VISIT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local accepted = tonumber(ARGV[1]) >= tonumber(redis.call('GET', KEYS[1]) or 0) and 1 or 0
         if accepted == 1 then redis.call('SET', KEYS[1], ARGV[1]) end
         redis.call('RPUSH', KEYS[2], ARGV[2] .. ' ' .. accepted)
         return accepted",
    )
});

/// Where the resource keeps its visits.
pub(super) const VISITS: &str = "visits";

/// Takes up another key for a resource, unless somebody has done so meanwhile.
static MOVE_ON: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 0 end
         return redis.call('INCR', KEYS[1])",
    )
});

struct Worker {
    locks: Locks,
    referee: MultiplexedConnection,
    clock: Clock,
    name: String,
    next: AtomicU64,
}

/// What its holder knows of a lease.
struct Belief<'a> {
    worker: &'a Worker,
    guard: &'a Guard,
    name: String,
    resource: String,
    until: Instant,
    /// When it was held for sure.
    held: Instant,
}

// Locks until it is killed.
role!(role_holder, threads = 2, async {
    let worker: &'static Worker = Box::leak(Box::new(Worker {
        locks: Locks::new(store_of_role(), setting("NAMESPACE")),
        referee: connect(&setting("REFEREE")).await,
        clock: Clock::new(),
        name: setting("NAME"),
        next: AtomicU64::new(0),
    }));
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(worker.work())).collect();
    for task in tasks {
        task.await.unwrap();
    }
});

impl Worker {
    async fn work(&self) {
        loop {
            let kind = Kind::ALL[rand::random_range(0..Kind::ALL.len())];
            self.lock(kind, &format!("k{}", rand::random_range(0..KEYS))).await;
        }
    }

    async fn lock(&self, kind: Kind, key: &str) {
        let line = format!("generation:{kind:?}:{key}");
        let generation: Option<u64> =
            redis::cmd("GET").arg(&line).query_async(&mut self.referee.clone()).await.unwrap();
        let generation = generation.unwrap_or(0);
        let key = format!("{key}.{generation}");
        let stays = rand::random_ratio(1, 8);
        let patience = if stays { BLOCKED } else { span(SHORTEST_WAIT, LONGEST_WAIT) };
        match timeout(patience, self.locks.lock(kind, &key)).await {
            Ok(Ok((guard, ttl))) => self.hold(guard, format!("{kind:?}:{key}"), ttl).await,
            Ok(Err(error)) => tell(&format!("failed {}", error.to_string().replace('\n', " "))),
            Err(_) => {
                tell("cancelled");
                if stays {
                    let mut moving = MOVE_ON.key(line);
                    let _: u64 =
                        moving.arg(generation).invoke_async(&mut self.referee.clone()).await.unwrap();
                }
            }
        }
    }

    async fn hold(&self, guard: Guard, resource: String, ttl: Duration) {
        let mut belief = Belief::new(self, &guard, resource);
        let end = belief.held + length(ttl);
        loop {
            if rand::random_ratio(1, 4) {
                belief.visit().await;
            }
            belief.look();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if rand::random_ratio(1, 16) {
                // A lease that is over is not extended, and that is all.
                let _ = guard.lease().extend().await;
                belief.look();
            }
            sleep(left.min(span(Duration::from_millis(1), Duration::from_millis(20)))).await;
        }
        belief.end();
        guard.release().await;
    }
}

/// How long something is held: some of it for longer than its time to live.
fn length(ttl: Duration) -> Duration {
    let about_ttl = ttl.mul_f64(rand::random_range(0.5..3.0));
    match rand::random_range(0..10) {
        0..3 => Duration::ZERO,
        3..8 if about_ttl < LONGEST_HOLD => about_ttl,
        _ => span(Duration::from_micros(100), Duration::from_millis(20)),
    }
}

impl<'a> Belief<'a> {
    /// Tells that the lease was got, which it is from now on.
    fn new(worker: &'a Worker, guard: &'a Guard, resource: String) -> Self {
        let held = Instant::now();
        let until = guard.lease().until();
        let number = worker.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{number}", worker.name);
        let (from, end) = (worker.clock.beginning(held), worker.clock.end(until));
        tell(&format!("grant {name} {resource} {from} {end}"));
        Self { worker, guard, name, resource, until, held }
    }

    /// Tells if renewals have moved the end.
    fn look(&mut self) {
        let (now, until) = (Instant::now(), self.guard.lease().until());
        // What is held later on was held now.
        if self.guard.lease().is_held() {
            self.held = now;
        }
        if until != self.until {
            self.until = until;
            self.say("until", self.worker.clock.end(until));
        }
    }

    /// Writes to the resource, whether or not the lease is held.
    async fn visit(&mut self) {
        let Some(fence) = self.guard.lease().handle().fence() else { return };
        self.look();
        let late = !self.guard.lease().is_held();
        if late {
            self.say("late", "");
        }
        let visit = format!("{} {}", self.name, if late { "late" } else { "timely" });
        let mut call = VISIT.key(format!("resource:{}", self.resource));
        call.key(VISITS).arg(fence).arg(visit);
        let accepted: bool = call.invoke_async(&mut self.worker.referee.clone()).await.unwrap();
        if !accepted && self.guard.lease().is_held() {
            self.say("refused", "");
        }
    }

    /// Tells until when the lease was believed in, before it is given back.
    fn end(mut self) {
        self.look();
        let end = self.held.max(self.until.min(Instant::now()));
        self.say("end", self.worker.clock.end(end));
    }

    fn say(&self, verb: &str, what: impl Display) {
        tell(format!("{verb} {} {what}", self.name).trim_end());
    }
}
