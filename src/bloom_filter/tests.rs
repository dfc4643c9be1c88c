//! Tests the guarantees of a filter with a clock that the test sets.

mod agreement;

use std::time::Duration;

use super::BloomFilter;
use crate::bloom_filter::builder::BloomFilterBuilder;
use crate::store::Store;
use crate::store::memory::manual_clock::ManualClock;

const START: i64 = 1_760_000_000_000_000;
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A filter in memory, and its clock.
struct World {
    filter: BloomFilter,
    clock: ManualClock,
}

impl World {
    fn new(builder: BloomFilterBuilder) -> Self {
        let clock = ManualClock::at(START);
        Self {
            filter: builder.build(&clock.store(), "test").unwrap(),
            clock,
        }
    }

    fn advance(&self, seconds: i64) {
        self.clock.set(self.clock.now() + seconds * 1_000_000);
    }
}

/// Returns how many of the items are found, as a part of all.
async fn found(filter: &BloomFilter, items: std::ops::Range<u64>) -> f64 {
    let answers = filter
        .contains_all(items.map(u64::to_le_bytes))
        .await
        .unwrap();
    answers.iter().filter(|&&answer| answer).count() as f64 / answers.len() as f64
}

/// 10⁶ items are inserted and 10⁶ items are absent in total.
#[tokio::test]
async fn the_rate_is_kept_over_rotations() {
    const ITEMS: u64 = 250_000;
    let world = World::new(
        BloomFilter::builder()
            .capacity(ITEMS)
            .false_positive_rate(0.01)
            .remember_for(DAY),
    );
    for turn in 0..4 {
        world
            .filter
            .insert_all((turn * ITEMS..(turn + 1) * ITEMS).map(u64::to_le_bytes))
            .await
            .unwrap();
        // Items of this generation and of the one before are contained, and older items are not.
        let inserted = turn.saturating_sub(1) * ITEMS..(turn + 1) * ITEMS;
        assert_eq!(found(&world.filter, inserted).await, 1.0, "{turn}");
        let rate = found(&world.filter, (10 + turn) * ITEMS..(11 + turn) * ITEMS).await;
        assert!(rate <= 1.1 * 0.01, "{turn}: {rate}");
        if turn == 0 {
            let count = world.filter.estimated_count().await.unwrap();
            assert!((247_500..252_500).contains(&count), "{count}");
        }
        if turn > 1 {
            let rate = found(&world.filter, (turn - 2) * ITEMS..(turn - 1) * ITEMS).await;
            assert!(rate <= 1.1 * 0.01, "{turn}: {rate}");
        }
        world.advance(86_400);
    }
}

/// Returns the text of the error of `build`.
fn refused(builder: BloomFilterBuilder) -> String {
    let error = builder.build(&Store::in_memory(), "test").unwrap_err();
    assert!(error.is_invalid(), "{error}");
    error.to_string()
}

#[test]
fn settings_out_of_range_are_named() {
    let filter = BloomFilter::builder;
    for rate in [
        0.0,
        1.0,
        -0.5,
        1.5,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ] {
        let text = refused(filter().capacity(10).false_positive_rate(rate));
        assert!(
            text.contains("above 0 and below 1") && text.contains(&rate.to_string()),
            "{text}"
        );
    }
    let rated = |capacity, rate| filter().capacity(capacity).false_positive_rate(rate);
    let sized = |bits, hashes| filter().bits(bits).hashes(hashes);
    // The parts that the error contains, separated by bars.
    for (builder, named) in [
        (rated(0, 0.1), "capacity|at least 1|is 0"),
        (
            rated(u64::MAX, 0.1),
            "18446744073709551615|64 keys|34359738368",
        ),
        (rated(4_000_000_000, 0.01), "4000000000|0.01|34359738368"),
        (
            rated(1, f64::from_bits(1)).remember_for(DAY),
            "rate|64 keys|34359738368",
        ),
        (sized((64 << 29) + 1, 1), "34359738369|64 keys|34359738368"),
        (sized(0, 1), "bit|at least 1|0"),
        (sized(10, 0), "hashes|1 to 64|is 0"),
        (sized(10, 65), "hashes|1 to 64|is 65"),
        (
            sized(1 << 30, 3).keys(1),
            "1073741824 bits|keys must be 2 to 64|is 1",
        ),
        (sized(3, 3).keys(4), "3 bits|keys must be 1 to 3|is 4"),
        (rated(100, 0.1).keys(65), "bits|keys must be 1 to 64|is 65"),
        (
            filter().capacity(100),
            "both capacity and false_positive_rate|Some(100)|rate None",
        ),
        (
            filter().false_positive_rate(0.1),
            "both capacity and false_positive_rate|Some(0.1)|capacity None",
        ),
        (
            filter().bits(100),
            "both bits and hashes|Some(100)|hashes None",
        ),
        (filter().hashes(3), "both bits and hashes|Some(3)|bits None"),
        (filter(), "both capacity and false_positive_rate|None|None"),
        (rated(1, 0.1).bits(9).hashes(1), "capacity|bits|Some(9)"),
        (rated(1, 0.1).hashes(1), "capacity|hashes|Some(1)"),
    ] {
        let text = refused(builder);
        assert!(
            named.split('|').all(|part| text.contains(part)),
            "{text}: {named}"
        );
    }
    let usual = filter().capacity(100).false_positive_rate(0.1);
    for span in [
        Duration::ZERO,
        DAY / 86_401,
        3651 * DAY,
        Duration::from_micros(1_000_500),
        Duration::MAX,
    ] {
        let text = refused(usual.remember_for(span));
        assert!(
            text.contains("1 s to 10 years") && text.contains(&format!("{span:?}")),
            "{text}"
        );
    }
    assert!(
        usual
            .build(&Store::in_memory(), "a name")
            .unwrap_err()
            .to_string()
            .contains("\"a name\"")
    );
}

#[test]
fn settings_at_the_ends_of_their_ranges_are_taken() {
    let build =
        |builder: BloomFilterBuilder| builder.build(&Store::in_memory(), "test").unwrap().size();
    let largest = build(BloomFilter::builder().bits(64 << 29).hashes(64));
    assert_eq!(
        (largest.bits, largest.keys, largest.hashes),
        (64 << 29, 64, 64)
    );
    let smallest = build(
        BloomFilter::builder()
            .bits(1)
            .hashes(1)
            .remember_for(DAY / 86_400),
    );
    assert_eq!(
        (smallest.bits, smallest.keys, smallest.capacity),
        (1, 1, None)
    );
    let filter = build(
        BloomFilter::builder()
            .capacity(3_000_000_000)
            .false_positive_rate(0.01)
            .remember_for(3650 * DAY / 10),
    );
    assert!((62..=64).contains(&filter.keys) && filter.bits <= 64 << 29);
    assert_eq!(
        (filter.capacity, filter.false_positive_rate),
        (Some(3_000_000_000), Some(0.01))
    );
    assert_eq!(filter.remember_for, Some(365 * DAY));
    assert_eq!(
        build(BloomFilter::builder().capacity(9).false_positive_rate(0.5)).remember_for,
        None
    );
}

#[tokio::test]
async fn an_item_is_remembered_for_one_to_two_spans() {
    let world = World::new(
        BloomFilter::builder()
            .capacity(100)
            .false_positive_rate(1e-9)
            .remember_for(60 * SECOND),
    );
    for phase in 0..60 {
        let item = [phase as u8];
        world.advance(240 - START / 1_000_000 % 60 + phase);
        assert!(world.filter.insert(item).await.unwrap());
        let mut seconds = 0;
        while world.filter.contains(item).await.unwrap() {
            world.advance(1);
            seconds += 1;
        }
        assert!((60..=120).contains(&seconds), "{phase}: {seconds}");
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_forgets_nothing_early() {
    let world = World::new(
        BloomFilter::builder()
            .capacity(100)
            .false_positive_rate(1e-9)
            .remember_for(60 * SECOND),
    );
    world.filter.insert("a").await.unwrap();
    for _ in 0..10 {
        world.advance(-90);
        assert!(world.filter.contains("a").await.unwrap());
        assert!(!world.filter.insert("a").await.unwrap());
    }
    world.advance(10 * 90 + 120);
    assert!(!world.filter.contains("a").await.unwrap());
}

#[tokio::test]
async fn batches_can_be_spawned() {
    let world = World::new(
        BloomFilter::builder()
            .capacity(100)
            .false_positive_rate(1e-9)
            .keys(3),
    );
    let filter = world.filter.clone();
    let batch = async move {
        filter.insert_all(vec!["a", "b"]).await?;
        filter
            .contains_all(["a".to_owned(), "c".to_owned()].iter())
            .await
    };
    assert_eq!(tokio::spawn(batch).await.unwrap().unwrap(), [true, false]);
}
