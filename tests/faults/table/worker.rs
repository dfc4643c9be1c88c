//! A process that uses every primitive until it is told to stop, and writes down what it does.

use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use tower_distributed::rw_lock::{RwLockReadGuard, RwLockWriteGuard};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{
    BloomFilter, Dedupe, Error, Lease, Mutex, MutexGuard, Permit, Quota, Quotas, RwLock,
    SingleFlight, Store, StoreFailure, TokenBucket, WaitGroup,
};

use super::history::{Event, Journal, Primitive, now};
use super::{calls, site};
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
pub(crate) const EVERY: Duration = Duration::from_millis(50);
pub(crate) const EVERY_BURST: u32 = 5;
/// An answer is fresh for so long, and is at most this much older when it arrives: a process may ask as of its last call.
const FRESH: Duration = Duration::from_millis(20);
/// And for so long after that, where stale answers are served.
const STALE: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(1);

/// How old an answer is at most when it is asked for.
pub(crate) fn oldest(primitive: Primitive) -> Duration {
    if primitive == Primitive::StaleFlight {
        FRESH + STALE + LATE
    } else {
        FRESH + LATE
    }
}

/// More than there are readers.
pub(crate) const ALONE: u32 = 1000;
/// Tasks per primitive.
const TASKS: u32 = 3;
/// The time after which other keys are used, so that the history of a key stays short, ns.
const EPOCH: u64 = 4_000_000_000;
/// The time for which an item arrives again and again, ns.
pub(crate) const ITEM: u64 = 4_000_000;
/// The same for the keys of flights, whose histories are long.
const FLIGHTS: u64 = 1_000_000_000;

role!(role_worker, async {
    let store = site::store_of_role();
    let journal = Journal::create(&setting("HISTORY"));
    let stop = PathBuf::from(setting("STOP"));
    let all = Primitives::of(&store);
    let mut tasks = Vec::new();
    for (index, primitive) in (0..).zip(Primitive::ALL) {
        for number in 0..TASKS {
            let task = index * TASKS + number;
            let scribe = Scribe {
                journal: journal.clone(),
                task,
                primitive,
            };
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

/// One of each.
#[derive(Clone)]
pub(crate) struct Primitives {
    bucket: TokenBucket,
    lasting: TokenBucket,
    pub(crate) permits: WaitGroup,
    pub(crate) mutex: Mutex,
    pub(crate) rw_lock: RwLock,
    flights: SingleFlight<u64>,
    stale_flights: SingleFlight<u64>,
    dedupe: Dedupe,
    filter_dedupe: Dedupe,
    filter: BloomFilter,
    budget: TokenBucket,
}

impl Primitives {
    pub(crate) fn of(store: &Store) -> Self {
        let quota = Quota::per_day(1).burst(BURST);
        let remember = Duration::from_secs(3600);
        let name = |primitive: Primitive| format!("{primitive:?}");
        let filter = |primitive| {
            let builder = BloomFilter::builder()
                .capacity(100_000)
                .false_positive_rate(1e-9);
            builder
                .remember_for(remember)
                .build(store, &name(primitive))
                .unwrap()
        };
        let flights = || {
            let builder = SingleFlight::builder(Postcard)
                .ttl(FRESH)
                .lease_ttl(TTL)
                .max_wait(MAX_WAIT);
            builder.on_store_failure(StoreFailure::FailClosed)
        };
        let budget = TokenBucket::new(store, &name(Primitive::Budget), quota.clone()).unwrap();
        let bucket = TokenBucket::new(store, &name(Primitive::TokenBucket), quota).unwrap();
        let lasting = Quotas::new([Quota::new(1, EVERY).burst(EVERY_BURST)]).unwrap();
        Self {
            lasting: bucket.with_quotas(&lasting),
            bucket,
            permits: WaitGroup::builder(PERMITS)
                .ttl(TTL)
                .max_wait(MAX_WAIT)
                .build(store, &name(Primitive::WaitGroup))
                .unwrap(),
            mutex: Mutex::builder()
                .ttl(TTL)
                .max_wait(MAX_WAIT)
                .build(store, &name(Primitive::Mutex))
                .unwrap(),
            rw_lock: RwLock::builder()
                .ttl(TTL)
                .max_wait(MAX_WAIT)
                .build(store, &name(Primitive::RwLock))
                .unwrap(),
            flights: flights()
                .build(store, &name(Primitive::SingleFlight))
                .unwrap(),
            stale_flights: flights()
                .stale_while_revalidate(STALE)
                .cancel_when_lost(true)
                .build(store, &name(Primitive::StaleFlight))
                .unwrap(),
            dedupe: Dedupe::exact(store, &name(Primitive::Dedupe))
                .remember_for(remember)
                .ttl(TTL)
                .build()
                .unwrap(),
            filter_dedupe: Dedupe::builder()
                .ttl(TTL)
                .build(&filter(Primitive::FilterDedupe))
                .unwrap(),
            filter: filter(Primitive::BloomFilter),
            budget: budget.with_hold_ttl(TTL).unwrap(),
        }
    }

    /// Uses the primitive of a task once.
    async fn step(&self, scribe: &Scribe, step: u64) {
        let own = format!("{}.{}", now() / EPOCH, step % 2);
        // Some 20 keys at the same time, the tokens of each of which are soon used up.
        let brief = format!("{}.{}", now() / 100_000_000, step % 2);
        let alone = scribe.task.is_multiple_of(TASKS);
        match scribe.primitive {
            Primitive::TokenBucket if step % 4 == 3 => {
                scribe.write(LASTING, Event::Ask);
                let answer = self.lasting.allow(LASTING).await.map(|decision| {
                    match decision.retry_after() {
                        None => Event::Admitted(None),
                        Some(after) if after <= EVERY => Event::Refused,
                        Some(after) => Event::Overdue(format!("refused for {after:?}")),
                    }
                });
                scribe.write(LASTING, answer.unwrap_or_else(|error| told(&error)));
            }
            Primitive::TokenBucket => {
                scribe.write(&brief, Event::Ask);
                let answer =
                    self.bucket.allow(brief.as_str()).await.map(|decision| {
                        match decision.is_admitted() {
                            true => Event::Admitted(Some(decision.remaining())),
                            false => Event::Refused,
                        }
                    });
                scribe.write(&brief, answer.unwrap_or_else(|error| told(&error)));
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
                scribe
                    .visit(&own, permit, step, Event::Release, Permit::done)
                    .await;
            }
            Primitive::Mutex => {
                scribe.write(&own, Event::Acquire(ALONE));
                let guard = match step % 4 {
                    0 => self.mutex.try_lock(own.as_str()).await,
                    _ => self.mutex.lock(own.as_str()).await,
                };
                scribe
                    .visit(&own, guard, step, Event::Release, MutexGuard::unlock)
                    .await;
            }
            Primitive::RwLock if alone => {
                scribe.write(&own, Event::Acquire(ALONE));
                let guard = self.rw_lock.write(own.as_str()).await;
                scribe
                    .visit(&own, guard, step, Event::Release, RwLockWriteGuard::release)
                    .await;
            }
            Primitive::RwLock => {
                scribe.write(&own, Event::Acquire(1));
                let guard = self.rw_lock.read(own.as_str()).await;
                scribe
                    .visit(&own, guard, step, Event::Release, RwLockReadGuard::release)
                    .await;
            }
            Primitive::SingleFlight | Primitive::StaleFlight => {
                let flights = match scribe.primitive {
                    Primitive::SingleFlight => &self.flights,
                    _ => &self.stale_flights,
                };
                let own = format!("{}.{}", now() / FLIGHTS, step % 2);
                calls::fly(
                    scribe,
                    flights,
                    if step % 4 == 3 { LASTING } else { &own },
                    step,
                )
                .await;
            }
            Primitive::Dedupe => calls::claim(scribe, &self.dedupe, step).await,
            Primitive::FilterDedupe => calls::claim(scribe, &self.filter_dedupe, step).await,
            Primitive::Budget => calls::hold(scribe, &self.budget, &brief, step).await,
        }
    }
}

/// How long a lease is held: mostly briefly, at times for longer than it takes to cut a connection, and a lock also for
/// longer than its ttl, so that it is renewed.
pub(super) fn hold_ms(primitive: Primitive, step: u64) -> u64 {
    let is_lock = matches!(
        primitive,
        Primitive::WaitGroup | Primitive::Mutex | Primitive::RwLock | Primitive::Budget
    );
    match step % 32 {
        5 => 300,
        21 if is_lock => 1500,
        _ => step % 3,
    }
}

/// What a task writes down.
#[derive(Clone)]
pub(super) struct Scribe {
    pub(super) journal: Journal,
    pub(super) task: u32,
    pub(super) primitive: Primitive,
}

impl Scribe {
    pub(super) fn write(&self, key: &str, event: Event) {
        self.journal
            .write(now(), self.task, self.primitive, key, event);
    }

    /// Holds what was granted for a while, and ends it.
    pub(super) async fn visit<L: Deref<Target = Lease>, F: Future<Output = Result<bool, Error>>>(
        &self,
        key: &str,
        granted: Result<L, Error>,
        step: u64,
        asked: Event,
        end: impl FnOnce(L) -> F,
    ) {
        let end = async |lease| heard(end(lease).await, Event::Released);
        self.hold_then(key, granted, step, asked, end).await;
    }

    pub(super) async fn hold_then<L: Deref<Target = Lease>>(
        &self,
        key: &str,
        granted: Result<L, Error>,
        step: u64,
        asked: Event,
        end: impl AsyncFnOnce(L) -> Event,
    ) {
        let lease = match granted {
            Ok(lease) => lease,
            Err(error) => return self.write(key, told(&error)),
        };
        self.write(key, Event::Granted(lease.handle().fence().unwrap_or(0)));
        self.hold(key, || lease.is_held(), step).await;
        self.write(key, asked);
        self.write(key, end(lease).await);
    }

    /// Holds a lease for a while, on a busy machine too. What is written down is a time before the lease was found to be held.
    pub(super) async fn hold(&self, key: &str, is_held: impl Fn() -> bool, step: u64) {
        let until = now() + 1_000_000 * (1 + hold_ms(self.primitive, step));
        loop {
            let at = now();
            if at >= until || !is_held() {
                return;
            }
            self.journal
                .write(at, self.task, self.primitive, key, Event::Held);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

pub(super) fn heard<T>(answer: Result<T, Error>, event: impl FnOnce(T) -> Event) -> Event {
    answer.map_or_else(|error| told(&error), event)
}

pub(super) fn told(error: &Error) -> Event {
    if error.is_unavailable() || error.is_overloaded() {
        Event::Failed(error.to_string())
    } else {
        assert!(
            error.is_refused() || error.is_lost(),
            "no fault explains: {error}"
        );
        Event::Refused
    }
}
