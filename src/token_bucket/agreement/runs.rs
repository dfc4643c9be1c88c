//! Runs that share one call must answer as if each had been called alone, in the order of the runs.
//!
//! The test makes the calls itself, not through the store. So every call has runs of several keys, several runs of
//! one key, and a key that does not hold a bucket.

use std::collections::BTreeMap;
use std::fmt::Debug;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use redis::{self, Value};

use super::holds;
use super::quota_sets;
use super::virtual_time::{CLOCK, VirtualTime, jump};
use crate::Quotas;
use crate::store::{Arguments, Cell as _, Fields, Operation};
use crate::token_bucket::adjust::Adjust;
use crate::token_bucket::ahead::Prefetch;
use crate::token_bucket::cancel::{Cancel, Rule};
use crate::token_bucket::operations::Reserve;
use crate::token_bucket::peek::{Peek, Stored};
use crate::token_bucket::quota::MAX_SPAN;
use crate::token_bucket::state::{Ask, Bucket};
use support::redis_server::RedisServer;
use support::seed;

const SEQUENCES: usize = 200;
const STEPS: usize = 40;
const KEYS: usize = 5;
/// The key that holds a list.
const FOREIGN: usize = 2;

/// Operations on the bucket of a key that are one run: equal ones, if they are not told apart by `nth`.
#[derive(Clone, Debug)]
pub(super) struct Run<O> {
    key: usize,
    pub(super) operation: O,
    pub(super) count: usize,
    /// The operation at a position from 0.
    pub(super) nth: fn(&O, usize) -> O,
}

/// Sends runs of equal operations in one call of the script. Returns its answer to each run.
pub(super) fn eval<O: Operation>(
    time: &mut VirtualTime,
    keys: &[String],
    runs: &[(&O, usize)],
    now: i64,
) -> Vec<Vec<Value>> {
    let runs: Vec<_> = runs.iter().map(|(operation, count)| vec![*operation; *count]).collect();
    eval_runs(time, keys, &runs, now)
}

/// Sends runs in one call of the script. Returns its answer to each run.
fn eval_runs<O: Operation>(
    time: &mut VirtualTime,
    keys: &[String],
    runs: &[Vec<&O>],
    now: i64,
) -> Vec<Vec<Value>> {
    let mut command = redis::cmd("EVAL");
    command.arg(O::SCRIPT.text(Some(CLOCK))).arg(keys.len()).arg(keys);
    O::SCRIPT.words.iter().for_each(|word| {
        command.arg(word);
    });
    let (mut shared, mut own) = (Vec::new(), Vec::new());
    runs[0][0].shared(&mut Arguments::new(&mut shared));
    for run in runs {
        run[0].own_run(run[1..].iter().copied(), &mut Arguments::new(&mut own));
    }
    let each = own.len() / runs.len();
    if O::SAME_ONCE && each > 0 && own.chunks_exact(each).all(|chunk| chunk == &own[..each]) {
        own.truncate(each);
    }
    shared.iter().chain(&own).for_each(|argument| argument.add_to(&mut command, None));
    let reply: Vec<Value> = match time.client.query(&command).unwrap() {
        Value::Array(values) => values,
        now @ Value::Int(_) => vec![now],
        // A text of numbers.
        text => {
            let text: String = redis::from_redis_value(text).unwrap();
            text.split(' ').map(|word| Value::Int(word.parse().unwrap())).collect()
        }
    };
    time.check_expiries();
    assert_eq!(reply[0], Value::Int(now));
    let fields = &reply[1..];
    assert_eq!(fields.len() % runs.len(), 0, "{fields:?}");
    let width = fields.len() / runs.len();
    (0..runs.len()).map(|run| fields[run * width..(run + 1) * width].to_vec()).collect()
}

pub(super) struct Both {
    time: VirtualTime,
    sequence: usize,
    now: i64,
    cells: [Bucket; KEYS],
}

impl Both {
    /// Sends the runs in one call of the script, and applies them one by one in Rust. Returns the replies of each
    /// run, in order. The foreign key has none.
    pub(super) fn call<O: Operation<Cell = Bucket> + Clone>(
        &mut self,
        runs: &[Run<O>],
    ) -> Vec<Vec<O::Reply>> {
        self.call_and_compare(runs, |reply, _| reply)
    }

    /// As `call`, but compares what `read` makes of the replies. It is told of the last one of each run.
    pub(super) fn call_and_compare<O: Operation<Cell = Bucket> + Clone, R: Debug>(
        &mut self,
        runs: &[Run<O>],
        read: impl Fn(O::Reply, bool) -> R,
    ) -> Vec<Vec<R>> {
        if runs.is_empty() {
            return Vec::new();
        }
        let keys: Vec<_> = runs.iter().map(|run| self.name(run.key)).collect();
        let operations: Vec<_> = runs.iter().map(Run::all).collect();
        let sent: Vec<Vec<_>> = operations.iter().map(|run| run.iter().collect()).collect();
        let fields = eval_runs(&mut self.time, &keys, &sent, self.now);
        let mut replies = Vec::new();
        for ((run, operations), fields) in runs.iter().zip(operations).zip(&fields) {
            let mut of_run = Vec::new();
            for (nth, operation) in operations.into_iter().enumerate() {
                let is_last = nth + 1 == run.count;
                let lua = operation.clone().decode(nth, self.now, Fields::new(fields, false));
                if run.key == FOREIGN {
                    assert!(lua.is_err_and(|error| error.0.starts_with("WRONGTYPE")), "{runs:?}");
                    continue;
                }
                let cell = &mut self.cells[run.key];
                if cell.is_idle(self.now) {
                    *cell = Bucket::default();
                }
                let rust = read(operation.apply(cell, self.now), is_last);
                let lua = read(lua.unwrap_or_else(|error| panic!("{error:?}: {run:?}")), is_last);
                assert_eq!(format!("{lua:?}"), format!("{rust:?}"), "{run:?} of {runs:?} at {}", self.now);
                of_run.push(lua);
            }
            replies.push(of_run);
        }
        replies
    }

    fn pass(&mut self, by: i64) {
        for cell in self.cells.iter_mut().filter(|cell| cell.is_idle(self.now)) {
            *cell = Bucket::default();
        }
        self.now += by;
        self.time.set(self.now);
    }

    fn name(&self, key: usize) -> String {
        if key == FOREIGN { "list".to_owned() } else { format!("{}:{key}", self.sequence) }
    }
}

/// One to three runs for each of some keys, in the order of the keys.
pub(super) fn random_runs<O: Clone>(
    rng: &mut StdRng,
    mut operation: impl FnMut(&mut StdRng, usize) -> Option<O>,
) -> Vec<Run<O>> {
    let mut runs = Vec::new();
    for key in 0..KEYS {
        for _ in 0..rng.random_range(0..=3) {
            let nth = |operation: &O, _: usize| operation.clone();
            runs.extend(operation(rng, key).map(|operation| Run { key, operation, count: 1, nth }));
        }
    }
    runs
}

fn repeated<O: Operation>(rng: &mut StdRng, mut runs: Vec<Run<O>>) -> Vec<Run<O>> {
    runs.iter_mut().filter(|run| run.may_repeat()).for_each(|run| run.count = rng.random_range(1..=3));
    runs
}

impl<O> Run<O> {
    fn all(&self) -> Vec<O> {
        (0..self.count).map(|at| (self.nth)(&self.operation, at)).collect()
    }
}

impl<O: Operation> Run<O> {
    fn may_repeat(&self) -> bool {
        self.operation.repeats(&self.operation)
    }
}

#[tokio::test]
async fn runs_of_one_call_answer_as_if_made_alone() {
    let server = RedisServer::start().await;
    server.cli(&["RPUSH", "list", "a"]);
    let mut rng = StdRng::seed_from_u64(seed());
    let sets = quota_sets();
    let mut both = Both {
        time: VirtualTime::new(&server),
        sequence: 0,
        now: 1_760_000_000_000_000,
        cells: Default::default(),
    };
    for sequence in 0..SEQUENCES {
        (both.sequence, both.cells) = (sequence, Default::default());
        let usual = sets.choose(&mut rng).unwrap();
        let mut charges = Charges::default();
        for _ in 0..STEPS {
            // What was done at the same time depends on each other most.
            let by = if rng.random_bool(0.5) { jump(&mut rng) } else { 0 };
            both.pass(by);
            let quotas = if rng.random_bool(0.05) { sets.choose(&mut rng).unwrap() } else { usual };
            step(&mut rng, &mut both, quotas, &mut charges);
        }
    }
    assert_eq!(server.cli(&["LRANGE", "list", "0", "-1"]).trim(), "a");
}

/// Per key: the charges that can be given back.
#[derive(Default)]
struct Charges {
    cancels: BTreeMap<usize, Vec<Cancel>>,
    ahead: BTreeMap<usize, Vec<Cancel>>,
}

/// Takes a random charge of a key, and returns it if it is under the right quotas.
fn pick<C>(
    rng: &mut StdRng,
    charges: &mut BTreeMap<usize, Vec<C>>,
    key: usize,
    is_of: impl Fn(&C) -> bool,
) -> Option<C> {
    let charges = charges.get_mut(&if key == FOREIGN { 0 } else { key })?;
    if charges.is_empty() {
        return None;
    }
    let charge = charges.swap_remove(rng.random_range(0..charges.len()));
    is_of(&charge).then_some(charge)
}

fn step(rng: &mut StdRng, both: &mut Both, quotas: &Quotas, charges: &mut Charges) {
    // Arguments that are the same for all runs are sent once.
    let same = rng.random_bool(0.3);
    match rng.random_range(0..22) {
        0..4 => {
            let most = quotas.max_cost();
            let ask = |rng: &mut StdRng| {
                let cost = match rng.random_range(0..8) {
                    0 => most,
                    1 => rng.random_range(1..=most),
                    _ => rng.random_range(1..=most.min(4)),
                };
                let waits = [0, 0, 1, 1_000, 100_000, 1_500_000, 3_600_000_000, MAX_SPAN];
                Ask { cost: cost.into(), wait: *waits.choose(rng).unwrap() }
            };
            let first = ask(rng);
            let runs = random_runs(rng, |rng, _| {
                let ask = if same { first } else { ask(rng) };
                Some(Reserve { quotas: quotas.clone(), ask })
            });
            let mut runs = repeated(rng, runs);
            if same && runs.iter().all(Run::may_repeat) {
                runs.iter_mut().for_each(|run| run.count = 2);
            }
            for (run, decisions) in runs.iter().zip(both.call(&runs)) {
                let charges = charges.cancels.entry(run.key).or_default();
                if rng.random_bool(0.2) {
                    charges.extend(Reserve::undo(&decisions));
                    continue;
                }
                let admitted = decisions.iter().filter(|decision| decision.is_admitted());
                charges.extend(admitted.map(|it| match rng.random_range(0..10) {
                    // With 1142, since the charge itself.
                    0..8 => {
                        let rule = Rule::acts_at(it, *[0, 1142].choose(rng).unwrap());
                        Cancel::new(&it.state, it.cost.into(), rule)
                    }
                    8 => Cancel::safe_to_repeat(&it.state, it.cost.into()),
                    _ => Cancel::new(&it.state, it.cost.into(), Rule::IfLatest),
                }));
            }
        }
        4..7 => {
            let runs = random_runs(rng, |rng, key| {
                pick(rng, &mut charges.cancels, key, |charge| charge.quotas == *quotas)
            });
            both.call(&runs);
        }
        9..11 => {
            let most = rng.random_range(1..=100);
            let runs = random_runs(rng, |rng, _| {
                let most = if same { most } else { rng.random_range(1..=100) };
                Some(Prefetch { quotas: quotas.clone(), most })
            });
            for (run, prefetched) in runs.iter().zip(both.call(&runs)) {
                let ahead = charges.ahead.entry(run.key).or_default();
                for prefetched in prefetched.iter().filter(|prefetched| prefetched.count > 0) {
                    let age = *[0, 0, 10_000, 200_000].choose(rng).unwrap();
                    let tokens = rng.random_range(1..=prefetched.count);
                    ahead.push(Cancel::unused(&prefetched.state, tokens, age));
                }
            }
        }
        11..13 => {
            let runs = random_runs(rng, |rng, key| {
                pick(rng, &mut charges.ahead, key, |charge| charge.quotas == *quotas)
            });
            both.call(&runs);
        }
        7..9 => {
            let runs = random_runs(rng, |_, _| Some(Peek));
            let runs = repeated(rng, runs);
            let levels = |stored: &Stored| {
                let levels = stored.bucket.levels.iter().map(|level| (level.tat, level.last, level.quota));
                (levels.collect::<Vec<_>>(), stored.bucket.held())
            };
            both.call_and_compare(&runs, |stored, _| (levels(&stored), stored.under(quotas)));
        }
        13..15 => {
            let runs = random_runs(rng, |rng, _| {
                let tokens = *[1, 3, 50, 4_000_000_000, -1, -3, -4_000_000_000].choose(rng).unwrap();
                let block = *[0, 0, 500_000].choose(rng).unwrap();
                Some(Adjust { quotas: quotas.clone(), tokens, block })
            });
            both.call(&runs);
        }
        15 => {
            let micros = rng.random_range(0..3_000_000);
            let runs = random_runs(rng, |rng, _| {
                let micros = if same { micros } else { rng.random_range(0..3_000_000) };
                Some(Adjust { quotas: quotas.clone(), tokens: 0, block: micros })
            });
            let runs = repeated(rng, runs);
            both.call(&runs);
        }
        _ => holds::step(rng, both, quotas),
    }
}
