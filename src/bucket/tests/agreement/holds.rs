//! Holds, among all other operations on the same buckets.

use std::time::Duration;

use futures::future::join_all;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::bucket::hold::{HoldReplies, HoldStep, HoldSteps, Verb};
use crate::bucket::holds::OnEnd;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::agreement::Both;
use crate::bucket::tests::agreement::runs::random_runs;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::hold::Hold;
use support::redis_server::RedisServer;

/// Ids that are found in each other's records, at the wrong place.
const IDS: [u128; 5] = [
    0,
    1 << 120,
    u128::from_be_bytes([1; 16]),
    u128::MAX,
    0x0101_0101_0000_0000_0101_0101_0000_0000,
];

/// Random steps on the holds of some keys, in one call. Some are on several holds of a block.
pub(crate) fn step(rng: &mut StdRng, both: &mut Both, quotas: &Quotas) {
    let mut runs = random_runs(rng, |rng, _| Some(HoldSteps::one(random_step(rng, quotas))));
    for run in &mut runs {
        if rng.random_bool(0.5) {
            run.count = rng.random_range(1..=(32 - run.operation.each[0].id % 32).min(6)) as usize;
            run.nth = next_in_block;
        }
    }
    if rng.random_bool(0.4) {
        runs.truncate(1);
    }
    both.call_and_compare(&runs, |reply: &HoldReplies, is_last| match is_last {
        true => format!("{reply:?}"),
        // The state is the one after the run.
        false => format!("{:?} {}", reply.each[0].outcome, reply.each[0].amount),
    });
}

pub(crate) fn random_step(rng: &mut StdRng, quotas: &Quotas) -> HoldStep {
    let most = quotas.max_cost();
    let amount = match rng.random_range(0..8) {
        0 => most,
        1 => rng.random_range(1..=most),
        2 => u32::MAX,
        _ => rng.random_range(1..=most.min(3)),
    };
    let ttl = *[
        1,
        1000,
        500_000,
        500_000,
        3_000_000,
        70_000_000,
        86_400_000_000,
    ]
    .choose(rng)
    .unwrap();
    let verb = match rng.random_range(0..10) {
        0..4 => Verb::Authorize { amount, ttl },
        4..6 => Verb::Extend { amount, ttl },
        6 => Verb::Extend { amount: 0, ttl },
        7 => Verb::Capture { amount: 0, late: 0 },
        _ => Verb::Capture {
            amount,
            late: *[0, 0, 1, 5, u32::MAX].choose(rng).unwrap(),
        },
    };
    let on_end = *[OnEnd::Capture, OnEnd::Release].choose(rng).unwrap();
    let id = IDS.choose(rng).unwrap();
    let id = if rng.random_bool(0.3) {
        *id
    } else {
        *id & !31 | rng.random_range(0..4)
    };
    HoldStep {
        quotas: quotas.clone(),
        id,
        on_end,
        verb,
    }
}

/// The same step on another hold of the block.
fn next_in_block(first: &HoldSteps, nth: usize) -> HoldSteps {
    let first = &first.each[0];
    let more = nth as u32;
    let verb = match first.verb {
        Verb::Capture { amount, late } => Verb::Capture {
            amount: amount.saturating_add(more),
            late: if late == 0 {
                0
            } else {
                late.saturating_add(more)
            },
        },
        verb => verb,
    };
    HoldSteps::one(HoldStep {
        id: first.id + nth as u128,
        verb,
        ..first.clone()
    })
}

#[tokio::test]
async fn a_key_has_many_holds() {
    let server = RedisServer::start().await;
    let store = crate::store::Store::builder().redis(&server.url()).unwrap();
    // The second one is not bare.
    for quota in [
        Quota::new(5000, Duration::from_secs(86_400 * 365)),
        Quota::non_refilling(5000),
    ] {
        let bucket = TokenBucket::new(&store, "many", quota).unwrap();
        // Most are in runs. Some have a record of their own.
        let holds =
            join_all((0..1030).map(|nth| bucket.authorize("k", 1 + u32::from(nth % 8 == 0)))).await;
        let (holds, failed): (Vec<_>, Vec<_>) = holds.into_iter().partition(Result::is_ok);
        assert_eq!((holds.len(), failed.len()), (1024, 6));
        assert!(
            failed
                .into_iter()
                .all(|failed| failed.is_err_and(|error| error.is_overloaded()))
        );
        let mut holds: Vec<_> = holds.into_iter().map(Result::unwrap).collect();
        let held: u32 = holds.iter().map(Hold::held).sum();
        assert_eq!(bucket.peek("k").await.unwrap().held(), held);
        for hold in holds.iter_mut().step_by(100) {
            hold.extend(3).await.unwrap();
        }
        let captured = join_all(holds.into_iter().map(|hold| hold.capture(1))).await;
        assert!(captured.iter().all(|captured| {
            captured
                .as_ref()
                .is_ok_and(|it| !it.ended && it.excess == 0)
        }));
        let state = bucket.peek("k").await.unwrap();
        assert_eq!((state.held(), state.remaining()), (0, 5000 - 1024));
        bucket.reset("k").await.unwrap();
    }
}
