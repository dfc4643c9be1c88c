//! Redis, or the way to it, is away when an item is confirmed.

use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, Store};

use crate::events::{listen, told};
use crate::scene::{LONG, SOON, Scene, is_duplicate, open, take};
use support::eventually;
use support::redis_server::RedisServer;

/// What is handled and not recorded yet is given to nobody, by a process that ends in order either.
#[tokio::test]
async fn a_shutdown_gives_away_nothing_that_was_handled() {
    let server = RedisServer::start().await;
    let items = |store: &Store| {
        let items = Dedupe::exact(store, "ends").capacity(1000).ttl(LONG);
        items.remember_for(Duration::from_secs(600)).build().unwrap()
    };
    for is_back in [true, false] {
        let store = Store::builder().timeout(Duration::from_secs(1)).redis(&server.url()).unwrap();
        let item = format!("is back: {is_back}");
        let claim = take(&items(&store), &item).await;
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        assert!(claim.confirm().await.unwrap_err().is_unavailable());
        let limit = if is_back { SOON } else { Duration::from_millis(500) };
        let mut shutdown = tokio::spawn(async move { store.shutdown(limit).await });
        if is_back {
            // So long it has the chance to end wrongly.
            let ended = tokio::time::timeout(Duration::from_millis(300), &mut shutdown).await;
            assert!(ended.is_err(), "it does not wait: {ended:?}");
            server.cli(&["REPLICAOF", "NO", "ONE"]);
            shutdown.await.unwrap().unwrap();
        } else {
            let left = shutdown.await.unwrap().unwrap_err();
            assert!(left.to_string().contains("1 of confirmation \"ends\""), "{left}");
            server.cli(&["REPLICAOF", "NO", "ONE"]);
        }
        let other = items(&open(&server.url()));
        match other.try_claim(&item).await {
            Ok(Claimed::Duplicate) => {}
            Err(error) if !is_back => assert!(error.is_refused(), "{error}"),
            given => panic!("{item}: {given:?}"),
        }
    }
}

/// The reply is lost, so nobody knows; but it was executed.
#[tokio::test]
async fn a_confirmation_whose_reply_is_lost_is_an_error_and_counts() {
    listen();
    let scene = Scene::set("reply-lost", LONG).await;
    for number in 0..10 {
        let item = format!("item {number}");
        let claim = take(&scene.far, &item).await;
        let token = claim.token().to_owned();
        let sent = scene.proxy.requests_containing(token.as_bytes());
        scene.proxy.drop_next_reply_after(token.as_bytes());
        let error = claim.confirm().await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_refused(), "{error}");
        assert!(is_duplicate(&scene.near, &item).await);
        scene.nothing_is_left().await;
        // Else three replies in a row are lost, which opens the breaker of the store's own thread.
        eventually("it to be confirmed again", SOON, async || {
            scene.proxy.requests_containing(token.as_bytes()) > sent + 1
        })
        .await;
    }
    assert_eq!(scene.proxy.replies_dropped(), 10);
    assert_eq!(told("reply-lost", "claim_not_confirmed"), 10);
    assert_eq!(told("reply-lost", "claim_lost"), 0);
}

/// The connection was idle while the items were handled, and breaks once the server has run the confirmation.
#[tokio::test]
async fn a_confirmation_that_was_sent_twice_is_no_loss() {
    listen();
    let scene = Scene::set("sent-twice", LONG).await;
    let exact = Dedupe::exact(&open(&scene.proxy.url()), "sent-twice-exactly").capacity(1000).ttl(LONG);
    let exact = exact.remember_for(Duration::from_secs(600)).build().unwrap();
    assert!(take(&exact, "warm").await.confirm().await.unwrap());
    for dedupe in [&scene.far, &exact] {
        let claim = take(dedupe, "item").await;
        eventually("the connections to be idle", SOON, async || scene.server.has_idle_callers()).await;
        let before = scene.proxy.replies_dropped();
        scene.proxy.drop_next_reply_after(claim.token().as_bytes());
        assert!(claim.confirm().await.unwrap(), "it was held");
        assert_eq!(scene.proxy.replies_dropped(), before + 1);
        assert!(is_duplicate(dedupe, "item").await);
    }
    for event in ["claim_lost", "claim_not_confirmed"] {
        assert_eq!((told("sent-twice", event), told("sent-twice-exactly", event)), (0, 0), "{event}");
    }
}

/// The reply to a claim is lost: it is given back.
#[tokio::test]
async fn a_claim_whose_reply_is_lost_is_given_back() {
    let scene = Scene::set("claim-lost", LONG).await;
    for number in 0..10 {
        let item = format!("item {number}");
        let before = scene.proxy.replies_dropped();
        scene.proxy.drop_next_reply_after(b"FCALL");
        assert!(scene.far.try_claim(&item).await.unwrap_err().is_unavailable());
        assert_eq!(scene.proxy.replies_dropped(), before + 1);
        scene.nothing_is_left().await;
        assert!(take(&scene.near, &item).await.confirm().await.unwrap());
        scene.warm().await;
    }
}

#[tokio::test]
async fn what_could_not_be_confirmed_is_confirmed_when_the_store_is_back() {
    listen();
    let scene = Scene::set("back", LONG).await;
    for stalled in [false, true] {
        let item = format!("stalled {stalled}");
        let quick = tower_distributed::Store::builder().timeout(Duration::from_millis(100));
        let far = crate::scene::claims(&quick.redis(&scene.proxy.url()).unwrap(), "back", LONG);
        let mut claim = None;
        eventually("a claim", SOON, async || {
            if let Ok(Claimed::New(taken)) = far.try_claim(&item).await {
                claim = Some(taken);
            }
            claim.is_some()
        })
        .await;
        if stalled {
            scene.proxy.stall()
        } else {
            scene.proxy.cut()
        }
        let before = told("back", "claim_not_confirmed");
        assert!(claim.unwrap().confirm().await.unwrap_err().is_unavailable());
        assert_eq!(told("back", "claim_not_confirmed"), before + 1);
        assert!(!scene.near.filter().unwrap().contains(&item).await.unwrap());
        let error = scene.near.try_claim(&item).await.unwrap_err();
        assert!(error.is_refused(), "nobody else handles it meanwhile: {error}");
        scene.proxy.heal();
        eventually("it to be confirmed", SOON, async || {
            scene.near.filter().unwrap().contains(&item).await.unwrap()
        })
        .await;
        scene.nothing_is_left().await;
    }
    assert_eq!(told("back", "claim_lost"), 0);
}

/// The store comes back empty: the claim is gone, but the item was handled.
#[tokio::test]
async fn what_could_not_be_confirmed_is_noted_also_where_the_store_has_forgotten_the_claim() {
    listen();
    let ttl = Duration::from_secs(20);
    let scene = Scene::set("forgotten", ttl).await;
    let claim = take(&scene.near, "a").await;
    let handle = claim.handle();
    scene.server.kill9();
    assert!(claim.confirm().await.unwrap_err().is_unavailable());
    scene.server.restart().await;
    eventually("it to be in the filter", ttl, async || {
        matches!(scene.far.filter().unwrap().contains("a").await, Ok(true))
    })
    .await;
    handle.lost().await;
    scene.nothing_is_left().await;
}

/// Whoever shuts down its runtime does not hear of it; it is a duplicate, or can be claimed again at once.
#[test]
fn a_runtime_that_shuts_down_leaves_no_claim() {
    let outer = tokio::runtime::Runtime::new().unwrap();
    let scene = outer.block_on(Scene::set("shut-down", LONG));
    for stalled in [false, true] {
        let item = format!("stalled {stalled}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dedupe = crate::scene::claims(&crate::scene::open(&scene.proxy.url()), "shut-down", LONG);
        let claim = runtime.block_on(take(&dedupe, &item));
        if stalled {
            scene.proxy.hold_back();
        }
        let mut call = task::spawn(claim.confirm());
        runtime.block_on(async { assert_pending!(call.poll()) });
        drop(runtime);
        let error = outer.block_on(call).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        drop(dedupe);
        scene.proxy.heal();
        outer.block_on(async {
            eventually("it to be free or known", SOON, async || match scene.near.try_claim(&item).await {
                Ok(Claimed::New(claim)) => claim.release().await.unwrap(),
                Ok(Claimed::Duplicate) => true,
                Err(error) => !error.is_refused(),
            })
            .await;
            scene.nothing_is_left().await;
        });
    }
}
