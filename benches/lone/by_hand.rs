//! What users write by hand for the same jobs.

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, Cmd, Connection, IntoConnectionInfo as _,
};

/// A connection of redis-rs with TCP_NODELAY, without a time limit for replies.
pub async fn connect(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().unwrap();
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    redis::Client::open(info)
        .unwrap()
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

/// A script, or a function of the same text, that the server has loaded.
pub struct Loaded(&'static str, String);

impl Loaded {
    pub fn script(connection: &mut Connection, text: &str) -> Self {
        Self(
            "EVALSHA",
            redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(text)
                .query(connection)
                .unwrap(),
        )
    }

    pub fn function(connection: &mut Connection, text: &str) -> Self {
        let name = format!("hand_{}", redis::Script::new(text).get_hash());
        let text = format!(
            "#!lua name={name}\nredis.register_function('{name}', function(KEYS, ARGV)\n{text}\nend)"
        );
        redis::cmd("FUNCTION")
            .arg("LOAD")
            .arg("REPLACE")
            .arg(text)
            .exec(connection)
            .unwrap();
        Self("FCALL", name)
    }

    pub fn call(&self, keys: &[&str], arguments: &[&str]) -> Cmd {
        let mut call = redis::cmd(self.0);
        call.arg(&self.1).arg(keys.len()).arg(keys).arg(arguments);
        call
    }
}

pub const LOCK: &str = "
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return redis.call('INCR', KEYS[2]) end
return 0";

pub const UNLOCK: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

pub const ENTER: &str = "
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= 16 then return 0 end
redis.call('ZADD', KEYS[1], now + 30000, ARGV[1])
redis.call('PEXPIRE', KEYS[1], 60000)
return 1";

pub const LEAVE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";

pub const CLAIM: &str = "
if redis.call('EXISTS', KEYS[2]) == 1 then return 2 end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return 1 end
return 0";

pub const CONFIRM: &str = "
local held = redis.call('GET', KEYS[1]) == ARGV[1]
if held then redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[2], '', 'PX', 86400000)
return held and 1 or 0";

pub const LEAD: &str = "
local answer = redis.call('GET', KEYS[2])
if answer then return answer end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 5000) and 1 or 0";

pub const PUBLISH: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', 1000)
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], ARGV[2])
return 1";

pub const TAKE: &str = "
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local until_full = tonumber(redis.call('GET', KEYS[1]) or now)
if until_full < now then until_full = now end
if until_full + ARGV[1] - now > tonumber(ARGV[2]) then return 0 end
until_full = until_full + ARGV[1]
redis.call('SET', KEYS[1], string.format('%d', until_full), 'PX', math.ceil((until_full - now) / 1000))
return 1";
