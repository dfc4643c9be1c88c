//! A sender that repeats what was not taken: a queue at the referee, and what each process has taken from it.

use std::sync::LazyLock;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, Script};

use crate::referee::connect;

/// Puts off a delivery, where it has not been taken back from its process.
static AGAIN: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then redis.call('RPUSH', 'queue', ARGV[1]) end",
    )
});

/// The same for one that was taken.
static TAKEN: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then redis.call('INCR', 'taken') end")
});

#[derive(Clone)]
pub(crate) struct Messages(MultiplexedConnection);

/// What a process has taken and not yet answered.
fn pending(process: &str) -> String {
    format!("pending:{process}")
}

impl Messages {
    pub(crate) async fn at(url: &str) -> Self {
        Self(connect(url).await)
    }

    pub(crate) async fn send(&self, deliveries: &[String]) {
        let mut push = redis::cmd("RPUSH");
        let _: u64 = push.arg("queue").arg(deliveries).query_async(&mut self.0.clone()).await.unwrap();
    }

    /// The next delivery, if there is one.
    pub(crate) async fn next(&self, process: &str) -> Option<String> {
        let mut take = redis::cmd("LMOVE");
        take.arg("queue").arg(pending(process)).arg("LEFT").arg("RIGHT");
        take.query_async(&mut self.0.clone()).await.unwrap()
    }

    pub(crate) async fn taken(&self, process: &str, delivery: &str) {
        let mut call = TAKEN.key(pending(process));
        let () = call.arg(delivery).invoke_async(&mut self.0.clone()).await.unwrap();
    }

    pub(crate) async fn again(&self, process: &str, delivery: &str) {
        let mut call = AGAIN.key(pending(process));
        let () = call.arg(delivery).invoke_async(&mut self.0.clone()).await.unwrap();
    }

    /// Sends again what a process took that is no more.
    pub(crate) async fn take_back(&self, process: &str) {
        loop {
            let mut back = redis::cmd("LMOVE");
            back.arg(pending(process)).arg("queue").arg("LEFT").arg("RIGHT");
            let moved: Option<String> = back.query_async(&mut self.0.clone()).await.unwrap();
            if moved.is_none() {
                return;
            }
        }
    }

    pub(crate) async fn how_many_queued(&self) -> usize {
        redis::cmd("LLEN").arg("queue").query_async(&mut self.0.clone()).await.unwrap()
    }

    /// How many deliveries a process has taken and not yet answered.
    pub(crate) async fn how_many_pending(&self, process: &str) -> usize {
        redis::cmd("LLEN").arg(pending(process)).query_async(&mut self.0.clone()).await.unwrap()
    }

    pub(crate) async fn how_many_taken(&self) -> usize {
        let taken: Option<usize> =
            redis::cmd("GET").arg("taken").query_async(&mut self.0.clone()).await.unwrap();
        taken.unwrap_or(0)
    }
}
