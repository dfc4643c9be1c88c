#[cfg(feature = "http")]
mod refusals;

use std::time::Duration;

use crate::bucket::Bucket;
use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{START, adjust};
use crate::store::memory::manual_clock::ManualClock;
use crate::token_bucket::TokenBucket;

/// The state of a new bucket after a charge and a block.
fn state(quotas: impl IntoIterator<Item = Quota>, tokens: i64, block: i64) -> BucketState {
    let quotas = Quotas::new(quotas).unwrap();
    adjust(&mut Bucket::default(), &quotas, START, (tokens, block))
}

const fn ms(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

/// A client that spreads its remaining tokens over the window is never refused.
#[tokio::test]
async fn the_window_says_at_what_pace_tokens_come_back() {
    let store = ManualClock::at(START).store();
    let bucket = |name, quota| TokenBucket::new(&store, name, quota).unwrap();
    let told = |decision: &Decision| {
        let balance = decision.state.tightest();
        (
            balance.remaining,
            balance
                .effective_window
                .map(|window| window.as_secs_f64().round()),
        )
    };
    let hourly = bucket("hourly", Quota::per_hour(1000));
    assert_eq!(told(&hourly.allow("k").await.unwrap()), (999, Some(3596.0)));
    assert_eq!(
        told(&hourly.allow_n("k", 999).await.unwrap()),
        (0, Some(4.0)),
        "until the next"
    );
    let once = bucket("once", Quota::non_refilling(2));
    assert_eq!(told(&once.allow("k").await.unwrap()), (1, None));
    let blocked = bucket("blocked", Quota::per_second(1).burst(5));
    blocked
        .block_for("k", Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(told(&blocked.allow("k").await.unwrap()), (0, Some(60.0)));
}

#[test]
fn tokens_are_available_when_all_quotas_have_them() {
    let (fast, slow) = (
        Quota::per_second(10).burst(20),
        Quota::per_second(1).burst(6),
    );
    let credit = Quota::non_refilling(9);
    let cases: [(&[&Quota], _, _, &[_]); 6] = [
        (&[&fast], 0, 0, &[(0, ms(0)), (20, ms(0)), (21, None)]),
        (
            &[&fast],
            25,
            0,
            &[(0, ms(500)), (1, ms(600)), (20, ms(2500))],
        ),
        (&[&fast], 5, 2_000_000, &[(1, ms(2000)), (15, ms(2000))]),
        (&[&credit], 4, 0, &[(5, ms(0)), (6, None)]),
        (&[&credit, &fast], 4, 0, &[(5, ms(0)), (6, None)]),
        (&[&slow, &fast], 5, 0, &[(1, ms(0)), (2, ms(1000))]),
    ];
    for (quotas, tokens, block, costs) in cases {
        let state = state(quotas.iter().copied().cloned(), tokens, block);
        for (cost, after) in costs {
            assert_eq!(state.available_after(*cost), *after, "{quotas:?} {cost}");
        }
    }
}

/// In a decision of several limits, each quota has a cost of its own.
#[test]
fn tokens_are_available_for_each_when_all_have_theirs() {
    let (fast, slow) = (|| Quota::per_second(10), || Quota::per_second(1).burst(10));
    let credit = || Quota::non_refilling(10);
    let state = |block| state([fast(), slow(), credit()], 8, block);
    let cases = [
        ([2, 2, 2], ms(0)),
        ([3, 2, 2], ms(100)),
        ([2, 3, 2], ms(1000)),
        ([10, 3, 2], ms(1000)),
        ([10, 2, 0], ms(800)),
        ([2, 11, 2], None),
        ([2, 2, 3], None),
    ];
    for (costs, expected) in cases {
        assert_eq!(state(0).available_after_each(&costs), expected, "{costs:?}");
        let blocked = state(900_000).available_after_each(&costs);
        assert_eq!(
            blocked,
            expected.map(|after| after.max(Duration::from_millis(900))),
            "{costs:?}"
        );
    }
}

#[test]
fn the_tightest_quota_is_that_with_the_fewest_tokens_and_then_the_slowest() {
    let quotas = |burst| {
        [
            Quota::per_second(10).named("s"),
            Quota::per_minute(burst).named("m"),
        ]
    };
    for (burst, tokens, tightest) in [(11, 5, "s"), (9, 5, "m"), (10, 5, "m"), (9, 15, "m")] {
        assert_eq!(
            state(quotas(burst), tokens, 0).tightest().name,
            tightest,
            "{burst} {tokens}"
        );
    }
    let slowest = Quota::non_refilling(10).named("n");
    let state = state([Quota::per_second(10), slowest], 5, 0);
    assert_eq!(state.tightest().name, "n");
}
