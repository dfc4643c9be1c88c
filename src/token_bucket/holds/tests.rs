//! The bound of a quota holds for what is captured and what acts together, whatever happens to the holders.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::OnEnd;
use super::operation::{HoldStep, Outcome, Verb};
use super::state::Record;
use crate::store::{Cell as _, Operation as _};
use crate::token_bucket::cancel::{Cancel, Rule};
use crate::token_bucket::fixtures::{START, one, reserve, take};
use crate::token_bucket::state::Bucket;
use crate::{Quota, Quotas};

const RUNS: usize = 20_000;
const STEPS: usize = 60;

fn quota_sets() -> Vec<Quotas> {
    let sets: [&[Quota]; 6] = [
        &[Quota::per_second(10).burst(10)],
        &[Quota::per_second(7).burst(30)],
        &[Quota::per_second(3).burst(9).named("a"), Quota::per_minute(60).burst(20).named("b")],
        &[Quota::non_refilling(40)],
        &[Quota::per_second(5).burst(12), Quota::non_refilling(60)],
        &[Quota::per_second(999_983).burst(50)],
    ];
    sets.iter().map(|set| Quotas::new(set.iter().cloned()).unwrap()).collect()
}

/// A hold as its holder sees it.
#[derive(Clone, Copy, Debug)]
struct Held {
    amount: u32,
    on_end: OnEnd,
}

struct Simulation {
    quotas: Quotas,
    bucket: Bucket,
    /// The true time, and how far the server's clock is behind.
    real: i64,
    behind: i64,
    next: u128,
    holds: BTreeMap<u128, Held>,
    /// What was captured or acted, and when.
    ledger: Vec<(i64, i64)>,
    /// Reservations: when each acts, how far the server's clock was behind when it was made, what cancels it, and its place
    /// in the ledger.
    pending: Vec<(i64, i64, Cancel, usize)>,
    /// Whether a reservation was cancelled. What was charged after it does not come back with it.
    has_cancelled: bool,
    log: Vec<String>,
}

impl Simulation {
    fn now(&self) -> i64 {
        self.real - self.behind
    }

    /// Ends the holds that are due, and notes what is charged for them.
    fn sweep(&mut self) {
        let now = self.now();
        self.bucket.set_back(now);
        let ended: Vec<_> = self.bucket.holds.iter().flat_map(|holds| &holds.each).copied().collect();
        for record in ended.iter().filter(|record| record.end <= now) {
            if record.on_end == OnEnd::Capture {
                self.ledger.push((record.end + self.behind, record.amount));
            }
            self.holds.remove(&record.id);
        }
        self.bucket.sweep(now);
    }

    fn sums_are_right(&self) {
        let Some(holds) = &self.bucket.holds else { return };
        let sum = |counts: fn(&&Record) -> bool| {
            holds.each.iter().filter(counts).map(|each| each.amount).sum::<i64>()
        };
        let captures = sum(|each| each.on_end == OnEnd::Capture);
        assert_eq!((holds.held, holds.captures), (sum(|_| true), captures), "{}", self.log.join("\n"));
    }

    fn step(&mut self, id: u128, on_end: OnEnd, verb: Verb) -> (Outcome, i64) {
        let step = HoldStep { quotas: self.quotas.clone(), id, on_end, verb };
        self.log.push(format!("{} {verb:?} of {id}", self.now()));
        let now = self.now();
        let reply = step.apply(&mut self.bucket, now);
        self.sums_are_right();
        (reply.outcome, reply.amount)
    }

    fn run(&mut self, rng: &mut StdRng) {
        let jumps = [0, 1, 1000, 142_857, 500_000, 1_000_000, 4_000_000];
        self.real += jumps.choose(rng).unwrap();
        if rng.random_bool(0.05) {
            self.behind += [1, 1000, 1_500_000, 60_000_000].choose(rng).unwrap();
        }
        self.sweep();
        self.pending.retain(|(act, ..)| *act > self.real);
        let most = self.quotas.max_cost();
        let ids: Vec<_> = self.holds.keys().copied().collect();
        let any = ids.choose(rng).copied();
        let ttl = *[1000, 400_000, 3_000_000, 30_000_000].choose(rng).unwrap();
        let amount = rng.random_range(1..=most);
        match (rng.random_range(0..10), any) {
            (0..3, _) => {
                let on_end = if rng.random_bool(0.5) { OnEnd::Capture } else { OnEnd::Release };
                self.next += 1;
                for _ in 0..rng.random_range(1..=2) {
                    let (outcome, held) = self.step(self.next, on_end, Verb::Authorize { amount, ttl });
                    if outcome == Outcome::Held {
                        assert_eq!(held, i64::from(amount), "twice is once");
                        self.holds.insert(self.next, Held { amount, on_end });
                    }
                }
            }
            (3, Some(id)) => {
                let held = self.holds[&id];
                let amount = held.amount + amount / 3;
                let (outcome, _) = self.step(id, held.on_end, Verb::Extend { amount, ttl });
                if outcome == Outcome::Held {
                    self.holds.insert(id, Held { amount, ..held });
                }
            }
            (4, Some(id)) => {
                let (outcome, held) = self.step(id, self.holds[&id].on_end, Verb::Extend { amount: 0, ttl });
                assert_eq!((outcome, held), (Outcome::Held, self.holds[&id].amount.into()));
            }
            (5..7, Some(id)) => {
                let held = self.holds.remove(&id).unwrap();
                let used = rng.random_range(0..=held.amount);
                let verb = Verb::Capture { amount: used, late: 0 };
                let (outcome, amount) = self.step(id, held.on_end, verb);
                assert_eq!((outcome, amount), (Outcome::Held, held.amount.into()));
                self.ledger.push((self.real, used.into()));
                // After a clock was set back, a request may have acted that the server takes for pending.
                if self.pending.is_empty() && self.behind == 0 && !self.has_cancelled {
                    let tokens = self.bucket.pairs(&self.quotas);
                    let below = |level: i64| level < self.bucket.held();
                    let tokens: Vec<_> =
                        tokens.map(|(level, limit)| level.tokens(limit, self.now())).collect();
                    assert!(!tokens.into_iter().any(below), "{}", self.log.join("\n"));
                }
                if rng.random_bool(0.3) {
                    assert_eq!(self.step(id, held.on_end, verb), (Outcome::Ended, 0));
                }
            }
            (7, _) if !self.pending.is_empty() && rng.random_bool(0.5) => {
                let picked = rng.random_range(0..self.pending.len());
                let (_, behind, mut cancel, at) = self.pending.swap_remove(picked);
                if let Rule::ActsAt { since, .. } = &mut cancel.rule {
                    *since = self.real - behind;
                }
                self.log.push(format!("{} {cancel:?}", self.now()));
                self.ledger[at].1 = 0;
                self.has_cancelled = true;
                let tokens = |this: &Self| this.bucket.pairs(&this.quotas).map(|(level, _)| level.tat).max();
                let before = tokens(self);
                let now = self.now();
                if !cancel.apply(&mut self.bucket, now) {
                    assert_eq!(before, tokens(self));
                }
            }
            _ => {
                let wait = *[0, 0, 1_000, 700_000, 20_000_000].choose(rng).unwrap();
                let (now, cost) = (self.now(), amount.div_ceil(2).into());
                self.log.push(format!("{now} reserve {cost} within {wait}"));
                let decision = reserve(&mut self.bucket, &self.quotas, now, (cost, wait));
                if decision.is_admitted() {
                    let delay = decision.delay().as_micros() as i64;
                    assert!(delay <= wait, "{}", self.log.join("\n"));
                    let act = self.real + delay;
                    if delay > 0 {
                        let cancel = Cancel::new(&decision.state, cost, Rule::acts_at(&decision, 0));
                        self.pending.push((act, self.behind, cancel, self.ledger.len()));
                    }
                    self.ledger.push((act, cost));
                }
            }
        }
    }
}

/// Checks every closed interval of what was captured or acted, and when. A delay is rounded up to whole µs.
pub(super) fn check(quotas: &Quotas, mut ledger: Vec<(i64, i64)>, log: &[String], seed: u64) {
    ledger.sort_unstable();
    for limit in quotas.limits() {
        for (from, (start, _)) in ledger.iter().enumerate() {
            let mut sum = 0;
            for (end, amount) in &ledger[from..] {
                sum += i128::from(*amount);
                let refill = if limit.num == 0 { 0 } else { i128::from(end - start + 1) };
                let most =
                    i128::from(limit.burst) * i128::from(limit.num.max(1)) + refill * i128::from(limit.den);
                assert!(
                    sum * i128::from(limit.num.max(1)) <= most,
                    "SEED={seed} {sum} within {} µs under {limit:?}\n{ledger:?}\n{}",
                    end - start,
                    log.join("\n")
                );
            }
        }
    }
}

#[test]
fn captures_and_admissions_keep_to_the_quota_in_every_interval() {
    let first = support::seed();
    let sets = quota_sets();
    let runs = std::env::var("RUNS").map_or(RUNS, |runs| runs.parse().unwrap());
    for seed in (0..runs as u64).map(|run| first ^ run) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut simulation = Simulation {
            quotas: sets.choose(&mut rng).unwrap().clone(),
            bucket: Bucket::default(),
            real: START,
            behind: 0,
            next: 0,
            holds: BTreeMap::new(),
            ledger: Vec::new(),
            pending: Vec::new(),
            has_cancelled: false,
            log: Vec::new(),
        };
        for _ in 0..rng.random_range(1..STEPS) {
            simulation.run(&mut rng);
        }
        check(&simulation.quotas, simulation.ledger, &simulation.log, seed);
    }
}

pub(super) fn step(id: u128, verb: Verb) -> HoldStep {
    HoldStep { quotas: one(Quota::per_second(10).burst(20)), id, on_end: OnEnd::Capture, verb }
}

#[test]
fn a_hold_that_ends_is_charged_at_its_end() {
    let mut bucket = Bucket::default();
    step(1, Verb::Authorize { amount: 20, ttl: 1_000_000 }).apply(&mut bucket, START);
    let late = step(1, Verb::Extend { amount: 0, ttl: 1 }).apply(&mut bucket, START + 1_500_000);
    assert_eq!((late.outcome, late.state.held()), (Outcome::Ended, 0));
    assert_eq!(late.state.remaining(), 5, "half a second after the end");
}

#[test]
fn a_capture_above_the_hold_is_debt() {
    let mut bucket = Bucket::default();
    step(1, Verb::Authorize { amount: 15, ttl: 1_000_000 }).apply(&mut bucket, START);
    let reply = step(1, Verb::Capture { amount: u32::MAX, late: 0 }).apply(&mut bucket, START);
    assert_eq!((reply.outcome, reply.amount, reply.state.remaining()), (Outcome::Held, 15, 0));
    assert!(!bucket.is_idle(START + 400_000_000_000_000), "13 years of debt");
    let late = step(1, Verb::Capture { amount: 7, late: 3 });
    let mut bucket = Bucket::default();
    assert_eq!(late.apply(&mut bucket, START).state.remaining(), 17, "it had ended: only the late amount");
}

#[test]
fn a_key_has_a_bounded_number_of_holds() {
    let mut bucket = Bucket::default();
    let quotas = one(Quota::per_second(1).burst(1_000_000));
    let verb = Verb::Authorize { amount: 1, ttl: 1_000_000 };
    let mut outcomes = (0..1025).map(|id| {
        let step = HoldStep { quotas: quotas.clone(), ..step(id, verb) };
        step.apply(&mut bucket, START).outcome
    });
    assert!(outcomes.by_ref().take(1024).all(|outcome| outcome == Outcome::Held));
    assert_eq!(outcomes.next(), Some(Outcome::Full));
}

/// Until a hold has ended, it counts as charged in full to levels of other quotas as well, whose bursts may be smaller.
#[test]
fn a_bucket_that_is_full_after_its_holds_is_as_unused() {
    let slow = one(Quota::new(1, std::time::Duration::from_secs(10)).burst(5));
    let fast = one(Quota::per_second(1000));
    let mut bucket = Bucket::default();
    assert!(take(&mut bucket, &slow, START, 1));
    let verb = Verb::Authorize { amount: 900, ttl: 1000 };
    HoldStep { quotas: fast, id: 1, on_end: OnEnd::Capture, verb }.apply(&mut bucket, START);
    let hour = START + 3_600_000_000;
    assert!(bucket.levels.len() == 2 && !bucket.is_idle(hour), "{bucket:?}");
    assert!(bucket.sweep(hour));
    assert_eq!(bucket, Bucket::default());
}

/// As in the scripts.
#[test]
fn what_is_written_when_holds_have_ended_has_the_levels_of_the_call_first() {
    let other = one(Quota::per_hour(10));
    let extend = step(1, Verb::Extend { amount: 0, ttl: 1 });
    let own = extend.quotas.clone();
    let ended = || {
        let mut bucket = Bucket::default();
        step(1, Verb::Authorize { amount: 1, ttl: 1000 }).apply(&mut bucket, START);
        assert!(take(&mut bucket, &other, START, 1) && bucket.fits(&other));
        bucket
    };
    let (mut refused, mut late) = (ended(), ended());
    assert!(!take(&mut refused, &own, START + 1000, 21));
    assert_eq!(extend.apply(&mut late, START + 1000).outcome, Outcome::Ended);
    assert!(refused.fits(&own) && late.fits(&own), "{refused:?}\n{late:?}");
}
