//! The cases of the tests of Go's `x/time/rate`, on both stores. Times are in tenths of a second.
//!
//! If this crate differs from Go (see "Differences" in the module), the case says what Go does.

use std::time::Duration;

use super::virtual_time::World;
use crate::token_bucket::fixtures::cancel_at_once;
use crate::token_bucket::{Decision, Reservation, TokenBucket};
use crate::{Quota, Quotas};

const START: i64 = 1_760_000_000_000_000;
const TENTH: i64 = 100_000;

/// The limiter of the current case. Each limiter has its own key.
struct Limiter {
    world: World,
    bucket: TokenBucket,
    key: u32,
}

impl Limiter {
    fn at(&mut self, tenth: i64) {
        self.world.set(START + tenth * TENTH);
    }

    /// Starts a case with a new limiter.
    fn limiter(&mut self, rate: u32, burst: u32) {
        self.limiter_of(Quota::per_second(rate).burst(burst));
    }

    fn limiter_of(&mut self, quota: Quota) {
        self.bucket = TokenBucket::new(&self.world.store, "published", quota).unwrap();
        self.key += 1;
    }

    /// As `SetLimit` and `SetBurst` in Go.
    fn set(&mut self, quota: Quota) {
        self.bucket = self.bucket.with_quotas(&Quotas::new([quota]).unwrap());
    }

    async fn allow(&mut self, at: i64, n: u32) -> bool {
        self.at(at);
        self.bucket.allow_n(self.key, n).await.is_ok_and(|decision| decision.is_admitted())
    }

    async fn allows(&mut self, cases: &[(i64, u32, bool)]) {
        for (line, &(at, n, admitted)) in cases.iter().enumerate() {
            assert_eq!(self.allow(at, n).await, admitted, "{line}: {n} at {at} in {cases:?}");
        }
    }

    /// Reserves `n` tokens, and checks that the reservation acts at `act`.
    async fn reserve(&mut self, at: i64, n: u32, act: i64) -> Reservation {
        self.at(at);
        let reservation = self.bucket.reserve_n(self.key, n).await.unwrap();
        let delay = reservation.delay().as_micros() as i64;
        assert_eq!(delay, (act - at) * TENTH, "{n} at {at}, expected to act at {act}");
        reservation
    }

    async fn cancel(&mut self, at: i64, mut reservation: Reservation) {
        self.at(at);
        cancel_at_once(&mut reservation).await;
    }
}

async fn allowing(world: &mut Limiter) {
    world.limiter(10, 1);
    let burst_1 = [(0, 1, true), (0, 1, false), (0, 1, false), (1, 1, true), (1, 1, false), (1, 1, false)];
    world.allows(&burst_1).await;
    world.allows(&[(2, 2, false), (2, 1, true), (2, 1, false)]).await;

    world.limiter(10, 3);
    world.allows(&[(0, 2, true), (0, 2, false), (0, 1, true), (0, 1, false), (1, 4, false)]).await;
    world.allows(&[(2, 1, true), (3, 1, true), (4, 1, true), (4, 1, true), (4, 1, false)]).await;
    world.allows(&[(4, 1, false), (9, 3, true), (9, 0, true)]).await;

    // A quota that never refills.
    world.limiter_of(Quota::non_refilling(1));
    world.allows(&[(0, 1, true), (0, 1, false), (1, 1, false), (1000, 1, false)]).await;
    // The quota changes, and refills now.
    world.set(Quota::per_second(10).burst(1));
    world.allows(&[(1000, 1, false), (1001, 1, true), (1001, 1, false)]).await;

    world.limiter(100, 100);
    let mut admitted = 0;
    for tenth in 0..=50 {
        while world.allow(tenth, 1).await {
            admitted += 1;
        }
    }
    assert_eq!(admitted, 100 + 5 * 100, "the burst, and five seconds of the rate");
}

async fn reserving(world: &mut Limiter) {
    world.limiter(10, 2);
    let _ = world.reserve(0, 2, 0).await;
    let _ = world.reserve(0, 2, 2).await;
    let _ = world.reserve(3, 2, 4).await;

    world.limiter(10, 2);
    assert!(world.bucket.reserve_n(world.key, 3).await.unwrap_err().is_exceeds_burst());
    let _ = world.reserve(0, 2, 0).await;
    world.allows(&[(1, 2, false)]).await;
    let _ = world.reserve(1, 2, 2).await;
    world.allows(&[(1, 1, false), (3, 1, true)]).await;

    // Refuses delays above `max_wait`.
    world.limiter(10, 2);
    let patient = world.bucket.with_max_wait(Duration::from_millis(200));
    world.at(0);
    let delay = async |n| patient.reserve_n(world.key, n).await.map(|reserved| reserved.delay());
    assert_eq!(delay(2).await.unwrap(), Duration::ZERO);
    assert_eq!(delay(1).await.unwrap(), Duration::from_millis(100));
    let error = delay(2).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert_eq!(error.retry_after(), Some(Duration::from_millis(300)));
    assert_eq!(error.decision().and_then(Decision::retry_after), error.retry_after());
}

async fn cancelling(world: &mut Limiter) {
    // A refused reservation charges nothing.
    world.limiter(10, 2);
    let _ = world.reserve(0, 2, 0).await;
    assert!(world.bucket.reserve_n(world.key, 3).await.is_err());
    let _ = world.reserve(0, 2, 2).await;

    // The last reservation is cancelled.
    world.limiter(10, 2);
    let _ = world.reserve(0, 2, 0).await;
    let last = world.reserve(0, 2, 2).await;
    world.cancel(1, last).await;
    let _ = world.reserve(1, 2, 2).await;

    // The cancellation is too late.
    world.limiter(10, 2);
    let _ = world.reserve(0, 2, 0).await;
    let late = world.reserve(0, 2, 2).await;
    world.cancel(3, late).await;
    let _ = world.reserve(3, 2, 4).await;

    // Nothing comes back, because a later reservation depends on the token.
    world.limiter(10, 2);
    let _ = world.reserve(0, 2, 0).await;
    let first = world.reserve(0, 1, 1).await;
    let _ = world.reserve(0, 1, 2).await;
    world.cancel(0, first).await;
    let _ = world.reserve(0, 1, 3).await;

    // One of two tokens comes back.
    world.limiter(10, 2);
    let _ = world.reserve(0, 2, 0).await;
    let first = world.reserve(0, 2, 2).await;
    let _ = world.reserve(0, 1, 3).await;
    world.cancel(2, first).await;
    let _ = world.reserve(2, 2, 4).await;

    // Several reservations, cancelled out of order.
    world.limiter(10, 4);
    let _ = world.reserve(0, 4, 0).await;
    let a = world.reserve(0, 3, 3).await;
    let _ = world.reserve(0, 1, 4).await;
    let c = world.reserve(0, 1, 5).await;
    world.cancel(1, c).await;
    world.cancel(1, a).await;
    let _ = world.reserve(1, 3, 5).await;
}

/// The server's clock is set back. Missing tokens come back at the same time of that clock as before, or as those of an
/// empty bucket, whichever is earlier. (Go ignores the time between: it allows one more of the first requests.)
async fn jumping(world: &mut Limiter) {
    world.limiter(10, 3);
    world.allows(&[(1, 1, true), (0, 1, true), (0, 1, false), (0, 1, false)]).await;
    world.allows(&[(1, 1, true), (1, 1, false), (1, 1, false), (2, 1, true), (2, 1, false)]).await;

    world.limiter(10, 2);
    let _ = world.reserve(1, 2, 1).await;
    let _ = world.reserve(0, 1, 1).await;
    let _ = world.reserve(2, 2, 3).await;

    // While the clock is behind the time at which the state was written, a cancellation gives nothing back. (In Go, the
    // last reservation acts 100 ms earlier.)
    world.limiter(10, 2);
    let _ = world.reserve(1, 2, 1).await;
    let second = world.reserve(1, 2, 3).await;
    let _ = world.reserve(1, 1, 4).await;
    world.cancel(0, second).await;
    let _ = world.reserve(1, 2, 6).await;

    // The clock jumps far ahead, and back.
    world.limiter(10, 2);
    world.allows(&[(100_000, 2, true), (0, 1, false), (1, 1, true), (1, 1, false), (100_000, 2, true)]).await;
}

async fn changing(world: &mut Limiter) {
    // A higher rate.
    world.limiter(5, 2);
    let _ = world.reserve(0, 2, 0).await;
    let _ = world.reserve(0, 2, 4).await;
    world.set(Quota::per_second(10).burst(2));
    let _ = world.reserve(2, 1, 4).await;

    // A higher rate, then the earlier reservation is cancelled.
    world.limiter(5, 2);
    let _ = world.reserve(0, 2, 0).await;
    let reservation = world.reserve(0, 2, 4).await;
    world.set(Quota::per_second(10).burst(2));
    world.cancel(2, reservation).await;
    let _ = world.reserve(2, 2, 3).await;

    // A larger burst. (Go keeps the available tokens: the reservation acts at 12. Here the missing tokens stay.)
    world.limiter(5, 2);
    let _ = world.reserve(0, 2, 0).await;
    let _ = world.reserve(0, 2, 4).await;
    world.set(Quota::per_second(5).burst(4));
    let _ = world.reserve(3, 4, 8).await;

    // A smaller burst: the available tokens stay, up to the new burst.
    world.limiter(5, 4);
    let _ = world.reserve(0, 1, 0).await;
    world.set(Quota::per_second(5).burst(2));
    world.allows(&[(0, 2, true), (0, 1, false), (2, 1, true), (2, 1, false)]).await;
}

async fn all(world: World) {
    let bucket = TokenBucket::new(&world.store, "published", Quota::per_second(1)).unwrap();
    let world = &mut Limiter { world, bucket, key: 0 };
    allowing(world).await;
    reserving(world).await;
    cancelling(world).await;
    jumping(world).await;
    changing(world).await;
}

#[tokio::test]
async fn go_s_cases_in_memory() {
    all(World::in_memory(START)).await;
}

#[tokio::test]
async fn go_s_cases_on_redis() {
    all(World::on_redis(START).await).await;
}
