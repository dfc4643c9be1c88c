//! Redis forgets: scripts, or claims and filters.

use std::time::Duration;

use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::DedupeLayer;

use crate::events::{listen, told};
use crate::scene::{LONG, SOON, Scene, is_duplicate, take};
use support::eventually;

#[tokio::test]
async fn flushed_scripts_are_never_noticed() {
    let scene = Scene::set("flushed", LONG).await;
    let flush = || assert_eq!(scene.server.cli(&["SCRIPT", "FLUSH"]), "OK");
    for number in 0..20 {
        let item = format!("item {number}");
        flush();
        let claim = take(&scene.far, &item).await;
        flush();
        assert!(claim.confirm().await.unwrap());
        flush();
        assert!(is_duplicate(&scene.near, &item).await);
        let claim = scene.far.claim_anyway(&item).await.unwrap();
        flush();
        assert!(claim.release().await.unwrap());
    }
    scene.nothing_is_left().await;
}

/// Without persistence. Whoever holds a claim is told, and its item is known all the same.
#[tokio::test]
async fn a_claim_that_a_restart_forgets_is_reported() {
    listen();
    for watched in [false, true] {
        let name = if watched { "restarted-watched" } else { "restarted" };
        let scene = Scene::set(name, if watched { Duration::from_secs(3) } else { LONG }).await;
        let claim = take(&scene.near, "a").await;
        assert!(take(&scene.near, "forgotten").await.confirm().await.unwrap());
        scene.server.restart().await;
        eventually("a connection", SOON, async || scene.near.filter().unwrap().contains("a").await.is_ok())
            .await;
        if watched {
            claim.lost().await;
        }
        assert!(!claim.confirm().await.unwrap());
        assert_eq!(told(name, "claim_lost"), 1);
        assert!(is_duplicate(&scene.near, "a").await);
        assert!(
            take(&scene.near, "forgotten").await.release().await.unwrap(),
            "nothing is kept without persistence"
        );
        scene.nothing_is_left().await;
    }
}

/// Also where who has sent the request is gone by then.
#[tokio::test]
async fn a_layer_reports_what_was_lost_also_where_nobody_awaits_the_response() {
    listen();
    let scene = &Scene::set("nobody-awaits", LONG).await;
    for is_awaited in [true, false] {
        let item = if is_awaited { "awaited" } else { "not awaited" };
        let (sender, mut unsure) = tokio::sync::mpsc::unbounded_channel();
        let layer = DedupeLayer::new(scene.far.clone(), |item: &&'static str| *item);
        let layer = layer.on_unsure(move |unsure| {
            sender.send((unsure.key.clone(), unsure.error.is_none())).unwrap();
        });
        let inner = service_fn(async |_: &'static str| {
            assert_eq!(scene.server.cli(&["DEL", &scene.claim()]), "1");
            if !is_awaited {
                scene.proxy.stall();
            }
            Ok::<_, tower::BoxError>(())
        });
        let service = ServiceBuilder::new().layer(layer).service(inner);
        let mut call = tokio_test::task::spawn(service.oneshot(item));
        if is_awaited {
            call.await.unwrap();
        } else {
            let held_back = async || {
                tokio_test::assert_pending!(call.poll());
                scene.proxy.held_back() > 0
            };
            eventually("the confirmation to be on its way", SOON, held_back).await;
            drop(call);
            scene.proxy.heal();
        }
        let told = tokio::time::timeout(SOON, unsure.recv()).await.expect("nobody is told").unwrap();
        assert_eq!(told, (item.into(), true));
        assert!(is_duplicate(&scene.near, item).await);
    }
    assert_eq!(told("nobody-awaits", "claim_lost"), 2);
}
