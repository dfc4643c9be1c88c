use std::time::Duration;

use redis::Value;

use super::*;
use crate::bucket::adjust::Peek;
use crate::bucket::quota::Quota;
use crate::bucket::tests::fixtures::ask_for;

/// Every reply is either read or refused.
#[test]
fn forged_states_are_read_or_refused() {
    let quotas = [
        Quota::per_day(1),
        Quota::per_calendar_year(5),
        Quota::non_refilling(3),
    ];
    const NUMBERS: [i64; 9] = [
        0,
        1,
        -1,
        1 << 26,
        1 << 52,
        1_760_000_000_000_000,
        (1 << 53) - 1,
        i64::MAX,
        i64::MIN,
    ];
    for quota in quotas {
        let quotas = Quotas::try_from(quota).unwrap();
        let limit = quotas.limits()[0].tokens;
        for number in 0..9_usize.pow(5) {
            let at = |place: u32| Value::Int(NUMBERS[number / 9_usize.pow(place) % 9]);
            let told = (0..5).map(at);
            let quota = [limit.num, limit.den, limit.burst].map(Value::Int);
            let charged = [Value::Int(1), Value::Array(told.clone().collect())];
            let reserve = ask_for(&quotas, 2, 1_000_000);
            if let Ok(charged) = reserve.decode(0, NUMBERS[5], Fields::new(&charged, false)) {
                let decision = charged.decision();
                let _ = (decision.retry_after(), decision.state.reset_after());
                assert!(
                    decision.delay() <= Duration::from_secs(1),
                    "it is to wait for {decision:?}"
                );
            }
            let stored = [Value::Array(told.chain(quota).collect())];
            drop(Peek.decode(0, NUMBERS[5], Fields::new(&stored, false)));
        }
    }
}
