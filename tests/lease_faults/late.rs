//! What was sent and given up arrives late, after it was taken back over another connection.

use std::time::Duration;

use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower_distributed::{Mutex, Store, WaitGroup};

use crate::kinds::{Family, LONG, SOON, left, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// How long who is far waits for an answer: less than the 500 ms after which a line sends a copy in the background.
const TIMEOUT: Duration = Duration::from_millis(250);

/// A server, and the families as they are seen by who is near and by who is behind a proxy.
struct Scene {
    server: RedisServer,
    proxy: FaultProxy,
    near: [Family; 3],
    far: [Family; 3],
}

impl Scene {
    async fn set(timeout: Duration) -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let near = Family::each(&open(&server.url()), LONG);
        let far = Store::builder().timeout(timeout).redis(&proxy.url()).unwrap();
        let far = Family::each(&far, LONG);
        Self { server, proxy, near, far }
    }

    async fn quiet(&self, key: &str) {
        eventually("nothing to be left", SOON, async || left(&self.server, key).is_empty()).await;
    }

    async fn idle(&self) {
        let is_idle = async || self.server.has_idle_callers();
        eventually("the connections to be idle", SOON, is_idle).await;
    }

    /// Opens the connections for messages and for heartbeats: with the subscription comes a heartbeat.
    async fn wait_once(&self) {
        let (near, far) = (&self.near[0], &self.far[0]);
        let holder = near.take("first").await.unwrap();
        let beats = async || self.proxy.requests_containing(b":first}") > 1;
        let ends = async {
            eventually("a heartbeat", SOON, beats).await;
            assert!(holder.release().await.unwrap());
        };
        let (waiter, ()) = tokio::join!(far.take("first"), ends);
        assert!(waiter.unwrap().release().await.unwrap());
    }

    async fn withdrawn(&self, family: &Family, key: &str) {
        eventually("the withdrawal", SOON, async || family.withdrawn(&self.server, key) == 1).await;
        assert!(self.proxy.held_back() > 0, "nothing is late");
    }

    fn let_through(&self, key: &str, expected: &[String]) {
        self.proxy.let_through();
        assert_eq!(left(&self.server, key), expected, "what came late has made a holder or a waiter");
    }
}

/// The families from near and far, each once it has a connection and its scripts are known.
async fn each(check: impl AsyncFn(&Scene, &Family, &Family)) {
    each_within(TIMEOUT, check).await;
}

async fn each_within(timeout: Duration, check: impl AsyncFn(&Scene, &Family, &Family)) {
    let scene = Scene::set(timeout).await;
    for (near, far) in scene.near.iter().zip(&scene.far) {
        eventually("a connection", SOON, async || far.take("warm").await.is_ok()).await;
        scene.quiet("warm").await;
        check(&scene, near, far).await;
    }
    assert_eq!(keys_without_ttl(&scene.server), [""; 0]);
}

#[tokio::test]
async fn an_acquire_that_timed_out_makes_no_holder() {
    // They leave in two or three calls, one after the other: all have timed out before a line sends a copy.
    each_within(Duration::from_millis(100), async |scene, near, far| {
        scene.proxy.hold_back();
        let calls = (0..20)
            .map(|i| async move { if i % 2 == 0 { far.try_take("k").await } else { far.take("k").await } });
        for outcome in join_all(calls).await {
            let error = outcome.unwrap_err();
            assert!(error.is_unavailable() && !error.is_refused(), "{error}");
        }
        let withdrawn = 10 + far.places(10);
        // Lines that have sent a copy meanwhile acquire again, and withdraw that as well.
        let all = async || near.withdrawn(&scene.server, "k") >= withdrawn;
        eventually("all to be withdrawn", SOON, all).await;
        scene.proxy.let_through();
        scene.quiet("k").await;
        assert!(near.try_take("k").await.unwrap().release().await.unwrap());
        scene.quiet("k").await;
    })
    .await;
}

#[tokio::test]
async fn an_acquire_that_was_dropped_makes_no_holder() {
    each(async |scene, near, far| {
        scene.proxy.hold_back();
        let mut call = task::spawn(far.take("k"));
        assert_pending!(call.poll());
        eventually("the acquire to be on its way", SOON, async || scene.proxy.held_back() == 1).await;
        drop(call);
        scene.withdrawn(far, "k").await;
        scene.let_through("k", &[]);
        assert!(near.try_take("k").await.unwrap().release().await.unwrap());
    })
    .await;
}

/// A call whose connection turns out to be closed is sent once more where that was idle. The first copy may have been
/// read from it by then, and may run at any time.
#[tokio::test]
async fn an_acquire_that_was_sent_twice_makes_no_holder_after_its_release() {
    each(async |scene, near, far| {
        assert!(far.take("k").await.unwrap().release().await.unwrap());
        scene.idle().await;
        let dropped = scene.proxy.replies_dropped();
        scene.proxy.drop_next_reply_after(b"acquire");
        let holder = far.take("k").await.unwrap();
        assert_eq!(scene.proxy.replies_dropped(), dropped + 1, "it was sent once");
        assert_eq!(near.withdrawn(&scene.server, "k"), 0);
        assert!(holder.release().await.unwrap());
        assert_eq!(near.withdrawn(&scene.server, "k"), 1, "the other copy may take it");
        assert!(near.try_take("k").await.unwrap().release().await.unwrap());
    })
    .await;
}

/// That the second copy found no connection says nothing of the first.
#[tokio::test]
async fn an_acquire_whose_second_copy_was_not_sent_makes_no_holder() {
    for waits in [false, true] {
        each(async |scene, near, far| {
            assert!(far.take("k").await.unwrap().release().await.unwrap());
            scene.idle().await;
            scene.proxy.cut_after(b"acquire");
            let outcome = if waits { far.take("k").await } else { far.try_take("k").await };
            let error = outcome.unwrap_err();
            assert!(error.is_unavailable() && !error.is_refused(), "{error}");
            assert_ne!(left(&scene.server, "k"), [""; 0], "it has not run");
            scene.proxy.heal();
            scene.quiet("k").await;
            assert!(near.try_take("k").await.unwrap().release().await.unwrap());
        })
        .await;
    }
}

#[tokio::test]
async fn locks_whose_second_copy_was_not_sent_have_no_holder() {
    let scene = Scene::set(TIMEOUT).await;
    let store = Store::builder().timeout(TIMEOUT).redis(&scene.proxy.url()).unwrap();
    let mutex = Mutex::builder().ttl(LONG).build(&store, "all").unwrap();
    assert!(mutex.try_lock_all(["a", "b"]).await.unwrap().unlock().await.unwrap());
    scene.idle().await;
    scene.proxy.cut_after(b"{all:a}");
    assert!(mutex.try_lock_all(["a", "b"]).await.unwrap_err().is_unavailable());
    assert_ne!(left(&scene.server, "a"), [""; 0], "it has not run");
    scene.proxy.heal();
    scene.quiet("a").await;
    scene.quiet("b").await;
}

#[tokio::test]
async fn a_permit_that_was_asked_for_twice_is_left_to_others() {
    let scene = Scene::set(TIMEOUT).await;
    let store = Store::builder().timeout(TIMEOUT).redis(&scene.proxy.url()).unwrap();
    let group = WaitGroup::new(&store, "left", 1).unwrap();
    assert!(group.add("k").await.unwrap().done().await.unwrap());
    scene.idle().await;
    let dropped = scene.proxy.replies_dropped();
    scene.proxy.drop_next_reply_after(b"acquire");
    let id = group.add("k").await.unwrap().into_id();
    assert_eq!(scene.proxy.replies_dropped(), dropped + 1, "it was sent once");
    store.shutdown(SOON).await.unwrap();
    assert!(group.done(&id).await.unwrap(), "it was released");
}

#[tokio::test]
async fn an_acquire_that_comes_late_does_not_queue() {
    each(async |scene, near, far| {
        let holder = near.take("k").await.unwrap();
        let as_held = left(&scene.server, "k");
        scene.proxy.hold_back();
        assert!(far.take("k").await.unwrap_err().is_unavailable());
        scene.withdrawn(far, "k").await;
        scene.let_through("k", &as_held);
        assert!(holder.release().await.unwrap());
        assert!(near.try_take("k").await.unwrap().release().await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_renewal_that_comes_late_revives_nothing() {
    each(async |scene, near, far| {
        let holder = far.take("k").await.unwrap();
        scene.proxy.hold_back();
        assert!(holder.extend().await.unwrap_err().is_unavailable());
        assert!(holder.is_held());
        drop(holder);
        scene.quiet("k").await;
        assert!(scene.proxy.held_back() > 0);
        scene.let_through("k", &[]);
        assert!(near.try_take("k").await.unwrap().release().await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_release_that_comes_late_leaves_the_next_holder_alone() {
    each(async |scene, near, far| {
        let holder = far.take("k").await.unwrap();
        scene.proxy.hold_back();
        drop(holder);
        // Freed by a second attempt.
        let next = near.take("k").await.unwrap();
        assert!(scene.proxy.held_back() > 0);
        let as_held = left(&scene.server, "k");
        scene.let_through("k", &as_held);
        assert!(next.release().await.unwrap());
    })
    .await;
}

/// Who waits and gives up leaves the queue by another connection; its beats come later.
#[tokio::test]
async fn a_beat_that_comes_late_makes_no_waiter() {
    each(async |scene, near, far| {
        scene.wait_once().await;
        let holder = near.take("k").await.unwrap();
        let as_held = left(&scene.server, "k");
        let waiter = tokio::spawn({
            let far = far.clone();
            async move { drop(far.take("k").await) }
        });
        eventually("it to wait", SOON, async || near.waiting(&scene.server, "k") == 1).await;
        // It knows that it waits once a later call over its connection is answered.
        assert!(far.take("later").await.unwrap().release().await.unwrap());
        scene.proxy.hold_back();
        // One may just have left: the next comes within a third of the time to live.
        eventually("a beat", LONG, async || scene.proxy.held_back() > 0).await;
        waiter.abort();
        eventually("it to leave", SOON, async || near.waiting(&scene.server, "k") == 0).await;
        scene.let_through("k", &as_held);
        assert!(holder.release().await.unwrap());
        assert!(near.try_take("k").await.unwrap().release().await.unwrap());
    })
    .await;
}
