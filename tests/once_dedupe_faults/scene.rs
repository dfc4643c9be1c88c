//! Claims on one server, and what is left of them there.

use std::time::Duration;

use tower_distributed::dedupe::{Claim, Claimed, Dedupe};
use tower_distributed::{BloomFilter, Store};

use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// For what is bound to happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Long enough to be over by release only.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server, and claims as they are seen by who is near and by who is behind a proxy.
pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    pub(crate) proxy: FaultProxy,
    pub(crate) near: Dedupe,
    pub(crate) far: Dedupe,
}

/// Of a name that no other test has, since events are told by it.
pub(crate) fn claims(store: &Store, name: &str, ttl: Duration) -> Dedupe {
    let filter = BloomFilter::new(store, name, 1000, 1e-9).unwrap();
    Dedupe::builder().remember_forever().ttl(ttl).build(&filter).unwrap()
}

/// A store whose time-out is not met on a machine that is busy.
pub(crate) fn open(url: &str) -> Store {
    Store::builder().timeout(Duration::from_secs(10)).redis(url).unwrap()
}

impl Scene {
    pub(crate) async fn set(name: &str, ttl: Duration) -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let near = claims(&open(&server.url()), name, ttl);
        let far = claims(&open(&proxy.url()), name, ttl);
        let scene = Self { server, proxy, near, far };
        scene.warm().await;
        scene
    }

    /// Waits until there is a connection, and all scripts are known.
    pub(crate) async fn warm(&self) {
        eventually("a connection", SOON, async || match self.far.claim_anyway("warm").await {
            Ok(claim) => claim.confirm().await.is_ok(),
            Err(_) => false,
        })
        .await;
        take(&self.far, "given back").await.release().await.unwrap();
        self.nothing_is_left().await;
    }

    pub(crate) async fn nothing_is_left(&self) {
        eventually("nothing to be left", SOON, async || left(&self.server).is_empty()).await;
    }

    /// The name in Redis of a part of the filter.
    pub(crate) fn part(&self, part: &str) -> String {
        format!("td:{{{}:0}}:{part}", self.near.filter().unwrap().name())
    }

    /// The name in Redis of the only claim.
    pub(crate) fn claim(&self) -> String {
        let claims: Vec<String> = self.server.query(&["KEYS", &self.part("*:claim")]).unwrap();
        assert_eq!(claims.len(), 1, "{claims:?}");
        claims.into_iter().next().unwrap()
    }
}

pub(crate) async fn take(dedupe: &Dedupe, item: &str) -> Claim {
    let Claimed::New(claim) = dedupe.try_claim(item).await.unwrap() else {
        panic!("{item} is taken for known")
    };
    claim
}

pub(crate) async fn is_duplicate(dedupe: &Dedupe, item: &str) -> bool {
    matches!(dedupe.try_claim(item).await.unwrap(), Claimed::Duplicate)
}

/// What is left besides filters: all but withdrawals and what breakers try, which go by themselves.
pub(crate) fn left(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = server.query(&["KEYS", "td:*"]).unwrap();
    let waiting = |beats: &str| server.query::<u64>(&["ZCOUNT", beats, "-inf", "(4503599627370496"]).unwrap();
    let goes = |key: &str| {
        let is_of_no_claim =
            ["}:config", "}:bits0", "}:bits1", ":probe"].iter().any(|part| key.ends_with(part));
        is_of_no_claim || (key.ends_with(":beats") && waiting(key) == 0)
    };
    keys.retain(|key| !goes(key));
    keys
}
