use std::time::Duration;

use redis::Value;

use super::*;
use crate::Quota;
use crate::token_bucket::peek::Peek;

/// Whatever a reply says, it is read or refused.
#[test]
fn forged_states_are_read_or_refused() {
    let quotas = [Quota::per_day(1), Quota::per_calendar_year(5), Quota::non_refilling(3)];
    const NUMBERS: [i64; 9] =
        [0, 1, -1, 1 << 26, 1 << 52, 1_760_000_000_000_000, (1 << 53) - 1, i64::MAX, i64::MIN];
    for quota in quotas {
        let quotas = Quotas::try_from(quota).unwrap();
        let limit = quotas.limits()[0].tokens;
        for number in 0..9_usize.pow(5) {
            let at = |place: u32| Value::Int(NUMBERS[number / 9_usize.pow(place) % 9]);
            let told = (0..5).map(at);
            let quota = [limit.num, limit.den, limit.burst].map(Value::Int);
            let charged = [Value::Int(1), Value::Array(told.clone().collect())];
            let ask = Ask { cost: 2, wait: 1_000_000 };
            let reserve = Reserve { quotas: quotas.clone(), ask };
            if let Ok(decision) = reserve.decode(0, NUMBERS[5], Fields::new(&charged, false)) {
                let _ = (decision.retry_after(), decision.state.reset_after());
                assert!(decision.delay() <= Duration::from_secs(1), "it is to wait for {decision:?}");
            }
            let stored = [Value::Array(told.chain(quota).collect())];
            drop(Peek.decode(0, NUMBERS[5], Fields::new(&stored, false)));
        }
    }
}

#[test]
fn equal_requests_are_one_run_unless_they_may_act_in_different_windows() {
    let (plain, daily) = (Quota::per_second(7), Quota::per_calendar_day(7).reserve_ahead(true));
    let cases = [
        (&plain, (1, 0), (1, 0), true),
        (&plain, (1, 5), (1, 5), true),
        (&plain, (1, 0), (2, 0), false),
        (&plain, (1, 5), (1, 6), false),
        (&daily, (1, 0), (1, 0), true),
        (&daily, (1, 5), (1, 5), false),
    ];
    for (quota, one, next, expected) in cases {
        let quotas = Quotas::try_from(quota.clone()).unwrap();
        let reserve = |(cost, wait)| Reserve { quotas: quotas.clone(), ask: Ask { cost, wait } };
        assert_eq!(reserve(one).repeats(&reserve(next)), expected, "{quota:?} {one:?} {next:?}");
    }
}

#[test]
fn each_request_of_a_run_is_told_the_state_after_it() {
    const NOW: i64 = 1_760_000_000_000_000;
    let quotas = Quotas::try_from(Quota::per_second(7).burst(10)).unwrap();
    let read = |nth, admitted, bucket: Value| {
        let reserve = Reserve { quotas: quotas.clone(), ask: Ask { cost: 2, wait: 0 } };
        reserve.decode(nth, NOW, Fields::new(&[Value::Int(admitted), bucket], false))
    };
    let told = |nth, admitted, bucket| {
        let decision = read(nth, admitted, bucket).unwrap();
        let reset = decision.state.tightest().reset_after.unwrap();
        (decision.is_admitted(), decision.remaining(), reset.as_micros())
    };
    let full = || Value::Int(0);
    assert_eq!(told(0, 3, full()), (true, 8, 285_715));
    assert_eq!(told(2, 3, full()), (true, 4, 857_143));
    assert_eq!(told(3, 3, full()), (false, 4, 857_143));
    // Three are missing. In bare form, these are sevenths of a µs.
    let used = || Value::Int(3_000_000);
    assert_eq!(told(0, 0, used()), (false, 7, 428_572));
    assert_eq!(told(1, 2, used()), (true, 3, 1_000_000));
    // A full bucket that is blocked.
    let blocked = Value::Array([NOW + 5, NOW - 5, 0, NOW - 5, 0].map(Value::Int).to_vec());
    assert_eq!(told(0, 0, blocked), (false, 0, 0));
    let error = |admitted, bucket| read(0, admitted, bucket).unwrap_err().0;
    assert_eq!([error(-1, full()), error(0, Value::Int(-1))], [WRONG_TYPE.0; 2]);
    assert_eq!(error(0, Value::Int(1 << 53)), OUT_OF_RANGE.0);
    assert_eq!(read(0, 0, Value::Int((1 << 53) - 1)).unwrap().remaining(), 0);
}
