use futures::FutureExt as _;

use super::*;
use crate::bucket::quota::Quota;
use crate::key::Key;
use crate::store::Store;
use crate::store::memory::manual_clock::ManualClock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::token_bucket::TokenBucket;

const BURST: u32 = 200_000;
const HOLD: i64 = 200_000;

/// A bucket in memory, with a key whose tokens are prefetched.
struct World {
    bucket: TokenBucket,
    entry: Arc<Entry>,
    clock: ManualClock,
    table: Arc<Table>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::at(1_760_000_000_000_000);
        let bucket =
            TokenBucket::new(&clock.store(), "ahead", Quota::per_hour(1).burst(BURST)).unwrap();
        let (table, key) = (Arc::new(Table::default()), Key::from("k"));
        let entry = table.entry(table.hash(&key), &key, &bucket.quotas).unwrap();
        Self {
            bucket,
            entry,
            clock,
            table,
        }
    }

    fn task(&self) -> PrefetchTask {
        let (entry, table) = (Arc::clone(&self.entry), Arc::clone(&self.table));
        PrefetchTask {
            entry,
            table,
            clients: Arc::clone(&self.bucket.clients),
            hold: HOLD,
            batches: [None, None],
        }
    }

    /// How many tokens are missing in the store, half an hour later. Tokens that were given back count as used for the
    /// µs until then.
    async fn missing(&self) -> i64 {
        let now = self.clock.now();
        self.clock.set(now + 1_800_000_000);
        let missing = i64::from(BURST - self.bucket.peek("k").await.unwrap().remaining());
        self.clock.set(now);
        missing
    }
}

#[tokio::test]
async fn what_is_used_is_counted_and_the_rest_is_given_back() {
    let (world, now) = (World::new(), clock::micros());
    let (mut task, slots) = (world.task(), &world.entry.slots.0);
    world.entry.wants.store(true, Relaxed);
    assert_eq!(task.charge(0, 100, now).await, 100);
    assert_eq!(
        (
            world.entry.batch.load(Relaxed),
            slots.left(0),
            world.missing().await
        ),
        (100, 100, 100)
    );
    assert!(!world.entry.wants.load(Relaxed));
    let uses = |tokens| assert!(world.entry.take(now, tokens, 63).is_some());
    uses(30);
    assert_eq!((task.collect(now), task.collect(now)), (30, 0));
    assert_eq!(task.charge(1, 50, now + 1000).await, 50);
    uses(70);
    world.entry.known_until.store(i64::MAX, Relaxed);
    assert_eq!(task.collect(now), 70);
    assert!(
        task.batches[0].is_none() && task.batches[1].is_some(),
        "the first is used up"
    );
    uses(20);
    assert_eq!(
        (task.collect(now + 1000 + HOLD - 1), world.missing().await),
        (20, 150)
    );
    assert_eq!(
        world.entry.known_until.load(Relaxed),
        i64::MAX,
        "nothing was given back"
    );
    assert_eq!(
        (task.collect(now + 1000 + HOLD), world.missing().await),
        (0, 120)
    );
    assert!(task.batches[1].is_none() && slots.left(1) == 0);
    assert_eq!(
        world.entry.known_until.load(Relaxed),
        0,
        "the bucket has more than the last answer said"
    );
}

/// The time that has passed counts by both clocks.
#[tokio::test]
async fn what_came_back_meanwhile_is_not_given_back() {
    let (world, now) = (World::new(), clock::micros() - 2 * 3_600_000_000);
    let mut task = world.task();
    assert_eq!(task.charge(0, 100, now).await, 100);
    assert_eq!((task.collect(now + HOLD), world.missing().await), (0, 2));
}

#[tokio::test]
async fn if_a_batch_ends_unused_the_next_ends_as_well() {
    for (used, missing, ends) in [
        (0, 0, [true, true]),
        (99, 99, [true, true]),
        (100, 150, [true, false]),
    ] {
        let (world, now) = (World::new(), clock::micros());
        let mut task = world.task();
        assert_eq!(
            (
                task.charge(0, 100, now).await,
                task.charge(1, 50, now + 1000).await
            ),
            (100, 50)
        );
        if used > 0 {
            assert!(world.entry.take(now, used, 63).is_some());
        }
        assert_eq!(
            (task.collect(now + HOLD), world.missing().await),
            (used, missing)
        );
        assert_eq!(task.batches.each_ref().map(Option::is_none), ends, "{used}");
    }
}

#[tokio::test]
async fn what_comes_after_a_block_or_a_reset_is_given_back() {
    let forgets: [fn(&World); 2] = [
        |world| world.table.outdate(),
        |world| assert!(world.entry.ends_if(|_| true)),
    ];
    for forgets in forgets {
        let (world, now) = (World::new(), clock::micros());
        forgets(&world);
        let mut task = world.task();
        assert_eq!(
            (task.charge(0, 100, now).await, world.missing().await),
            (0, 0)
        );
        assert!(task.batches[0].is_none());
        world.entry.known_until.store(i64::MAX, Relaxed);
        world.entry.wants.store(true, Relaxed);
        assert_eq!(task.charge(0, LEAST - 1, now).await, 0);
        assert!(task.batches[0].is_none() && world.entry.wants.load(Relaxed));
        assert_eq!(
            world.entry.known_until.load(Relaxed),
            i64::MAX,
            "nothing was given back"
        );
    }
}

#[tokio::test]
async fn the_use_since_the_last_prefetch_counts() {
    const HALF_AN_HOUR: i64 = 1_800_000_000;
    let world = World::new();
    world.entry.missed.store(1000, Relaxed);
    world.entry.wants.store(true, Relaxed);
    let mut task = world.task();
    task.hold = HALF_AN_HOUR;
    let mut run = Box::pin(task.run(HALF_AN_HOUR));
    assert!(futures::poll!(&mut run).is_pending());
    let first = world.entry.batch.load(Relaxed);
    assert!((495..=500).contains(&first), "{first}");
    // Just now, so it would use many in half of the time.
    assert!(world.entry.take(clock::micros(), 480, 63).is_some());
    assert!(futures::poll!(&mut run).is_pending());
    assert_eq!(world.entry.batch.load(Relaxed), 2 * first);
}

#[test]
fn as_much_is_prefetched_as_is_used_in_half_of_the_time() {
    for (used, missed, passed, previous, expected) in [
        (0, 100, 10_000, 0, 50),
        (0, 100, 20_000, 0, 25),
        (60, 40, 10_000, 100, 50),
        // At most twice the previous number, plus the missed tokens.
        (1000, 10, 10_000, 50, 110),
        (1000, 0, 10_000, 50, 100),
        // Less is not worth it.
        (0, 16, 10_000, 0, 8),
        (0, 15, 10_000, 0, 0),
        (0, 16, 0, 0, 16),
        (0, 1 << 40, 10_000, 0, MOST),
    ] {
        assert_eq!(
            worth(10_000, passed, used, missed, previous),
            expected,
            "{used} {missed} {passed} {previous}"
        );
    }
}

#[test]
fn a_key_of_little_use_rests() {
    let world = World::new();
    world.entry.missed.store(1, Relaxed);
    world.entry.wants.store(true, Relaxed);
    world.entry.has_prefetch_task.store(true, Relaxed);
    let before = clock::micros();
    assert!(world.task().run(HOLD).now_or_never().is_some());
    let rests = world.entry.no_prefetch_until.load(Relaxed);
    assert!((before + HOLD..=clock::micros() + HOLD).contains(&rests));
    assert!(!world.entry.has_prefetch_task.load(Relaxed));
}

#[tokio::test]
async fn one_task_runs_unless_the_key_rests() {
    let nowhere = Store::redis("redis://127.0.0.1:1").unwrap();
    let clients = TokenBucket::new(&nowhere, "ahead", Quota::per_hour(1))
        .unwrap()
        .clients;
    let World { entry, table, .. } = World::new();
    let start = || {
        PrefetchTask::start(
            Arc::clone(&entry),
            Arc::clone(&table),
            &clients,
            HOLD,
            100,
            HOLD,
        )
    };
    entry.no_prefetch_until.store(i64::MAX, Relaxed);
    start();
    assert!(!entry.has_prefetch_task.load(Relaxed));
    entry.no_prefetch_until.store(0, Relaxed);
    entry.has_prefetch_task.store(true, Relaxed);
    start();
    assert!(!entry.wants.load(Relaxed) && entry.missed.load(Relaxed) == 0);
    entry.has_prefetch_task.store(false, Relaxed);
    start();
    support::eventually(
        "a task has found no store",
        Duration::from_secs(60),
        async || {
            entry.no_prefetch_until.load(Relaxed) > 0 && !entry.has_prefetch_task.load(Relaxed)
        },
    )
    .await;
}

/// From the first request until there are no more requests.
#[tokio::test]
async fn the_store_misses_what_was_used() {
    let world = World::new();
    let start = || {
        world.entry.missed.store(1000, Relaxed);
        world.entry.wants.store(true, Relaxed);
        world.entry.has_prefetch_task.store(true, Relaxed);
        tokio::spawn(world.task().run(HOLD))
    };
    let (mut task, mut used) = (start(), 0);
    while used < 5000 {
        match world.entry.take(clock::micros(), 1, 63) {
            Some(taken) => used += taken.count,
            None => world.entry.missed(1),
        }
        tokio::task::yield_now().await;
        // It ends if this machine pauses for longer than the tokens are held.
        if task.is_finished() {
            task = start();
        }
    }
    task.await.unwrap();
    assert_eq!(world.missing().await, used);
    assert!(!world.entry.has_prefetch_task.load(Relaxed));
}
