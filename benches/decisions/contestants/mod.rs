//! Who is compared.

mod bare;
mod governor;
mod http;
pub mod ours;
mod pool_get;

use std::time::Duration;

use deadpool_redis::redis::{self, AsyncConnectionConfig, aio::MultiplexedConnection};
use support::recorded::{Recorded, record};
use tower_distributed::Store;

pub use self::bare::Bare;
use self::governor::{A_LOOP, A_REQUEST, Governor};
use self::pool_get::PoolGet;
use crate::cell::{self, Sample};
use crate::common::Bench;
use crate::workload::Workload;

/// Somebody who decides. One clone serves one caller.
pub trait Contestant: Clone + Send + 'static {
    fn admits(&mut self, key: &'static str) -> impl Future<Output = bool> + Send;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Ours,
    OursTwoConnections,
    OursLayer,
    BareEvalsha,
    TowerRateLimitRedis,
    PoolGet,
    Governor,
    GovernorInLoops,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Ours,
        Self::OursTwoConnections,
        Self::OursLayer,
        Self::BareEvalsha,
        Self::TowerRateLimitRedis,
        Self::PoolGet,
        Self::Governor,
        Self::GovernorInLoops,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Ours => "TokenBucket::allow",
            Self::OursTwoConnections => "TokenBucket::allow, 2 connections",
            Self::OursLayer => "our RateLimitLayer",
            Self::BareEvalsha => "our script, one EVALSHA each",
            Self::TowerRateLimitRedis => "tower-rate-limit-redis",
            Self::PoolGet => "deadpool get per call",
            Self::Governor => "governor in memory",
            Self::GovernorInLoops => "governor in memory, 128 a turn",
        }
    }
}

/// All of them, connected.
pub struct Contestants {
    ours: Store,
    two_connections: Store,
    bare: MultiplexedConnection,
    pool: deadpool_redis::Pool,
    theirs: redis_032::aio::MultiplexedConnection,
}

impl Contestants {
    pub fn connect(bench: &Bench) -> Self {
        let url = &*bench.server.url;
        bench.runtime.block_on(async {
            Self {
                ours: Store::redis(url).unwrap(),
                two_connections: Store::builder().connections(2).redis(url).unwrap(),
                bare: connect(url).await,
                pool: pool_get::pool(url),
                theirs: http::connect(url).await,
            }
        })
    }

    /// Lets one of them work at an empty server.
    pub fn run(
        &self,
        bench: &Bench,
        kind: Kind,
        workload: Workload,
        callers: usize,
        length: Duration,
    ) -> Sample {
        bench.server.empty();
        let runtime = &bench.runtime;
        let quota = workload.quota();
        match kind {
            Kind::Ours => cell::run(
                runtime,
                ours::bucket(&self.ours, quota),
                workload,
                callers,
                length,
            ),
            Kind::OursTwoConnections => cell::run(
                runtime,
                ours::bucket(&self.two_connections, quota),
                workload,
                callers,
                length,
            ),
            Kind::OursLayer => cell::run(
                runtime,
                http::ours(&self.ours, quota),
                workload,
                callers,
                length,
            ),
            Kind::BareEvalsha => {
                let call = recorded(bench, &ours::bucket(&self.ours, quota));
                bench.server.empty();
                let bare = Bare::new(self.bare.clone(), call);
                cell::run(runtime, bare, workload, callers, length)
            }
            Kind::TowerRateLimitRedis => {
                let layered = http::theirs(self.theirs.clone(), workload.burst());
                cell::run(runtime, layered, workload, callers, length)
            }
            Kind::PoolGet => {
                let pool_get = PoolGet::new(self.pool.clone(), workload.burst());
                cell::run(runtime, pool_get, workload, callers, length)
            }
            Kind::Governor => {
                let governor = Governor::new(workload.burst(), A_REQUEST);
                cell::run(runtime, governor, workload, callers, length)
            }
            Kind::GovernorInLoops => {
                let governor = Governor::new(workload.burst(), A_LOOP);
                cell::run(runtime, governor, workload, callers, length)
            }
        }
    }
}

/// A call of the crate's script.
pub fn recorded(bench: &Bench, bucket: &ours::Bucket) -> Recorded {
    let call = || assert!(bench.runtime.block_on(bucket.clone().admits("recorded")));
    // The first call loads the script.
    call();
    bench.server.empty();
    record(&bench.server.url, call).remove(0)
}

impl Contestant for Bare {
    async fn admits(&mut self, key: &'static str) -> bool {
        self.allow(key).await
    }
}

/// A connection without the time-out per command that is redis-rs's default: as fast as it gets.
pub async fn connect(url: &str) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url).unwrap();
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}
