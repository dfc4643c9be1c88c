//! Tests of slices: how long they count, as time passes and as the clock is set.

mod layout;

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{Bucket, Digest, Layout};
use crate::dedupe::claim::Claim;
use crate::dedupe::{Claimed, Dedupe};
use crate::lease::agreement::virtual_time::{CLOCK, EXPIRE};
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::memory::manual_clock::ManualClock;
use crate::store::operation::Cell as _;
use support::client::Client;
use support::redis_server::RedisServer;

const BEGIN: i64 = 1_760_000_000_000_000;
const MINUTE: i64 = 60_000_000;
const WINDOW: Duration = Duration::from_secs(120);

/// A Redis and a store in memory whose clocks the test sets.
struct World {
    server: RedisServer,
    clock: Client,
    manual: ManualClock,
    stores: [Store; 2],
}

impl World {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let manual = ManualClock::at(0);
        let builder = StoreBuilder::default().timeout(Duration::from_secs(30));
        let on_redis = builder.with_clock(&server.url(), CLOCK).unwrap();
        let clock = server.client().unwrap();
        let mut world = Self {
            server,
            clock,
            stores: [on_redis, manual.store()],
            manual,
        };
        world.set(BEGIN);
        world
    }

    fn set(&mut self, now: i64) {
        self.manual.set(now);
        self.clock
            .query::<()>(redis::cmd("SET").arg("clock").arg(now))
            .unwrap();
    }

    /// They have one bucket, so that its slices begin with the minutes of the clock's epoch.
    fn dedupes(&self) -> [Dedupe; 2] {
        let open = |store| {
            Dedupe::exact(store, "slices")
                .capacity(1)
                .remember_for(WINDOW)
                .watchdog(false)
        };
        self.stores
            .each_ref()
            .map(|store| open(store).ttl(Duration::from_secs(3600)).build().unwrap())
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.server.query(&["KEYS", "td:*exact:?"]).unwrap();
        keys.sort();
        keys
    }
}

async fn claim(dedupe: &Dedupe, item: &str) -> Option<Claim> {
    match dedupe.try_claim(item).await.unwrap() {
        Claimed::New(claim) => Some(claim),
        Claimed::Duplicate => None,
    }
}

async fn is_known(dedupe: &Dedupe, item: &str) -> bool {
    match claim(dedupe, item).await {
        Some(claim) => !claim.release().await.unwrap(),
        None => true,
    }
}

/// An item is remembered for the window, and for one slice more at most, wherever in a slice it is confirmed.
#[tokio::test]
async fn an_item_is_remembered_for_the_window_and_forgotten_a_slice_later() {
    let first = BEGIN.div_euclid(MINUTE) + 1;
    for (at, forgotten) in [
        (first * MINUTE, (first + 3) * MINUTE),
        (first * MINUTE + 1, (first + 3) * MINUTE),
        ((first + 1) * MINUTE - 1, (first + 3) * MINUTE),
        ((first + 1) * MINUTE, (first + 4) * MINUTE),
    ] {
        // The clock of an in-memory store never goes back.
        let mut world = World::new().await;
        world.set(at);
        let dedupes = world.dedupes();
        for dedupe in &dedupes {
            assert!(claim(dedupe, "a").await.unwrap().confirm().await.unwrap());
        }
        for (now, known) in [
            (at, true),
            (at + 2 * MINUTE, true),
            (forgotten - 1, true),
            (forgotten, false),
            (forgotten + MINUTE, false),
        ] {
            world.set(now);
            for dedupe in &dedupes {
                assert_eq!(is_known(dedupe, "a").await, known, "{at}, {now}");
            }
        }
    }
}

/// A claim that begins in one slice and is confirmed in a later slice is recorded in the later slice.
#[tokio::test]
async fn a_claim_is_confirmed_across_the_end_of_a_slice() {
    let mut world = World::new().await;
    let boundary = (BEGIN.div_euclid(MINUTE) + 1) * MINUTE;
    let dedupes = world.dedupes();
    world.set(boundary - 1);
    let [on_redis, in_memory] = [
        claim(&dedupes[0], "a").await.unwrap(),
        claim(&dedupes[1], "a").await.unwrap(),
    ];
    world.set(boundary);
    for dedupe in &dedupes {
        assert!(
            dedupe.try_claim("a").await.unwrap_err().is_refused(),
            "it is claimed"
        );
    }
    assert!(on_redis.confirm().await.unwrap() && in_memory.confirm().await.unwrap());
    let slot = boundary / MINUTE % 3;
    assert_eq!(world.keys(), [format!("td:{{slices:0}}:exact:{slot}")]);
    for (now, known) in [
        (boundary, true),
        (boundary + 3 * MINUTE - 1, true),
        (boundary + 3 * MINUTE, false),
    ] {
        world.set(now);
        for dedupe in &dedupes {
            assert_eq!(is_known(dedupe, "a").await, known, "{now}");
        }
    }
}

/// For all jumps of the clock, no two slices are in one hash, no item is forgotten early, and Lua and Rust agree.
#[tokio::test]
async fn slices_agree_where_the_clock_is_set() {
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::new().await;
    let dedupe = world.dedupes()[0].clone();
    let layout = Layout::new(1, WINDOW);
    let (mut bucket, mut now, mut known, mut reused) = (Bucket::default(), BEGIN, 0, 0);
    for step in 0..3_000 {
        let day = 1440 * MINUTE;
        let in_minutes = [0, 1, 2, 3, 5, -1, -4].map(|minutes| minutes * MINUTE);
        let others = [1, 999, MINUTE / 2, day, -day];
        let jumps = [&in_minutes[..], &others].concat();
        let by = jumps[rng.random_range(0..jumps.len())];
        // Sometimes exactly to the boundary of a slice.
        now = if rng.random_bool(0.2) {
            (now + by).div_euclid(MINUTE) * MINUTE
        } else {
            now + by
        };
        // Expired slices are deleted on both sides before the clock may be set back.
        world.set(now);
        bucket.expire(now);
        world
            .clock
            .query::<()>(redis::cmd("EVAL").arg(EXPIRE).arg(0))
            .unwrap();
        let item = format!("item {}", rng.random_range(0..12));
        let digest: Digest = layout.digest(item.as_bytes());
        let expected = bucket.contains(&layout, &digest, now);
        let claimed = claim(&dedupe, &item).await;
        assert_eq!(
            claimed.is_none(),
            expected,
            "SEED={seed} step {step} at {now}: {item}"
        );
        known += usize::from(expected);
        if let Some(claim) = claimed {
            let before = world.keys().len();
            assert!(claim.confirm().await.unwrap());
            bucket.insert(&layout, &digest, now);
            reused += usize::from(world.keys().len() == before);
        }
        assert!(world.keys().len() <= 3);
        for key in world.keys() {
            let ends: i64 = world.server.query(&["HGET", "ends", &key]).unwrap();
            assert!(ends > now, "{key} has expired, or has no time to live");
        }
        if bucket.is_idle(now) {
            assert!(!is_known(&dedupe, &item).await);
        }
    }
    assert!(
        known > 300 && reused > 300,
        "{known} {reused}: this shows little"
    );
}
