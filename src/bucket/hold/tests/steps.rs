use redis::Value;

use super::super::*;
use crate::bucket::hold::tests::{authorize, capture, extend, step};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{SECOND, START, adjust, one, peek, take};

const TTL: i64 = 30 * SECOND;

fn renewal(ttl: i64) -> Verb {
    extend(0, ttl)
}

fn hold(amount: u32) -> Verb {
    authorize(amount, TTL)
}

fn held(bucket: &Bucket, quotas: &Quotas, now: i64) -> u32 {
    peek(bucket, quotas, now).held()
}

/// A request under other quotas. After it, their levels come first.
fn use_otherwise(bucket: &mut Bucket, now: i64) {
    assert!(take(bucket, &one(Quota::per_hour(10)), now, 1));
}

#[test]
fn equal_steps_on_a_block_of_holds_are_one_run() {
    let first = 7 << 64;
    let (renewed, later) = (renewal(TTL), renewal(2 * TTL));
    let cases = [
        (0, renewed, 1, renewed, true),
        (0, renewed, 31, renewed, true),
        (0, renewed, 32, renewed, false),
        (31, renewed, 32, renewed, false),
        (1, renewed, 0, renewed, false),
        (1, renewed, 1, renewed, false),
        (0, renewed, 1, later, false),
        (0, renewed, 1, hold(0), false),
        (0, capture(3, 0), 1, capture(4, 0), true),
        (0, capture(3, 0), 1, renewed, false),
        (0, renewed, 1, capture(3, 0), false),
    ];
    for (id, verb, next, after, expected) in cases {
        let (one, next) = (step(first + id, verb), step(first + next, after));
        assert_eq!(one.repeats(&next), expected, "{one:?}, {next:?}");
        let of_another_end = HoldStep {
            on_end: OnEnd::Release,
            ..next
        };
        assert_eq!(
            one.repeats(&of_another_end),
            expected && verb == capture(3, 0)
        );
    }
}

#[test]
fn captures_run_first_and_authorizations_last() {
    let verbs = [hold(1), renewal(TTL), capture(1, 0)];
    let mut steps: Vec<_> = verbs
        .iter()
        .flat_map(|verb| [step(9, *verb), step(8, *verb)])
        .collect();
    steps.sort_by_key(HoldStep::rank);
    let order: Vec<_> = steps.iter().map(|step| (step.verb, step.id)).collect();
    let expected = verbs.iter().rev().flat_map(|verb| [(*verb, 8), (*verb, 9)]);
    assert_eq!(order, expected.collect::<Vec<_>>());
    assert_eq!(
        verbs.map(|verb| HoldSteps::one(step(1, verb)).is_reserved()),
        [false, true, true]
    );
}

/// The tokens are held already.
#[test]
fn a_hold_is_renewed_while_the_bucket_is_blocked_or_in_debt() {
    for (tokens, block) in [(0, SECOND), (100, 0)] {
        let mut bucket = Bucket::default();
        let first = step(1, hold(5));
        first.clone().apply(&mut bucket, START);
        adjust(&mut bucket, &first.quotas, START, (tokens, block));
        let mut run = |id, verb| step(id, verb).apply(&mut bucket, START).outcome;
        assert_eq!(
            [run(1, renewal(TTL)), run(1, extend(5, TTL))],
            [Outcome::Held; 2]
        );
        assert_eq!(
            [run(1, extend(6, TTL)), run(2, hold(1))],
            [Outcome::Refused; 2]
        );
    }
}

#[test]
fn a_hold_ends_after_its_ttl_from_its_last_renewal() {
    let (mut bucket, quotas) = (Bucket::default(), step(1, hold(5)).quotas);
    step(1, hold(5)).apply(&mut bucket, START);
    step(2, hold(3)).apply(&mut bucket, START);
    step(1, renewal(TTL)).apply(&mut bucket, START + 20 * SECOND);
    step(1, renewal(SECOND)).apply(&mut bucket, START + 21 * SECOND);
    for (at, expected) in [
        (30 * SECOND - 1, 8),
        (30 * SECOND, 5),
        (50 * SECOND - 1, 5),
        (50 * SECOND, 0),
    ] {
        assert_eq!(held(&bucket, &quotas, START + at), expected, "{at}");
        step(3, renewal(TTL)).apply(&mut bucket, START + at);
    }
}

#[test]
fn a_hold_lasts_for_its_ttl_and_a_debt_for_its_time_after_the_clock_was_set_back() {
    let (hour, quotas) = (3600 * SECOND, step(1, hold(5)).quotas);
    for others in [false, true] {
        let used = || {
            let mut bucket = Bucket::default();
            assert!(take(
                &mut bucket,
                &quotas,
                if others { START + hour } else { START },
                1
            ));
            if others {
                use_otherwise(&mut bucket, START + hour);
            }
            bucket
        };
        let mut bucket = used();
        step(1, hold(5)).apply(&mut bucket, START + hour);
        step(2, renewal(TTL)).apply(&mut bucket, START);
        assert_eq!(
            [TTL - 1, TTL].map(|at| held(&bucket, &quotas, START + at)),
            [5, 0]
        );

        let mut bucket = used();
        step(1, capture(0, 100)).apply(&mut bucket, START + hour);
        let after = step(2, renewal(TTL))
            .apply(&mut bucket, START)
            .state
            .available_after(1);
        assert_eq!(
            after.map(|after| after.as_millis()),
            Some(if others { 8300 } else { 8100 })
        );
    }
}

#[test]
fn forged_replies_are_refused() {
    let read = |id, reply: Vec<Value>| {
        let reply = step(id, hold(5)).decode(START, Fields::new(&reply, false));
        reply
            .map(|reply| (reply.outcome, reply.amount, reply.state.held()))
            .map_err(|error| error.0)
    };
    let told = |outcome, rest: &[i64]| {
        let numbers = [
            vec![outcome],
            rest.iter().map(|number| Value::Int(*number)).collect(),
        ]
        .concat();
        vec![Value::Array(numbers)]
    };
    // After the outcome: the amount, a bare bucket, the held tokens, and until when.
    let rest = [5, 0, 5, START + TTL];
    let outcomes = [
        Outcome::Refused,
        Outcome::Held,
        Outcome::Ended,
        Outcome::Full,
    ];
    for (number, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(
            read(1, told(Value::Int(number as i64), &rest)),
            Ok((outcome, 5, 5))
        );
    }
    let answers = Value::BulkString([&[1, 0, 0, 1, 2][..], &[2, 0, 0, 0, 0]].concat());
    let at = |id| read(id, told(answers.clone(), &rest));
    assert_eq!(
        (at(64), at(65)),
        (Ok((Outcome::Held, 258, 5)), Ok((Outcome::Ended, 0, 5)))
    );
    let forged = [
        read(66, told(answers.clone(), &rest)),
        read(1, told(Value::Int(4), &rest)),
        read(1, told(Value::Int(-1), &rest)),
        read(1, told(Value::Array(vec![]), &rest)),
        read(1, told(Value::Int(1), &[])),
        read(1, told(Value::Int(1), &[5, 0, 0, START])),
        read(1, told(Value::Int(1), &[5, 0, 1 << 32, START])),
        read(1, told(Value::Int(1), &[5, 0, 5, -1])),
        read(1, told(Value::Int(1), &[5, 0, 5, 1 << 53])),
        read(1, vec![Value::Int(1)]),
        read(1, vec![]),
    ];
    assert!(forged.iter().all(Result::is_err), "{forged:?}");
    assert_eq!(read(1, vec![Value::Int(-1)]).unwrap_err(), WRONG_TYPE.0);
}
