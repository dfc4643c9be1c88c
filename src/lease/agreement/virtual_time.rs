//! A Redis server whose scripts use a clock that the test sets, and whose keys expire by that clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use support::client::Client;
use support::redis_server::RedisServer;

use crate::lease::agreement::{Side, States, Tried};
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::sync::lock;

/// Replaces the clock and `redis.call` in scripts: the test sets the time, keys expire by that time, and published
/// messages are recorded. Keys that are not in `KEYS` are refused, as some servers do.
pub(crate) const CLOCK: &str = "
local server = redis
local now, declared = tonumber(server.call('GET', 'clock')), {}
for _, key in ipairs(KEYS) do declared[key] = true end
local function call(name, ...)
  local args, px = {...}, nil
  for _, arg in ipairs(args) do
    if type(arg) == 'string' and string.sub(arg, 1, 4) == 'td:{' then
      assert(declared[arg], 'a key that is not declared')
      local ends = server.call('HGET', 'ends', arg)
      if ends and tonumber(ends) <= now then server.call('DEL', arg) end
      if ends and server.call('EXISTS', arg) == 0 then server.call('HDEL', 'ends', arg) end
    end
  end
  local key = args[1]
  if name == 'PUBLISH' then
    server.call('RPUSH', 'published', args[2])
    return 1
  elseif name == 'PTTL' then
    local ends = server.call('HGET', 'ends', key)
    return ends and math.floor((ends - now) / 1000) or server.call('EXISTS', key) - 2
  elseif name == 'PEXPIRE' then
    assert(tonumber(args[2]) > 0, 'a ttl that Redis would reject')
    if server.call('EXISTS', key) == 0 then return 0 end
    server.call('HSET', 'ends', key, string.format('%d', now + args[2] * 1000))
    return 1
  elseif name == 'SET' then
    if args[3] == 'PX' then
      px = tonumber(args[4])
      assert(px > 0, 'a ttl that Redis would reject')
      table.remove(args, 3)
      table.remove(args, 3)
    end
    local done, option = server.call('SET', unpack(args)), args[3]
    if done or option == 'GET' then
      if px then server.call('HSET', 'ends', key, string.format('%d', now + px * 1000)) end
      assert(px or option == 'KEEPTTL', 'a key without a ttl')
    end
    return done
  end
  return server.call(name, unpack(args))
end
local redis = {call = call, pcall = call}
";

/// Deletes the keys that have expired by this clock.
pub(crate) const EXPIRE: &str = "
local now, ends = tonumber(redis.call('GET', 'clock')), redis.call('HGETALL', 'ends')
for i = 1, #ends, 2 do
  if tonumber(ends[i + 1]) <= now then
    redis.call('DEL', ends[i])
    redis.call('HDEL', 'ends', ends[i])
  end
end
";

/// A store on the server, with this clock. Its timeouts are long enough for a busy machine.
pub(super) fn store(server: &RedisServer) -> Store {
    let patience = Duration::from_secs(30);
    let builder = StoreBuilder::default()
        .timeout(patience)
        .queue_timeout(patience);
    builder.with_clock(&server.url(), CLOCK).unwrap()
}

/// The time on both sides.
pub(super) struct Time {
    pub(super) now: i64,
    /// The latest time so far.
    pub(super) latest: i64,
    /// By how much the clock was set back in all.
    pub(super) back: i64,
    in_process: Arc<AtomicI64>,
    pub(super) server: Client,
}

impl Time {
    pub(super) fn new(server: Client, in_process: Arc<AtomicI64>) -> Self {
        let mut time = Self {
            now: 0,
            latest: 0,
            back: 0,
            in_process,
            server,
        };
        time.set(1_760_000_000_000_000);
        time
    }

    pub(super) fn set(&mut self, now: i64) {
        self.back += (self.now - now).max(0);
        (self.now, self.latest) = (now, now.max(self.latest));
        self.in_process.store(now, Ordering::Relaxed);
        self.server
            .query::<()>(redis::cmd("SET").arg("clock").arg(now))
            .unwrap();
    }

    /// Deletes all keys.
    pub(super) fn flush(&mut self) {
        self.server.query::<()>(&redis::cmd("FLUSHALL")).unwrap();
        (self.latest, self.back) = (self.now, 0);
        self.set(self.now);
    }

    /// Deletes expired keys, as Redis does sooner or later.
    pub(super) fn expire(&mut self) {
        self.server
            .query::<()>(redis::cmd("EVAL").arg(EXPIRE).arg(0))
            .unwrap();
    }

    /// Deletes the places in a queue, and its flows, on both sides, as Redis may do when it is out of memory.
    pub(super) fn evict<K: Tried>(&mut self, sequence: usize, rust: &States<K>) {
        let key = K::key(sequence);
        for part in K::PARTS
            .iter()
            .filter(|part| part.ends_with("waiters") || part.ends_with("flows"))
        {
            let places = format!("td:{{agreement:{}}}:{part}", key.as_bytes().escape_ascii());
            self.server
                .query::<()>(redis::cmd("DEL").arg(places))
                .unwrap();
        }
        lock(&rust.of)
            .entry(key.as_bytes().to_vec())
            .or_default()
            .queue
            .evict();
    }

    /// Returns the messages that were published since the last call.
    pub(super) fn published(&mut self) -> Vec<Vec<u8>> {
        let published = self
            .server
            .query(redis::cmd("LRANGE").arg("published").arg(0).arg(-1))
            .unwrap();
        self.server
            .query::<()>(redis::cmd("DEL").arg("published"))
            .unwrap();
        published
    }

    /// Drops expired state on both sides, then sets the clock back. Returns how many leases that cuts.
    pub(super) async fn set_back<K: Tried>(
        &mut self,
        by: i64,
        first: usize,
        lua: &Side<K>,
        rust: &Side<K>,
    ) -> usize {
        self.expire();
        let before = lua.soonest(first).await;
        assert_eq!(before, rust.soonest(first).await);
        self.set(self.now - by);
        let after = lua.soonest(first).await;
        assert_eq!(after, rust.soonest(first).await);
        // The end of a lock is in whole ms.
        before
            .iter()
            .zip(&after)
            .filter(|(before, after)| *after + 1000 < **before)
            .count()
    }
}
