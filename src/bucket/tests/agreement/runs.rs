//! Operations on one bucket, in runs.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::Ask;
use crate::bucket::adjust::{Adjust, Peek, Reset, Stored};
use crate::bucket::ahead::Prefetch;
use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::charge::{Charge, Charged};
use crate::bucket::give_back::{GiveBack, Rule};
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::agreement::virtual_time::jump;
use crate::bucket::tests::agreement::{Both, FOREIGN, Run, SEQUENCES, STEPS, holds, quota_sets};
use crate::bucket::tests::fixtures::ask_for;
use crate::store::operation::Operation;
use support::redis_server::RedisServer;
use support::seed;

const KEYS: usize = 5;

/// One to three runs for each of some keys, in the order of the keys.
pub(crate) fn random_runs<O: Clone>(
    rng: &mut StdRng,
    mut operation: impl FnMut(&mut StdRng, usize) -> Option<O>,
) -> Vec<Run<O>> {
    let mut runs = Vec::new();
    for key in 0..KEYS {
        for _ in 0..rng.random_range(0..=3) {
            runs.extend(operation(rng, key).map(|operation| Run::new([key], operation)));
        }
    }
    runs
}

fn may_repeat<O: Operation>(run: &Run<O>) -> bool {
    run.operation.repeats(&run.operation)
}

fn repeated<O: Operation>(rng: &mut StdRng, mut runs: Vec<Run<O>>) -> Vec<Run<O>> {
    runs.iter_mut()
        .filter(|run| may_repeat(run))
        .for_each(|run| run.count = rng.random_range(1..=3));
    runs
}

#[tokio::test]
async fn lua_and_rust_agree_on_every_sequence() {
    let server = RedisServer::start().await;
    let mut rng = StdRng::seed_from_u64(seed());
    let sets = quota_sets();
    let mut both = Both::new(&server);
    for _ in 0..SEQUENCES {
        both.begin();
        let usual = sets.choose(&mut rng).unwrap();
        let mut charges = Charges::default();
        for _ in 0..STEPS {
            // What was done at the same time depends on each other most.
            let by = if rng.random_bool(0.5) {
                jump(&mut rng)
            } else {
                0
            };
            both.pass(by);
            // Usually one set of quotas per key; sometimes another, as during a deployment.
            let quotas = if rng.random_bool(0.1) {
                sets.choose(&mut rng).unwrap()
            } else {
                usual
            };
            step(&mut rng, &mut both, quotas, &mut charges);
        }
    }
    both.ends(&server);
}

/// Per key: the charges that can be given back.
#[derive(Default)]
struct Charges {
    cancels: BTreeMap<usize, Vec<GiveBack>>,
    ahead: BTreeMap<usize, Vec<GiveBack>>,
}

/// Takes a random charge of a key, and returns it if it is under the right quotas.
fn pick(
    rng: &mut StdRng,
    charges: &mut BTreeMap<usize, Vec<GiveBack>>,
    key: usize,
    quotas: &Quotas,
) -> Option<GiveBack> {
    let charges = charges.get_mut(&if key == FOREIGN { 0 } else { key })?;
    if charges.is_empty() {
        return None;
    }
    let charge = charges.swap_remove(rng.random_range(0..charges.len()));
    (charge.each[0].quotas == *quotas).then_some(charge)
}

fn step(rng: &mut StdRng, both: &mut Both, quotas: &Quotas, charges: &mut Charges) {
    // Arguments that are the same for all runs are sent once.
    let same = rng.random_bool(0.3);
    match rng.random_range(0..23) {
        0..4 => {
            let most = quotas.max_cost();
            let ask = |rng: &mut StdRng| {
                let cost = match rng.random_range(0..8) {
                    0 => most,
                    1 => rng.random_range(1..=most),
                    _ => rng.random_range(1..=most.min(4)),
                };
                let waits = [0, 0, 1, 1_000, 100_000, 1_500_000, 3_600_000_000, MAX_SPAN];
                Ask {
                    cost: cost.into(),
                    wait: *waits.choose(rng).unwrap(),
                }
            };
            let first = ask(rng);
            let runs = random_runs(rng, |rng, _| {
                let ask = if same { first } else { ask(rng) };
                Some(ask_for(quotas, ask.cost, ask.wait))
            });
            let mut runs = repeated(rng, runs);
            if same && runs.iter().all(may_repeat) {
                runs.iter_mut().for_each(|run| run.count = 2);
            }
            for (run, charged) in runs.iter().zip(both.call(&runs)) {
                let charges = charges.cancels.entry(run.keys[0]).or_default();
                if rng.random_bool(0.2) {
                    charges.extend(Charge::undo(&charged));
                    continue;
                }
                let decisions: Vec<_> = charged.into_iter().map(Charged::decision).collect();
                let admitted = decisions.iter().filter(|decision| decision.is_admitted());
                charges.extend(admitted.map(|it| match rng.random_range(0..10) {
                    // With 1142, since the charge itself.
                    0..8 => {
                        let rule = Rule::acts_at(it, *[0, 1142].choose(rng).unwrap());
                        GiveBack::new(&it.state, it.cost.into(), rule)
                    }
                    8 => GiveBack::safe_to_repeat(&it.state, it.cost.into()),
                    _ => GiveBack::new(&it.state, it.cost.into(), Rule::IfLatest),
                }));
            }
        }
        4..7 => {
            let of = &mut charges.cancels;
            let runs = random_runs(rng, |rng, key| pick(rng, of, key, quotas));
            both.call(&runs);
        }
        9..11 => {
            let most = rng.random_range(1..=100);
            let runs = random_runs(rng, |rng, _| {
                let most = if same {
                    most
                } else {
                    rng.random_range(1..=100)
                };
                Some(Prefetch {
                    quotas: quotas.clone(),
                    most,
                })
            });
            for (run, prefetched) in runs.iter().zip(both.call(&runs)) {
                let ahead = charges.ahead.entry(run.keys[0]).or_default();
                for prefetched in prefetched.iter().filter(|prefetched| prefetched.count > 0) {
                    let age = *[0, 0, 10_000, 200_000].choose(rng).unwrap();
                    let tokens = rng.random_range(1..=prefetched.count);
                    ahead.push(GiveBack::unused(&prefetched.state, tokens, age));
                }
            }
        }
        11..13 => {
            let of = &mut charges.ahead;
            let runs = random_runs(rng, |rng, key| pick(rng, of, key, quotas));
            both.call(&runs);
        }
        7..9 => {
            let runs = random_runs(rng, |_, _| Some(Peek));
            let runs = repeated(rng, runs);
            let levels = |stored: &Stored| {
                let levels = stored
                    .bucket
                    .levels
                    .iter()
                    .map(|level| (level.tat, level.last, level.quota));
                (levels.collect::<Vec<_>>(), stored.bucket.held())
            };
            both.call_and_compare(&runs, |stored, _| {
                format!("{:?} {:?}", levels(stored), stored.clone().under(quotas))
            });
        }
        13..15 => {
            let runs = random_runs(rng, |rng, _| {
                let tokens = *[1, 3, 50, 4_000_000_000, -1, -3, -4_000_000_000]
                    .choose(rng)
                    .unwrap();
                let block = *[0, 0, 500_000].choose(rng).unwrap();
                Some(Adjust {
                    quotas: quotas.clone(),
                    tokens,
                    block,
                })
            });
            both.call(&runs);
        }
        15 => {
            let micros = rng.random_range(0..3_000_000);
            let runs = random_runs(rng, |rng, _| {
                let micros = if same {
                    micros
                } else {
                    rng.random_range(0..3_000_000)
                };
                Some(Adjust {
                    quotas: quotas.clone(),
                    tokens: 0,
                    block: micros,
                })
            });
            let runs = repeated(rng, runs);
            both.call(&runs);
        }
        16 => {
            let key = [*[0, 1, 3, 4].choose(rng).unwrap()];
            both.send(&key, &[vec![&Reset]]);
            both.apply(&key, Reset);
        }
        _ => holds::step(rng, both, quotas),
    }
}
