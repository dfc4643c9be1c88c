//! Calls that are sent twice: one copy runs after the other was answered, or given up.

use futures::future::join_all;
use tower_distributed::{Mutex, Store, WaitGroup};

use crate::leases::kinds::{Family, LONG, SOON, hasty, left, open, with_proxy};
use support::eventually;
use support::keys::keys_without_ttl;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// How long who is far waits for an answer: less than the 500 ms after which a line sends a copy in the background.
const TIMEOUT: u64 = 250;

/// A store that does not wait for long.
fn soon(url: &str) -> Store {
    hasty(url, TIMEOUT)
}

/// A server, a store near to it, and one behind a proxy.
struct Scene {
    server: RedisServer,
    proxy: FaultProxy,
    near: Store,
    far: Store,
}

impl Scene {
    async fn set(far: fn(&str) -> Store) -> Self {
        let (server, proxy) = with_proxy().await;
        let (near, far) = (open(&server.url()), far(&proxy.url()));
        Self {
            server,
            proxy,
            near,
            far,
        }
    }

    async fn quiet(&self, key: &str) {
        eventually("nothing to be left", SOON, async || {
            left(&self.server, key).is_empty()
        })
        .await;
    }

    async fn idle(&self) {
        let is_idle = async || self.server.has_idle_callers();
        eventually("the connections to be idle", SOON, is_idle).await;
    }
}

/// Each family from near and far, once it has a connection and its scripts are known. All wait to be idle at the same time.
async fn each(way: fn(&str) -> Store, check: impl AsyncFn(&Scene, &Family, &Family)) {
    let check = &check;
    join_all((0..3).map(async |kind| {
        let scene = &Scene::set(way).await;
        let [near, far] =
            [&scene.near, &scene.far].map(|store| Family::each(store, LONG)[kind].clone());
        eventually("a connection", SOON, async || {
            far.take("warm").await.is_ok()
        })
        .await;
        scene.quiet("warm").await;
        assert!(far.take("k").await.unwrap().release().await.unwrap());
        scene.idle().await;
        check(scene, &near, &far).await;
        assert!(near.try_take("k").await.unwrap().release().await.unwrap());
        assert_eq!(keys_without_ttl(&scene.server), [""; 0]);
    }))
    .await;
}

/// A call whose connection turns out to be closed is sent once more where that was idle. The first copy may have been
/// read from it by then, and may run at any time.
#[tokio::test]
async fn an_acquire_that_was_sent_twice_makes_no_holder_after_its_release() {
    each(open, async |scene, near, far| {
        let dropped = scene.proxy.replies_dropped();
        scene.proxy.drop_next_reply_after(b"acquire");
        let holder = far.take("k").await.unwrap();
        assert_eq!(
            scene.proxy.replies_dropped(),
            dropped + 1,
            "it was sent once"
        );
        assert_eq!(near.withdrawn(&scene.server, "k"), 0);
        assert!(holder.release().await.unwrap());
        assert_eq!(
            near.withdrawn(&scene.server, "k"),
            1,
            "the other copy may take it"
        );
    })
    .await;
}

/// That the second copy found no connection says nothing of the first.
#[tokio::test]
async fn an_acquire_whose_second_copy_was_not_sent_makes_no_holder() {
    for waits in [false, true] {
        each(soon, async |scene, _, far| {
            scene.proxy.cut_after(b"acquire");
            let outcome = if waits {
                far.take("k").await
            } else {
                far.try_take("k").await
            };
            let error = outcome.unwrap_err();
            assert!(error.is_unavailable() && !error.is_refused(), "{error}");
            let has_run = async || !left(&scene.server, "k").is_empty();
            eventually("the acquire to run", SOON, has_run).await;
            scene.proxy.heal();
            scene.quiet("k").await;
        })
        .await;
    }
    let scene = Scene::set(soon).await;
    // Nor of locks that are asked for together.
    let mutex = Mutex::builder().ttl(LONG).build(&scene.far, "all").unwrap();
    let is_had = async || mutex.try_lock_all(["a", "b"]).await.is_ok();
    eventually("a connection", SOON, is_had).await;
    scene.quiet("a").await;
    scene.quiet("b").await;
    scene.idle().await;
    scene.proxy.cut_after(b"{all:a}");
    assert!(
        mutex
            .try_lock_all(["a", "b"])
            .await
            .unwrap_err()
            .is_unavailable()
    );
    assert_ne!(left(&scene.server, "a"), [""; 0], "it has not run");
    scene.proxy.heal();
    scene.quiet("a").await;
    scene.quiet("b").await;
}

#[tokio::test]
async fn a_permit_that_was_asked_for_twice_is_left_to_others() {
    let scene = Scene::set(open).await;
    let group = WaitGroup::new(&scene.far, "left", 1).unwrap();
    assert!(group.add("k").await.unwrap().done().await.unwrap());
    scene.idle().await;
    let dropped = scene.proxy.replies_dropped();
    scene.proxy.drop_next_reply_after(b"acquire");
    let id = group.add("k").await.unwrap().into_id();
    assert_eq!(
        scene.proxy.replies_dropped(),
        dropped + 1,
        "it was sent once"
    );
    scene.far.shutdown(SOON).await.unwrap();
    assert!(group.done(&id).await.unwrap(), "it was released");
}
