//! Keys that are in use for longer than any of their times to live, with steps that are as rare as possible: on Redis
//! and in memory, nothing is forgotten.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use futures::future::join;
use support::redis_server::RedisServer;

use crate::dedupe::exact::ExactClaims;
use crate::dedupe::filter::FilterClaims;
use crate::lease::agreement::virtual_time::Time;
use crate::lease::agreement::{Side, States, Step, Tried, virtual_time};
use crate::lease::holders::Exclusive;
use crate::lease::key_state::{AcquireTerms, TokenState};
use crate::lease::operations::{ReplyKind, Verb, VerbOf};
use crate::lease::settings::{CallerSettings, Rules};
use crate::lease::token::Token;
use crate::rw_lock::holders::ReadWrite;
use crate::single_flight::answer::Flight;
use crate::store::Store;
use crate::store::memory::clock::Clock;
use crate::wait_group::permits::Permits;

pub(super) const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
/// The longest ttl of a lease.
const DAY: i64 = 24 * HOUR;

/// One key on both sides.
pub(super) struct Pair<K: Tried> {
    pub(super) time: Time,
    pub(super) lua: Side<K>,
    rust: Side<K>,
    stores: [Store; 2],
    tokens: u64,
    /// How long leases last.
    ttl: i64,
    server: RedisServer,
}

impl<K: Tried> Pair<K> {
    /// `ttl`: how long leases last. `drops`: whether idle state in memory is dropped.
    pub(super) async fn new(ttl: i64, drops: bool) -> Self {
        let server = RedisServer::start().await;
        let in_process = Arc::new(AtomicI64::new(0));
        let on_redis = virtual_time::store(&server);
        let in_memory = Store::with_clock(Clock::Manual(in_process.clone()));
        let states = States {
            clock: in_process.clone(),
            of: Default::default(),
            pushed: Default::default(),
        };
        Self {
            time: Time::new(server.client().unwrap(), in_process),
            lua: Side::new(&on_redis, None, false),
            rust: Side::new(&in_memory, (!drops).then_some(states), false),
            stores: [on_redis, in_memory],
            tokens: 0,
            ttl,
            server,
        }
    }

    pub(super) fn token(&mut self, suffix: &str) -> Token {
        self.tokens += 1;
        format!("aaaaaaaaaaaaaaaa-{:x}.{:x}{suffix}", self.tokens, self.ttl).into()
    }

    pub(super) async fn take(&mut self, step: Step<K>) -> String {
        let key = K::key(0);
        let lua = self.lua.take(key.clone(), step.clone(), 0).await;
        assert_eq!(lua, self.rust.take(key, step, 0).await);
        self.time.check_kept(K::slices());
        self.rust
            .states
            .iter()
            .for_each(|states| self.time.check_fences::<K>(states));
        lua
    }

    /// The first of several calls is sent at once. It is one on another key, so that those of `step` are sent together.
    pub(super) async fn take_in_one_call(&mut self, first: Step<K>, step: Step<K>) -> String {
        let (other, key) = (K::key(1), K::key(0));
        self.server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
        let both = join(
            self.lua.take(other, first, 0),
            self.lua.take(key.clone(), step.clone(), 0),
        );
        let (_, lua) = tokio::task::unconstrained(both).await;
        let calls: u64 = ["fcall", "evalsha"]
            .map(|name| self.server.calls_of(name))
            .into_iter()
            .sum();
        assert_eq!(calls, 2, "they did not leave together");
        assert_eq!(lua, self.rust.take(key, step, 0).await);
        lua
    }

    pub(super) async fn call(&mut self, token: &Token, verb: VerbOf<K>, rank: i64) -> String {
        let terms = AcquireTerms {
            ttl: self.ttl,
            max_waiters: 1000,
            rank,
            placed: true,
        };
        self.take(Step::Calls(terms, vec![(token.clone(), verb)]))
            .await
    }

    pub(super) async fn acquire(&mut self, token: &Token, rank: i64) -> String {
        let query = Some(K::query(0, self.time.now));
        self.call(
            token,
            Verb::Acquire {
                query,
                bypass: false,
            },
            rank,
        )
        .await
    }

    pub(super) async fn release(&mut self, token: &Token, rank: i64) {
        let answer = self
            .call(token, Verb::Release { withdraws: false }, rank)
            .await;
        assert!(
            answer.contains(&format!("{:?}", ReplyKind::Released(TokenState::Held))),
            "{answer}"
        );
    }

    pub(super) async fn holds(&mut self, token: &Token, rank: i64) {
        let answer = self.acquire(token, rank).await;
        assert!(answer.contains("Acquired(Held {"), "{answer}");
    }

    /// Returns the ids of the waiters that got messages, on both sides.
    pub(super) fn told(&mut self) -> Vec<String> {
        let lua = self.lua.told(&self.stores[0], self.time.published());
        assert_eq!(lua, self.rust.told(&self.stores[1], Vec::new()));
        lua
    }

    fn pass(&mut self, span: i64) {
        self.time.set(self.time.now + span);
    }
}

/// Three waiters wait in line for 200 s, and each waits for a second, so none sends a heartbeat: none is refused, and
/// they are served in the order of arrival.
async fn line<K: Tried>(places: usize, rank: i64, suffix: impl Fn(u64) -> String) {
    for drops in [true, false] {
        let mut pair = Pair::<K>::new(30 * SECOND, drops).await;
        let (mut held, mut waits) = (VecDeque::new(), VecDeque::new());
        for n in 0..places as u64 + 3 {
            let token = pair.token(&suffix(n));
            pair.acquire(&token, rank).await;
            if held.len() < places {
                &mut held
            } else {
                &mut waits
            }
            .push_back(token);
        }
        for n in 0..500 {
            pair.pass(400_000);
            let token = pair.token(&suffix(n + 100));
            let answer = pair.acquire(&token, rank).await;
            assert!(
                answer.contains("Acquired(Queued {") && answer.contains("before: 3"),
                "{n}: {answer}"
            );
            waits.push_back(token);
            pair.release(&held.pop_front().unwrap(), rank).await;
            let next = waits.pop_front().unwrap();
            let told = pair.told();
            let id = format!("ids: [{}]", next.waiter().unwrap().1);
            assert!(
                told.len() == 1 && told[0].contains(&id),
                "{n}: {told:?}, not {next}"
            );
            held.push_back(next);
        }
    }
}

#[tokio::test]
async fn lines_are_kept() {
    line::<Permits>(3, 0, |_| "/1/3".into()).await;
    line::<Exclusive>(1, 0, |_| String::new()).await;
    line::<ReadWrite>(1, 0, |_| "/w1".into()).await;
    // Each reader has a group of its own, so they wait for each other, in the second rank.
    line::<ReadWrite>(1, 1, |n| format!("/r{n}")).await;
    line::<Flight>(1, 0, |_| String::new()).await;
    line::<FilterClaims>(1, 0, |_| String::new()).await;
    line::<ExactClaims>(1, 0, |_| String::new()).await;
}

/// The same with the newest served first: the first three wait, and send heartbeats. Once they stop, they are dropped.
#[tokio::test]
async fn a_line_that_is_served_newest_first_is_kept() {
    for drops in [true, false] {
        let mut pair = Pair::<Permits>::new(30 * SECOND, drops).await;
        let query = CallerSettings {
            limit: None,
            rules: Rules {
                version: 1,
                newest: SECOND,
                ..Rules::default()
            }
            .into(),
        };
        let verb = || Verb::Acquire {
            query: Some(query.clone()),
            bypass: false,
        };
        let mut held = pair.token("/1/1");
        pair.call(&held, verb(), 0).await;
        let first: Vec<_> = (0..3).map(|_| pair.token("/1/1")).collect();
        for token in &first {
            pair.call(token, verb(), 0).await;
        }
        for n in 0..200 {
            pair.pass(SECOND);
            if n % 5 == 0 && n < 150 {
                pair.take(Step::Heartbeat(first.clone())).await;
            }
            let newest = pair.token("/1/1");
            let answer = pair.call(&newest, verb(), 0).await;
            assert!(answer.contains("Acquired(Queued {"), "{n}: {answer}");
            assert!(answer.contains("before: 0") || n > 155, "{n}: {answer}");
            pair.release(&held, 0).await;
            let told = pair.told();
            let id = format!("ids: [{}]", newest.waiter().unwrap().1);
            assert!(
                told.len() == 1 && told[0].contains(&id),
                "{n}: {told:?}, not {newest}"
            );
            held = newest;
            let waiters = if n < 155 { 3 } else { 0 };
            let seen = pair.take(Step::Look).await;
            assert!(
                (152..158).contains(&n) || seen.contains(&format!("waiting: {waiters} }}")),
                "{n}: {seen}"
            );
        }
    }
}

/// For nine days there is always a holder. Its lease is renewed, or the lease of the next holder begins before.
async fn held<K: Tried>(renews: bool, rank: i64, suffix: &str) {
    for drops in [true, false] {
        let mut pair = Pair::<K>::new(DAY, drops).await;
        let mut held = pair.token(suffix);
        pair.holds(&held, rank).await;
        let one = pair.take(Step::Look).await;
        let used = one.split(',').find(|part| part.contains("in_use")).unwrap();
        for _ in 0..20 {
            pair.pass(11 * HOUR);
            if renews {
                let answer = pair.take(Step::Renew(held.clone(), DAY, 0)).await;
                assert!(answer.contains("Some"), "{answer}");
            } else {
                let next = pair.token(suffix);
                pair.holds(&next, rank).await;
                pair.release(&held, rank).await;
                held = next;
            }
            let now = pair.take(Step::Look).await;
            assert!(now.contains(used), "{now}, not {used}");
        }
        pair.release(&held, rank).await;
    }
}

#[tokio::test]
async fn holders_are_kept() {
    for suffix in ["/1/3", "/2/5"] {
        held::<Permits>(false, 0, suffix).await;
        held::<Permits>(true, 0, suffix).await;
    }
    held::<ReadWrite>(false, 1, "/r").await;
    held::<ReadWrite>(true, 1, "/r").await;
    held::<ReadWrite>(true, 0, "/w1").await;
    held::<ReadWrite>(true, 0, "~3e8/w1").await;
    for suffix in ["", "~3e8", ":alice", "~3e8:alice"] {
        held::<Exclusive>(true, 0, suffix).await;
    }
    held::<Flight>(true, 0, "").await;
    held::<FilterClaims>(true, 0, "").await;
    held::<ExactClaims>(true, 0, "").await;
}

/// A mutex is locked every hour. Once, the clock is set back by six days at the end of a day of its fences.
#[tokio::test]
async fn a_fence_is_kept_for_a_week_after_each_grant() {
    let mut pair = Pair::<Exclusive>::new(SECOND, false).await;
    pair.time.set(pair.time.now / DAY * DAY + DAY - 10);
    for hour in 0..12 * 24 {
        let token = pair.token("");
        pair.holds(&token, 0).await;
        pair.release(&token, 0).await;
        pair.pass(if hour == 0 { -6 * DAY } else { HOUR });
    }
}
