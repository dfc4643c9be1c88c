//! The numbers of Lua are exact up to 2^53. Larger products must not be rounded.

use std::ops::Range;
use std::time::Duration;

use futures::future::join_all;

use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::agreement::virtual_time::World;
use crate::bucket::tests::agreement::{Both, Run};
use crate::bucket::tests::fixtures::{START, ask_for};
use crate::store::Store;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limits::TokenBuckets;
use support::redis_server::RedisServer;

/// A token is back after 9 006 333 333 µs and one part of 1 000 003 of a µs. In parts, that time and the burst are
/// 2^53 + 259 007 together, which is rounded up to a whole token.
async fn a_wait_that_is_one_part_too_short_is_refused(store: &Store, keys: Range<u32>) {
    let bucket =
        TokenBucket::new(store, "exact", Quota::per_second(1_000_003).burst(838_903)).unwrap();
    let reserve = async |key: u32, wait| {
        bucket
            .with_max_wait(Duration::from_micros(wait))
            .reserve(key)
            .await
            .map(|reserved| reserved.delay())
    };
    join_all(keys.map(async |key| {
        for tokens in [3_000_000_000, 3_000_000_000, 3_000_000_000, 7_199_254] {
            bucket.charge(key, tokens).await.unwrap();
        }
        assert!(reserve(key, 9_006_333_333).await.unwrap_err().is_refused());
        assert_eq!(
            reserve(key, 9_006_333_334).await.unwrap(),
            Duration::from_micros(9_006_333_334)
        );
    }))
    .await;
}

/// In parts of a µs, 16 411 each, the time of the burst is 1151 × 2^53, which would be rounded to multiples of 1024 and
/// more. K tokens are back after WAIT µs and one part.
async fn tokens_that_are_one_part_away_are_refused(mut world: World) {
    const BURST: u32 = 40_000_000;
    const K: u32 = 10_753;
    const WAIT: i64 = 169_835_939_309;
    let quota = Quota::new(16_411, Duration::from_secs(3 * 86_400)).burst(BURST);
    let bucket = |name| TokenBucket::new(&world.store, name, quota.clone()).unwrap();
    let buckets = TokenBuckets::new(["a", "b"].map(bucket)).unwrap();
    let mut at = async |now, n| {
        world.set(now);
        buckets.allow_n(["a", "b"], n).await.unwrap().is_admitted()
    };
    assert!(at(START, 1).await);
    assert!(at(START + 1, BURST - 1).await);
    assert!(!at(START + WAIT, K).await);
    assert!(at(START + WAIT + 1, K).await);
}

/// A state has a level for each quota, also if two quotas are equal.
async fn equal_quotas_are_charged_once_each(store: &Store) {
    let quota = |name| Quota::per_second(1).burst(10).named(name);
    let one = TokenBucket::new(store, "equal", quota("a")).unwrap();
    assert!(one.allow("k").await.unwrap().is_admitted());
    let three = TokenBucket::new(store, "equal", [quota("a"), quota("b"), quota("c")]).unwrap();
    let decision = three.allow_n("k", 3).await.unwrap();
    let left = decision.state.balances().map(|balance| balance.remaining);
    assert!(decision.is_admitted() && left.eq([6, 6, 6]));
    assert_eq!(three.peek("k").await.unwrap().remaining(), 6);
}

#[tokio::test]
async fn large_products_are_exact_in_memory() {
    let world = World::in_memory(START);
    equal_quotas_are_charged_once_each(&world.store).await;
    a_wait_that_is_one_part_too_short_is_refused(&world.store, 0..4).await;
    tokens_that_are_one_part_away_are_refused(world).await;
}

#[tokio::test]
async fn large_products_are_exact_on_redis() {
    let world = World::on_redis(START).await;
    let store = &world.store;
    equal_quotas_are_charged_once_each(store).await;
    a_wait_that_is_one_part_too_short_is_refused(store, 0..1).await;
    let alone = store.stats();
    assert_eq!(alone.batches, alone.operations);
    a_wait_that_is_one_part_too_short_is_refused(store, 1..5).await;
    let stats = store.stats();
    assert!(
        stats.batches - alone.batches < stats.operations - alone.operations,
        "{stats:?}"
    );
    tokens_that_are_one_part_away_are_refused(world).await;
}

/// Of three runs of one call, the third one would make a state that is too large for one number, and is refused.
#[tokio::test]
async fn what_a_call_has_charged_stays_charged_when_its_state_becomes_large() {
    let server = RedisServer::start().await;
    let mut both = Both::new(&server);
    let quotas =
        Quotas::try_from(Quota::new(999_983, Duration::from_secs(3600)).burst(100_000)).unwrap();
    let mut told = Vec::new();
    for runs in [&[(100_000, 25)][..], &[(1, 1), (100_000, 1)], &[(1, 1)]] {
        let run = |&(cost, count)| {
            let reserve = ask_for(&quotas, cost, 8_740_000_000);
            Run {
                count,
                ..Run::new([0], reserve)
            }
        };
        let charged = both.call(&runs.iter().map(run).collect::<Vec<_>>());
        told.extend(charged.iter().flatten().map(|charged| charged.admitted));
    }
    assert_eq!(told, [[true; 26].as_slice(), &[false, true]].concat());
}
