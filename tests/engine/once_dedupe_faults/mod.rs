//! What becomes of claims when Redis, the way to it, or their holders fail.

mod faults;

use std::sync::LazyLock;
use std::time::Duration;

use tower_distributed::dedupe::{Claim, Claimed, Dedupe};
use tower_distributed::{BloomFilter, Store};

use crate::scene::{SOON, open};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::seen::Seen;

/// The events of all threads, once it is in use.
static SEEN: LazyLock<Seen> = LazyLock::new(|| {
    let seen = Seen::default();
    tracing::subscriber::set_global_default(seen.clone()).unwrap();
    seen
});

/// How often an event was told of a family, which no other test has.
fn told(family: &str, event: &str) -> usize {
    let is = |told: &support::seen::Event, field: &str, value: &str| {
        told.get(field).is_some_and(|told| told == value)
    };
    SEEN.events()
        .iter()
        .filter(|told| is(told, "namespace", family) && is(told, "event", event))
        .count()
}

/// A server, and claims as they are seen by who is near and by who is behind a proxy.
struct Scene {
    server: RedisServer,
    proxy: FaultProxy,
    near: Dedupe,
    far: Dedupe,
}

fn claims(store: &Store, name: &str, ttl: Duration) -> Dedupe {
    let filter = BloomFilter::new(store, name, 1000, 1e-9).unwrap();
    Dedupe::builder()
        .remember_forever()
        .ttl(ttl)
        .build(&filter)
        .unwrap()
}

fn exact(store: &Store, name: &str, ttl: Duration) -> Dedupe {
    let exact = Dedupe::exact(store, name).capacity(1000).ttl(ttl);
    exact
        .remember_for(Duration::from_secs(600))
        .build()
        .unwrap()
}

impl Scene {
    async fn set(name: &str, ttl: Duration) -> Self {
        LazyLock::force(&SEEN);
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let near = claims(&open(&server.url()), name, ttl);
        let far = claims(&open(&proxy.url()), name, ttl);
        let scene = Self {
            server,
            proxy,
            near,
            far,
        };
        // A connection, and all scripts.
        assert!(
            scene
                .far
                .claim_anyway("warm")
                .await
                .unwrap()
                .confirm()
                .await
                .unwrap()
        );
        assert!(
            take(&scene.far, "given back")
                .await
                .release()
                .await
                .unwrap()
        );
        scene.nothing_is_left().await;
        scene
    }

    async fn nothing_is_left(&self) {
        eventually("nothing to be left", SOON, async || {
            left(&self.server).is_empty()
        })
        .await;
    }

    /// Whether the filter knows an item.
    async fn knows(&self, item: &str) -> bool {
        self.near
            .filter()
            .unwrap()
            .contains(item)
            .await
            .is_ok_and(|knows| knows)
    }

    /// The name in Redis of a part of the filter.
    fn part(&self, part: &str) -> String {
        format!("td:{{{}:0}}:{part}", self.near.filter().unwrap().name())
    }

    /// The name in Redis of the only claim.
    fn claim(&self) -> String {
        let mut claims: Vec<String> = self.server.query(&["KEYS", &self.part("*:claim")]).unwrap();
        assert_eq!(claims.len(), 1, "{claims:?}");
        claims.remove(0)
    }
}

async fn take(dedupe: &Dedupe, item: &str) -> Claim {
    let Claimed::New(claim) = dedupe.try_claim(item).await.unwrap() else {
        panic!("{item} is taken for known")
    };
    claim
}

async fn is_duplicate(dedupe: &Dedupe, item: &str) -> bool {
    matches!(dedupe.try_claim(item).await.unwrap(), Claimed::Duplicate)
}

/// What is left besides filters: all but withdrawals and what breakers try, which go by themselves.
fn left(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = server.query(&["KEYS", "td:*"]).unwrap();
    let waiting = |beats: &str| {
        server
            .query::<u64>(&["ZCOUNT", beats, "-inf", "(4503599627370496"])
            .unwrap()
    };
    let goes = |key: &str| {
        let is_of_no_claim = ["}:config", "}:bits0", "}:bits1", ":probe"]
            .iter()
            .any(|part| key.ends_with(part));
        is_of_no_claim || (key.ends_with(":beats") && waiting(key) == 0)
    };
    keys.retain(|key| !goes(key));
    keys
}
