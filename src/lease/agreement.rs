//! The Lua scripts and their Rust counterparts must return the same replies and make the same grants, for any sequence
//! of operations.
//!
//! This works like the token bucket's test of the same name. It runs random sequences, one key each, many of them in
//! lockstep. One side is a real Redis, with scripts whose clock the test sets. The other side runs in memory, with its
//! clock set to the same time. Keys with a ttl expire by that clock too.
//!
//! For most kinds, half of the sequences do not run in the in-memory store. They run on states that are never dropped,
//! and the clock is sometimes set back. The clock of the in-memory store never runs backwards, so that store may drop
//! more. The places in a queue are sometimes evicted, too.

mod all;
mod behind;
mod busy;
mod claims;
mod cost;
mod evicted_flows;
mod ids;
mod kept;
mod told;
pub(crate) mod virtual_time;

use std::collections::HashMap;
use std::convert::{Infallible, identity};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use futures::stream;
use futures::stream::StreamExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use support::redis_server::RedisServer;

use crate::key::Key;
use crate::lease::agreement::virtual_time::Time;
use crate::lease::holders::Exclusive;
use crate::lease::key_state::{AcquireTerms, KeyState, Spans};
use crate::lease::kind::{Entry, Found, Kind, Outcome as _, Query, Scope};
use crate::lease::look::{Look, Revoke};
use crate::lease::operations::{
    AcquireRelease, Heartbeat, Renew, ReplyKind, ScriptContext, StateOf, Verb, VerbOf,
};
use crate::lease::settings::{CallerSettings, KeyLimit, Rules, Source};
use crate::lease::token::Token;
use crate::rw_lock::holders::ReadWrite;
use crate::single_flight::answer;
use crate::single_flight::answer::Flight;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::memory::clock::Clock;
use crate::store::notifier::Push;
use crate::store::operation::{Cell as _, Operation};
use crate::sync::lock;
use crate::wait_group::permits::Permits;

/// Lua numbers are exact up to 2^53.
const LATE_IDS: u64 = (1 << 53) + 1;

/// The number of sequences of each kind, with suffixes of one kind.
const SEQUENCES: usize = 400;
const IN_STEP: usize = 100;
const STEPS: usize = 24;

const SPANS: Spans = Spans {
    grant: 1_500_000,
    alive: 7_000_000,
    tombstone: 60_000_000,
};

const TTLS: [i64; 3] = [10_000, 1_000_000, 30_000_000];

/// One of the two sides: Redis, or memory.
struct Side<K: Kind> {
    /// Used in turn, as in processes with different settings.
    scenes: Vec<Arc<ScriptContext<K>>>,
    acquire_release: Client<AcquireRelease<K>>,
    renew: Client<Renew<K>>,
    heartbeat: Client<Heartbeat<K>>,
    look: Client<Look<K>>,
    revoke: Client<Revoke<K>>,
    /// Set if operations do not run in a store.
    states: Option<States<K>>,
    /// Whether each operation is a separate call, and not one of a batch.
    alone: bool,
}

/// States that are never dropped, and the pushed messages.
struct States<K: Kind> {
    clock: Arc<AtomicI64>,
    of: Mutex<HashMap<Vec<u8>, StateOf<K>>>,
    pushed: Mutex<Vec<Push>>,
}

#[derive(Clone, Debug)]
enum Step<K: Kind> {
    /// Calls of one group, or without a group. Calls of other groups are sent separately, and may overtake.
    Calls(AcquireTerms, Vec<(Token, VerbOf<K>)>),
    Renew(Token, i64, i64),
    Heartbeat(Vec<Token>),
    Look,
    Revoke(Token),
}

impl<K: Tried> Side<K> {
    fn new(store: &Store, states: Option<States<K>>, alone: bool) -> Self {
        let namespace = K::namespace(store);
        let channels = SPANS.with(&store.channels());
        let context = |scope| {
            Arc::new(ScriptContext {
                channels: channels.clone(),
                spans: SPANS,
                scope,
            })
        };
        Self {
            scenes: K::scopes(store).into_iter().map(context).collect(),
            acquire_release: namespace.client(),
            renew: namespace.client(),
            heartbeat: namespace.client(),
            look: namespace.client(),
            revoke: namespace.client(),
            states,
            alone,
        }
    }

    /// Runs operations, all at once or one after the other.
    async fn all<T>(&self, operations: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
        if self.alone {
            stream::iter(operations).then(identity).collect().await
        } else {
            join_all(operations).await
        }
    }

    async fn run<O: Operation<Cell = StateOf<K>>>(
        &self,
        client: &Client<O>,
        key: &Key,
        operation: O,
    ) -> O::Reply {
        let Some(states) = &self.states else {
            return client.run(key.clone(), operation).await.unwrap();
        };
        let mut of = lock(&states.of);
        let state = of.entry(key.as_bytes().to_vec()).or_default();
        let reply = operation.apply(state, states.clock.load(Ordering::Relaxed));
        lock(&states.pushed).extend(state.pushes());
        reply
    }

    /// Runs a step. Returns its reply as text.
    async fn take(&self, key: Key, step: Step<K>, round: usize) -> String {
        let context = &self.scenes[round % self.scenes.len()];
        match step {
            Step::Calls(terms, calls) => {
                let calls = calls.into_iter().map(|(token, verb)| {
                    let call = AcquireRelease {
                        context: Arc::clone(context),
                        token,
                        verb,
                        terms,
                    };
                    self.run(&self.acquire_release, &key, call)
                });
                let mut answers = self.all(calls).await;
                for answer in &mut answers {
                    answer.found.iter_mut().for_each(K::blur);
                    if let ReplyKind::Completed(_, level) = &mut answer.what {
                        *level = 0; // sequences that share a filter fill it in any order
                    }
                }
                format!("{answers:?}")
            }
            Step::Renew(token, ttl, fence) => {
                let renew = Renew {
                    token,
                    ttl,
                    fence,
                    kind: PhantomData,
                };
                format!("{:?}", self.run(&self.renew, &key, renew).await)
            }
            Step::Heartbeat(tokens) => {
                let limit = K::Outcome::told(&K::query(round, 0)).and_then(|told| told.limit);
                let heartbeat = Heartbeat {
                    context: Arc::clone(context),
                    limit,
                    tokens,
                };
                let mut beaten = self.run(&self.heartbeat, &key, heartbeat).await;
                beaten.granted.clear();
                format!("{beaten:?}")
            }
            Step::Look => {
                let seen = self.run(&self.look, &key, Look::all()).await;
                let tokens: Vec<_> = seen
                    .holders
                    .iter()
                    .map(|holder| holder.whole_token().escape_ascii().to_string())
                    .collect();
                format!("{seen:?} {tokens:?}")
            }
            Step::Revoke(token) => {
                let revoke = Revoke::new(
                    Arc::clone(&context.channels),
                    context.spans,
                    token.text().as_bytes(),
                );
                format!("{:?}", self.run(&self.revoke, &key, revoke).await)
            }
        }
    }

    async fn round(&self, first: usize, steps: &[Step<K>], round: usize) -> Vec<String> {
        let steps = steps.iter().enumerate();
        let all =
            self.all(steps.map(|(at, step)| self.take(K::key(first + at), step.clone(), round)));
        // In a task whose budget is spent, a call that its own task sends could be sent after the next one.
        tokio::task::unconstrained(all).await
    }
}

impl<K: Tried> Side<K> {
    /// Returns when the next lease of each key ends, µs. Like each step, this drops and cuts leases.
    async fn soonest(&self, first: usize) -> Vec<i64> {
        let keys = (first..first + IN_STEP).map(K::key);
        let soonest = async |key| {
            let tokens = vec!["nobody".into()];
            let nobody = Heartbeat {
                context: Arc::clone(&self.scenes[0]),
                limit: None,
                tokens,
            };
            self.run(&self.heartbeat, &key, nobody).await.soonest
        };
        join_all(keys.map(soonest)).await
    }

    /// Returns all messages to waiters, however they were sent.
    fn told(&self, store: &Store, published: Vec<Vec<u8>>) -> Vec<String> {
        let mut told = store.notifier().take_delivered();
        told.extend(
            published
                .into_iter()
                .map(|text| Push::parse(&text).unwrap()),
        );
        told.extend(
            self.states
                .iter()
                .flat_map(|states| std::mem::take(&mut *lock(&states.pushed))),
        );
        let mut told: Vec<_> = told.iter().map(|push| format!("{push:?}")).collect();
        told.sort();
        told
    }
}

/// Returns the tokens of a sequence, some from each of two processes.
fn tokens<K: Tried>(suffixes: &[&str], rng: &mut StdRng, next: &mut u64) -> Vec<(Token, i64)> {
    (0..12)
        .map(|_| {
            *next += 1;
            let process = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"][rng.random_range(0..2)];
            let suffix = suffixes.choose(rng).unwrap();
            let ttl = ["", ".2710", ".f4240", ".1c9c380", ".ffffffff"]
                .choose(rng)
                .unwrap();
            (
                format!("{process}-{next:x}{ttl}{suffix}").into(),
                K::rank(suffix),
            )
        })
        .collect()
}

fn random_step<K: Tried>(
    rng: &mut StdRng,
    (sequence, now): (usize, i64),
    tokens: &[(Token, i64)],
    terms: AcquireTerms,
) -> Step<K> {
    let ttl = *TTLS.choose(rng).unwrap();
    if let Some(entry) = K::entry(sequence, rng).filter(|_| rng.random_bool(0.2)) {
        let verb = Verb::Complete {
            entry,
            again: false,
        };
        let complete = (tokens.choose(rng).unwrap().0.clone(), verb);
        return Step::Calls(terms, vec![complete]);
    }
    match rng.random_range(0..100) {
        0..75 => {
            let chosen: Vec<_> = (0..4).filter_map(|_| tokens.choose(rng)).collect();
            let query = K::query(sequence, now);
            let call = |(token, rank): &(Token, i64)| {
                let acquires = *rank == terms.rank && rng.random_bool(0.7);
                let entry = K::entry(sequence, rng).filter(|_| rng.random_bool(0.2));
                let verb = match (rng.random_range(0..10), entry) {
                    (_, Some(entry)) => Verb::Complete {
                        entry,
                        again: false,
                    },
                    (n, _) if acquires => Verb::Acquire {
                        query: Some(query.clone()),
                        bypass: n == 0 && K::BYPASSES,
                    },
                    (n, _) => Verb::Release { withdraws: n < 3 },
                };
                (token.clone(), verb)
            };
            Step::Calls(terms, chosen.into_iter().map(call).collect())
        }
        75..82 => {
            let fence = *[0, 0, 7, now, now + 31, now + 3_000_000]
                .choose(rng)
                .unwrap();
            Step::Renew(tokens.choose(rng).unwrap().0.clone(), ttl, fence)
        }
        82..94 => {
            // All waiters of one process, as in real heartbeats.
            let process = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"][rng.random_range(0..2)];
            let is_own = |token: &&Token| token.with_text(|text| text.starts_with(process));
            let own: Vec<_> = tokens
                .iter()
                .map(|(token, _)| token)
                .filter(is_own)
                .cloned()
                .collect();
            if own.is_empty() {
                Step::Look
            } else {
                Step::Heartbeat(own.sample(rng, 4).cloned().collect())
            }
        }
        96..98 => Step::Revoke(tokens.choose(rng).unwrap().0.clone()),
        _ => Step::Look,
    }
}

/// A kind, and the parameters of its test.
trait Tried: Kind + Clone {
    const BYPASSES: bool = false;
    /// Whether to set the clock back. Kinds with outcomes drop them in other ways in this case.
    const GOES_BACK: bool = false;
    /// The ranks of acquires, each as often as it is listed.
    const RANKS: &'static [i64] = &[0, 0, 0, 0, 1];

    /// The rank of tokens with a suffix.
    fn rank(suffix: &str) -> i64 {
        suffix.contains("/r").into()
    }

    fn scopes(store: &Store) -> Vec<Scope<Self>>;
    fn query(sequence: usize, now: i64) -> Query<Self>;
    fn entry(sequence: usize, rng: &mut StdRng) -> Option<Entry<Self>>;

    /// Removes the parts of the found outcome that depend on other sequences.
    fn blur(_: &mut Found<Self>) {}

    fn namespace(store: &Store) -> Namespace<KeyState<Self::Holders>> {
        Namespace::new(store, "agreement").unwrap()
    }

    fn key(sequence: usize) -> Key {
        Key::from(format!("sequence {sequence}"))
    }

    /// The length of a slice of handled items (µs), and the number of their buckets.
    fn slices() -> (i64, u64) {
        (1, 1)
    }
}

async fn agree<K: Tried>(suffixes: &[&str]) {
    let server = RedisServer::start().await;
    let in_process = Arc::new(AtomicI64::new(0));
    let sequences = SEQUENCES * support::size();
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let on_redis = virtual_time::store(&server);
    let in_memory = Store::with_clock(Clock::Manual(in_process.clone()));
    let mut time = Time::new(server.client().unwrap(), in_process.clone());
    let (mut next, mut grants, mut cut) = (LATE_IDS, 0, 0);

    let mut lua = Side::<K>::new(&on_redis, None, false);
    // Load the scripts: otherwise the call that is sent in full for that arrives after a later one. Every second call
    // is sent as a script.
    let release = ("warm".into(), Verb::Release { withdraws: false });
    let release = Step::Calls(AcquireTerms::usual(TTLS[0]), vec![release]);
    for step in [release, Step::Look, Step::Revoke("warm".into())] {
        lua.take(K::key(2 * sequences), step.clone(), 0).await;
        lua.take(K::key(2 * sequences), step, 0).await;
    }

    // Up to twice as many sequences if there are few messages to waiters, or few leases are cut.
    for batch in 0..2 * sequences / IN_STEP {
        let covers_enough = grants > sequences / 2 && (cut > sequences / 20 || !K::GOES_BACK);
        if batch >= sequences / IN_STEP && covers_enough {
            break;
        }
        // As in a namespace, all leases have one ttl.
        let ttl = *TTLS.choose(&mut rng).unwrap();
        let first = batch * IN_STEP;
        // Sequences of claims share filters and buckets. All others have keys of their own.
        if K::GOES_BACK {
            time.flush();
        }
        let goes_back = K::GOES_BACK && batch % 2 == 0;
        let states = || States {
            clock: in_process.clone(),
            of: Mutex::default(),
            pushed: Mutex::default(),
        };
        lua.alone = batch % 3 == 0;
        let rust = Side::<K>::new(&in_memory, goes_back.then(states), lua.alone);
        let tokens: Vec<_> = (0..IN_STEP)
            .map(|_| tokens::<K>(suffixes, &mut rng, &mut next))
            .collect();
        let mut history: Vec<(i64, Vec<Step<K>>)> = Vec::new();
        for round in 0..STEPS {
            // Not by chance: some seeds would never set the clock back while there are leases.
            if goes_back && round % 5 == 3 {
                let by = *[1, 999, 400_000, 5_000_000, 45_000_000]
                    .choose(&mut rng)
                    .unwrap();
                cut += time.set_back(by, first, &lua, &rust).await;
            } else {
                let jumps = [
                    0, 1, 999, 10_000, 400_000, 1_500_000, 3_000_000, 8_000_000, 31_000_000,
                ];
                let half_a_day = 43_200_000_000;
                let by = if rng.random_bool(0.02) {
                    half_a_day
                } else {
                    *jumps.choose(&mut rng).unwrap()
                };
                time.set(time.now + by);
            }
            if let Some(states) = rust.states.as_ref().filter(|_| rng.random_bool(0.1)) {
                let evicted: Vec<_> = (first..first + IN_STEP)
                    .filter(|_| rng.random_bool(0.3))
                    .collect();
                evicted
                    .into_iter()
                    .for_each(|sequence| time.evict(sequence, states));
            }
            let now = time.now;
            // Calls with other terms would be sent separately, and may overtake.
            let max_waiters = *[0, 2, 1000, 1000, 1000, 1000, 1000, 1000]
                .choose(&mut rng)
                .unwrap();
            let rank = *K::RANKS.choose(&mut rng).unwrap();
            let terms = AcquireTerms {
                ttl,
                max_waiters,
                rank,
                placed: rng.random_bool(0.5),
            };
            let step = |(at, tokens): (usize, &Vec<_>)| {
                random_step(&mut rng, (first + at, now), tokens, terms)
            };
            let steps: Vec<_> = tokens.iter().enumerate().map(step).collect();
            history.push((now, steps.clone()));
            let answers = (
                lua.round(first, &steps, round).await,
                rust.round(first, &steps, round).await,
            );
            for (at, (lua, rust)) in answers.0.iter().zip(&answers.1).enumerate() {
                let so_far = || {
                    let steps = history
                        .iter()
                        .map(|(now, steps)| format!("{now}: {:?}", steps[at]));
                    steps.collect::<Vec<_>>().join("\n")
                };
                assert_eq!(lua, rust, "SEED={seed}\n{}", so_far());
            }
            let told = (
                lua.told(&on_redis, time.published()),
                rust.told(&in_memory, Vec::new()),
            );
            assert_eq!(told.0, told.1, "SEED={seed} at {now}");
            grants += told.0.len();
            time.check_kept(K::slices());
            rust.states
                .iter()
                .for_each(|states| time.check_fences::<K>(states));
        }
    }
    // For claims, most messages have an outcome that makes the acquire unnecessary.
    assert!(
        grants > sequences / 2,
        "only {grants} messages to waiters: the test covers too little"
    );
    assert!(
        cut > sequences / 20 || !K::GOES_BACK,
        "only {cut} leases were cut: the test covers too little"
    );
    server.assert_both_ways_to_call();
    println!("{grants} messages to waiters, {cut} leases cut");
}

/// The classes follow from the limits.
const PLAIN: &str = "/1/3 /1/3 /2/3 /3/3 /1/2 /idle";
const FLOWS: &str = "/1/3/1.1.. /1/3/1.1.. /2/3/2.1.. /1/3/2.1.. /1/3/3.4.. /3/3/4.1..";
const CLASSES: &str = "/1/3 /2/3 /1/2/..1. /1/1/..2. /1/2/1.1.1. /1/1/2.3.2.";
const BOUNDS: &str = "/1/3/...2 /1/3/...5 /2/1/..2.1 /4/3 /1/3/1.1..1 /1/0";

/// The suffixes in these lists.
fn of(lists: &[&'static str]) -> Vec<&'static str> {
    lists.iter().flat_map(|list| list.split(' ')).collect()
}

#[tokio::test]
async fn permits_agree() {
    agree::<Permits>(&of(&[PLAIN])).await;
}

#[tokio::test]
async fn fair_permits_agree() {
    agree::<Permits>(&of(&[FLOWS, PLAIN, "/1/2/9.1.. /1/3/5.3e8.."])).await;
}

#[tokio::test]
async fn permits_with_classes_agree() {
    agree::<Permits>(&of(&[CLASSES, FLOWS, PLAIN])).await;
}

/// Callers with limits of their own beside the limit of the key.
#[tokio::test]
async fn permits_with_bounds_agree() {
    agree::<Permits>(&of(&[PLAIN, BOUNDS])).await;
}

#[tokio::test]
async fn mutexes_agree() {
    agree::<Exclusive>(&["", "", ":alice", "~3e8", "~3e8:alice", "~9c40@host"]).await;
}

#[tokio::test]
async fn reader_writer_locks_agree() {
    agree::<ReadWrite>(&of(&[
        "/w1 /w2 /r /r /rteam/w5 ~3e8/w1 ~9c40@app/w2 ~3e8/r",
    ]))
    .await;
}

#[tokio::test]
async fn flights_agree() {
    agree::<Flight>(&[""]).await;
}

/// Implements [`Tried`] for kinds that keep no outcomes.
macro_rules! no_outcome {
    ($($kind:ty),*) => {$(
        impl Tried for $kind {
            const GOES_BACK: bool = true;

            fn scopes(_: &Store) -> Vec<()> {
                vec![()]
            }

            fn query(_: usize, _: i64) {}

            fn entry(_: usize, _: &mut StdRng) -> Option<Infallible> {
                None
            }
        }
    )*};
}
no_outcome!(Exclusive, ReadWrite);

impl Tried for Permits {
    const GOES_BACK: bool = true;
    const RANKS: &'static [i64] = &[0, 0, 0, 1, 2, 8];

    fn rank(suffix: &str) -> i64 {
        match suffix.split('/').nth(2) {
            Some("2") => 1,
            Some("1") => 2,
            None => 8,
            _ => 0,
        }
    }

    fn scopes(_: &Store) -> Vec<()> {
        vec![()]
    }

    /// The first sequence sends no settings. The others are of processes whose settings differ, and change.
    fn query(sequence: usize, now: i64) -> CallerSettings {
        if sequence == 0 {
            return CallerSettings {
                limit: None,
                rules: Rules {
                    version: 1,
                    ..Rules::default()
                }
                .into(),
            };
        }
        let nth = sequence + usize::try_from(now / 1000).unwrap_or(0);
        let limit = match nth % 8 {
            0 => Some((Source::Adaptive, 0, Some((nth / 8 % 3 + 1) as i64))),
            1 => Some((
                Source::Fleet,
                (nth / 8 % 5) as i64,
                Some((nth / 64 % 5) as i64),
            )),
            2 => Some((Source::Fleet, (nth / 8 % 5) as i64, None)),
            _ => None,
        };
        let limit = limit.map(|(source, version, limit)| KeyLimit {
            source,
            version,
            limit,
        });
        let of = |all: &[i64], by: usize| all[(sequence / by + nth % 2) % all.len()];
        let rules = Rules {
            version: if sequence.is_multiple_of(3) {
                1
            } else {
                now - (nth % 5) as i64 * 1000
            },
            aging: of(&[0, 10_000, 1_000_000], 3),
            newest: of(&[0, 0, 0, 10_000, 1_000_000], 9),
            reserved: [0, of(&[0, 1], 2), of(&[0, 2, 1], 5), 0, 0, 0, 0, 1],
        };
        CallerSettings {
            limit,
            rules: rules.into(),
        }
    }

    fn entry(_: usize, _: &mut StdRng) -> Option<Infallible> {
        None
    }
}

impl Tried for Flight {
    const BYPASSES: bool = true;

    fn scopes(_: &Store) -> Vec<Arc<str>> {
        // The other codec is used in one round of three.
        ["text/1+", "text/1+", "text/2+"].map(Arc::from).to_vec()
    }

    fn query(sequence: usize, now: i64) -> answer::Asker {
        let since = [0, now - 400_000, now - 5_000_000, now + 7][sequence % 4];
        let ahead = [0, 300_000, 4_000_000][sequence / 4 % 3];
        answer::Asker {
            since,
            takes_stale: !sequence.is_multiple_of(3),
            ahead,
        }
    }

    fn entry(_: usize, rng: &mut StdRng) -> Option<answer::Entry> {
        let fresh =
            Duration::from_micros(*[0, 1_000, 9_500, 400_000, 5_000_000].choose(rng).unwrap());
        let stale = fresh + Duration::from_micros(*[0, 1_300_000, 40_000_000].choose(rng).unwrap());
        let mut bytes: Vec<u8> = (0..rng.random_range(0..6)).map(|_| rng.random()).collect();
        if let Some(first) = bytes.first_mut().filter(|_| rng.random_bool(0.7)) {
            *first = b'+';
        }
        Some(answer::Entry {
            fresh,
            stale,
            bytes: bytes.into(),
        })
    }
}
