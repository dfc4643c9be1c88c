//! What most hand-written code does: a connection out of the pool for each decision, and a GCRA script.

use std::sync::Arc;

use deadpool_redis::redis::Script;
use deadpool_redis::{Config, Pool, Runtime};

use super::Contestant;

/// KEYS[1] the time (ms) at which the bucket is full again; ARGV burst (tokens), interval (ms).
const SCRIPT: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local interval = tonumber(ARGV[2])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + interval
if full - tonumber(ARGV[1]) * interval > now then
  return 0
end
redis.call('SET', KEYS[1], full, 'PX', full - now)
return 1
";

#[derive(Clone)]
pub struct PoolGet {
    pool: Pool,
    script: Arc<Script>,
    burst: u16,
}

/// The pool's default, two connections per core, is slower: so many that 256 callers need not wait for one.
const POOL_SIZE: usize = 256;

pub fn pool(url: &str) -> Pool {
    let pool = Config::from_url(url)
        .create_pool(Some(Runtime::Tokio1))
        .unwrap();
    pool.resize(POOL_SIZE);
    pool
}

impl PoolGet {
    pub fn new(pool: Pool, burst: u16) -> Self {
        Self {
            pool,
            script: Arc::new(Script::new(SCRIPT)),
            burst,
        }
    }
}

impl Contestant for PoolGet {
    async fn admits(&mut self, key: &'static str) -> bool {
        let mut connection = self.pool.get().await.unwrap();
        let mut call = self.script.prepare_invoke();
        call.key(key).arg(self.burst).arg(1);
        call.invoke_async::<bool>(&mut connection).await.unwrap()
    }
}
