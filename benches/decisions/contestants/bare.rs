//! The crate's own script, one EVALSHA per decision on one connection that all callers share.

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, ErrorKind, RedisResult, Script, ServerErrorKind};

use super::Contestant;

/// As the crate puts it together.
const SCRIPT: &str = concat!(
    include_str!("../../../lua/lib/clock.lua"),
    include_str!("../../../lua/lib/quick.lua"),
    include_str!("../../../lua/lib/bucket.lua"),
    include_str!("../../../lua/lib/bare.lua"),
    include_str!("../../../lua/token_bucket/reserve.lua"),
);

#[derive(Clone)]
pub struct Bare {
    connection: MultiplexedConnection,
    sha: std::sync::Arc<str>,
    burst: u32,
    /// Microseconds from one token to the next.
    interval: u32,
}

impl Bare {
    pub fn new(connection: MultiplexedConnection, burst: u32, interval: u32) -> Self {
        Self { connection, sha: Script::new(SCRIPT).get_hash().into(), burst, interval }
    }

    /// One quota (burst, interval, denominator), then cost, wait and count; see lua/token_bucket/reserve.lua.
    /// The reply is `now`, whether the call is admitted, and how many were before it, in one text.
    async fn call(&mut self, command: &str, script: &str, key: &str) -> RedisResult<String> {
        let mut call = redis::cmd(command);
        call.arg(script).arg(1).arg(key);
        call.arg(1).arg(self.burst).arg(self.interval).arg(1);
        call.arg(1).arg(0).arg(1);
        call.query_async(&mut self.connection).await
    }
}

impl Contestant for Bare {
    async fn admits(&mut self, key: &'static str) -> bool {
        let sha = self.sha.clone();
        let reply = match self.call("EVALSHA", &sha, key).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.call("EVAL", SCRIPT, key).await
            }
            reply => reply,
        };
        reply.unwrap().split(' ').nth(1) == Some("1")
    }
}
