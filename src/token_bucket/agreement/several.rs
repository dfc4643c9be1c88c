//! Several buckets that are charged in one call. Requests share the buckets in random ways.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::quota_sets;
use super::runs::eval;
use super::virtual_time::{VirtualTime, jump};
use super::{hold_all, holds};
use crate::store::{Cell as _, Fields, Operation};
use crate::token_bucket::adjust::Adjust;
use crate::token_bucket::operations::Reserve;
use crate::token_bucket::several::{Buckets, CancelAll, Price, ReserveAll, Terms};
use crate::token_bucket::state::{Ask, Bucket};
use crate::{Quotas, Store, TokenBucket};
use support::redis_server::RedisServer;
use support::seed;

const SEQUENCES: usize = 200;
const STEPS: usize = 40;
/// The number of keys of each limit. The last key of the second limit holds a list.
pub(super) const KEYS: [usize; 3] = [4, 3, 1];

/// The keys of a request, one per limit.
pub(super) type Place = [usize; 3];

pub(super) struct Both {
    pub(super) time: VirtualTime,
    sequence: usize,
    pub(super) now: i64,
    cells: BTreeMap<(usize, usize), Bucket>,
}

pub(super) fn is_foreign(limit: usize, key: usize) -> bool {
    (limit, key) == (1, KEYS[1] - 1)
}

impl Both {
    fn name(&self, limit: usize, key: usize) -> String {
        if is_foreign(limit, key) { "list".to_owned() } else { format!("{}:{limit}:{key}", self.sequence) }
    }

    pub(super) fn names(&self, place: Place) -> impl Iterator<Item = String> {
        place.into_iter().enumerate().map(|(limit, key)| self.name(limit, key))
    }

    pub(super) fn cell(&mut self, limit: usize, key: usize) -> &mut Bucket {
        let now = self.now;
        let cell = self.cells.entry((limit, key)).or_default();
        if cell.is_idle(now) {
            *cell = Bucket::default();
        }
        cell
    }

    pub(super) fn apply<O: Operation<Cell = Buckets>>(&mut self, place: Place, operation: O) -> O::Reply {
        let now = self.now;
        let cells = |this: &mut Self| (0..3).map(|limit| this.cell(limit, place[limit]).clone()).collect();
        let mut buckets = Buckets(cells(self));
        let reply = operation.apply(&mut buckets, now);
        for (limit, bucket) in buckets.0.into_iter().enumerate() {
            *self.cell(limit, place[limit]) = bucket;
        }
        reply
    }

    /// Sends the runs in one call in Lua, and applies them one by one in Rust. Returns some of the charges to
    /// cancel.
    fn reserve(&mut self, rng: &mut StdRng, runs: &[(Place, ReserveAll, usize)]) -> Vec<(Place, CancelAll)> {
        let names: Vec<_> = runs.iter().flat_map(|(place, ..)| self.names(*place)).collect();
        let operations: Vec<_> = runs.iter().map(|(_, operation, count)| (operation, *count)).collect();
        let fields = eval(&mut self.time, &names, &operations, self.now);
        let mut cancels = Vec::new();
        for ((place, operation, count), fields) in runs.iter().zip(&fields) {
            let mut replies = Vec::new();
            for nth in 0..*count {
                let lua = operation.clone().decode(nth, self.now, Fields::new(fields, false));
                if is_foreign(1, place[1]) {
                    assert!(lua.is_err_and(|error| error.0.starts_with("WRONGTYPE")), "{runs:?}");
                    continue;
                }
                let rust = self.apply(*place, operation.clone());
                let lua = lua.unwrap_or_else(|error| panic!("{error:?}: {runs:?}"));
                let told = |decided: &crate::token_bucket::several::Decided| {
                    let decision = decided.decision();
                    format!("{decision:?} {:?}", decision.refused_by())
                };
                assert_eq!(told(&lua), told(&rust), "{:?} of {runs:?} at {}", place, self.now);
                assert_eq!(lua.admitted, lua.decision().refused_by().is_none());
                replies.push(lua);
            }
            // The callers of some requests are gone.
            let gone = rng.random_range(0..=replies.len());
            cancels.extend(ReserveAll::undo(&replies[gone..]).map(|cancel| (*place, cancel)));
        }
        cancels
    }

    /// The key of a limit may have another type by then. That key stays unchanged, and the other limits are given
    /// back their tokens.
    fn cancel(&mut self, place: Place, cancel: CancelAll, foreign: Option<usize>) {
        let mut names: Vec<_> = self.names(place).collect();
        if let Some(limit) = foreign {
            "list".clone_into(&mut names[limit]);
        }
        eval(&mut self.time, &names, &[(&cancel, 1)], self.now);
        let before = foreign.map(|limit| self.cell(limit, place[limit]).clone());
        self.apply(place, cancel);
        if let (Some(limit), Some(before)) = (foreign, before) {
            *self.cell(limit, place[limit]) = before;
        }
    }

    /// Applies an operation to one bucket alone.
    fn one<O: Operation<Cell = Bucket> + Clone>(&mut self, limit: usize, key: usize, operation: O) {
        let name = self.name(limit, key);
        eval(&mut self.time, &[name], &[(&operation, 1)], self.now);
        let now = self.now;
        if !is_foreign(limit, key) {
            operation.apply(self.cell(limit, key), now);
        }
    }
}

fn terms(rng: &mut StdRng, sets: &[Quotas]) -> Arc<Terms> {
    let store = Store::in_memory();
    let bucket = |name| TokenBucket::new(&store, name, sets.choose(rng).unwrap().clone()).unwrap();
    Arc::new(Terms::new(&["users", "tenants", "all"].map(bucket)))
}

#[tokio::test]
async fn buckets_are_charged_together_in_lua_as_in_rust() {
    let server = RedisServer::start().await;
    server.cli(&["RPUSH", "list", "a"]);
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let sets = quota_sets();
    let time = VirtualTime::new(&server);
    let mut both = Both { time, sequence: 0, now: 1_760_000_000_000_000, cells: BTreeMap::new() };
    for sequence in 0..SEQUENCES {
        (both.sequence, both.cells) = (sequence, BTreeMap::new());
        let usual = terms(&mut rng, &sets);
        let mut cancels: Vec<(Place, CancelAll)> = Vec::new();
        for _ in 0..STEPS {
            both.cells.retain(|_, cell| !cell.is_idle(both.now));
            both.now += jump(&mut rng);
            both.time.set(both.now);
            let terms = if rng.random_bool(0.1) { terms(&mut rng, &sets) } else { Arc::clone(&usual) };
            let limit = rng.random_range(0..3);
            let key = rng.random_range(0..KEYS[limit]);
            match rng.random_range(0..10) {
                0..5 => {
                    let same = rng.random_bool(0.3);
                    // Those with a cost of each limit leave in calls of their own.
                    let each = rng.random_bool(0.4);
                    let cost = |rng: &mut StdRng| {
                        let most = |quotas: &Quotas| quotas.max_cost().min(4);
                        let costs = || terms.each.iter().map(most);
                        let mut price = Price::new(costs().map(|most| rng.random_range(1..=most)));
                        while matches!(price, Price::Same(_)) == each {
                            let first = rng.random_range(1..=terms.all.max_cost().min(4));
                            let of = |(limit, most)| match each {
                                true => rng.random_range(1..=if limit == 0 { most } else { 2 * most }),
                                false => first,
                            };
                            price = Price::new(costs().enumerate().map(of));
                        }
                        price
                    };
                    let (first, count) = (cost(&mut rng), rng.random_range(1..=3));
                    let run = |_| {
                        let place = KEYS.map(|keys| rng.random_range(0..keys));
                        let price = if same { first } else { cost(&mut rng) };
                        let count = if same { count } else { rng.random_range(1..=3) };
                        (place, ReserveAll { terms: Arc::clone(&terms), price }, count)
                    };
                    let runs: Vec<_> = (0..5).map(run).collect();
                    let runs = &runs[..1 + sequence % 5];
                    cancels.extend(both.reserve(&mut rng, runs));
                }
                5 => hold_all::step(&mut rng, &mut both, &terms),
                6 => {
                    both.one(limit, key, holds::random_step(&mut rng, &terms.each[limit]));
                }
                7 if !cancels.is_empty() => {
                    let (place, cancel) = cancels.swap_remove(rng.random_range(0..cancels.len()));
                    let foreign = rng.random_bool(0.2).then(|| rng.random_range(0..3));
                    both.cancel(place, cancel, foreign);
                }
                8 => {
                    let quotas = terms.each[limit].clone();
                    let wait = *[0, 1_500_000].choose(&mut rng).unwrap();
                    both.one(limit, key, Reserve { quotas, ask: Ask { cost: 1, wait } });
                }
                _ => {
                    let (quotas, micros) = (terms.each[limit].clone(), rng.random_range(0..300_000));
                    both.one(limit, key, Adjust { quotas, tokens: 0, block: micros });
                }
            }
        }
    }
    assert_eq!(server.cli(&["LRANGE", "list", "0", "-1"]).trim(), "a", "SEED={seed}");
}
