//! Until when a lease is valid, and that it tells when it is not.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_test::{assert_pending, task};
use tower_distributed::Store;

use crate::kinds::{Family, SOON, Taken, left, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// Calls do not time out while it matters when answers come.
const PATIENT: Duration = Duration::from_secs(30);

struct Scene {
    server: RedisServer,
    proxy: FaultProxy,
    store: Store,
}

impl Scene {
    async fn set() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let store = Store::builder().timeout(PATIENT).redis(&proxy.url()).unwrap();
        Self { server, proxy, store }
    }
}

async fn each(ttl: Duration, watchdog: bool, check: impl AsyncFn(&Scene, &Family)) {
    let scene = Scene::set().await;
    for family in Family::each_watched(&scene.store, ttl, watchdog) {
        family.take("warm").await.unwrap().release().await.unwrap();
        check(&scene, &family).await;
    }
    assert_eq!(keys_without_ttl(&scene.server), [""; 0]);
}

/// An answer that was long on its way leaves so much less of the lease.
#[tokio::test]
async fn a_slow_answer_makes_a_short_lease() {
    const TTL: Duration = Duration::from_secs(10);
    const SLOW: Duration = Duration::from_millis(300);
    each(TTL, false, async |scene, family| {
        scene.proxy.stall();
        let mut call = task::spawn(family.take("k"));
        assert_pending!(call.poll());
        let sent = Instant::now();
        eventually("it to be slow", SOON, async || sent.elapsed() > SLOW && scene.proxy.held_back() == 1)
            .await;
        scene.proxy.heal();
        let taken = call.await.unwrap();
        assert!(taken.is_held());
        assert!(taken.until() < sent + TTL, "its time was counted from the answer");
        // The same for what makes it longer.
        scene.proxy.stall();
        let mut extension = task::spawn(taken.extend());
        assert_pending!(extension.poll());
        let sent = Instant::now();
        eventually("it to be slow", SOON, async || sent.elapsed() > SLOW && scene.proxy.held_back() == 1)
            .await;
        scene.proxy.heal();
        extension.await.unwrap();
        assert!(taken.until() < sent + TTL, "its time was counted from the answer");
        assert!(taken.until() > sent, "it was not extended");
        assert!(taken.release().await.unwrap());
    })
    .await;
}

/// The answer is still on its way when the lease it speaks of is over: it is asked for anew.
#[tokio::test]
async fn an_answer_that_comes_too_late_makes_no_lease() {
    const TTL: Duration = Duration::from_millis(400);
    each(TTL, false, async |scene, family| {
        scene.proxy.drop_replies();
        let mut call = task::spawn(family.take("k"));
        assert_pending!(call.poll());
        let holders = family.holders("k");
        eventually("it to be granted", SOON, async || scene.server.query(&["EXISTS", &holders]) == Ok(1))
            .await;
        assert_pending!(call.poll());
        // Its connection is closed, and what it was granted in vain is taken back.
        scene.proxy.heal();
        assert!(call.await.is_err_and(|error| error.is_unavailable()));
        eventually("it to be free", SOON, async || match family.try_take("k").await {
            Ok(taken) => taken.is_held() && taken.release().await.is_ok(),
            Err(error) => !error.is_refused(),
        })
        .await;
    })
    .await;
}

/// The push is held up until its claim is over and another holds: by the server's time it grants nothing any more.
#[tokio::test]
async fn a_push_that_comes_late_makes_no_holder() {
    const LONG: Duration = Duration::from_secs(60);
    let scene = Scene::set().await;
    let near = Family::each(&open(&scene.server.url()), LONG);
    let far = Family::each(&scene.store, LONG);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (near, far) in near.iter().zip(far) {
        holders.push(near.take("k").await.unwrap());
        waiters.push(tokio::spawn(async move { far.take("k").await.unwrap() }));
    }
    eventually("all to wait", SOON, async || near.iter().all(|near| near.waiting(&scene.server, "k") == 1))
        .await;
    scene.proxy.stall();
    let others = holders.into_iter().zip(&near).map(|(holder, near)| async move {
        assert!(holder.release().await.unwrap());
        // Granted when the waiter has not confirmed its own grant in time.
        near.take("k").await.unwrap()
    });
    let others = timeout(SOON, futures::future::join_all(others)).await.expect("the claims do not lapse");
    scene.proxy.heal();
    eventually("the waiters to have asked anew", SOON, async || {
        near.iter().all(|near| near.waiting(&scene.server, "k") == 1)
    })
    .await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "two hold a key");
    for (other, waiter) in others.into_iter().zip(waiters) {
        assert!(other.is_held() && other.release().await.unwrap());
        assert!(timeout(SOON, waiter).await.unwrap().unwrap().release().await.unwrap());
    }
}

/// Nobody answers the renewal: the lease ends by its own timer, and no late answer revives it.
#[tokio::test]
async fn a_renewal_that_hangs_hides_no_loss() {
    const TTL: Duration = Duration::from_secs(1);
    each(TTL, true, async |scene, family| {
        let taken = family.take("k").await.unwrap();
        let lost = tokio::spawn(taken.lost());
        scene.proxy.stall();
        eventually("a renewal", SOON, async || scene.proxy.held_back() > 0).await;
        timeout(SOON, lost).await.expect("a hanging renewal hides the loss").unwrap();
        assert!(!taken.is_held() && Instant::now() >= taken.until());
        let until = taken.until();
        scene.proxy.heal();
        assert!(taken.extend().await.unwrap_err().is_lost());
        assert_eq!(taken.until(), until);
        assert!(!taken.is_held());
        drop(taken);
        eventually("nothing to be left", SOON, async || left(&scene.server, "k").is_empty()).await;
    })
    .await;
}

/// The server renews and cannot say so. Nobody else holds meanwhile, and then it is given back.
#[tokio::test]
async fn renewals_without_answers_end_the_lease_and_then_free_it() {
    const TTL: Duration = Duration::from_secs(1);
    let scene = Scene::set().await;
    let near = Family::each(&open(&scene.server.url()), TTL);
    for (family, near) in Family::each(&scene.store, TTL).into_iter().zip(near) {
        let taken = taken_soon(&family).await;
        scene.proxy.drop_replies();
        timeout(SOON, taken.lost()).await.expect("missing answers hide the loss");
        assert!(!taken.is_held());
        scene.proxy.heal();
        drop(taken);
        eventually("others to get it", SOON, async || near.try_take("k").await.is_ok()).await;
    }
}

/// Once the way is free again that was cut.
async fn taken_soon(family: &Family) -> Taken {
    let mut taken = None;
    eventually("the way to be free", SOON, async || {
        taken = family.take("k").await.ok();
        taken.is_some()
    })
    .await;
    taken.unwrap()
}

/// What watches a lease does not believe in it any more once its release is under way: another may hold it by then.
#[tokio::test]
async fn what_is_being_released_is_not_believed_in() {
    each(Duration::from_secs(30), true, async |scene, family| {
        let taken = family.take("k").await.unwrap();
        let handle = taken.handle();
        scene.proxy.stall();
        let mut release = task::spawn(taken.release());
        assert_pending!(release.poll());
        assert!(!handle.is_held(), "it is believed in while it is given away");
        timeout(SOON, handle.lost()).await.expect("nobody is told");
        scene.proxy.heal();
        assert!(release.await.unwrap());
    })
    .await;
}
