use super::*;
use crate::store::Cell as _;
use crate::token_bucket::cancel::{Cancel, Rule};
use crate::token_bucket::fixtures::{self, SECOND, START, one};
use crate::{Quota, Quotas};

fn adjust(bucket: &mut Bucket, quotas: &Quotas, now: i64, tokens: i64) -> BucketState {
    Adjust { quotas: quotas.clone(), tokens, block: 0 }.apply(bucket, START + now)
}

/// A reservation whose time to act has come cannot be cancelled any more. One that is pending can.
#[test]
fn pending_reservations_are_known_after_a_charge_and_after_a_gift() {
    let quotas = one(Quota::per_second(1).burst(3));
    for tokens in [1, -1] {
        for (at, pending) in [(SECOND, true), (4 * SECOND - 1, true), (4 * SECOND, false)] {
            let mut bucket = Bucket::default();
            let mut reserve = |cost| {
                let decision = fixtures::reserve(&mut bucket, &quotas, START, (cost, MAX_SPAN));
                Cancel::new(&decision.state, cost, Rule::acts_at(&decision, 0))
            };
            // The last one acts after 4 s. The one before is cancelled, so less is owed than was reserved.
            let [_, before, last] = [reserve(3), reserve(3), reserve(1)];
            assert!(before.apply(&mut bucket, START));
            adjust(&mut bucket, &quotas, at, tokens);
            assert_eq!(last.apply(&mut bucket, START + at), pending, "{tokens} at {at}");
        }
    }
}

#[test]
fn tokens_are_given_up_to_a_full_bucket() {
    for quota in [Quota::per_second(10).burst(20), Quota::non_refilling(20)] {
        let (mut bucket, quotas) = (Bucket::default(), one(quota));
        let steps = [(12, 8), (-5, 13), (0, 13), (-6, 19), (30, 0), (-12, 1), (-100, 20), (-1, 20), (1, 19)];
        for (tokens, left) in steps {
            assert_eq!(adjust(&mut bucket, &quotas, 0, tokens).remaining(), left, "{tokens}");
        }
    }
}

#[test]
fn a_debt_is_paid_within_35_years() {
    let quotas = one(Quota::new(1, std::time::Duration::from_secs(86_400)).burst(1));
    let mut bucket = Bucket::default();
    // 20 000 days are too long by themselves, and 10 000 together with what is owed.
    for (tokens, owed) in [(10_000, 10_000 * 86_400 * SECOND), (10_000, MAX_SPAN), (20_000, MAX_SPAN)] {
        adjust(&mut bucket, &quotas, 0, tokens);
        let idle = START + owed;
        assert_eq!(
            [idle - 1, idle].map(|now| bucket.is_idle(now)),
            [false, true],
            "{:?}",
            bucket.idle_from()
        );
    }
}

#[test]
fn a_block_is_as_long_as_the_longest() {
    let quotas = one(Quota::per_second(1));
    let mut bucket = Bucket::default();
    for (block, left) in [(0, 0), (2, 2), (1, 2), (3, 3), (0, 3)] {
        let block = block * SECOND;
        let state = Adjust { quotas: quotas.clone(), tokens: 0, block }.apply(&mut bucket, START);
        assert_eq!(state.blocked_for().as_secs(), left);
    }
}

#[test]
fn equal_blocks_are_one_run_and_charges_are_not() {
    let quotas = one(Quota::per_second(1));
    let adjust = |(tokens, block)| Adjust { quotas: quotas.clone(), tokens, block };
    let cases = [((0, 5), (0, 5), true), ((0, 5), (0, 6), false), ((1, 5), (1, 5), false)];
    let cases = cases.into_iter().chain([((0, 5), (1, 5), false), ((1, 5), (0, 5), false)]);
    for (one, next, expected) in cases {
        assert_eq!(adjust(one).repeats(&adjust(next)), expected, "{one:?}, {next:?}");
    }
}
