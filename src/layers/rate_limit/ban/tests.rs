use super::*;
use crate::bucket::tests::fixtures::START;
use crate::store::memory::manual_clock::ManualClock;

/// A key without tokens, and the bans of its layer.
struct World {
    bans: Bans,
    bucket: TokenBucket,
    clock: ManualClock,
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl World {
    async fn new(ban: Ban) -> Self {
        let clock = ManualClock::at(START);
        let bucket = TokenBucket::new(&clock.store(), "logins", Quota::non_refilling(1)).unwrap();
        assert!(bucket.allow("k").await.unwrap().is_admitted());
        Self {
            bans: Bans::new(&bucket, ban).unwrap(),
            bucket,
            clock,
        }
    }

    /// Refuses the key this number of times. Returns how long it is banned then.
    async fn refused(&self, times: usize) -> Duration {
        for _ in 0..times {
            let decision = self.bucket.allow("k").await.unwrap();
            assert!(!decision.is_admitted());
            self.bans.refused(&self.bucket, &Key::from("k"), &decision);
        }
        self.bucket.peek("k").await.unwrap().blocked_for()
    }

    fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }
}

#[tokio::test]
async fn each_ban_is_twice_as_long_up_to_the_longest() {
    let world = World::new(Ban::after(3, seconds(60)).growing_up_to(seconds(250))).await;
    for span in [60, 120, 240, 250, 250, 250, 250].map(seconds) {
        assert_eq!(world.refused(2).await, Duration::ZERO);
        assert_eq!(world.refused(1).await, span);
        world.advance(span);
    }
    // The count of bans falls by one in each 500 s. The last ban began 1130 s ago, so the third of the first four
    // follows.
    world.advance(seconds(880));
    assert_eq!(world.refused(3).await, seconds(240));
}

#[tokio::test]
async fn refusals_during_a_ban_do_not_count() {
    let world = World::new(Ban::after(3, seconds(60))).await;
    let before = world.bucket.allow("k").await.unwrap();
    assert_eq!(world.refused(3).await, seconds(60));
    world.advance(seconds(20));
    assert_eq!(world.refused(5).await, seconds(40));
    world.advance(seconds(40));
    assert_eq!(
        (world.refused(2).await, world.refused(1).await),
        (Duration::ZERO, seconds(60))
    );
    world.advance(seconds(20));
    // Another process has not detected the ban yet.
    for _ in 0..3 {
        world.bans.refused(&world.bucket, &Key::from("k"), &before);
    }
    assert_eq!(world.refused(0).await, seconds(40));
}

#[tokio::test]
async fn one_refusal_is_forgotten_in_each_span() {
    let world = World::new(Ban::after(2, seconds(60))).await;
    for _ in 0..5 {
        assert_eq!(world.refused(1).await, Duration::ZERO);
        world.advance(seconds(60));
    }
    assert_eq!(world.refused(1).await, Duration::ZERO);
    world.advance(seconds(59));
    assert_eq!(world.refused(1).await, seconds(60));
}
