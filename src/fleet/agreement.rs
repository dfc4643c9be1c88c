//! The scripts and the steps in Rust give the same replies for random sequences, also on forged versions.

#![allow(clippy::unwrap_used, clippy::panic)]

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::quotas::Quotas;
use crate::fleet::operations::{Read, Set, Versions};
use crate::key::Key;
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::client::Namespace;
use crate::store::memory::manual_clock::ManualClock;
use support::client::Client;
use support::redis_server::RedisServer;

const SEQUENCES: usize = 400;
const STEPS: usize = 40;

/// Replaces `lua/clock.lua`.
const CLOCK: &str = "local now = tonumber(redis.call('GET', 'clock'))\n";

/// Versions that another program, or another version, could have written.
const FORGED: [&str; 12] = [
    "",
    "10/s",
    "7 1 \nx\n+10/s",
    "7 1 0af\nx\n10/s",
    "7 1 0af\nx\n",
    "7 1 0af\nx\n-",
    "3 9007199254740991 0af\nx\n+1/s",
    "4503599627370495 5 0af\nx\n+1/s",
    "4503599627370496 5 0af\nx\n+1/s",
    "9999999999999999999999999999 5 0af\nx\n+1/s",
    "007 5 0AF\nx\ny\n+1/s",
    "-1 5 0af\nx\n+1/s",
];

struct Side {
    namespace: Namespace<Versions<Quotas>>,
}

impl Side {
    fn new(store: &Store) -> Self {
        Self {
            namespace: Namespace::new(store, "agreement").unwrap(),
        }
    }

    async fn set(
        &self,
        key: &Key,
        expected: u64,
        value: Option<&str>,
        (who, id): (&str, &str),
    ) -> String {
        let to = (&"td:wake:all".into(), &"setting:quotas\nagreement\n".into());
        let set = Set::<Quotas>::new(expected, value, who, to).with_id(id);
        format!(
            "{:?}",
            self.namespace.client().run(key.clone(), set).await.unwrap()
        )
    }

    async fn read(&self, key: &Key, all: bool) -> String {
        let read = if all {
            Read::<Quotas>::all()
        } else {
            Read::last()
        };
        format!(
            "{:?}",
            self.namespace
                .client()
                .run(key.clone(), read)
                .await
                .unwrap()
        )
    }

    /// Returns the versions that are stored in memory.
    fn stored(&self, sequence: usize) -> Vec<Vec<u8>> {
        let Namespace::InMemory(cells) = &self.namespace else {
            panic!("it is in memory")
        };
        let stored = |versions: &mut Versions<Quotas>, _| {
            versions.stored.iter().map(|it| it.to_vec()).collect()
        };
        cells.step(sequence.to_string().as_bytes(), stored).unwrap()
    }
}

fn forge(memory: &Side, redis: &mut Client, sequence: usize, forged: &str) {
    let name = format!("td:{{agreement:{sequence}}}:setting:quotas");
    redis
        .query::<i64>(redis::cmd("RPUSH").arg(name).arg(forged))
        .unwrap();
    let Namespace::InMemory(cells) = &memory.namespace else {
        panic!("it is in memory")
    };
    let push = |versions: &mut Versions<Quotas>, _| versions.stored.push(forged.as_bytes().into());
    cells.step(sequence.to_string().as_bytes(), push).unwrap();
}

#[tokio::test]
async fn lua_and_rust_agree_on_every_sequence() {
    let server = RedisServer::start().await;
    let mut client = server.client().unwrap();
    let clock = ManualClock::at(0);
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let on_redis = Side::new(
        &StoreBuilder::default()
            .with_clock(&server.url(), CLOCK)
            .unwrap(),
    );
    let in_memory = Side::new(&clock.store());

    for sequence in 0..SEQUENCES {
        let (key, mut number, mut now) = (Key::from(sequence), 0_u64, 1_760_000_000_000_000_i64);
        let mut history = Vec::new();
        for step in 0..STEPS {
            now += [0, 1, 1_000_000, -5_000_000][rng.random_range(0..4)];
            clock.set(now);
            client
                .query::<()>(redis::cmd("SET").arg("clock").arg(now))
                .unwrap();
            let told = match rng.random_range(0..100) {
                0..70 => {
                    let expected = match rng.random_range(0..8) {
                        0 => number.saturating_sub(1),
                        1 => [0, 7, 1 << 52, u64::MAX][rng.random_range(0..4)],
                        _ => number,
                    };
                    let value = ["1/s", "2/min; 3/h", "", "not a quota\n+", "%s%1"];
                    let value = rng
                        .random_bool(0.7)
                        .then(|| value[rng.random_range(0..value.len())]);
                    // Sometimes the id of an earlier call.
                    let id = format!(
                        "{:x}",
                        if rng.random_bool(0.15) {
                            rng.random_range(0..=step)
                        } else {
                            step
                        } + 16
                    );
                    let who = ["ann", "ben é"][rng.random_range(0..2)];
                    let lua = on_redis.set(&key, expected, value, (who, &id)).await;
                    let rust = in_memory.set(&key, expected, value, (who, &id)).await;
                    history.push(format!("{now}: set {expected} {value:?} {who} {id}: {lua}"));
                    (lua, rust)
                }
                70..96 => {
                    let all = rng.random_bool(0.5);
                    (
                        on_redis.read(&key, all).await,
                        in_memory.read(&key, all).await,
                    )
                }
                _ => {
                    let forged = FORGED[rng.random_range(0..FORGED.len())];
                    forge(&in_memory, &mut client, sequence, forged);
                    history.push(format!("forged {forged:?}"));
                    (String::new(), String::new())
                }
            };
            assert_eq!(told.0, told.1, "SEED={seed}\n{}", history.join("\n"));
            let last = on_redis
                .namespace
                .client()
                .run(key.clone(), Read::<Quotas>::last())
                .await
                .unwrap();
            number = last.versions.first().map_or(0, |last| last.number);
            let name = format!("td:{{agreement:{sequence}}}:setting:quotas");
            let kept: Vec<Vec<u8>> = client
                .query(redis::cmd("LRANGE").arg(&name).arg(0).arg(-1))
                .unwrap();
            let also = in_memory.stored(sequence);
            assert_eq!(kept, also, "SEED={seed}\n{}", history.join("\n"));
            assert_eq!(
                client.query::<i64>(redis::cmd("TTL").arg(name)),
                Ok(if kept.is_empty() { -2 } else { -1 })
            );
        }
    }
}
