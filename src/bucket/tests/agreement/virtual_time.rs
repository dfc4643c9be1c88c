//! A Redis server whose scripts use a clock that the test sets, and whose keys expire by that clock.

use std::collections::HashMap;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use smallvec::smallvec;

use crate::bucket::Bucket;
use crate::bucket::calendar::Tokens;
use crate::bucket::holds::Holds;
use crate::bucket::level::{Level, Moment};
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::memory::manual_clock::ManualClock;
use support::client::Client;
use support::redis_server::RedisServer;

/// Takes the place of the server's clock. It removes the expiry from every SET, and lists each written key, value and
/// expiry. Keys that are not in `KEYS` are refused, as some servers do.
pub(crate) const CLOCK: &str = "
local server = redis
local now, declared = tonumber(server.call('GET', 'clock')), {}
for _, key in ipairs(KEYS) do declared[key] = true end
local function stand_in(run)
  return function(name, ...)
    for _, arg in ipairs({...}) do
      assert(declared[arg] or string.sub(arg, 1, 4) ~= 'td:{', 'a key that is not declared')
    end
    if name ~= 'SET' then return run(name, ...) end
    local key, value, option, at = ...
    local expiry = ({PXAT = at, KEEPTTL = 'kept', [0] = 'never'})[option or 0]
    assert(expiry, 'an option of SET that this clock does not know')
    local reply = run(name, key, value)
    if type(reply) ~= 'table' or not reply.err then
      server.call('RPUSH', 'written', key, server.call('GET', key), expiry)
    end
    return reply
  end
end
local redis = {call = stand_in(server.call), pcall = stand_in(server.pcall)}
";

pub(crate) struct VirtualTime {
    pub(crate) client: Client,
    now: i64,
    /// When the keys expire, ms, and from when on they are idle, µs.
    expiries: HashMap<Vec<u8>, (Option<i64>, Option<i64>)>,
}

/// A store with a clock that the test sets: in memory, or on a server, where the expiries of the buckets are checked.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) server: Option<RedisServer>,
    set: Box<dyn FnMut(i64)>,
}

impl World {
    pub(crate) fn in_memory(now: i64) -> Self {
        let clock = ManualClock::at(now);
        Self {
            store: clock.store(),
            server: None,
            set: Box::new(move |now| clock.set(now)),
        }
    }

    pub(crate) async fn on_redis(now: i64) -> Self {
        let server = RedisServer::start().await;
        let (store, mut time) = (VirtualTime::store(&server), VirtualTime::new(&server));
        time.set(now);
        let set = move |now| {
            time.check_expiries();
            time.set(now);
        };
        Self {
            store,
            server: Some(server),
            set: Box::new(set),
        }
    }

    pub(crate) fn set(&mut self, now: i64) {
        (self.set)(now);
    }
}

/// How far the tests set the clock, in µs: forward, and at times back.
pub(crate) fn jump(rng: &mut StdRng) -> i64 {
    const DAY: i64 = 86_400_000_000;
    const FORWARD: [i64; 8] = [0, 1, 999, 100_000, 142_857, 142_858, 1_000_000, 60_000_000];
    const BACK: [i64; 6] = [-1, -999, -100_000, -1_200_000, -45_000_000, -7_200_000_000];
    if rng.random_bool(0.03) {
        return [DAY, -DAY, 40 * DAY, -3 * DAY][rng.random_range(0..4)];
    }
    let jumps: &[i64] = if rng.random_bool(0.1) {
        &BACK
    } else {
        &FORWARD
    };
    jumps[rng.random_range(0..jumps.len())]
}

impl VirtualTime {
    pub(crate) fn new(server: &RedisServer) -> Self {
        Self {
            client: server.client().unwrap(),
            now: 0,
            expiries: HashMap::new(),
        }
    }

    /// A store on the server, with this clock.
    pub(crate) fn store(server: &RedisServer) -> Store {
        let patience = Duration::from_secs(30);
        let builder = StoreBuilder::default()
            .timeout(patience)
            .queue_timeout(patience);
        builder.with_clock(&server.url(), CLOCK).unwrap()
    }

    /// Sets the clock, and deletes the keys that have expired. Before the clock is set back, it deletes all idle keys,
    /// as an in-memory store does when it finds them.
    pub(crate) fn set(&mut self, now: i64) {
        let before = std::mem::replace(&mut self.now, now);
        self.client
            .query::<()>(redis::cmd("SET").arg("clock").arg(now))
            .unwrap();
        let mut expired = redis::cmd("DEL");
        expired.arg("no key");
        self.expiries.retain(|key, (expiry, idle)| {
            let is_expired = expiry.is_some_and(|expiry| expiry * 1000 <= now)
                || now < before && idle.is_some_and(|idle| idle <= before);
            if is_expired {
                expired.arg(key);
            }
            !is_expired
        });
        self.client.query::<()>(&expired).unwrap();
    }

    /// Checks the expiry of every bucket written since the last call. A bucket expires when it is idle or later,
    /// after at most twice the time until then plus 1 s. It has no expiry if it never becomes idle.
    pub(crate) fn check_expiries(&mut self) {
        let written: Vec<Vec<u8>> = self
            .client
            .query(redis::cmd("LRANGE").arg("written").arg(0).arg(-1))
            .unwrap();
        self.client
            .query::<()>(redis::cmd("DEL").arg("written"))
            .unwrap();
        for entry in written.chunks_exact(3) {
            let [key, value, expiry] = entry else {
                unreachable!()
            };
            let expiry = text(expiry);
            let expiry: Option<i64> = match expiry {
                "never" => None,
                "kept" => self.expiries[key].0,
                set => Some(set.parse().unwrap()),
            };
            let bucket = parse(value);
            let idle = bucket.idle_from();
            let told = format!(
                "{:?} = {bucket:?} at {}: expires {expiry:?}",
                text(key),
                self.now
            );
            match (idle, expiry) {
                (Some(idle), Some(expiry)) => {
                    let (exact, ttl) = (idle - self.now, expiry * 1000 - self.now);
                    assert!(exact > 0, "{told}, and was idle when it was written");
                    assert!(ttl >= exact, "{told}, too early: idle from {idle}");
                    assert!(
                        ttl <= 2 * exact + 1_000_000,
                        "{told}, too late: idle from {idle}"
                    );
                }
                (None, None) => {}
                _ => panic!("{told}, idle from {idle:?}"),
            }
            self.expiries.insert(key.clone(), (expiry, idle));
        }
    }
}

/// Parses a stored state; see `lua/bucket.lua`.
fn parse(value: &[u8]) -> Bucket {
    // The holds are not text.
    let mut parts = value.splitn(2, |byte| *byte == b'|');
    let (value, holds) = (text(parts.next().unwrap()), parts.next());
    let numbers: Vec<i64> = value
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let moment = |whole, part| Moment { whole, part };
    let level = |of: &[i64]| {
        let [whole, part, last, rest, num, den, burst] = *of else {
            unreachable!("{value:?}")
        };
        let quota = Tokens { burst, num, den };
        Level {
            tat: moment(whole, part),
            last: moment(last, rest),
            quota,
            ..Level::default()
        }
    };
    let mut bucket = match numbers[..] {
        [whole, part, num, den, burst] | [whole, part, num, den, burst, _] => Bucket::new(
            0,
            smallvec![level(&[whole, part, whole, part, num, den, burst])],
        ),
        [blocked_until, ref levels @ ..] => {
            // The last number may be the time at which it was written.
            Bucket::new(blocked_until, levels.chunks_exact(7).map(level).collect())
        }
        [] => unreachable!(),
    };
    bucket.holds = holds.map(|holds| Box::new(Holds::parse(holds)));
    bucket
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
