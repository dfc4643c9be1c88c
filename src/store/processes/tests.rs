//! How processes are counted, with intervals and clocks that only unit tests can set.

#![allow(clippy::unwrap_used, clippy::panic)]

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::store::builder::StoreBuilder;
use crate::store::memory::manual_clock::ManualClock;
use support::client::Client as Connection;
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);
const OFTEN: Duration = Duration::from_millis(20);
const KEY: &str = "td:{api:}:members";
const ONE: NonZeroU32 = NonZeroU32::MIN;

/// Replaces `lua/clock.lua`.
const CLOCK: &str = "local now = tonumber(redis.call('GET', 'clock'))\n";
const START: i64 = 1_760_000_000_000_000;

impl Members {
    fn beat_every(self: &Arc<Self>, every: Duration) {
        {
            let mut state = lock(&self.state);
            state.every = every;
            state.due = Some(Instant::now());
        }
        self.store.scheduler().schedule(Instant::now());
    }

    fn counts(&self) -> usize {
        lock(&self.state).counts.len()
    }
}

/// A process: a store of its own, and the members that it knows.
fn process(store: Store) -> Arc<Members> {
    let members = Members::join(&store, "api");
    members.start(ONE);
    members.beat_every(OFTEN);
    members
}

fn on(server: &RedisServer) -> Store {
    patient!(server.url())
}

async fn all_count(processes: &[&Arc<Members>], count: u32) {
    let what = format!("a count of {count}");
    eventually(&what, SOON, async || {
        processes.iter().all(|members| members.count() == count)
    })
    .await;
}

#[test]
fn the_largest_of_the_last_counts_is_the_number() {
    let mut state = State {
        first: 5,
        counts: VecDeque::new(),
        due: None,
        every: EVERY,
    };
    assert_eq!(state.count(), 5);
    for (count, number) in [(1, 5), (7, 7), (2, 7)] {
        state.counts.push_back(count);
        assert_eq!(state.count(), number, "{:?}", state.counts);
    }
    state.counts = [1, 2, 2, 2].into();
    assert_eq!(state.count(), 2, "the processes were counted");
    assert!(
        EVERY * KEPT as u32 >= Duration::from_micros(TTL.unsigned_abs()) + EVERY,
        "all that live have told it again"
    );
}

#[tokio::test]
async fn processes_are_counted_until_they_leave() {
    let server = RedisServer::start().await;
    let processes: Vec<_> = (0..5).map(|_| process(on(&server))).collect();
    all_count(&processes.iter().collect::<Vec<_>>(), 5).await;
    // Handles of one store count as one process.
    let again = Members::join(&processes[0].store, "api");
    assert!(Arc::ptr_eq(&again, &processes[0]));

    let [a, b, c, d, e] = processes.try_into().unwrap();
    let store = d.store.clone();
    store.shutdown(SOON).await.unwrap();
    drop(e);
    all_count(&[&a, &b, &c], 3).await;
    // A store that is used again after a shutdown.
    d.start(ONE);
    all_count(&[&a, &b, &c, &d], 4).await;
    drop(d);
    all_count(&[&a, &b, &c], 3).await;
    assert_eq!(server.query::<i64>(&["ZCARD", KEY]).unwrap(), 3);
    let ttl: i64 = server.query(&["PTTL", KEY]).unwrap();
    assert!((1..=30_000).contains(&ttl), "{ttl}");
    drop((again, a, b, c, store));
    eventually("an empty set", SOON, async || {
        server.query::<i64>(&["EXISTS", KEY]).unwrap() == 0
    })
    .await;
}

#[tokio::test]
async fn the_last_count_holds_in_an_outage() {
    let server = RedisServer::start().await;
    let (a, b) = (process(on(&server)), process(on(&server)));
    all_count(&[&a, &b], 2).await;
    server.cli(&["SET", "other", "1"]);
    server.cli(&["ACL", "SETUSER", "default", "-zadd"]);
    server.cli(&["DEL", KEY]);
    let beats = async || {
        server
            .cli(&["INFO", "commandstats"])
            .matches("failed_calls=")
            .count()
    };
    eventually("calls that fail", SOON, async || beats().await > 0).await;
    assert_eq!((a.count(), b.count()), (2, 2), "no count without an answer");
    server.cli(&["SET", KEY, "a string"]);
    server.cli(&["ACL", "SETUSER", "default", "+zadd"]);
    let before = a.counts();
    // A key of another type is an error too.
    tokio::time::timeout(SOON, a.client.run(Key::from(""), a.step(false)))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!((a.count(), b.count(), a.counts()), (2, 2, before));
    server.kill9();
    assert!(a.client.run(Key::from(""), a.step(false)).await.is_err());
    assert_eq!((a.count(), b.count()), (2, 2));
}

struct Side {
    namespace: Namespace<Processes>,
}

impl Side {
    async fn beat(&self, key: &Key, process: &str, leaves: bool, most: u32) -> String {
        let beat = Presence {
            process: process.into(),
            leaves,
            most,
        };
        format!(
            "{:?}",
            self.namespace
                .client()
                .run(key.clone(), beat)
                .await
                .map_err(|e| e.is_wrong_type())
        )
    }
}

/// Writes a process that another program could have written.
fn forge(memory: &Side, redis: &mut Connection, sequence: usize, process: &str, at: i64) {
    let name = format!("td:{{agreement:{sequence}}}:members");
    redis
        .query::<i64>(redis::cmd("ZADD").arg(name).arg(at).arg(process))
        .unwrap();
    let Namespace::InMemory(cells) = &memory.namespace else {
        panic!("it is in memory")
    };
    cells
        .step(
            sequence.to_string().as_bytes(),
            |alive: &mut Processes, _| alive.0.insert(process.into(), at),
        )
        .unwrap();
}

#[tokio::test]
async fn lua_and_rust_agree_on_every_sequence() {
    let server = RedisServer::start().await;
    let mut client = server.client().unwrap();
    let clock = ManualClock::at(0);
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let side = |store: &Store| Side {
        namespace: Namespace::new(store, "agreement").unwrap(),
    };
    let on_redis = side(
        &StoreBuilder::default()
            .with_clock(&server.url(), CLOCK)
            .unwrap(),
    );
    let in_memory = side(&clock.store());
    for sequence in 0..300 {
        let (key, mut now, mut history) = (Key::from(sequence), START, Vec::new());
        for _ in 0..40 {
            let steps = [
                0,
                1,
                1_000_000,
                30_000_000,
                30_000_001,
                -5_000_000,
                -30_000_001,
            ];
            now += steps[rng.random_range(0..steps.len())];
            clock.set(now);
            client
                .query::<()>(redis::cmd("SET").arg("clock").arg(now))
                .unwrap();
            let process = ["a", "b", "c", "d", "e"][rng.random_range(0..5)];
            if rng.random_bool(0.1) {
                // State that is already expired when it is made is not kept in memory.
                let by = [0, -30_000_000, 30_000_000, 30_000_001, START];
                let at = now + by[rng.random_range(0..by.len())];
                // Expired state must not be there: in memory any access removes it, in Redis a call.
                on_redis.beat(&key, "nobody", true, 5).await;
                in_memory.beat(&key, "nobody", true, 5).await;
                forge(&in_memory, &mut client, sequence, process, at);
                history.push(format!("{now}: forged {process} {at}"));
                continue;
            }
            let (leaves, most) = (rng.random_bool(0.3), rng.random_range(1..5));
            let lua = on_redis.beat(&key, process, leaves, most).await;
            let rust = in_memory.beat(&key, process, leaves, most).await;
            history.push(format!("{now}: {process} {leaves} {most}: {lua}"));
            assert_eq!(lua, rust, "SEED={seed}\n{}", history.join("\n"));
        }
        let name = format!("td:{{agreement:{sequence}}}:members");
        let ttl: i64 = client.query(redis::cmd("PTTL").arg(&name)).unwrap();
        let mut since_forged = history
            .iter()
            .rev()
            .take_while(|line| !line.contains("forged"));
        let is_ours = since_forged.any(|line| line.contains("false"));
        assert!(ttl == -2 || ttl > 0 || !is_ours, "{ttl}: {history:#?}");
    }
}
