//! A process that uses every primitive until it is told to stop, and writes down what it does.

use std::convert::Infallible;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tower_distributed::dedupe::{Claim, Claimed};
use tower_distributed::rw_lock::{RwLockReadGuard, RwLockWriteGuard};
use tower_distributed::single_flight::{Postcard, RunError};
use tower_distributed::{
    BloomFilter, Dedupe, Error, Lease, Mutex, MutexGuard, Permit, Quota, Quotas, RwLock, SingleFlight, Store,
    StoreFailure, TokenBucket, WaitGroup,
};

use super::history::{Event, Journal, Primitive, now};
use super::site;
use support::processes::{setting, tell};
use support::role;

pub(crate) const ROLE: &str = "table::worker::role_worker";
pub(crate) const TTL: Duration = Duration::from_secs(1);
/// For a lease.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(1);
/// Tokens of a bucket, which are given out once: it refills within a day.
pub(crate) const BURST: u32 = 30;
pub(crate) const PERMITS: u32 = 2;
/// The key of a bucket and of a flight that are used all the time, also while a fault strikes.
pub(crate) const LASTING: &str = "lasting";
/// The bucket of that key never owes more than the time of one token.
const EVERY: Duration = Duration::from_millis(50);
/// An answer is fresh for so long, and is at most this much older when it arrives: a process may ask as of its last call.
const FRESH: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_secs(1);
/// More than there are readers.
pub(crate) const ALONE: u32 = 1000;
/// Tasks per primitive.
const TASKS: u32 = 3;
/// The time after which other keys are used, so that the history of a key stays short, ns.
const EPOCH: u64 = 4_000_000_000;
/// The time for which an item arrives again and again, ns.
const ITEM: u64 = 4_000_000;
/// Each run of a flight is written down as a task of its own.
static RUNS: AtomicU32 = AtomicU32::new(1000);

role!(role_worker, async {
    let store = site::store_of_role();
    let journal = Journal::create(&setting("HISTORY"));
    let stop = PathBuf::from(setting("STOP"));
    let all = Primitives::of(&store);
    let mut tasks = Vec::new();
    for (index, primitive) in (0..).zip(Primitive::ALL) {
        for number in 0..TASKS {
            let task = index * TASKS + number;
            let scribe = Scribe { journal: journal.clone(), task, primitive };
            let (all, stop) = (all.clone(), stop.clone());
            tasks.push(tokio::spawn(async move {
                let mut step = 0;
                while !stop.exists() {
                    step += 1;
                    all.step(&scribe, step).await;
                    tokio::time::sleep(Duration::from_micros(rand::random_range(1000..4000))).await;
                }
            }));
        }
    }
    tell("ready");
    for task in tasks {
        task.await.unwrap();
    }
    drop(all);
    // What it could not release expires.
    let _ = store.shutdown(Duration::from_secs(5)).await;
    tell("done");
});

/// The names of the primitives in Redis.
pub(crate) fn namespace(primitive: Primitive) -> &'static str {
    match primitive {
        Primitive::TokenBucket => "bucket",
        Primitive::WaitGroup => "permits",
        Primitive::Mutex => "mutex",
        Primitive::RwLock => "rw",
        Primitive::SingleFlight => "flights",
        Primitive::Dedupe => "items",
        Primitive::BloomFilter => "filter",
    }
}

/// One of each.
#[derive(Clone)]
pub(crate) struct Primitives {
    bucket: TokenBucket,
    lasting: TokenBucket,
    pub(crate) permits: WaitGroup,
    pub(crate) mutex: Mutex,
    pub(crate) rw_lock: RwLock,
    flights: SingleFlight<u64, Infallible>,
    dedupe: Dedupe,
    filter: BloomFilter,
}

impl Primitives {
    pub(crate) fn of(store: &Store) -> Self {
        let quota = Quota::per_day(1).burst(BURST);
        let remember = Duration::from_secs(3600);
        let name = namespace;
        let filter =
            BloomFilter::builder().capacity(100_000).false_positive_rate(1e-9).remember_for(remember);
        let bucket = TokenBucket::new(store, name(Primitive::TokenBucket), quota).unwrap();
        let lasting = Quotas::new([Quota::new(1, EVERY).burst(5)]).unwrap();
        Self {
            lasting: bucket.with_quotas(&lasting),
            bucket,
            permits: WaitGroup::builder(PERMITS)
                .ttl(TTL)
                .max_wait(MAX_WAIT)
                .build(store, name(Primitive::WaitGroup))
                .unwrap(),
            mutex: Mutex::builder().ttl(TTL).max_wait(MAX_WAIT).build(store, name(Primitive::Mutex)).unwrap(),
            rw_lock: RwLock::builder()
                .ttl(TTL)
                .max_wait(MAX_WAIT)
                .build(store, name(Primitive::RwLock))
                .unwrap(),
            flights: SingleFlight::builder(Postcard)
                .ttl(FRESH)
                .lease_ttl(TTL)
                .max_wait(MAX_WAIT)
                .on_store_failure(StoreFailure::FailClosed)
                .build(store, name(Primitive::SingleFlight))
                .unwrap(),
            dedupe: Dedupe::exact(store, name(Primitive::Dedupe))
                .remember_for(remember)
                .ttl(TTL)
                .build()
                .unwrap(),
            filter: filter.build(store, name(Primitive::BloomFilter)).unwrap(),
        }
    }

    /// Uses the primitive of a task once.
    async fn step(&self, scribe: &Scribe, step: u64) {
        let epoch = now() / EPOCH;
        let own = format!("{epoch}.{}", step % 2);
        let alone = scribe.task.is_multiple_of(TASKS);
        match scribe.primitive {
            Primitive::TokenBucket if step % 4 == 3 => {
                scribe.write(LASTING, Event::Ask);
                let answer = self.lasting.allow(LASTING).await.map(|decision| match decision.retry_after() {
                    None => Event::Admitted(None),
                    Some(after) if after <= EVERY => Event::Refused,
                    Some(after) => Event::Overdue(format!("refused for {after:?}")),
                });
                scribe.write(LASTING, answer.unwrap_or_else(|error| told(&error)));
            }
            Primitive::TokenBucket => {
                // Some 20 keys at the same time, each of which is soon used up.
                let key = format!("{}.{}", now() / 100_000_000, step % 2);
                scribe.write(&key, Event::Ask);
                let answer =
                    self.bucket.allow(key.as_str()).await.map(|decision| match decision.is_admitted() {
                        true => Event::Admitted(Some(decision.remaining())),
                        false => Event::Refused,
                    });
                scribe.write(&key, answer.unwrap_or_else(|error| told(&error)));
            }
            Primitive::BloomFilter => {
                let item = format!("{}", now() / ITEM);
                scribe.write(&item, Event::Ask);
                let answer = self.filter.insert(&item).await.map(|new| match new {
                    true => Event::Admitted(None),
                    false => Event::Refused,
                });
                scribe.write(&item, answer.unwrap_or_else(|error| told(&error)));
            }
            Primitive::WaitGroup => {
                scribe.write(&own, Event::Acquire(1));
                let permit = match step % 4 {
                    0 => self.permits.try_add(own.as_str()).await,
                    _ => self.permits.add(own.as_str()).await,
                };
                scribe.visit(&own, permit, step, Permit::done).await;
            }
            Primitive::Mutex => {
                scribe.write(&own, Event::Acquire(ALONE));
                let guard = match step % 4 {
                    0 => self.mutex.try_lock(own.as_str()).await,
                    _ => self.mutex.lock(own.as_str()).await,
                };
                scribe.visit(&own, guard, step, MutexGuard::unlock).await;
            }
            Primitive::RwLock if alone => {
                scribe.write(&own, Event::Acquire(ALONE));
                let guard = self.rw_lock.write(own.as_str()).await;
                scribe.visit(&own, guard, step, RwLockWriteGuard::release).await;
            }
            Primitive::RwLock => {
                scribe.write(&own, Event::Acquire(1));
                let guard = self.rw_lock.read(own.as_str()).await;
                scribe.visit(&own, guard, step, RwLockReadGuard::release).await;
            }
            Primitive::SingleFlight if step % 4 == 3 => self.fly(scribe, LASTING, step).await,
            Primitive::SingleFlight => self.fly(scribe, &own, step).await,
            Primitive::Dedupe => {
                let item = format!("{}", now() / ITEM);
                scribe.write(&item, Event::Acquire(ALONE));
                let claimed = match self.dedupe.try_claim(&item).await {
                    Ok(Claimed::Duplicate) => return scribe.write(&item, Event::Refused),
                    Ok(Claimed::New(claim)) => Ok(claim),
                    Err(error) => Err(error),
                };
                scribe.visit(&item, claimed, step, Claim::confirm).await;
            }
        }
    }

    /// Asks for an answer. A run is written down as a lease of another task.
    async fn fly(&self, scribe: &Scribe, key: &str, step: u64) {
        let run = Scribe { task: RUNS.fetch_add(1, Ordering::Relaxed), ..scribe.clone() };
        let asked = now();
        scribe.write(key, Event::Ask);
        let of_run = key.to_owned();
        let answer = self.flights.try_run(key, move || async move {
            run.write(&of_run, Event::Acquire(ALONE));
            run.write(&of_run, Event::Granted(0));
            run.hold(&of_run, || true, step).await;
            run.write(&of_run, Event::Release);
            run.write(&of_run, Event::Released(true));
            Ok(now())
        });
        match answer.await {
            Ok(made) => {
                let age = Duration::from_nanos(asked.saturating_sub(made));
                scribe.write(
                    key,
                    match age > FRESH + LATE {
                        true => Event::Overdue(format!("an answer was {age:?} old")),
                        false => Event::Admitted(None),
                    },
                );
            }
            Err(RunError::Failed(never)) => match never {},
            Err(RunError::Flight(error)) => scribe.write(key, told(&error)),
        }
    }
}

/// How long a lease is held: mostly briefly, at times for longer than it takes to cut a connection, and a lock also for
/// longer than its ttl, so that it is renewed.
fn hold_ms(primitive: Primitive, step: u64) -> u64 {
    let is_lock = matches!(primitive, Primitive::WaitGroup | Primitive::Mutex | Primitive::RwLock);
    match step % 32 {
        5 => 300,
        21 if is_lock => 1500,
        _ => step % 3,
    }
}

/// What a task writes down.
#[derive(Clone)]
struct Scribe {
    journal: Journal,
    task: u32,
    primitive: Primitive,
}

impl Scribe {
    fn write(&self, key: &str, event: Event) {
        self.journal.write(now(), self.task, self.primitive, key, event);
    }
}

impl Scribe {
    /// Holds what was granted for a while, and gives it back.
    async fn visit<L: Deref<Target = Lease>, F: Future<Output = Result<bool, Error>>>(
        &self,
        key: &str,
        granted: Result<L, Error>,
        step: u64,
        release: impl FnOnce(L) -> F,
    ) {
        let lease = match granted {
            Ok(lease) => lease,
            Err(error) => return self.write(key, told(&error)),
        };
        self.write(key, Event::Granted(lease.handle().fence().unwrap_or(0)));
        self.hold(key, || lease.is_held(), step).await;
        self.write(key, Event::Release);
        let released = release(lease).await;
        self.write(key, released.map_or_else(|error| told(&error), Event::Released));
    }

    /// Holds a lease for a while. What is written down is a time before the lease was found to be held.
    async fn hold(&self, key: &str, is_held: impl Fn() -> bool, step: u64) {
        for _ in 0..=hold_ms(self.primitive, step) {
            let at = now();
            if !is_held() {
                return;
            }
            self.journal.write(at, self.task, self.primitive, key, Event::Held);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn told(error: &Error) -> Event {
    if error.is_unavailable() || error.is_overloaded() {
        Event::Failed(error.to_string())
    } else {
        assert!(error.is_refused() || error.is_lost(), "no fault explains: {error}");
        Event::Refused
    }
}
