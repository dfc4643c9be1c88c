//! The bound of a quota applies to the sum of captured tokens and of requests that act, whatever happens to the
//! holders: of several limits.

mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::Bucket;
use crate::bucket::charge::{Charge, JoinedTerms, Price, Terms};
use crate::bucket::give_back::{GiveBack, Rule};
use crate::bucket::hold::{HoldStep, HoldSteps, Outcome, Verb};
use crate::bucket::holds::{OnEnd, Record};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures;
use crate::bucket::tests::fixtures::{START, check_intervals};
use crate::store::Store;
use crate::store::operation::{Cell as _, Operation as _};
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limits::terms_of;

const RUNS: u64 = 15_000;

const STEPS: usize = 60;

/// The keys of each limit: two users of one tenant, and all.
const KEYS: [usize; 3] = [2, 1, 1];

type Place = [usize; 3];

/// The holds of a request from the view of its holder.
#[derive(Clone, Copy, Debug)]
struct Held {
    place: Place,
    amounts: [u32; 3],
    on_end: OnEnd,
}

struct Pending {
    act: i64,
    /// How far the server's clock was behind when it was made.
    behind: i64,
    cancel: GiveBack,
    bucket: (usize, usize),
    /// In the ledger.
    place: usize,
}

struct Simulation {
    terms: Arc<JoinedTerms>,
    /// By limit and key.
    buckets: BTreeMap<(usize, usize), Bucket>,
    ledgers: BTreeMap<(usize, usize), Vec<(i64, i64)>>,
    /// The true time, and the time by which the server's clock is behind.
    real: i64,
    behind: i64,
    next: u128,
    holds: BTreeMap<u128, Held>,
    admitted: BTreeSet<u128>,
    /// Reservations of one limit.
    pending: Vec<Pending>,
    /// Whether a reservation was cancelled. Tokens that were charged after it are not given back with it.
    has_cancelled: bool,
    log: Vec<String>,
}

/// The quotas of three limits.
fn random_terms(rng: &mut StdRng) -> Arc<JoinedTerms> {
    let sets: [&[Quota]; 6] = [
        &[Quota::per_second(10).burst(10)],
        &[Quota::per_second(7).burst(30)],
        &[
            Quota::per_second(3).burst(9).named("a"),
            Quota::per_minute(60).burst(20).named("b"),
        ],
        &[Quota::non_refilling(200)],
        &[Quota::per_second(5).burst(12), Quota::non_refilling(60)],
        &[Quota::per_second(999_983).burst(50)],
    ];
    let store = Store::in_memory();
    let bucket = |name| {
        let quotas = Quotas::new(sets.choose(rng).unwrap().iter().cloned()).unwrap();
        TokenBucket::new(&store, name, quotas).unwrap()
    };
    Arc::new(terms_of(&["users", "tenants", "all"].map(bucket)))
}

impl Simulation {
    fn new(terms: Arc<JoinedTerms>) -> Self {
        Self {
            terms,
            buckets: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            real: START,
            behind: 0,
            next: 0,
            holds: BTreeMap::new(),
            admitted: BTreeSet::new(),
            pending: Vec::new(),
            has_cancelled: false,
            log: Vec::new(),
        }
    }

    fn now(&self) -> i64 {
        self.real - self.behind
    }

    fn told(&self) -> String {
        self.log.join("\n")
    }

    /// Ends the holds that are due in all buckets, and records their charges.
    fn sweep(&mut self) {
        let now = self.now();
        for (at, bucket) in &mut self.buckets {
            bucket.set_back(now);
            let all: Vec<_> = bucket
                .holds
                .iter()
                .flat_map(|holds| &holds.each)
                .copied()
                .collect();
            for record in all.iter().filter(|record| record.end <= now) {
                if record.on_end == OnEnd::Capture {
                    assert!(
                        self.admitted.contains(&record.id),
                        "{} was refused",
                        record.id
                    );
                    self.ledgers
                        .entry(*at)
                        .or_default()
                        .push((record.end + self.behind, record.amount));
                }
            }
            bucket.sweep(now);
            if bucket.is_idle(now) {
                *bucket = Bucket::default();
            }
        }
    }

    fn sums_are_right(&self) {
        for holds in self
            .buckets
            .values()
            .filter_map(|bucket| bucket.holds.as_ref())
        {
            let sum = |counts: fn(&&Record) -> bool| {
                holds
                    .each
                    .iter()
                    .filter(counts)
                    .map(|each| each.amount)
                    .sum::<i64>()
            };
            let captures = sum(|each| each.on_end == OnEnd::Capture);
            assert_eq!(
                (holds.held, holds.captures),
                (sum(|_| true), captures),
                "{}",
                self.told()
            );
        }
    }

    fn is_held(&self, id: u128, held: &Held) -> bool {
        let at = |limit: usize| self.buckets.get(&(limit, held.place[limit]));
        (0..3).all(|limit| at(limit).is_some_and(|bucket| bucket.find_hold(id).is_some()))
    }

    fn at<R>(&mut self, place: Place, step: impl FnOnce(&mut [Bucket], i64) -> R) -> R {
        let places = || place.into_iter().enumerate();
        let of = |at| self.buckets.entry(at).or_default().clone();
        let mut buckets: Vec<_> = places().map(of).collect();
        let result = step(&mut buckets, self.real - self.behind);
        self.buckets.extend(places().zip(buckets));
        result
    }

    fn bucket(&mut self, limit: usize, held: &Held) -> &mut Bucket {
        self.buckets.entry((limit, held.place[limit])).or_default()
    }

    /// Runs a step on all limits. Returns the outcomes.
    fn all(
        &mut self,
        id: u128,
        held: &Held,
        verb: impl Fn(usize) -> Verb,
        all_or_none: bool,
    ) -> Vec<Outcome> {
        let step = |(limit, quotas): (usize, &Quotas)| HoldStep {
            quotas: quotas.clone(),
            id,
            on_end: held.on_end,
            verb: verb(limit),
        };
        let steps = self.terms.each.iter().enumerate().map(step).collect();
        let step = HoldSteps {
            each: steps,
            terms: Some(Arc::clone(&self.terms)),
            all_or_none,
        };
        let verbs: Vec<_> = step.each.iter().map(|step| step.verb).collect();
        let held_now = |this: &Self| {
            let held = this.buckets.iter().map(|(at, bucket)| (*at, bucket.held()));
            held.filter(|(_, held)| *held > 0).collect::<Vec<_>>()
        };
        let before = held_now(self);
        let reply = self.at(held.place, |buckets, now| step.apply_to_each(buckets, now));
        let outcomes: Vec<_> = reply.each.iter().map(|reply| reply.outcome).collect();
        self.log.push(format!(
            "{} {verbs:?} of {id} at {:?}: {outcomes:?}",
            self.now(),
            held.place
        ));
        self.sums_are_right();
        if all_or_none && !reply.is_held() {
            assert_eq!(before, held_now(self), "{}", self.told());
            return outcomes;
        }
        for ((reply, verb), amount) in reply.each.iter().zip(verbs).zip(held.amounts) {
            let amount = match verb {
                Verb::Extend {
                    amount: more @ 1.., ..
                } => more,
                _ => amount,
            };
            assert!(
                reply.outcome != Outcome::Held || reply.amount == i64::from(amount),
                "{}",
                self.told()
            );
        }
        outcomes
    }

    /// Authorizes one limit after the other, as on a Cluster. The process may crash on the way.
    fn in_order(&mut self, rng: &mut StdRng, id: u128, held: &Held, ttl: i64) -> bool {
        for limit in 0..3 {
            let quotas = self.terms.each[limit].clone();
            let step = |verb| HoldStep {
                quotas: quotas.clone(),
                id,
                on_end: OnEnd::Release,
                verb,
            };
            let authorize = step(Verb::Authorize {
                amount: held.amounts[limit],
                ttl,
            });
            let now = self.now();
            let outcome = authorize.apply(self.bucket(limit, held), now).outcome;
            self.log.push(format!(
                "{now} in order, limit {limit} of {held:?}: {outcome:?}"
            ));
            if outcome != Outcome::Held || rng.random_bool(0.1) {
                let undone = if rng.random_bool(0.3) { 0 } else { limit };
                for limit in 0..undone {
                    let mut release = step(Verb::Capture { amount: 0, late: 0 });
                    release.quotas = self.terms.each[limit].clone();
                    release.apply(self.bucket(limit, held), now);
                }
                self.sums_are_right();
                return false;
            }
        }
        self.sums_are_right();
        true
    }

    /// Reserves tokens of one limit, which act later.
    fn reserve(&mut self, rng: &mut StdRng, at: (usize, usize), cost: i64) {
        let wait = *[0, 0, 1_000, 700_000, 20_000_000].choose(rng).unwrap();
        let (now, quotas) = (self.now(), self.terms.each[at.0].clone());
        self.log
            .push(format!("{now} reserve {cost} of {at:?} within {wait}"));
        let bucket = self.buckets.entry(at).or_default();
        let decision = fixtures::reserve(bucket, &quotas, now, (cost, wait));
        if !decision.is_admitted() {
            return;
        }
        let delay = decision.delay().as_micros() as i64;
        assert!(delay <= wait, "{}", self.told());
        let (act, ledger) = (self.real + delay, self.ledgers.entry(at).or_default());
        if delay > 0 {
            let cancel = GiveBack::new(&decision.state, cost, Rule::acts_at(&decision, 0));
            self.pending.push(Pending {
                act,
                behind: self.behind,
                cancel,
                bucket: at,
                place: ledger.len(),
            });
        }
        ledger.push((act, cost));
    }

    fn cancel(&mut self, rng: &mut StdRng) {
        let picked = rng.random_range(0..self.pending.len());
        let pending = self.pending.swap_remove(picked);
        let (mut cancel, at) = (pending.cancel, pending.bucket);
        if let Rule::ActsAt { since, .. } = &mut cancel.each[0].rule {
            *since = self.real - pending.behind;
        }
        self.log.push(format!("{} {cancel:?}", self.now()));
        self.ledgers.get_mut(&at).unwrap()[pending.place].1 = 0;
        self.has_cancelled = true;
        let (now, quotas) = (self.now(), self.terms.each[at.0].clone());
        let bucket = self.buckets.entry(at).or_default();
        let levels = |bucket: &Bucket| bucket.pairs(&quotas).map(|(level, _)| level.tat).max();
        let before = levels(bucket);
        if !cancel.apply(bucket, now) {
            assert!(
                before.is_none() || before == levels(bucket),
                "{}",
                self.told()
            );
        }
    }

    /// Held tokens can be used. After a clock was set back, a request may have acted that is still pending for the
    /// server.
    fn has_what_is_held(&self, held: &Held) {
        if !self.pending.is_empty() || self.behind > 0 || self.has_cancelled {
            return;
        }
        for limit in 0..3 {
            let (bucket, quotas) = (
                &self.buckets[&(limit, held.place[limit])],
                &self.terms.each[limit],
            );
            let mut tokens = bucket
                .pairs(quotas)
                .map(|(level, of)| level.tokens(of, self.now()));
            assert!(
                tokens.all(|tokens| tokens >= bucket.held()),
                "{}",
                self.told()
            );
        }
    }

    fn run(&mut self, rng: &mut StdRng) {
        let jumps = [0, 1, 1000, 142_857, 500_000, 1_000_000, 4_000_000];
        self.real += jumps.choose(rng).unwrap();
        if rng.random_bool(0.05) {
            self.behind += [1, 1000, 1_500_000, 60_000_000].choose(rng).unwrap();
        }
        self.sweep();
        self.pending.retain(|pending| pending.act > self.real);
        let ids: Vec<_> = self.holds.keys().copied().collect();
        let lost: Vec<_> = ids
            .into_iter()
            .filter(|id| !self.is_held(*id, &self.holds[id]))
            .collect();
        self.holds.retain(|id, _| !lost.contains(id));
        let ids: Vec<_> = self.holds.keys().copied().collect();
        let any = ids.choose(rng).copied();
        let ttl = *[1000, 400_000, 3_000_000, 30_000_000].choose(rng).unwrap();
        let mut amounts = [1; 3];
        for (amount, quotas) in amounts.iter_mut().zip(&self.terms.each) {
            *amount = rng.random_range(1..=quotas.max_cost());
        }
        let place = KEYS.map(|keys| rng.random_range(0..keys));
        match (rng.random_range(0..13), any) {
            (0..4, _) => {
                self.next += 1;
                let id = self.next;
                let mut held = Held {
                    place,
                    amounts,
                    on_end: *[OnEnd::Capture, OnEnd::Release].choose(rng).unwrap(),
                };
                if rng.random_bool(0.3) {
                    held.on_end = OnEnd::Release;
                    if self.in_order(rng, id, &held, ttl) {
                        self.holds.insert(id, held);
                    }
                    return;
                }
                // It may arrive twice.
                for _ in 0..rng.random_range(1..=2) {
                    let verb = |limit: usize| Verb::Authorize {
                        amount: amounts[limit],
                        ttl,
                    };
                    if self.all(id, &held, verb, true) == [Outcome::Held; 3] {
                        self.holds.insert(id, held);
                        self.admitted.insert(id);
                    }
                }
            }
            (4, Some(id)) => {
                let mut held = self.holds[&id];
                let more = held.amounts.map(|amount| amount + amount / 3);
                let extend = |limit: usize| Verb::Extend {
                    amount: more[limit],
                    ttl,
                };
                let outcomes = self.all(id, &held, extend, true);
                if outcomes == [Outcome::Held; 3] {
                    held.amounts = more;
                    self.holds.insert(id, held);
                }
            }
            (5, Some(id)) => {
                let held = self.holds[&id];
                let outcomes = self.all(id, &held, |_| Verb::Extend { amount: 0, ttl }, true);
                assert_eq!(outcomes, [Outcome::Held; 3]);
            }
            (6..8, Some(id)) => {
                let held = self.holds.remove(&id).unwrap();
                let used = held.amounts.map(|amount| rng.random_range(0..=amount));
                let capture = |limit: usize| Verb::Capture {
                    amount: used[limit],
                    late: 0,
                };
                assert_eq!(self.all(id, &held, capture, false), [Outcome::Held; 3]);
                for (limit, used) in used.iter().enumerate() {
                    let ledger = self.ledgers.entry((limit, held.place[limit])).or_default();
                    ledger.push((self.real, (*used).into()));
                }
                self.has_what_is_held(&held);
                if rng.random_bool(0.3) {
                    assert_eq!(
                        self.all(id, &held, capture, false),
                        [Outcome::Ended; 3],
                        "twice is once"
                    );
                }
            }
            (8, _) if !self.pending.is_empty() => self.cancel(rng),
            (9..11, _) => {
                let limit = rng.random_range(0..3);
                let cost = amounts[limit].div_ceil(2).into();
                self.reserve(rng, (limit, place[limit]), cost);
            }
            _ => {
                let reserve = Charge {
                    terms: Terms::All(Arc::clone(&self.terms)),
                    price: Price::new(amounts),
                    wait: 0,
                };
                self.log
                    .push(format!("{} {reserve:?} of {place:?}", self.now()));
                let decided = self.at(place, |buckets, now| reserve.apply_to_each(buckets, now));
                if decided.admitted {
                    for limit in 0..3 {
                        let ledger = self.ledgers.entry((limit, place[limit])).or_default();
                        ledger.push((self.real, amounts[limit].into()));
                    }
                }
            }
        }
    }
}

#[test]
fn captures_keep_to_the_quotas_of_all_limits_in_every_interval() {
    let first = support::seed();
    let mut rng = StdRng::seed_from_u64(first);
    let terms: Vec<_> = (0..20).map(|_| random_terms(&mut rng)).collect();
    for seed in (0..RUNS).map(|run| first ^ run) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut simulation = Simulation::new(Arc::clone(terms.choose(&mut rng).unwrap()));
        for _ in 0..rng.random_range(1..STEPS) {
            simulation.run(&mut rng);
        }
        // Holders that have crashed: their holds end by themselves.
        simulation.real += 100_000_000;
        simulation.sweep();
        assert!(
            simulation.buckets.values().all(|bucket| bucket.held() == 0),
            "SEED={seed}"
        );
        for ((limit, _), mut ledger) in std::mem::take(&mut simulation.ledgers) {
            // A delay is rounded up to whole µs.
            check_intervals(&simulation.terms.each[limit], &mut ledger, (0, 1), || {
                format!("SEED={seed}\n{}", simulation.told())
            });
        }
    }
}
