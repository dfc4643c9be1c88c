mod returning;

use redis::Value;

use super::*;
use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::decision::Decision;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures;
use crate::bucket::tests::fixtures::{SECOND, START, one};

/// 1 token a second, at most 5.
fn slow() -> Quotas {
    one(Quota::per_second(1).burst(5))
}

fn reserve(bucket: &mut Bucket, quotas: &Quotas, now: i64, cost: i64) -> Decision {
    fixtures::reserve(bucket, quotas, START + now, (cost, MAX_SPAN))
}

/// Cancels a decision on `cost` tokens. Returns whether anything was given back, and the number of available tokens
/// after it.
fn cancel(
    bucket: &mut Bucket,
    decision: &Decision,
    now: i64,
    cost: i64,
    rule: Rule,
) -> (bool, i64) {
    let quotas = &decision.state.quotas;
    let given = GiveBack::new(&decision.state, cost, rule).apply(bucket, START + now);
    (given, bucket.free(quotas, START + now, 0))
}

#[test]
fn the_latest_charge_comes_back_in_full_if_nothing_was_charged_after_it() {
    let quotas = slow();
    for (others, at, expected) in [
        (0, 0, (true, 5)),
        (0, 2 * SECOND - 1, (true, 5)),
        // The tokens were refilled with time.
        (0, 2 * SECOND, (false, 5)),
        (1, 0, (false, 2)),
    ] {
        let mut bucket = Bucket::default();
        let decision = reserve(&mut bucket, &quotas, 0, 2);
        if others > 0 {
            reserve(&mut bucket, &quotas, 0, others);
        }
        assert_eq!(
            cancel(&mut bucket, &decision, at, 2, Rule::IfLatest),
            expected,
            "{others} {at}"
        );
    }
    // A second cancellation finds the TAT of the first one's charge, but also a reservation after it.
    let mut bucket = Bucket::default();
    let [_, before, _] = [5, 2, 1].map(|cost| reserve(&mut bucket, &quotas, 0, cost));
    for (rule, comes_back) in [(Rule::acts_at(&before, 0), true), (Rule::IfLatest, false)] {
        let given = cancel(&mut bucket, &before, 0, 2, rule);
        assert_eq!(given, (comes_back, -2));
    }
}

#[test]
fn used_tokens_of_a_credit_come_back_once() {
    let quotas = one(Quota::non_refilling(9));
    let mut bucket = Bucket::default();
    let decision = reserve(&mut bucket, &quotas, 0, 4);
    reserve(&mut bucket, &quotas, 0, 2);
    assert!(!GiveBack::safe_to_repeat(&decision.state, 4).apply(&mut bucket, START));
    assert_eq!(bucket.free(&quotas, START, 0), 3);
    // No more than there were.
    for expected in [(true, 7), (true, 9), (false, 9)] {
        let given = cancel(&mut bucket, &decision, 0, 4, Rule::IfLatest);
        assert_eq!(given, expected);
    }
}

/// By the clock of its process, it is later than by the store's clock. The process's clock may be an eighth faster.
#[test]
fn a_reservation_from_before_the_clock_was_set_back_stays_charged() {
    for (age, at, comes_back) in [
        (8000, 6000, true),
        (8000, 5999, false),
        (SECOND, SECOND, true),
        (SECOND, SECOND - SECOND / 8 - 1000, true),
        (SECOND, SECOND - SECOND / 8 - 1001, false),
    ] {
        let (quotas, mut bucket) = (slow(), Bucket::default());
        let [_, later] = [5, 4].map(|cost| reserve(&mut bucket, &quotas, 0, cost));
        let given = cancel(&mut bucket, &later, at, 4, Rule::acts_at(&later, age));
        assert_eq!(given.0, comes_back, "{age} {at}");
    }
    let early = fixtures::reserve(&mut Bucket::default(), &slow(), 5, (1, 0));
    assert_eq!(Rule::acts_at(&early, 0), Rule::ActsAt { act: 5, since: 1 });
}

#[test]
fn cancellations_under_different_quotas_do_not_share_a_call() {
    let cancel = |quotas: &Quotas| {
        let decision = reserve(&mut Bucket::default(), quotas, 0, 1);
        GiveBack::new(&decision.state, 1, Rule::IfLatest)
    };
    let (one, other) = (slow(), one(Quota::per_second(2)));
    assert_eq!(cancel(&one).group(), cancel(&one).group());
    assert_ne!(cancel(&one).group(), cancel(&other).group());
    assert!(cancel(&one).group().is_some());
    let read = |told| {
        cancel(&one)
            .decode(0, START, Fields::new(&[Value::Int(told)], false))
            .ok()
    };
    assert_eq!([1, 0, -1].map(read), [Some(true), Some(false), None]);
}
