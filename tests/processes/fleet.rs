//! A fleet: a Redis for the library, another for the referee, and the processes.

use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, AsyncConnectionConfig, FromRedisValue};
use tower_distributed::Store;

use support::processes::{Child, setting};
use support::redis_server::RedisServer;

pub(crate) struct Fleet {
    server: RedisServer,
    pub(crate) referee: RedisServer,
}

impl Fleet {
    pub(crate) async fn start() -> Self {
        Self {
            server: RedisServer::start().await,
            referee: RedisServer::start().await,
        }
    }

    pub(crate) fn spawn(&self, role: &str, env: &[(&str, &str)]) -> Child {
        let (url, referee) = (self.server.url(), self.referee.url());
        Child::spawn(
            role,
            &[&[("URL", &*url), ("REFEREE", &*referee)], env].concat(),
        )
    }
}

/// In a role: the store of its fleet. Nobody is to be told of an outage because the machine is busy.
pub(crate) fn store_of_role() -> Store {
    Store::builder()
        .timeout(Duration::from_secs(20))
        .redis(&setting("URL"))
        .unwrap()
}

/// In a role: a connection to the referee, which waits as long as it takes.
#[derive(Clone)]
pub(crate) struct Referee(MultiplexedConnection);

impl Referee {
    pub(crate) async fn of_role() -> Self {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let client = redis::Client::open(setting("REFEREE")).unwrap();
        Self(
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .unwrap(),
        )
    }

    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut call = redis::cmd(command[0]);
        call.arg(&command[1..])
            .query_async(&mut self.0.clone())
            .await
            .unwrap()
    }

    /// µs.
    pub(crate) async fn time(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]).await;
        seconds * 1_000_000 + micros
    }

    /// Writes down what only one may do at a time, from its beginning to its end.
    pub(crate) async fn visit(&self, who: &str) {
        for verb in ["enter", "leave"] {
            let _: u64 = self
                .ask(&["RPUSH", "notes", &format!("{verb} {who}")])
                .await;
        }
    }
}
