//! Days of virtual time in a minute. The clock of the store advances in steps, and the ttls of its keys with it, while
//! ordinary traffic keeps its keys in use. For keys of leases, see `lease::agreement::busy`; for buckets that are never
//! full, the expiries that the tests in `bucket::tests::agreement` check.
//!
//! `DAYS` sets the number of days. The default is 3.

mod kept;
mod windows;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::operator::Operator;
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::memory::clock::Clock;
use support::client::Client;
use support::redis_server::RedisServer;

const BEGIN: i64 = 1_760_000_000_000_000;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// With a slow server.
const PATIENCE: Duration = Duration::from_secs(30);

/// Replaces the clock of the server, and records the skipped time.
const CLOCK: &str = "
local server, time = redis, redis.call('TIME')
local skipped = tonumber(redis.call('GET', 'skipped') or 0)
local now = time[1] * 1000000 + time[2] + skipped
local function stand_in(run)
  return function(name, ...)
    local args = {...}
    -- The server's own clock is behind.
    if args[3] == 'PXAT' then args[4] = string.format('%d', args[4] - skipped / 1000) end
    return run(name, unpack(args))
  end
end
local redis = {call = stand_in(server.call), pcall = stand_in(server.pcall)}
";

/// Skips time (ms): the keys expire as if it had passed.
const SKIP: &str = "
redis.call('INCRBY', 'skipped', 1000 * ARGV[1])
for _, key in ipairs(redis.call('KEYS', 'td:*')) do
  local ttl = redis.call('PTTL', key)
  if ttl >= 0 and ttl <= tonumber(ARGV[1]) then
    redis.call('DEL', key)
  elseif ttl >= 0 then
    redis.call('PEXPIRE', key, ttl - ARGV[1])
  end
end
return redis.call('TIME')
";

/// Two processes, from the view of Redis, or one store in memory.
struct World {
    stores: Vec<Store>,
    clock: Skipping,
    passed: Duration,
}

enum Skipping {
    Redis {
        _server: RedisServer,
        client: Client,
    },
    Memory(Arc<AtomicI64>),
}

impl World {
    fn in_memory() -> Self {
        let micros = Arc::new(AtomicI64::new(BEGIN));
        let store = Store::with_clock(Clock::Manual(micros.clone()));
        Self {
            stores: vec![store],
            clock: Skipping::Memory(micros),
            passed: Duration::ZERO,
        }
    }

    async fn on_redis() -> Self {
        let server = RedisServer::start().await;
        let open = || {
            let builder = StoreBuilder::default()
                .timeout(PATIENCE)
                .queue_timeout(PATIENCE)
                .wakeups(server.url());
            builder.with_clock(&server.url(), CLOCK).unwrap()
        };
        let stores = vec![open(), open()];
        let client = server.client().unwrap();
        Self {
            stores,
            clock: Skipping::Redis {
                _server: server,
                client,
            },
            passed: Duration::ZERO,
        }
    }

    /// The primitive `open` on each store.
    fn each<P>(&self, open: impl FnMut(&Store) -> P) -> Vec<P> {
        self.stores.iter().map(open).collect()
    }

    /// Lets time pass.
    fn skip(&mut self, span: Duration) {
        self.passed += span;
        match &mut self.clock {
            Skipping::Memory(micros) => {
                micros.fetch_add(span.as_micros() as i64, Ordering::Relaxed);
            }
            Skipping::Redis { client, .. } => {
                let skip = redis::cmd("EVAL")
                    .arg(SKIP)
                    .arg(0)
                    .arg(span.as_millis() as u64)
                    .to_owned();
                let _: Vec<String> = client.query(&skip).unwrap();
            }
        }
    }

    /// Waits until everything has expired.
    async fn ends(mut self) {
        self.skip(9 * DAY);
        let mut scan = Operator::new(&self.stores[0]).scan();
        while let Some(entries) = scan.next().await.unwrap() {
            assert!(entries.is_empty(), "{entries:?}");
        }
        if let Skipping::Redis { client, .. } = &mut self.clock {
            let keys: Vec<String> = client.query(redis::cmd("KEYS").arg("td:*")).unwrap();
            assert!(keys.is_empty(), "{keys:?}");
        }
    }
}

/// How long the runs last.
fn days() -> Duration {
    DAY.mul_f64(std::env::var("DAYS").map_or(3.0, |days| days.parse().expect("DAYS is a number")))
}

/// Runs each test in memory and on Redis.
macro_rules! in_both {
    ($($name:ident)*) => {$(
        mod $name {
            use super::World;

            #[tokio::test]
            async fn in_memory() {
                super::$name(World::in_memory()).await;
            }

            #[tokio::test]
            async fn on_redis() {
                super::$name(World::on_redis().await).await;
            }
        }
    )*};
}
use in_both;
