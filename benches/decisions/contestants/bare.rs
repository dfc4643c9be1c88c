//! The crate's own script, one EVALSHA per decision on one connection that all callers share.

use deadpool_redis::redis::aio::MultiplexedConnection;
use support::recorded::Recorded;

#[derive(Clone)]
pub struct Bare {
    connection: MultiplexedConnection,
    call: std::sync::Arc<Recorded>,
}

impl Bare {
    /// `call`: one of the crate, which has loaded the script.
    pub fn new(connection: MultiplexedConnection, call: Recorded) -> Self {
        Self {
            connection,
            call: call.into(),
        }
    }

    /// Whether one request is admitted to the bucket at a key of Redis.
    ///
    /// The reply is `now`, whether the call is admitted, and how many were before it, in one text; or `now` alone, if it is
    /// admitted to a bucket that was full.
    pub async fn allow(&mut self, key: &str) -> bool {
        let reply: String = self
            .call
            .on(key)
            .query_async(&mut self.connection)
            .await
            .unwrap();
        reply
            .split(' ')
            .nth(1)
            .is_none_or(|admitted| admitted == "1")
    }
}
