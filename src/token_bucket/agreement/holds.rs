//! Holds, among all other operations on the same buckets; and states that nobody of ours has stored.

use std::time::Duration;

use futures::future::join_all;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::runs::{Both, random_runs};
use super::virtual_time::VirtualTime;
use crate::token_bucket::Hold;
use crate::token_bucket::holds::{HoldStep, OnEnd, Verb};
use crate::{Quota, Quotas, TokenBucket};
use support::redis_server::RedisServer;

const NOW: i64 = 1_760_000_000_000_000;

/// Ids that are found in each other's records, at the wrong place.
const IDS: [u128; 5] =
    [0, 1 << 120, u128::from_be_bytes([1; 16]), u128::MAX, 0x0101_0101_0000_0000_0101_0101_0000_0000];

/// Random steps on the holds of some keys, in one call. Some are on several holds of a block.
pub(super) fn step(rng: &mut StdRng, both: &mut Both, quotas: &Quotas) {
    let mut runs = random_runs(rng, |rng, _| Some(random_step(rng, quotas)));
    for run in &mut runs {
        if rng.random_bool(0.5) {
            run.count = rng.random_range(1..=(32 - run.operation.id % 32).min(6)) as usize;
            run.nth = next_in_block;
        }
    }
    if rng.random_bool(0.4) {
        runs.truncate(1);
    }
    both.call_and_compare(&runs, |reply, is_last| match is_last {
        true => format!("{reply:?}"),
        // The state is the one after the run.
        false => format!("{:?} {}", reply.outcome, reply.amount),
    });
}

pub(super) fn random_step(rng: &mut StdRng, quotas: &Quotas) -> HoldStep {
    let most = quotas.max_cost();
    let amount = match rng.random_range(0..8) {
        0 => most,
        1 => rng.random_range(1..=most),
        2 => u32::MAX,
        _ => rng.random_range(1..=most.min(3)),
    };
    let ttl = *[1, 1000, 500_000, 500_000, 3_000_000, 70_000_000, 86_400_000_000].choose(rng).unwrap();
    let verb = match rng.random_range(0..10) {
        0..4 => Verb::Authorize { amount, ttl },
        4..6 => Verb::Extend { amount, ttl },
        6 => Verb::Extend { amount: 0, ttl },
        7 => Verb::Capture { amount: 0, late: 0 },
        _ => Verb::Capture { amount, late: *[0, 0, 1, 5, u32::MAX].choose(rng).unwrap() },
    };
    let on_end = *[OnEnd::Capture, OnEnd::Release].choose(rng).unwrap();
    let id = IDS.choose(rng).unwrap();
    let id = if rng.random_bool(0.3) { *id } else { *id & !31 | rng.random_range(0..4) };
    HoldStep { quotas: quotas.clone(), id, on_end, verb }
}

/// The same step on another hold of the block.
fn next_in_block(first: &HoldStep, nth: usize) -> HoldStep {
    let more = nth as u32;
    let verb = match first.verb {
        Verb::Capture { amount, late } => Verb::Capture {
            amount: amount.saturating_add(more),
            late: if late == 0 { 0 } else { late.saturating_add(more) },
        },
        verb => verb,
    };
    HoldStep { id: first.id + nth as u128, verb, ..first.clone() }
}

#[tokio::test]
async fn a_key_has_many_holds() {
    let server = RedisServer::start().await;
    let store = crate::Store::builder().redis(&server.url()).unwrap();
    // The second one is not bare.
    for quota in [Quota::new(5000, Duration::from_secs(86_400 * 365)), Quota::non_refilling(5000)] {
        let bucket = TokenBucket::new(&store, "many", quota).unwrap();
        // Most are in runs. Some have a record of their own.
        let holds = join_all((0..1030).map(|nth| bucket.authorize("k", 1 + u32::from(nth % 8 == 0)))).await;
        let (holds, failed): (Vec<_>, Vec<_>) = holds.into_iter().partition(Result::is_ok);
        assert_eq!((holds.len(), failed.len()), (1024, 6));
        assert!(failed.into_iter().all(|failed| failed.is_err_and(|error| error.is_overloaded())));
        let mut holds: Vec<_> = holds.into_iter().map(Result::unwrap).collect();
        let held: u32 = holds.iter().map(Hold::held).sum();
        assert_eq!(bucket.peek("k").await.unwrap().held(), held);
        for hold in holds.iter_mut().step_by(100) {
            hold.extend(3).await.unwrap();
        }
        let captured = join_all(holds.into_iter().map(|hold| hold.capture(1))).await;
        assert!(
            captured.iter().all(|captured| captured.as_ref().is_ok_and(|it| !it.ended && it.excess == 0))
        );
        let state = bucket.peek("k").await.unwrap();
        assert_eq!((state.held(), state.remaining()), (0, 5000 - 1024));
        bucket.reset("k").await.unwrap();
    }
}

#[tokio::test]
async fn a_forged_state_is_not_a_bucket() {
    let server = RedisServer::start().await;
    let mut time = VirtualTime::new(&server);
    let now = NOW;
    time.set(now);
    let bucket =
        TokenBucket::new(&VirtualTime::store(&server), "forged", Quota::per_second(10).burst(20)).unwrap();
    let hold = bucket.authorize("k", 7).await.unwrap();
    let keys: Vec<String> = time.client.query(redis::cmd("KEYS").arg("*forged*")).unwrap();
    let key = keys.first().unwrap();
    let stored: Vec<u8> = time.client.query(redis::cmd("GET").arg(key)).unwrap();
    let record = &stored[stored.len() - 33..];
    let (plain, next, last) = (format!("{now} 0 100000 1 20|"), now + 1_000_000, now + 2_000_000);
    let head = |seen: i64, [count, held, captures]: [u32; 3], [next, last]: [i64; 2]| {
        let (seen, count) = (seen.to_be_bytes(), (count as u16).to_be_bytes());
        let (held, captures) = (held.to_be_bytes(), captures.to_be_bytes());
        [&seen[..], &count, &held, &captures, &next.to_be_bytes(), &last.to_be_bytes()].concat()
    };
    let state = |numbers: &str, head: Vec<u8>, records: &[u8]| [numbers.as_bytes(), &head, records].concat();
    let with = |counts, ends| state(&plain, head(now, counts, ends), record);
    let good = head(now, [1, 7, 7], [next, last]);
    let ends = [now + 30_000_000; 2];
    assert_eq!(stored, state("0 0 100000 1 20|", head(now, [1, 7, 7], ends), record));
    let forged = [
        with([0, 7, 7], [next, last]),
        with([8, 7, 7], [next, last]),
        with([1025, 2000, 7], [next, last]),
        with([1, 7, 8], [next, last]),
        with([1, 0, 0], [next, last]),
        with([1, 7, 7], [last, next]),
        with([1, 7, 7], [next, 9_007_199_254_740_993]),
        with([1, 7, 7], [-1, last]),
        state(&plain, head(-1, [1, 7, 7], [next, last]), record),
        state(&format!("{now} 0 100000 1 20 {now}|"), good.clone(), record),
        state(&format!("{now} 0 100000 1 20 |"), good.clone(), &record[..32]),
        state("x|", good.clone(), record),
        state("|", good.clone(), record),
        state(&plain, good.clone(), &[record, &[0]].concat()),
        state(&plain, good.clone(), &[]),
        state(&plain, Vec::new(), &[]),
        // Records that are read only when a hold has ended.
        state(&plain, head(now, [1, 7, 7], [now, last]), &[255; 33]),
        state(&plain, head(now, [1, 7, 7], [now, last]), &[0; 33]),
        state(&plain, head(now, [1, 7, 7], [now, last]), &[&record[..29], &[0; 4]].concat()),
    ];
    for value in forged {
        time.client.query::<()>(redis::cmd("SET").arg(key).arg(&value)).unwrap();
        let is_wrong = |error: Option<crate::Error>, what: &str| {
            let text = error.map_or_else(String::new, |error| format!("{error} {error:?}"));
            assert!(text.contains("not a bucket"), "{what} of {:?}: {text}", String::from_utf8_lossy(&value));
        };
        is_wrong(bucket.peek("k").await.err(), "peek");
        is_wrong(bucket.allow("k").await.err(), "allow");
        is_wrong(bucket.charge("k", 1).await.err(), "charge");
        is_wrong(bucket.authorize("k", 1).await.err(), "authorize");
        let after: Vec<u8> = time.client.query(redis::cmd("GET").arg(key)).unwrap();
        assert_eq!(after, value, "it is left as it is");
    }
    time.client.query::<()>(redis::cmd("DEL").arg(key)).unwrap();
    assert!(hold.capture(3).await.unwrap().ended);
}
