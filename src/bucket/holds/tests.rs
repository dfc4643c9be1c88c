use std::time::Duration;

use redis::Value;

use super::*;
use crate::bucket::Bucket;
use crate::bucket::adjust::Peek;
use crate::bucket::decision::BucketState;
use crate::bucket::hold::{HoldStep, Verb};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{SECOND, START, adjust, one, peek, take};
use crate::store::notifier::END;
use crate::store::operation::{Fields, Operation as _};

const TTL: i64 = 30 * SECOND;

/// 10 tokens a second, at most 20.
fn fast() -> Quotas {
    one(Quota::per_second(10).burst(20))
}

fn run(bucket: &mut Bucket, quotas: &Quotas, id: u128, on_end: OnEnd, verb: Verb) -> BucketState {
    HoldStep {
        quotas: quotas.clone(),
        id,
        on_end,
        verb,
    }
    .apply(bucket, START)
    .state
}

fn authorize(bucket: &mut Bucket, quotas: &Quotas, id: u128, amount: u32, on_end: OnEnd) {
    let verb = Verb::Authorize { amount, ttl: TTL };
    run(bucket, quotas, id, on_end, verb);
}

fn capture(bucket: &mut Bucket, quotas: &Quotas, id: u128, amount: u32) -> BucketState {
    let verb = Verb::Capture { amount, late: 0 };
    run(bucket, quotas, id, OnEnd::Capture, verb)
}

/// The quotas of the call are charged in full, so they may be in debt. Quotas of other calls have not admitted it.
#[test]
fn a_capture_is_debt_only_under_the_quotas_of_its_hold() {
    let (mut bucket, fast, hourly) = (Bucket::default(), fast(), one(Quota::per_hour(10)));
    assert!(take(&mut bucket, &hourly, START, 1));
    authorize(&mut bucket, &fast, 1, 2, OnEnd::Capture);
    let state = capture(&mut bucket, &fast, 1, 30);
    // One token was used before, and is missing here too.
    assert_eq!(state.available_after(1), Some(Duration::from_millis(1200)));
    let empty = peek(&bucket, &hourly, START).available_after(1);
    assert_eq!(empty, Some(Duration::from_secs(360)));
}

#[test]
fn a_hold_that_ends_is_debt_only_under_quotas_that_can_hold_as_much() {
    for (amount, expected) in [(5, 6), (11, 1)] {
        let (mut bucket, fast, hourly) = (Bucket::default(), fast(), one(Quota::per_hour(10)));
        authorize(&mut bucket, &fast, 1, amount, OnEnd::Capture);
        authorize(&mut bucket, &fast, 2, 3, OnEnd::Release);
        adjust(&mut bucket, &hourly, START + TTL - 1, (10, 0));
        let after = peek(&bucket, &hourly, START + TTL)
            .available_after(1)
            .unwrap();
        assert_eq!((after.as_secs_f64() / 360.0).round() as i64, expected);
    }
}

#[test]
fn what_is_held_of_a_credit_may_come_back() {
    let credit = one(Quota::non_refilling(50));
    let mut bucket = Bucket::default();
    assert!(take(&mut bucket, &credit, START, 5));
    authorize(&mut bucket, &credit, 1, 30, OnEnd::Release);
    let state = peek(&bucket, &credit, START + SECOND);
    let (now, at_the_end) = (Some(Duration::ZERO), Some(Duration::from_secs(29)));
    let after = [1, 15, 16, 45, 46, 51].map(|cost| state.available_after(cost));
    assert_eq!(after, [now, now, at_the_end, at_the_end, None, None]);

    // Other tokens are refilled before the end of a hold.
    let (mut bucket, fast) = (Bucket::default(), fast());
    authorize(&mut bucket, &fast, 1, 5, OnEnd::Release);
    assert!(take(&mut bucket, &fast, START, 15));
    let after = [1, 15].map(|cost| peek(&bucket, &fast, START).available_after(cost));
    assert_eq!(
        after,
        [
            Some(Duration::from_millis(100)),
            Some(Duration::from_millis(1500))
        ]
    );
}

#[test]
fn what_a_script_says_of_holds_is_checked_and_kept() {
    let limit = fast().limits()[0].tokens;
    let read = |held, next| {
        // No block, and a full level.
        let numbers = [0, 0, 0, 0, 0, limit.num, limit.den, limit.burst, held, next];
        let told = [Value::Array(numbers.map(Value::Int).to_vec())];
        Peek.decode(0, START, Fields::new(&told, false))
    };
    for (held, next) in [(0, START), (-1, START), (1 << 32, START), (7, -1), (7, END)] {
        assert!(read(held, next).is_err(), "{held} until {next}");
    }
    assert!(read(7, 0).is_ok());
    for (held, next) in [(1, START + 1), (u32::MAX.into(), START + 1), (7, END - 1)] {
        assert_eq!(
            i64::from(read(held, next).unwrap().under(&fast()).held()),
            held
        );
    }
    let credit = one(Quota::non_refilling(8));
    let state = read(7, START + TTL).unwrap().under(&credit);
    assert_eq!(
        (state.held(), state.remaining()),
        (7, 1),
        "under other quotas"
    );
    assert_eq!(state.available_after(8), Some(Duration::from_secs(30)));
}
