use redis::Value;

use super::*;
use crate::token_bucket::decision::Decision;
use crate::token_bucket::fixtures::{self, SECOND, START, one};
use crate::token_bucket::holds::{HoldStep, OnEnd, Verb};
use crate::token_bucket::operations::Reserve;
use crate::token_bucket::quota::MAX_SPAN;
use crate::{Quota, Quotas, Store, TokenBucket};
use support::patient;
use support::redis_server::RedisServer;

/// 1 token a second, at most 5.
fn slow() -> Quotas {
    one(Quota::per_second(1).burst(5))
}

fn reserve(bucket: &mut Bucket, quotas: &Quotas, now: i64, cost: i64) -> Decision {
    fixtures::reserve(bucket, quotas, START + now, (cost, MAX_SPAN))
}

/// Cancels a decision on `cost` tokens. Returns whether anything was given back, and what is available then.
fn cancel(bucket: &mut Bucket, decision: &Decision, now: i64, cost: i64, rule: Rule) -> (bool, i64) {
    let quotas = &decision.state.quotas;
    let given = Cancel::new(&decision.state, cost, rule).apply(bucket, START + now);
    (given, bucket.free(quotas, START + now, 0))
}

#[test]
fn the_latest_charge_comes_back_in_full_if_nothing_was_charged_after_it() {
    let quotas = slow();
    for (others, at, expected) in [
        (0, 0, (true, 5)),
        (0, 2 * SECOND - 1, (true, 5)),
        // The tokens have come back by themselves.
        (0, 2 * SECOND, (false, 5)),
        (1, 0, (false, 2)),
    ] {
        let mut bucket = Bucket::default();
        let decision = reserve(&mut bucket, &quotas, 0, 2);
        if others > 0 {
            reserve(&mut bucket, &quotas, 0, others);
        }
        assert_eq!(cancel(&mut bucket, &decision, at, 2, Rule::IfLatest), expected, "{others} {at}");
    }
    // A second cancellation finds the TAT of the first one's charge, but also a reservation after it.
    let mut bucket = Bucket::default();
    let [_, before, _] = [5, 2, 1].map(|cost| reserve(&mut bucket, &quotas, 0, cost));
    assert_eq!(cancel(&mut bucket, &before, 0, 2, Rule::acts_at(&before, 0)), (true, -2));
    assert_eq!(cancel(&mut bucket, &before, 0, 2, Rule::IfLatest), (false, -2));
}

#[test]
fn unused_tokens_come_back_less_those_that_the_time_has_brought() {
    let quotas = slow();
    let unused = |age| Rule::Unused { charged: START, age };
    for (at, age, expected) in [
        (0, 0, (true, 5)),
        (SECOND, 0, (true, 5)),
        (0, SECOND, (true, 4)),
        (0, 3 * SECOND, (false, 2)),
        (3 * SECOND, 0, (false, 5)),
    ] {
        let mut bucket = Bucket::default();
        let decision = reserve(&mut bucket, &quotas, 0, 3);
        assert_eq!(cancel(&mut bucket, &decision, at, 3, unused(age)), expected, "{at} {age}");
    }
    // Not while another request waits for its time, or after a reset.
    let mut bucket = Bucket::default();
    let decision = reserve(&mut bucket, &quotas, 0, 3);
    reserve(&mut bucket, &quotas, 0, 3);
    assert!(!cancel(&mut bucket, &decision, SECOND - 1, 3, unused(0)).0);
    assert_eq!(cancel(&mut bucket, &decision, SECOND, 3, unused(0)), (true, 2));
    let mut bucket = Bucket::default();
    reserve(&mut bucket, &quotas, 0, 2);
    assert_eq!(cancel(&mut bucket, &decision, 0, 3, unused(0)), (false, 3));
    // What is held delays others as well.
    for (later, expected) in [(0, (true, 3)), (1, (false, -1))] {
        let mut bucket = Bucket::default();
        let verb = Verb::Authorize { amount: 2, ttl: 30 * SECOND };
        HoldStep { quotas: quotas.clone(), id: 1, on_end: OnEnd::Release, verb }.apply(&mut bucket, START);
        let decision = reserve(&mut bucket, &quotas, 0, 3);
        if later > 0 {
            reserve(&mut bucket, &quotas, 0, later);
        }
        assert_eq!(cancel(&mut bucket, &decision, 0, 3, unused(0)), expected);
    }
}

#[test]
fn used_tokens_of_a_credit_come_back_once() {
    let quotas = one(Quota::non_refilling(9));
    let mut bucket = Bucket::default();
    let decision = reserve(&mut bucket, &quotas, 0, 4);
    reserve(&mut bucket, &quotas, 0, 2);
    assert!(!Cancel::safe_to_repeat(&decision.state, 4).apply(&mut bucket, START));
    assert_eq!(bucket.free(&quotas, START, 0), 3);
    assert_eq!(cancel(&mut bucket, &decision, 0, 4, Rule::IfLatest), (true, 7));
    assert_eq!(cancel(&mut bucket, &decision, 0, 4, Rule::IfLatest), (true, 9), "no more than there were");
    assert_eq!(cancel(&mut bucket, &decision, 0, 4, Rule::IfLatest), (false, 9));
}

#[test]
fn requests_in_a_row_whose_callers_are_gone_are_taken_back_as_one() {
    let quotas = one(Quota::per_second(1).burst(8));
    let mut bucket = Bucket::default();
    let kept = reserve(&mut bucket, &quotas, 0, 1);
    let decisions: Vec<_> = (0..4).map(|_| fixtures::reserve(&mut bucket, &quotas, START, (2, 0))).collect();
    assert_eq!(decisions.iter().filter(|decision| decision.is_admitted()).count(), 3);
    assert!(Reserve::undo(&decisions[3..]).is_none());
    assert!(Reserve::undo(&decisions).unwrap().apply(&mut bucket, START));
    assert_eq!(bucket.free(&quotas, START, 0), 7);
    assert_eq!(bucket.levels[0].last, kept.state.bucket.levels[0].last);
}

/// The tokens of the first one, which came back, were reserved again.
#[test]
fn a_reservation_between_cancellations_can_be_cancelled_too() {
    let (quotas, mut bucket) = (slow(), Bucket::default());
    let [_, first, second] = [5, 4, 2].map(|cost| reserve(&mut bucket, &quotas, 0, cost));
    let cancel = |bucket: &mut Bucket, decision: &Decision, cost| {
        cancel(bucket, decision, 0, cost, Rule::acts_at(decision, 0))
    };
    assert_eq!(cancel(&mut bucket, &first, 4), (true, -4));
    let between = reserve(&mut bucket, &quotas, 0, 1);
    assert_eq!(cancel(&mut bucket, &second, 2), (true, -3));
    assert_eq!(cancel(&mut bucket, &between, 1), (true, -2));
}

/// By the clock of its process, it is later than the store says. That clock may be an eighth faster than the store's.
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

/// It gives back what the step in Rust does.
#[tokio::test]
async fn the_script_knows_each_rule() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let bucket = TokenBucket::new(&store, "test", Quota::per_hour(5)).unwrap();
    let latest: fn(&Decision) -> Rule = |_| Rule::IfLatest;
    let acts: fn(&Decision) -> Rule = |decision| Rule::acts_at(decision, 0);
    let unused: fn(&Decision) -> Rule = |decision| Rule::Unused { charged: decision.state.now, age: 0 };
    for (before, rule, given) in [(0, latest, true), (0, unused, true), (4, acts, true), (0, acts, false)] {
        for cost in [before, 3].into_iter().filter(|cost| *cost > 0) {
            let decision = bucket.reserve_n("k", cost).await.unwrap().decision().clone();
            let cancel = Cancel::new(&decision.state, cost.into(), rule(&decision));
            if cost == 3 {
                assert_eq!(bucket.cancel(&"k".into(), cancel).await.unwrap(), given, "{:?}", rule(&decision));
            }
        }
        bucket.reset("k").await.unwrap();
    }
}

#[test]
fn cancellations_under_different_quotas_do_not_share_a_call() {
    let cancel = |quotas: &Quotas| {
        let decision = reserve(&mut Bucket::default(), quotas, 0, 1);
        Cancel::new(&decision.state, 1, Rule::IfLatest)
    };
    let (one, other) = (slow(), one(Quota::per_second(2)));
    assert_eq!(cancel(&one).group(), cancel(&one).group());
    assert_ne!(cancel(&one).group(), cancel(&other).group());
    assert!(cancel(&one).group().is_some());
    let read = |told| cancel(&one).decode(0, START, Fields::new(&[Value::Int(told)], false)).ok();
    assert_eq!([1, 0, -1].map(read), [Some(true), Some(false), None]);
}

/// What is written when a hold has ended has the levels of the call first, as in the script.
#[test]
fn a_cancellation_that_gives_nothing_writes_only_the_end_of_a_hold() {
    let (own, others, mut bucket) = (slow(), one(Quota::per_hour(9)), Bucket::default());
    let decision = reserve(&mut bucket, &own, 0, 5);
    let verb = Verb::Authorize { amount: 1, ttl: SECOND };
    HoldStep { quotas: others.clone(), id: 1, on_end: OnEnd::Release, verb }.apply(&mut bucket, START);
    let over = Cancel::new(&decision.state, 5, Rule::ActsAt { act: START, since: 1 });
    assert!(!over.clone().apply(&mut bucket, START + SECOND - 1) && bucket.fits(&others));
    assert!(!over.apply(&mut bucket, START + SECOND) && bucket.fits(&own));
}
