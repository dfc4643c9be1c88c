//! The same test on each store.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tower_distributed::{Quota, Store, StoreFailure, TokenBucket};

use support::patient;

use support::redis_server::RedisServer;

/// Within what time everything that is waited for comes about.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// How long a token takes to come back: see [`at_most`].
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Makes of each `async fn test(stores: Stores)` two tests: with the state in process, and in Redis.
macro_rules! on_each_store {
    ($($test:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test($crate::stores::Stores::in_memory()).await;
            })*
        }

        mod redis {
            $(#[tokio::test]
            async fn $test() {
                super::$test($crate::stores::Stores::redis().await).await;
            })*
        }
    };
}
pub(crate) use on_each_store;

/// One state, and a store on it for everybody who asks.
pub(crate) struct Stores(Box<dyn Fn() -> Store + Send + Sync>);

impl Stores {
    pub(crate) fn in_memory() -> Self {
        let store = Store::in_memory();
        Self(Box::new(move || store.clone()))
    }

    /// On a server that all tests of this process share; the state is this test's alone. Slow machines are no outage.
    pub(crate) async fn redis() -> Self {
        static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
        static TESTS: AtomicUsize = AtomicUsize::new(0);
        let url = SERVER.get_or_init(RedisServer::start).await.url();
        let prefix = format!("test-{}", TESTS.fetch_add(1, Ordering::Relaxed));
        Self(Box::new(move || {
            patient!().prefix(&prefix).redis(&url).unwrap()
        }))
    }

    /// A store; in Redis one with connections of its own, as another process would have.
    pub(crate) fn open(&self) -> Store {
        (self.0)()
    }
}

/// So many requests per key, and no more while the test runs.
pub(crate) fn at_most(burst: u32, store: &Store) -> TokenBucket {
    TokenBucket::new(store, "requests", Quota::new(1, HOUR).burst(burst)).unwrap()
}

/// A store whose Redis is not there.
pub(crate) fn away() -> Store {
    Store::redis("redis://127.0.0.1:1").unwrap()
}

/// A Redis of a test's own, and a store on it.
pub(crate) async fn started() -> (RedisServer, Store) {
    let redis = RedisServer::start().await;
    let store = patient!(redis.url());
    (redis, store)
}

/// A store whose Redis was there, and has gone.
pub(crate) async fn gone() -> Store {
    let (redis, store) = started().await;
    store.ping().await.unwrap();
    redis.kill9();
    store
}

pub(crate) fn shared_by(replicas: u32) -> StoreFailure {
    StoreFailure::LocalShare {
        replicas: NonZeroU32::new(replicas).unwrap(),
    }
}
