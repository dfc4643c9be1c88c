//! The charges of one hold. For random holds, see the tests of sets of holds.

mod steps;

use crate::bucket::Bucket;
use crate::bucket::hold::{HoldStep, Outcome, Verb};
use crate::bucket::holds::OnEnd;
use crate::bucket::quota::Quota;
use crate::bucket::tests::fixtures::{SECOND, START, one};
use crate::store::operation::Cell as _;

pub(crate) fn step(id: u128, verb: Verb) -> HoldStep {
    HoldStep {
        quotas: one(Quota::per_second(10).burst(20)),
        id,
        on_end: OnEnd::Capture,
        verb,
    }
}

pub(crate) fn authorize(amount: u32, ttl: i64) -> Verb {
    Verb::Authorize { amount, ttl }
}

pub(crate) fn extend(amount: u32, ttl: i64) -> Verb {
    Verb::Extend { amount, ttl }
}

pub(crate) fn capture(amount: u32, late: u32) -> Verb {
    Verb::Capture { amount, late }
}

#[test]
fn a_hold_that_ends_is_charged_at_its_end() {
    let mut bucket = Bucket::default();
    step(1, authorize(20, SECOND)).apply(&mut bucket, START);
    let late = step(1, extend(0, 1)).apply(&mut bucket, START + 1_500_000);
    assert_eq!((late.outcome, late.state.held()), (Outcome::Ended, 0));
    assert_eq!(late.state.remaining(), 5, "half a second after the end");
}

#[test]
fn a_capture_above_the_hold_is_debt() {
    let mut bucket = Bucket::default();
    step(1, authorize(15, SECOND)).apply(&mut bucket, START);
    let reply = step(1, capture(u32::MAX, 0)).apply(&mut bucket, START);
    assert_eq!(
        (reply.outcome, reply.amount, reply.state.remaining()),
        (Outcome::Held, 15, 0)
    );
    assert!(
        !bucket.is_idle(START + 400_000_000_000_000),
        "13 years of debt"
    );
    let late = step(1, capture(7, 3));
    let mut bucket = Bucket::default();
    assert_eq!(
        late.apply(&mut bucket, START).state.remaining(),
        17,
        "it had ended: only the late amount"
    );
}

#[test]
fn a_key_has_a_bounded_number_of_holds() {
    let mut bucket = Bucket::default();
    let quotas = one(Quota::per_second(1).burst(1_000_000));
    let verb = authorize(1, SECOND);
    let mut outcomes = (0..1025).map(|id| {
        let step = HoldStep {
            quotas: quotas.clone(),
            ..step(id, verb)
        };
        step.apply(&mut bucket, START).outcome
    });
    assert!(
        outcomes
            .by_ref()
            .take(1024)
            .all(|outcome| outcome == Outcome::Held)
    );
    assert_eq!(outcomes.next(), Some(Outcome::Full));
}
