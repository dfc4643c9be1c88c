mod entries;
mod gate;
mod prefetched;

use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::ahead::{Prefetch, Prefetched};
use crate::bucket::give_back::{GiveBack, Rule};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{START, ask_for, check_intervals, state_of};
use crate::bucket::{Ask, Bucket};
use crate::store::Store;
use crate::store::operation::{Cell as _, Operation};
use crate::token_bucket::TokenBucket;
use crate::token_bucket::local::entry::LastState;
use support::redis_server::RedisServer;
use support::{patient, seed};

/// In a cached state, tokens are refilled at the start of a window.
#[test]
fn the_last_state_knows_its_window() {
    let quotas = Quotas::new([Quota::per_calendar_day(2), Quota::non_refilling(5)]).unwrap();
    let last_state = LastState::new(&quotas);
    let mut bucket = Bucket::full(&quotas);
    let end = (START / 86_400_000_000 + 1) * 86_400_000_000;
    let ask = Ask { cost: 2, wait: 0 };
    assert!(bucket.take(&quotas, START, ask) && !bucket.has(&quotas, START, ask));
    last_state.learn(0, &state_of(&quotas, bucket));
    assert!(!last_state.bucket(&quotas).has(&quotas, end - 1, ask));
    assert!(last_state.bucket(&quotas).take(&quotas, end, ask));
    assert!(
        !last_state
            .bucket(&quotas)
            .has(&quotas, end, Ask { cost: 3, wait: 0 })
    );
}

/// A cached refusal is repeated until it ends. It does not apply to another namespace, or to a handle without the cache.
#[tokio::test]
async fn namespaces_and_values_know_their_own() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let named = |name: &str| TokenBucket::new(&store, name, Quota::per_hour(1).burst(2)).unwrap();
    let (sms, mail) = (
        named("sms").cache_refusals(true),
        named("mail").cache_refusals(true),
    );
    for bucket in [&sms, &mail] {
        assert!(bucket.allow_n("other", 2).await.unwrap().is_admitted());
        assert!(!bucket.allow("other").await.unwrap().is_admitted());
    }
    assert!(sms.allow_n("k", 2).await.unwrap().is_admitted());
    assert!(!sms.allow("k").await.unwrap().is_admitted());
    // Another process resets the bucket. The cache still refuses, because the store is not asked.
    let other = TokenBucket::new(&patient!(server.url()), "sms", Quota::per_hour(1)).unwrap();
    other.reset("k").await.unwrap();
    let refused = sms.allow("k").await.unwrap();
    assert!(refused.is_local && !refused.is_admitted() && refused.retry_after().is_some());
    assert!(
        mail.allow("k").await.unwrap().is_admitted(),
        "another namespace"
    );
    assert!(sms.allow("l").await.unwrap().is_admitted(), "another key");
    assert!(
        sms.cache_refusals(false)
            .allow_n("k", 2)
            .await
            .unwrap()
            .is_admitted(),
        "the cache is off"
    );
    // The cache learns a reset by this handle or its clones at once.
    sms.reset("k").await.unwrap();
    assert!(sms.allow("k").await.unwrap().is_admitted());
    assert!(sms.allow_n("k", 0).await.unwrap().is_admitted());
    assert!(sms.allow_n("k", 3).await.unwrap_err().is_exceeds_burst());
}

#[tokio::test]
async fn a_hot_key_is_admitted_from_memory() {
    let server = RedisServer::start().await;
    let bucket = TokenBucket::new(
        &patient!(server.url()),
        "local",
        Quota::per_second(1_000_000),
    )
    .unwrap();
    let local = bucket.prefetch(Duration::from_millis(100)).unwrap();
    let mut from_memory = 0;
    while from_memory < 1000 {
        let decisions = join_all((0..50).map(|_| local.allow("k"))).await;
        for decision in decisions {
            let decision = decision.unwrap();
            assert!(decision.is_admitted());
            from_memory += usize::from(decision.is_local);
        }
    }
    // After a block by this process, no request is admitted from memory.
    local.block_for("k", Duration::from_secs(60)).await.unwrap();
    assert!(!local.allow("k").await.unwrap().is_admitted());
    let error = bucket.prefetch(Duration::ZERO).unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("1 ms to 1 s"),
        "{error}"
    );
}

/// Processes that prefetch, with the operations of the store, in virtual time.
struct Fleet {
    quotas: Quotas,
    hold: i64,
    now: i64,
    bucket: Bucket,
    /// Per process: the prefetches, with the tokens left and the deadline of each.
    held: Vec<Vec<(Prefetched, i64, i64)>>,
    reservations: Vec<(i64, GiveBack)>,
    /// Sent, but not applied yet.
    give_backs: Vec<GiveBack>,
    /// When requests acted, and with how many tokens.
    acted: Vec<(i64, i64)>,
    /// The largest number of tokens held at the same time.
    most_held: i64,
    /// Whether tokens are reserved ahead of time.
    reserves: bool,
}

impl Fleet {
    fn step<O: Operation<Cell = Bucket>>(&mut self, operation: O) -> O::Reply {
        if self.bucket.is_idle(self.now) {
            self.bucket = Bucket::default();
        }
        operation.apply(&mut self.bucket, self.now)
    }

    fn random_step(&mut self, rng: &mut StdRng) {
        let process = rng.random_range(0..self.held.len());
        let mut cost = rng.random_range(1..=3);
        match rng.random_range(0..13) {
            0..3 => {
                let wait = if self.reserves {
                    *[0, 0, 5_000, 100_000].choose(rng).unwrap()
                } else {
                    0
                };
                if rng.random_bool(0.5) {
                    // Takes all available tokens.
                    let (bucket, _) = self.bucket.fitted(&self.quotas, self.now);
                    cost = bucket
                        .free(&self.quotas, self.now, wait)
                        .clamp(1, i64::from(self.quotas.max_cost()));
                }
                let decision = self.step(ask_for(&self.quotas, cost, wait)).decision();
                if decision.is_admitted() {
                    let act = decision.act().max(self.now);
                    let rule = Rule::ActsAt { act, since: 1 };
                    self.reservations
                        .push((act, GiveBack::new(&decision.state, cost, rule)));
                }
            }
            3..5 => {
                let most = rng.random_range(8..60);
                let prefetched = self.step(Prefetch {
                    quotas: self.quotas.clone(),
                    most,
                });
                let count = prefetched.count;
                if count > 0 {
                    // The prefetch was sent a little before it was charged.
                    let until = self.now - rng.random_range(0..1_000) + self.hold;
                    self.held[process].push((prefetched, count, until));
                }
            }
            5..9 => {
                let now = self.now;
                let all = rng.random_bool(0.3);
                let usable =
                    |(_, left, until): &&mut (Prefetched, i64, i64)| *left > 0 && now < *until;
                if let Some((_, left, _)) = self.held[process].iter_mut().find(usable) {
                    let used = if all { *left } else { cost.min(*left) };
                    *left -= used;
                    self.acted.push((now, used));
                }
            }
            12 => {
                // Another limit refuses the request.
                let decision = self.step(ask_for(&self.quotas, cost, 0)).decision();
                if decision.is_admitted() {
                    self.give_backs
                        .push(GiveBack::unused(&decision.state, cost, 0));
                }
            }
            9 => {
                // The process crashes, and loses its tokens.
                if rng.random_bool(0.1) {
                    self.held[process].clear();
                }
            }
            10 => {
                if !self.give_backs.is_empty() {
                    let at = rng.random_range(0..self.give_backs.len());
                    let give_back = self.give_backs.swap_remove(at);
                    self.step(give_back);
                }
            }
            _ => {
                if !self.reservations.is_empty() && rng.random_bool(0.5) {
                    let at = rng.random_range(0..self.reservations.len());
                    if self.reservations[at].0 > self.now {
                        let (_, cancel) = self.reservations.swap_remove(at);
                        self.step(cancel);
                    }
                }
            }
        }
        let held = self
            .held
            .iter()
            .flatten()
            .filter(|(_, _, until)| self.now < *until);
        self.most_held = self.most_held.max(held.map(|(_, left, _)| left).sum());
    }

    fn pass(&mut self, span: i64) {
        self.now += span;
        for held in &mut self.held {
            for (prefetched, left, _) in held.extract_if(.., |(_, _, until)| *until <= self.now) {
                if left > 0 {
                    self.give_backs
                        .push(GiveBack::unused(&prefetched.state, left, 0));
                }
            }
        }
        for (act, cancel) in self
            .reservations
            .extract_if(.., |(act, _)| *act <= self.now)
        {
            self.acted.push((act, cancel.each[0].cost));
        }
    }

    /// Checks that in every interval, requests worth at most `burst + rate·t + min(rate·hold, K)` tokens act.
    fn check(&mut self, told: &str) {
        let reservations = std::mem::take(&mut self.reservations);
        self.acted.extend(
            reservations
                .into_iter()
                .map(|(act, cancel)| (act, cancel.each[0].cost)),
        );
        let limit = &self.quotas.limits()[0];
        // Rounded up, because a part of a token counts.
        let held = (self.hold * limit.den / limit.num + 1).min(self.most_held);
        // A waiter acts at a whole µs, up to 1 µs after the tokens are available.
        let more = (held, i64::from(self.reserves));
        check_intervals(&self.quotas, &mut self.acted, more, || {
            format!("K {}: {told}", self.most_held)
        });
    }
}

#[test]
fn the_bound_holds_in_every_interval_whatever_happens() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for run in 0..4_000 {
        let rate = *[1_000, 7_777].choose(&mut rng).unwrap();
        let quota = Quota::per_second(rate).burst(rng.random_range(32..80));
        let mut fleet = Fleet {
            quotas: Quotas::new([quota]).unwrap(),
            hold: *[2_000, 10_000, 30_000].choose(&mut rng).unwrap(),
            reserves: run % 2 == 0,
            now: START,
            bucket: Bucket::default(),
            held: (0..rng.random_range(1..=4)).map(|_| Vec::new()).collect(),
            reservations: Vec::new(),
            give_backs: Vec::new(),
            acted: Vec::new(),
            most_held: 0,
        };
        for _ in 0..120 {
            fleet.random_step(&mut rng);
            fleet.pass(
                *[0, 0, 0, 100, 1_000, 5_000, 10_000, 40_000]
                    .choose(&mut rng)
                    .unwrap(),
            );
        }
        fleet.check(&format!("run {run}, SEED={seed}, {:?}", fleet.quotas));
    }
}
