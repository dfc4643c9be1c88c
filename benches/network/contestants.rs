//! Who is compared: this crate, and the same scripts with the same arguments, one EVALSHA each.

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, Value};
use support::recorded::{Recorded, record};
use tower_distributed::{Mutex, Quota, Store, TokenBucket, WaitGroup};

use crate::by_hand;
use crate::common::Bench;
use crate::load::{self, Caller, Load, Sample};

const NAME: &str = "network";
/// The key of the calls that are recorded.
const KEY: &str = "key-0000000000";
/// More than there are callers, so that no permit is waited for.
const LIMIT: u32 = 1_000;
/// So that everything is admitted.
const RATE: u32 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    AllowOneKey,
    AllowKeys,
    Lock,
    Permit,
}

impl Op {
    pub const ALL: [Self; 4] = [Self::AllowOneKey, Self::AllowKeys, Self::Lock, Self::Permit];

    pub fn title(self) -> &'static str {
        match self {
            Self::AllowOneKey => "allow, one key",
            Self::AllowKeys => "allow, a key each",
            Self::Lock => "lock and unlock, a key each",
            Self::Permit => "permit: add and done, one key",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Ours,
    Evalsha,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Ours, Self::Evalsha];
}

/// Both, connected.
pub struct Contestants {
    bucket: TokenBucket,
    mutex: Mutex,
    permits: WaitGroup,
    plain: MultiplexedConnection,
    /// The calls of scripts of each operation, in the order of [`Op::ALL`].
    recorded: [Vec<Recorded>; 4],
}

impl Contestants {
    pub fn connect(bench: &Bench) -> Self {
        let store = Store::redis(&bench.server.url).unwrap();
        let bucket = TokenBucket::new(&store, NAME, Quota::per_second(RATE).burst(RATE)).unwrap();
        let mutex = Mutex::new(&store, NAME).unwrap();
        let permits = WaitGroup::new(&store, NAME, LIMIT).unwrap();
        let plain = bench.runtime.block_on(by_hand::connect(&bench.server.url));
        let mut contestants = Self {
            bucket,
            mutex,
            permits,
            plain,
            recorded: Default::default(),
        };
        contestants.recorded = Op::ALL.map(|op| {
            let call = |key: &str| bench.runtime.block_on(contestants.ours(op, key).call());
            // The first call loads the scripts.
            call("another key");
            record(&bench.server.url, || call(KEY))
        });
        contestants
    }

    /// Lets one of them work.
    pub fn run(&self, bench: &Bench, op: Op, kind: Kind, load: Load) -> Sample {
        let Load { callers, pace } = load;
        let (runtime, length) = (&bench.runtime, bench.settings.length);
        let keys = (0..callers).map(|caller| match op {
            Op::AllowKeys | Op::Lock => format!("key-{caller:010}"),
            Op::AllowOneKey | Op::Permit => KEY.to_owned(),
        });
        match kind {
            Kind::Ours => load::run(
                runtime,
                keys.map(|key| self.ours(op, &key)).collect(),
                pace,
                length,
            ),
            Kind::Evalsha => {
                let callers = keys
                    .zip(1..)
                    .map(|(key, number)| self.evalsha(op, &key, number));
                load::run(runtime, callers.collect(), pace, length)
            }
        }
    }

    fn ours(&self, op: Op, key: &str) -> Ours {
        let key = key.to_owned();
        match op {
            Op::AllowOneKey | Op::AllowKeys => Ours::Allow(self.bucket.clone(), key),
            Op::Lock => Ours::Lock(self.mutex.clone(), key),
            Op::Permit => Ours::Permit(self.permits.clone(), key),
        }
    }

    /// A caller with a key, and a token of its own.
    fn evalsha(&self, op: Op, key: &str, number: u32) -> Evalsha {
        let recorded = &self.recorded[op as usize];
        let mut texts = vec![(KEY.into(), key.into())];
        texts.extend(
            recorded
                .iter()
                .find_map(Recorded::id)
                .map(|id| (id, format!("-{number:08x}").into())),
        );
        let calls = recorded.iter().map(|call| call.replacing(&texts)).collect();
        Evalsha {
            connection: self.plain.clone(),
            calls,
        }
    }
}

enum Ours {
    Allow(TokenBucket, String),
    Lock(Mutex, String),
    Permit(WaitGroup, String),
}

impl Caller for Ours {
    async fn call(&mut self) {
        assert!(match self {
            Self::Allow(bucket, key) => bucket.allow(key.as_str()).await.unwrap().is_admitted(),
            Self::Lock(mutex, key) => mutex
                .try_lock(key.as_str())
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap(),
            Self::Permit(permits, key) => permits
                .try_add(key.as_str())
                .await
                .unwrap()
                .done()
                .await
                .unwrap(),
        });
    }
}

struct Evalsha {
    connection: MultiplexedConnection,
    /// One after the other.
    calls: Vec<Cmd>,
}

impl Caller for Evalsha {
    async fn call(&mut self) {
        for call in &self.calls {
            let reply: Value = call.query_async(&mut self.connection).await.unwrap();
            assert!(
                matches!(reply, Value::Array(_) | Value::BulkString(_)),
                "{reply:?}"
            );
        }
    }
}
