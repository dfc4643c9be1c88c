//! What a filter promises, with a clock that the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::{BloomFilter, BloomFilterBuilder};
use crate::Store;
use crate::store::Clock;

const START: i64 = 1_760_000_000_000_000;

/// A filter in process, and its clock.
struct World {
    filter: BloomFilter,
    micros: Arc<AtomicI64>,
}

impl World {
    fn new(builder: BloomFilterBuilder) -> Self {
        let micros = Arc::new(AtomicI64::new(START));
        let store = Store::with_clock(Clock::Manual(micros.clone()));
        Self { filter: builder.build(&store, "test").unwrap(), micros }
    }

    fn advance(&self, seconds: i64) {
        self.micros.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    }
}

/// How often a filter takes items for inserted that were not, and that it misses none that was.
async fn false_positives(
    filter: &BloomFilter,
    inserted: std::ops::Range<u64>,
    absent: std::ops::Range<u64>,
) -> f64 {
    let item = |i: u64| i.to_le_bytes();
    assert!(filter.contains_all(inserted.map(item)).await.unwrap().into_iter().all(|answer| answer));
    let total = absent.end - absent.start;
    let answers = filter.contains_all(absent.map(item)).await.unwrap();
    answers.into_iter().filter(|&answer| answer).count() as f64 / total as f64
}

#[tokio::test]
async fn the_rate_is_kept_and_nothing_is_missed() {
    const ITEMS: u64 = 1_000_000;
    let world = World::new(BloomFilter::builder().capacity(ITEMS).rate(0.01));
    world.filter.insert_all((0..ITEMS).map(u64::to_le_bytes)).await.unwrap();
    let rate = false_positives(&world.filter, 0..ITEMS, ITEMS..2 * ITEMS).await;
    assert!(rate <= 1.1 * 0.01, "{rate}");
    let count = world.filter.estimated_count().await.unwrap();
    assert!((990_000..1_010_000).contains(&count), "{count}");
}

#[tokio::test]
async fn the_rate_is_kept_over_rotations() {
    const ITEMS: u64 = 1_000_000;
    let day = Duration::from_secs(86_400);
    let world = World::new(BloomFilter::builder().capacity(ITEMS).rate(0.01).forget_after(day));
    for turn in 0..4 {
        world.filter.insert_all((turn * ITEMS..(turn + 1) * ITEMS).map(u64::to_le_bytes)).await.unwrap();
        // What was inserted in this generation and in the one before is there, and what is older is not.
        let inserted = turn.saturating_sub(1) * ITEMS..(turn + 1) * ITEMS;
        let rate = false_positives(&world.filter, inserted, 10 * ITEMS..11 * ITEMS).await;
        assert!(rate <= 1.1 * 0.01, "{turn}: {rate}");
        if turn > 1 {
            let rate = false_positives(&world.filter, 0..0, (turn - 2) * ITEMS..(turn - 1) * ITEMS).await;
            assert!(rate <= 1.1 * 0.01, "{turn}: {rate}");
        }
        world.advance(86_400);
    }
}
