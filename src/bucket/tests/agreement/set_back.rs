//! The clock of the server is set back. A bucket then owes no more than it owed when it was last written.

use std::time::Duration;

use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::agreement::virtual_time::World;
use crate::bucket::tests::fixtures::{START, cancel_at_once};
use crate::clock;
use crate::store::Store;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limits::TokenBuckets;
use support::patient;
use support::redis_server::RedisServer;

const BACK: i64 = 7_200_000_000;

const SECOND: Duration = Duration::from_secs(1);

struct Passing {
    world: World,
    now: i64,
}

impl Passing {
    fn bucket(&self, name: &str, quotas: impl IntoIterator<Item = Quota>) -> TokenBucket {
        TokenBucket::new(&self.world.store, name, Quotas::new(quotas).unwrap()).unwrap()
    }

    fn pass(&mut self, micros: i64) {
        self.now += micros;
        self.world.set(self.now);
    }

    /// How long a request is refused, if it is.
    async fn refuses(&self, bucket: &TokenBucket) -> Option<Duration> {
        let peeked = bucket.peek("k").await.unwrap();
        let decision = bucket.allow("k").await.unwrap();
        assert_eq!(
            peeked.remaining() == 0 || !peeked.blocked_for().is_zero(),
            !decision.is_admitted()
        );
        decision.retry_after()
    }

    /// Refused for at most `most`, and admitted after it.
    async fn serves_within(&mut self, bucket: &TokenBucket, least: Duration, most: Duration) {
        let refused = self
            .refuses(bucket)
            .await
            .expect("nothing is owed any more");
        assert!(
            (least..=most).contains(&refused),
            "{}: refused for {refused:?}",
            bucket.name()
        );
        // While requests are refused, the time passes.
        self.pass(refused.as_micros() as i64 / 2);
        let left = self
            .refuses(bucket)
            .await
            .expect("half of the time has passed");
        assert!(
            left <= refused / 2 + SECOND / 1_000_000,
            "{}: refused for {left:?}",
            bucket.name()
        );
        self.pass(left.as_micros() as i64);
        assert_eq!(self.refuses(bucket).await, None, "{}", bucket.name());
    }
}

async fn owes_no_more_than_before(world: World) {
    let mut world = Passing { world, now: START };
    let tenth = SECOND / 10;
    let per_second = || Quota::per_second(10).burst(5);

    let bucket = world.bucket("two-quotas", [per_second(), Quota::per_second(5).burst(7)]);
    while world.refuses(&bucket).await.is_none() {}
    world.pass(-BACK);
    world.serves_within(&bucket, tenth, 2 * tenth).await;

    let bucket = world.bucket("other-quotas", [per_second()]);
    let others = Quotas::new([Quota::per_second(5).burst(3)]).unwrap();
    bucket.with_quotas(&others).allow_n("k", 3).await.unwrap();
    while world.refuses(&bucket).await.is_none() {}
    world.pass(-BACK);
    world.serves_within(&bucket, tenth, 2 * tenth).await;

    let bucket = world.bucket("never-refills", [per_second(), Quota::non_refilling(100)]);
    while world.refuses(&bucket).await.is_none() {}
    world.pass(-BACK);
    world.serves_within(&bucket, tenth, tenth).await;

    let bucket = world.bucket("cancelled", [per_second()]);
    bucket.allow_n("k", 5).await.unwrap();
    let mut earlier = bucket
        .with_max_wait(3 * SECOND)
        .reserve_n("k", 5)
        .await
        .unwrap();
    let _later = bucket.with_max_wait(3 * SECOND).reserve("k").await.unwrap();
    cancel_at_once(&mut earlier).await;
    world.pass(-BACK);
    world.serves_within(&bucket, tenth, SECOND).await;

    // Its times are from before, and a later one depends on it.
    let bucket = world
        .bucket("cancelled-after", [per_second()])
        .with_max_wait(3 * SECOND);
    bucket.allow_n("k", 5).await.unwrap();
    let mut earlier = bucket.reserve_n("k", 5).await.unwrap();
    world.pass(-300_000);
    let _later = bucket.reserve_n("k", 4).await.unwrap();
    cancel_at_once(&mut earlier).await;
    world.serves_within(&bucket, 9 * tenth, 10 * tenth).await;

    let each = ["one", "other"].map(|name| world.bucket(name, [per_second()]));
    let buckets = TokenBuckets::new(each.clone()).unwrap();
    each[1].charge("k", 15).await.unwrap();
    while buckets.allow(["k", "k"]).await.unwrap().is_admitted() {}
    world.pass(-BACK);
    let refused = buckets.allow(["k", "k"]).await.unwrap();
    assert_eq!(refused.retry_after(), Some(SECOND + tenth));
    world.pass(600_000);
    assert_eq!(
        buckets.allow(["k", "k"]).await.unwrap().retry_after(),
        Some(tenth * 5)
    );
    world.pass(500_000);
    assert!(buckets.allow(["k", "k"]).await.unwrap().is_admitted());
}

#[tokio::test]
async fn a_bucket_in_memory_owes_no_more_than_before() {
    owes_no_more_than_before(World::in_memory(START)).await;
}

#[tokio::test]
async fn a_bucket_in_redis_owes_no_more_than_before() {
    owes_no_more_than_before(World::on_redis(START).await).await;
}

/// If the server's clock stands still, it is set back more and more.
async fn delay_after_a_cancellation_20_ms_later(world: World) -> u64 {
    let bucket = TokenBucket::new(&world.store, "late", Quota::per_minute(60).burst(5)).unwrap();
    let bucket = bucket.with_max_wait(60 * SECOND);
    let _now = bucket.reserve_n("k", 5).await.unwrap();
    let mut later = bucket.reserve_n("k", 5).await.unwrap();
    let reserved = clock::micros();
    while clock::micros() < reserved + 20_000 {
        tokio::task::yield_now().await;
    }
    later.cancel().await.unwrap();
    let decision = bucket.reserve_n("k", 5).await.unwrap().decision().clone();
    decision.delay().as_secs()
}

#[tokio::test]
async fn a_process_knows_how_old_its_reservation_is() {
    let delay = delay_after_a_cancellation_20_ms_later;
    assert_eq!(
        delay(World::in_memory(START)).await,
        5,
        "in memory no clock is set back"
    );
    assert_eq!(delay(World::on_redis(START).await).await, 10);
}

/// As in the test of a user who pauses the clock of tokio.
#[tokio::test]
async fn the_clock_of_tokio_makes_no_reservation_older() {
    let server = RedisServer::start().await;
    let bucket = TokenBucket::new(&patient!(server.url()), "ahead", Quota::per_hour(5)).unwrap();
    let bucket = bucket.with_max_wait(7200 * SECOND);
    let _now = bucket.reserve_n("k", 5).await.unwrap();
    let mut later = bucket.reserve_n("k", 5).await.unwrap();
    let owed = bucket.peek("k").await.unwrap().available_after(1);
    tokio::time::pause();
    tokio::time::advance(60 * SECOND).await;
    tokio::time::resume();
    later.cancel().await.unwrap();
    assert!(bucket.peek("k").await.unwrap().available_after(1) < owed.map(|owed| owed / 2));
}
