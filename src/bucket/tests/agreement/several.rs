//! Several buckets that are charged in one call. Requests share the buckets in random ways.

use std::ops::Range;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::adjust::Adjust;
use crate::bucket::charge::{Charge, Charged, JoinedTerms, Price, Terms};
use crate::bucket::give_back::GiveBack;
use crate::bucket::hold::HoldSteps;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::agreement::virtual_time::jump;
use crate::bucket::tests::agreement::{
    Both, FOREIGN, Run, SEQUENCES, STEPS, hold_all, holds, quota_sets,
};
use crate::bucket::tests::fixtures::ask_for;
use crate::store::Store;
use crate::store::operation::Operation as _;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limits::terms_of;
use support::redis_server::RedisServer;
use support::seed;

/// The keys of each limit. The last key of the second limit is foreign.
const LIMITS: [Range<usize>; 3] = [3..7, 0..FOREIGN + 1, 7..8];

/// The keys of a request, one per limit.
pub(crate) fn place(rng: &mut StdRng) -> [usize; 3] {
    LIMITS.map(|keys| rng.random_range(keys))
}

/// Charges several buckets in one call. Returns some of the charges to cancel.
fn reserve(rng: &mut StdRng, both: &mut Both, runs: &[Run<Charge>]) -> Vec<(Vec<usize>, GiveBack)> {
    let replies = both.call_and_compare(runs, |charged: &Charged, _| {
        let decision = charged.clone().decision();
        assert_eq!(charged.admitted, decision.refused_by().is_none());
        format!("{decision:?} {:?}", decision.refused_by())
    });
    let mut cancels = Vec::new();
    for (run, replies) in runs.iter().zip(replies) {
        // The callers of some requests are gone.
        let gone = rng.random_range(0..=replies.len());
        cancels.extend(Charge::undo(&replies[gone..]).map(|cancel| (run.keys.clone(), cancel)));
    }
    cancels
}

fn terms(rng: &mut StdRng, sets: &[Quotas]) -> Arc<JoinedTerms> {
    let store = Store::in_memory();
    let bucket = |name| TokenBucket::new(&store, name, sets.choose(rng).unwrap().clone()).unwrap();
    Arc::new(terms_of(&["users", "tenants", "all"].map(bucket)))
}

#[tokio::test]
async fn buckets_are_charged_together_in_lua_as_in_rust() {
    let server = RedisServer::start().await;
    let mut rng = StdRng::seed_from_u64(seed());
    let sets = quota_sets();
    let mut both = Both::new(&server);
    for sequence in 0..SEQUENCES {
        both.begin();
        let usual = terms(&mut rng, &sets);
        let mut cancels = Vec::new();
        for _ in 0..STEPS {
            both.pass(jump(&mut rng));
            let terms = if rng.random_bool(0.1) {
                terms(&mut rng, &sets)
            } else {
                Arc::clone(&usual)
            };
            let limit = rng.random_range(0..3);
            let key = [rng.random_range(LIMITS[limit].clone())];
            match rng.random_range(0..10) {
                0..5 => {
                    let same = rng.random_bool(0.3);
                    // Requests with a cost for each limit are sent in separate calls.
                    let each = rng.random_bool(0.4);
                    let cost = |rng: &mut StdRng| {
                        let most = |quotas: &Quotas| quotas.max_cost().min(4);
                        let costs = || terms.each.iter().map(most);
                        let mut price = Price::new(costs().map(|most| rng.random_range(1..=most)));
                        while matches!(price, Price::Same(_)) == each {
                            let first = rng.random_range(1..=terms.all.max_cost().min(4));
                            let of = |(limit, most)| match each {
                                true => {
                                    rng.random_range(1..=if limit == 0 { most } else { 2 * most })
                                }
                                false => first,
                            };
                            price = Price::new(costs().enumerate().map(of));
                        }
                        price
                    };
                    let (first, count) = (cost(&mut rng), rng.random_range(1..=3));
                    let run = |_| {
                        let place = place(&mut rng);
                        let price = if same { first } else { cost(&mut rng) };
                        let count = if same { count } else { rng.random_range(1..=3) };
                        let reserve = Charge {
                            terms: Terms::All(Arc::clone(&terms)),
                            price,
                            wait: 0,
                        };
                        Run {
                            count,
                            ..Run::new(place, reserve)
                        }
                    };
                    let runs: Vec<_> = (0..5).map(run).collect();
                    cancels.extend(reserve(&mut rng, &mut both, &runs[..1 + sequence % 5]));
                }
                5 => hold_all::step(&mut rng, &mut both, &terms),
                6 => {
                    both.call(&[Run::new(
                        key,
                        HoldSteps::one(holds::random_step(&mut rng, &terms.each[limit])),
                    )]);
                }
                7 if !cancels.is_empty() => {
                    let (mut keys, cancel) =
                        cancels.swap_remove(rng.random_range(0..cancels.len()));
                    // A key may have another type by then. The other limits are given back their tokens.
                    if rng.random_bool(0.2) {
                        keys[rng.random_range(0..3)] = FOREIGN;
                    }
                    both.send(&keys, &[vec![&cancel]]);
                    both.apply(&keys, cancel);
                }
                8 => {
                    let wait = *[0, 1_500_000].choose(&mut rng).unwrap();
                    both.call(&[Run::new(key, ask_for(&terms.each[limit], 1, wait))]);
                }
                _ => {
                    let (quotas, block) = (terms.each[limit].clone(), rng.random_range(0..300_000));
                    let adjust = Adjust {
                        quotas,
                        tokens: 0,
                        block,
                    };
                    both.call(&[Run::new(key, adjust)]);
                }
            }
        }
    }
    both.ends(&server);
}
