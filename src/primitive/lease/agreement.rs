//! The Lua scripts and their Rust twins must answer alike, whatever the sequence, and grant alike.
//!
//! As in the token bucket's test of that name: random sequences, one key each, many of them in step, against a real
//! Redis whose scripts have a clock that the test sets, and in process with a clock set alike. What has a time to
//! live ends by that clock too.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use deadpool_redis::redis;
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::kind::{Entry, Kind, Query, Scope};
use super::operations::{Beat, Inspect, Renew, Scene, Take, Turn, Verb};
use super::room::{Room, Spans};
use super::settle::Settle;
use crate::primitive::bloom_filter::Probe;
use crate::primitive::dedupe::claim::{self, Claims};
use crate::primitive::mutex::holder::Exclusive;
use crate::primitive::rw_lock::holders::ReadWrite;
use crate::primitive::single_flight::answer::{self, Flight};
use crate::primitive::wait_group::holders::Permits;
use crate::store::background::Background;
use crate::store::{Client, Clock, Namespace, Push};
use crate::support::redis_server::RedisServer;
use crate::{BloomFilter, Key, Store, StoreBuilder};

/// A Redis whose time stands where the test puts it, and which notes what is published.
const CLOCK: &str = "
local server = redis
local now = tonumber(server.call('GET', 'clock'))
local function call(name, ...)
  local args, px = {...}, nil
  for _, arg in ipairs(args) do
    if type(arg) == 'string' and string.sub(arg, 1, 4) == 'td:{' then
      local ends = server.call('HGET', 'ends', arg)
      if ends and tonumber(ends) <= now then server.call('DEL', arg) end
      if ends and server.call('EXISTS', arg) == 0 then server.call('HDEL', 'ends', arg) end
    end
  end
  local key = args[1]
  if name == 'PUBSUB' then return {args[2], 1} end
  if name == 'PUBLISH' then
    server.call('RPUSH', 'published', args[2])
    return 1
  elseif name == 'PTTL' then
    local ends = server.call('HGET', 'ends', key)
    return ends and math.floor((ends - now) / 1000) or -2
  elseif name == 'PEXPIRE' then
    assert(tonumber(args[2]) > 0, 'a time to live that Redis would not take')
    if server.call('EXISTS', key) == 0 then return 0 end
    server.call('HSET', 'ends', key, string.format('%d', now + args[2] * 1000))
    return 1
  elseif name == 'SET' then
    if args[3] == 'PX' then
      px = tonumber(args[4])
      assert(px > 0, 'a time to live that Redis would not take')
      table.remove(args, 3)
      table.remove(args, 3)
    end
    local done = server.call('SET', unpack(args))
    if done and px then server.call('HSET', 'ends', key, string.format('%d', now + px * 1000)) end
    return done
  end
  return server.call(name, unpack(args))
end
local redis = {call = call, pcall = call}
";

const SEQUENCES: usize = 3_400;
const IN_STEP: usize = 100;
const STEPS: usize = 24;

const SPANS: Spans = Spans { claim: 1_500_000, life: 7_000_000, mourning: 60_000_000 };

const TTLS: [i64; 3] = [10_000, 1_000_000, 30_000_000];

/// One store of the two.
struct Side<K: Kind> {
    /// One after the other, as in processes that are set up differently.
    scenes: Vec<Arc<Scene<K>>>,
    turn: Client<Turn<K>>,
    renew: Client<Renew<K>>,
    beat: Client<Beat<K>>,
    settle: Client<Settle<K>>,
    inspect: Client<Inspect<K>>,
}

#[derive(Clone, Debug)]
enum Step<K: Kind> {
    Turns(Vec<(Arc<str>, Verb, Query<K>)>),
    Settle(Arc<str>, Entry<K>),
    Renew(Arc<str>, i64),
    Beat(Vec<Arc<str>>, i64),
    Inspect,
}

impl<K: Tried> Side<K> {
    fn new(store: &Store, usual: Take) -> Self {
        let namespace = K::namespace(store);
        let channels: Arc<str> = store.channels().into();
        let scene = |scope| Arc::new(Scene { channels: channels.clone(), spans: SPANS, usual, scope });
        Self {
            scenes: K::scopes(store).into_iter().map(scene).collect(),
            turn: namespace.client(),
            renew: namespace.client(),
            beat: namespace.client(),
            settle: namespace.client(),
            inspect: namespace.client(),
        }
    }

    /// What a step answers, as text.
    async fn take(&self, key: Key, step: Step<K>, round: usize) -> String {
        let scene = &self.scenes[round % self.scenes.len()];
        match step {
            Step::Turns(turns) => {
                let turns = turns.into_iter().map(|(token, verb, query)| {
                    let turn = Turn { scene: Arc::clone(scene), token, verb, query: Some(query) };
                    self.turn.run(key.clone(), turn)
                });
                format!("{:?}", join_all(turns).await.into_iter().map(Result::unwrap).collect::<Vec<_>>())
            }
            Step::Settle(token, entry) => {
                let settle = Settle { scene: Arc::clone(scene), token, entry };
                let mut settled = self.settle.run(key, settle).await.unwrap();
                settled.heard.clear(); // compared with all that is pushed
                format!("{settled:?}")
            }
            Step::Renew(token, ttl) => {
                let renew = Renew { token, ttl, kind: PhantomData };
                format!("{:?}", self.renew.run(key, renew).await.unwrap())
            }
            Step::Beat(tokens, ttl) => {
                let beat = Beat { scene: Arc::clone(scene), tokens, ttl };
                format!("{:?}", self.beat.run(key, beat).await.unwrap())
            }
            Step::Inspect => {
                format!("{:?}", self.inspect.run(key, Inspect(PhantomData)).await.unwrap())
            }
        }
    }

    async fn round(&self, first: usize, steps: &[Step<K>], round: usize) -> Vec<String> {
        // With what answers have left of this task's budget, the first call might not leave before the second.
        tokio::task::yield_now().await;
        join_all(
            steps
                .iter()
                .enumerate()
                .map(|(sequence, step)| self.take(K::key(first + sequence), step.clone(), round)),
        )
        .await
    }
}

/// The tokens of a sequence, some of each of two processes.
fn tokens(suffixes: &[&str], rng: &mut StdRng, next: &mut u64) -> Vec<(Arc<str>, i64)> {
    (0..12)
        .map(|_| {
            *next += 1;
            let process = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"][rng.random_range(0..2)];
            let sign = ['+', '-'][rng.random_range(0..2)];
            let suffix = suffixes.choose(rng).unwrap();
            let rank = suffix.starts_with("/r") || *suffix == "/idle";
            let span = ["", ".2710", ".7a120", ".ffffffff"].choose(rng).unwrap();
            (format!("{process}{sign}{next:x}{span}{suffix}").into(), rank.into())
        })
        .collect()
}

fn random_step<K: Tried>(
    rng: &mut StdRng,
    sequence: usize,
    tokens: &[(Arc<str>, i64)],
    usual: Take,
) -> Step<K> {
    let ttl = *TTLS.choose(rng).unwrap();
    if let Some(entry) = K::entry(sequence, rng).filter(|_| rng.random_bool(0.2)) {
        return Step::Settle(tokens.choose(rng).unwrap().0.clone(), entry);
    }
    match rng.random_range(0..100) {
        0..75 => {
            let take = match rng.random_bool(0.6) {
                true => usual,
                false => Take {
                    ttl: usual.ttl,
                    most: *[0, 2, 1000].choose(rng).unwrap(),
                    rank: rng.random_range(0..2),
                },
            };
            let chosen: Vec<_> = (0..4).filter_map(|_| tokens.choose(rng)).collect();
            let query = K::query(sequence);
            let turn = |(token, rank): &(Arc<str>, i64)| {
                // All of one group: others are other calls, and may overtake.
                let verb = if *rank == take.rank && (take != usual || rng.random_bool(0.6)) {
                    if K::INSISTS && rng.random_bool(0.1) { Verb::Insist(take) } else { Verb::Take(take) }
                } else if take == usual {
                    Verb::Give { withdrawn: rng.random_bool(0.3) }
                } else {
                    return None;
                };
                Some((Arc::clone(token), verb, query.clone()))
            };
            Step::Turns(chosen.into_iter().filter_map(turn).collect())
        }
        75..82 => Step::Renew(tokens.choose(rng).unwrap().0.clone(), ttl),
        82..94 => Step::Beat(tokens.sample(rng, 4).map(|(token, _)| token.clone()).collect(), ttl),
        _ => Step::Inspect,
    }
}

/// What was granted to waiters, in whatever way they were told.
fn granted(store: &Store, published: Vec<Vec<u8>>) -> Vec<Push> {
    let mut granted = store.notifier().take_delivered();
    granted.extend(published.into_iter().map(|text| Push::parse(&text).unwrap()));
    // A number may be granted, given back and granted again.
    granted.sort_by_key(|push| (push.number, push.fence, push.expiry));
    granted
}

/// A kind, and what to try on it.
trait Tried: Kind + Clone {
    const INSISTS: bool = false;

    fn scopes(store: &Store) -> Vec<Scope<Self>>;
    fn query(sequence: usize) -> Query<Self>;
    fn entry(sequence: usize, rng: &mut StdRng) -> Option<Entry<Self>>;

    fn namespace(store: &Store) -> Namespace<Room<Self::Holders>> {
        Namespace::new(store, "agreement").unwrap()
    }

    fn key(sequence: usize) -> Key {
        Key::from(format!("sequence {sequence}"))
    }
}

async fn agree<K: Tried>(suffixes: &[&str]) {
    let server = RedisServer::start().await;
    let mut clock = server.client().unwrap();
    let micros = Arc::new(AtomicI64::new(0));
    let seed: u64 = std::env::var("SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let pool = crate::store::Source::url(&server.url()).unwrap();
    let on_redis = StoreBuilder::default().timeout(Duration::from_secs(30)).assemble(
        pool,
        CLOCK,
        Vec::new(),
        Background::thread(),
    );
    let in_memory = Store::with_clock(Clock::Manual(micros.clone()));
    let (mut now, mut next, mut grants) = (1_760_000_000_000_000_i64, 0, 0);

    let warm = Side::<K>::new(&on_redis, Take { ttl: TTLS[0], most: 0, rank: 0 });
    // The scripts become known: what is sent in full for that comes later than what was asked for after it.
    clock.query::<()>(redis::cmd("SET").arg("clock").arg(now)).unwrap();
    let give = ("warm".into(), Verb::Give { withdrawn: false }, K::query(SEQUENCES));
    let settle = K::entry(SEQUENCES, &mut rng).map(|entry| Step::Settle("warm".into(), entry));
    for step in [Step::Turns(vec![give]), Step::Inspect].into_iter().chain(settle) {
        warm.take(K::key(SEQUENCES), step, 0).await;
    }

    for batch in 0..SEQUENCES / IN_STEP {
        // As in a namespace: all leases have one time to live.
        let usual = Take { ttl: *TTLS.choose(&mut rng).unwrap(), most: 1000, rank: 0 };
        let (lua, rust) = (Side::<K>::new(&on_redis, usual), Side::<K>::new(&in_memory, usual));
        let tokens: Vec<_> = (0..IN_STEP).map(|_| tokens(suffixes, &mut rng, &mut next)).collect();
        let mut history: Vec<(i64, Vec<Step<K>>)> = Vec::new();
        for round in 0..STEPS {
            let jumps = [0, 1, 999, 10_000, 400_000, 1_500_000, 3_000_000, 8_000_000, 31_000_000];
            now += *jumps.choose(&mut rng).unwrap();
            micros.store(now, Ordering::Relaxed);
            clock.query::<()>(redis::cmd("SET").arg("clock").arg(now)).unwrap();
            let step =
                |(at, tokens): (usize, &Vec<_>)| random_step(&mut rng, batch * IN_STEP + at, tokens, usual);
            let steps: Vec<_> = tokens.iter().enumerate().map(step).collect();
            history.push((now, steps.clone()));
            let answers = (
                lua.round(batch * IN_STEP, &steps, round).await,
                rust.round(batch * IN_STEP, &steps, round).await,
            );
            for (at, (lua, rust)) in answers.0.iter().zip(&answers.1).enumerate() {
                let so_far = || {
                    let steps = history.iter().map(|(now, steps)| format!("{now}: {:?}", steps[at]));
                    steps.collect::<Vec<_>>().join("\n")
                };
                assert_eq!(lua, rust, "SEED={seed}\n{}", so_far());
            }
            let published = clock.query(redis::cmd("LRANGE").arg("published").arg(0).arg(-1)).unwrap();
            clock.query::<()>(redis::cmd("DEL").arg("published")).unwrap();
            let granted = (granted(&on_redis, published), granted(&in_memory, Vec::new()));
            assert_eq!(granted.0, granted.1, "SEED={seed} at {now}");
            grants += granted.0.len();
        }
    }
    // With claims, most of what is heard is that there is nothing left to do.
    assert!(grants > SEQUENCES / 2, "only {grants} were granted to waiters: this shows little");
}

#[tokio::test]
async fn permits_agree() {
    agree::<Permits>(&["/1/3", "/1/3", "/2/3", "/3/3", "/1/2", "/idle"]).await;
}

#[tokio::test]
async fn mutexes_agree() {
    agree::<Exclusive>(&["", "", ":alice"]).await;
}

#[tokio::test]
async fn reader_writer_locks_agree() {
    agree::<ReadWrite>(&["/w1", "/w2", "/r", "/r", "/rteam/w5"]).await;
}

#[tokio::test]
async fn flights_agree() {
    agree::<Flight>(&[""]).await;
}

/// Nothing is on record.
macro_rules! no_record {
    ($($kind:ty),*) => {$(
        impl Tried for $kind {
            fn scopes(_: &Store) -> Vec<()> {
                vec![()]
            }

            fn query(_: usize) {}

            fn entry(_: usize, _: &mut StdRng) -> Option<Infallible> {
                None
            }
        }
    )*};
}
no_record!(Permits, Exclusive, ReadWrite);

impl Tried for Flight {
    const INSISTS: bool = true;

    fn scopes(_: &Store) -> Vec<Arc<str>> {
        // The other codec is used in one round of three.
        ["text/1+", "text/1+", "text/2+"].map(Arc::from).to_vec()
    }

    fn query(_: usize) {}

    fn entry(_: usize, rng: &mut StdRng) -> Option<answer::Entry> {
        let fresh = Duration::from_micros(*[1_000, 9_500, 400_000, 5_000_000].choose(rng).unwrap());
        let keep = fresh + Duration::from_micros(*[0, 1_300_000, 40_000_000].choose(rng).unwrap());
        let bytes: Vec<u8> = (0..rng.random_range(0..6)).map(|_| rng.random()).collect();
        Some(answer::Entry { fresh, keep, bytes: bytes.into() })
    }
}

fn filter(store: &Store) -> BloomFilter {
    let forget = Duration::from_secs(300);
    BloomFilter::builder().capacity(10_000).rate(0.05).forget_after(forget).build(store, "agreement").unwrap()
}

fn probe(sequence: usize) -> Probe {
    static FILTER: LazyLock<BloomFilter> = LazyLock::new(|| filter(&Store::in_memory()));
    FILTER.probe(sequence.to_string().as_bytes())
}

impl Tried for Claims {
    const INSISTS: bool = true;

    fn scopes(store: &Store) -> Vec<BloomFilter> {
        vec![filter(store)]
    }

    fn query(sequence: usize) -> Probe {
        probe(sequence)
    }

    fn entry(sequence: usize, _: &mut StdRng) -> Option<Probe> {
        Some(probe(sequence))
    }

    fn namespace(store: &Store) -> Namespace<Room<Self::Holders>> {
        Namespace::beside(store, "agreement")
    }

    fn key(sequence: usize) -> Key {
        claim::key(&probe(sequence))
    }
}

#[tokio::test]
async fn claims_agree() {
    agree::<Claims>(&[""]).await;
}
