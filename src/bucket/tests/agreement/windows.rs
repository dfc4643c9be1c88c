//! Calendar quotas at the ends of their windows, in both stores.

use std::time::Duration;

use crate::bucket::adjust::Peek;
use crate::bucket::decision::Decision;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::agreement::virtual_time::World;
use crate::bucket::tests::fixtures::{START, cancel_at_once, left_of_each};
use crate::token_bucket::TokenBucket;

/// At this offset from UTC, midnight is 40 s after `START`, 2025-10-09 08:53:20, a Thursday.
const OFFSET: i16 = -(8 * 60 + 54);

const BORDER: i64 = START + 40_000_000;

const DAY: i64 = 86_400_000_000;

const SECOND: Duration = Duration::from_secs(1);

impl World {
    fn bucket(&mut self, name: &str, quotas: impl IntoIterator<Item = Quota>) -> TokenBucket {
        self.set(START);
        TokenBucket::new(&self.store, name, Quotas::new(quotas).unwrap()).unwrap()
    }

    async fn allow(&mut self, bucket: &TokenBucket, at: i64, n: u32) -> Decision {
        self.set(at);
        let peeked = bucket.peek("k").await.unwrap().remaining();
        let decision = bucket.allow_n("k", n).await.unwrap();
        assert_eq!(decision.is_admitted(), peeked >= n, "{decision:?}");
        decision
    }

    async fn allows(&mut self, bucket: &TokenBucket, at: i64, n: u32) -> bool {
        self.allow(bucket, at, n).await.is_admitted()
    }
}

fn daily(tokens: u32) -> Quota {
    Quota::per_calendar_day(tokens).at_offset(OFFSET)
}

fn micros(span: i64) -> Duration {
    Duration::from_micros(span.unsigned_abs())
}

async fn tokens_come_back_at_the_border(world: &mut World) {
    let bucket = world.bucket("border", [daily(3)]);
    let first = world.allow(&bucket, START, 2).await;
    let balance = first.state.tightest();
    assert_eq!(
        (balance.remaining, balance.limit, balance.window),
        (1, 3, Some(micros(DAY)))
    );
    assert_eq!(
        (balance.effective_window, balance.reset_after),
        (Some(40 * SECOND), Some(40 * SECOND))
    );
    assert!(world.allows(&bucket, START + 1, 1).await);
    let refused = world.allow(&bucket, BORDER - 1, 1).await;
    assert_eq!(
        (refused.retry_after(), refused.state.reset_after()),
        (Some(micros(1)), Some(micros(1)))
    );
    assert_eq!(refused.state.tightest().effective_window, Some(micros(1)));
    // As an operator sees it.
    let seen = async || {
        bucket
            .clients
            .peek
            .run("k".into(), Peek)
            .await
            .unwrap()
            .under_its_own()
    };
    let state = seen().await.unwrap();
    assert_eq!(state.quotas.to_string(), "3/calendar day-08:54");
    assert_eq!(
        (state.remaining(), state.reset_after()),
        (0, Some(micros(1)))
    );
    // The tokens of the last window are still known, but all are back.
    world.set(BORDER);
    assert!(seen().await.is_none());
    let full = world.allow(&bucket, BORDER, 3).await;
    assert_eq!(
        (full.is_admitted(), full.state.reset_after()),
        (true, Some(micros(DAY)))
    );
    assert_eq!(
        world
            .allow(&bucket, BORDER + DAY - 1, 1)
            .await
            .retry_after(),
        Some(micros(1))
    );

    let bucket = world.bucket("month", [Quota::per_calendar_month(5).starting(31)]);
    assert!(world.allows(&bucket, START, 5).await);
    // 2025-10-31, and 2025-11-30 for the 31st of November.
    let day = |days: i64| (START / DAY + days) * DAY;
    assert_eq!(
        world.allow(&bucket, START, 1).await.retry_after(),
        Some(micros(day(22) - START))
    );
    assert!(world.allows(&bucket, day(22), 5).await);
    assert!(!world.allows(&bucket, day(52) - 1, 1).await);
    assert!(world.allows(&bucket, day(52), 5).await);
}

async fn a_clock_that_was_years_ahead_does_not_refuse_for_years(world: &mut World) {
    let bucket = world.bucket("years", [daily(3)]);
    assert!(world.allows(&bucket, START + 7000 * DAY, 3).await);
    assert!(!world.allows(&bucket, START, 1).await);
    assert!(!world.allows(&bucket, BORDER + DAY - 1, 1).await);
    assert!(world.allows(&bucket, BORDER + DAY, 3).await);
}

async fn debts_are_paid_window_by_window(world: &mut World) {
    let bucket = world.bucket("debt", [daily(3)]);
    let state = bucket.charge("k", 7).await.unwrap();
    assert_eq!(
        (state.remaining(), state.available_after(3)),
        (0, Some(micros(BORDER + 2 * DAY - START)))
    );
    assert_eq!(state.available_after(2), Some(micros(BORDER + DAY - START)));
    assert!(!world.allows(&bucket, BORDER + DAY - 1, 1).await);
    assert!(!world.allows(&bucket, BORDER + DAY, 3).await);
    assert!(world.allows(&bucket, BORDER + DAY, 2).await);
    assert!(world.allows(&bucket, BORDER + 2 * DAY, 3).await);
    assert_eq!(bucket.give_back("k", 2).await.unwrap().remaining(), 2);

    // No debt is longer than 35 years.
    let bucket = world.bucket("long-debt", [Quota::per_calendar_year(1)]);
    for _ in 0..3 {
        bucket.charge("k", u32::MAX).await.unwrap();
    }
    let after = bucket.peek("k").await.unwrap().available_after(1).unwrap();
    assert!(
        (35..=37).contains(&(after.as_secs() / 31_556_952)),
        "{after:?}"
    );
}

async fn reservations_of_later_windows_are_a_choice(world: &mut World) {
    let bucket = world.bucket("not-ahead", [daily(3)]);
    assert!(bucket.reserve_n("k", 3).await.unwrap().delay().is_zero());
    assert!(bucket.reserve("k").await.unwrap_err().is_refused());

    let bucket = world.bucket("ahead", [daily(3).reserve_ahead(true)]);
    assert!(bucket.reserve_n("k", 2).await.unwrap().delay().is_zero());
    // Two do not fit the first window, so its third token stays unused.
    let mut second = bucket.reserve_n("k", 2).await.unwrap();
    assert_eq!(second.delay(), 40 * SECOND);
    let mut third = bucket.reserve_n("k", 2).await.unwrap();
    assert_eq!(third.delay(), 40 * SECOND + micros(DAY));
    assert!(
        bucket
            .with_max_wait(60 * SECOND)
            .reserve_n("k", 2)
            .await
            .unwrap_err()
            .is_refused()
    );
    // The third was reserved after the second, so only the third is given back.
    cancel_at_once(&mut second).await;
    cancel_at_once(&mut third).await;
    assert_eq!(
        bucket.reserve("k").await.unwrap().delay(),
        40 * SECOND + micros(DAY)
    );
    assert!(!world.allows(&bucket, BORDER, 1).await);
    assert!(!world.allows(&bucket, BORDER + DAY, 3).await);
    assert!(world.allows(&bucket, BORDER + DAY, 2).await);

    // A block that ends in the next window.
    for (name, ahead) in [("block", false), ("block-ahead", true)] {
        let bucket = world.bucket(name, [daily(3).reserve_ahead(ahead)]);
        bucket.block_for("k", 60 * SECOND).await.unwrap();
        let reserved = bucket.reserve_n("k", 2).await;
        assert_eq!(
            reserved.as_ref().ok().map(|it| it.delay()),
            ahead.then_some(60 * SECOND),
            "{name}"
        );
        assert_eq!(
            world.allows(&bucket, START + 61_000_000, 2).await,
            !ahead,
            "{name}"
        );
    }

    // Another quota delays requests into the next window.
    for (name, ahead) in [("slow", false), ("slow-ahead", true)] {
        let quotas = [Quota::per_minute(2).burst(1), daily(3).reserve_ahead(ahead)];
        let bucket = world.bucket(name, quotas);
        assert!(bucket.reserve("k").await.unwrap().delay().is_zero());
        assert_eq!(bucket.reserve("k").await.unwrap().delay(), 30 * SECOND);
        let third = bucket.reserve("k").await;
        assert_eq!(
            third.ok().map(|it| it.delay()),
            ahead.then_some(60 * SECOND),
            "{name}"
        );
        world.set(BORDER + 40_000_000);
        assert_eq!(
            left_of_each(&bucket).await[1],
            if ahead { 2 } else { 3 },
            "{name}"
        );
    }
}

async fn a_cancelled_reservation_returns_within_its_window(world: &mut World) {
    let quotas = [Quota::per_minute(2).burst(1), daily(9)];
    let bucket = world.bucket("cancel", quotas);
    let left = async || left_of_each(&bucket).await[1];
    let _now = bucket.reserve("k").await.unwrap();
    let mut later = bucket.reserve("k").await.unwrap();
    assert_eq!(left().await, 7);
    world.set(START + 1_000_000);
    cancel_at_once(&mut later).await;
    assert_eq!(left().await, 8);

    let bucket = world.bucket("cancel-late", [daily(9).reserve_ahead(true)]);
    let mut first = bucket.reserve_n("k", 4).await.unwrap();
    assert!(world.allows(&bucket, BORDER, 5).await);
    cancel_at_once(&mut first).await;
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 4);
}

async fn everything(mut world: World) {
    tokens_come_back_at_the_border(&mut world).await;
    a_clock_that_was_years_ahead_does_not_refuse_for_years(&mut world).await;
    debts_are_paid_window_by_window(&mut world).await;
    reservations_of_later_windows_are_a_choice(&mut world).await;
    a_cancelled_reservation_returns_within_its_window(&mut world).await;
}

#[tokio::test]
async fn calendar_quotas_in_memory() {
    everything(World::in_memory(START)).await;
}

#[tokio::test]
async fn calendar_quotas_in_redis() {
    everything(World::on_redis(START).await).await;
}
