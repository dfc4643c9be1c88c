//! Claims on a server that forgets, that is away, or where something else stands under their names.

use std::time::Duration;

use tokio_test::task;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{BloomFilter, Dedupe, DedupeLayer, Error, Store};

use super::{Scene, claims, exact, is_duplicate, take, told};
use crate::scene::{LONG, SOON, TIMEOUT, open};
use support::eventually;
use support::redis_server::RedisServer;

/// One round trip before an item is handled, and one after, also through a layer and where a filter has several keys.
#[tokio::test]
async fn a_claim_takes_one_call_and_a_confirmation_another() {
    let scene = &Scene::set("calls", LONG).await;
    let store = open(&scene.proxy.url());
    let several = BloomFilter::builder()
        .capacity(1000)
        .false_positive_rate(1e-9)
        .keys(3);
    let several = several.build(&store, "several").unwrap();
    let several = Dedupe::builder()
        .remember_forever()
        .build(&several)
        .unwrap();
    // The first use of a filter over several keys takes one more.
    assert!(take(&several, "warm").await.confirm().await.unwrap());
    let counts = || {
        (
            scene.proxy.requests_containing(b"\r\n"),
            scene.server.calls_of("fcall"),
        )
    };
    let since = |(requests, scripts)| (counts().0 - requests, counts().1 - scripts);
    for number in 0..20 {
        let item = format!("item {number}");
        for (dedupe, is_one) in [(&scene.far, true), (&several, false)] {
            let before = counts();
            let claim = take(dedupe, &item).await;
            let claimed = since(before);
            assert!(claim.confirm().await.unwrap());
            let confirmed = since(before);
            assert_eq!((claimed.0, confirmed.0), (1, 2));
            if is_one {
                assert!(is_duplicate(dedupe, &item).await);
                assert_eq!((claimed.1, confirmed.1, since(before)), (1, 2, (3, 3)));
            }
        }
        let before = counts();
        let inner = service_fn(async |_: String| Ok::<_, tower::BoxError>(since(before).1));
        let layer = DedupeLayer::new(scene.far.clone(), |item: &String| item.clone());
        let handled = ServiceBuilder::new().layer(layer).service(inner);
        let handled = handled.oneshot(format!("{item} of a layer")).await.unwrap();
        assert_eq!((handled, since(before).1), (1, 2));
    }
}

/// Also where who has sent the request is gone by then.
#[tokio::test]
async fn a_layer_reports_what_was_lost_also_where_nobody_awaits_the_response() {
    let scene = &Scene::set("nobody-awaits", LONG).await;
    for is_awaited in [true, false] {
        let item = if is_awaited { "awaited" } else { "not awaited" };
        let (sender, mut unsure) = tokio::sync::mpsc::unbounded_channel();
        let layer = DedupeLayer::new(scene.far.clone(), |item: &&'static str| *item);
        let layer = layer.on_unsure(move |unsure| {
            sender
                .send((unsure.key.clone(), unsure.error.is_none()))
                .unwrap();
        });
        let inner = service_fn(async |_: &'static str| {
            assert_eq!(scene.server.cli(&["DEL", &scene.claim()]), "1");
            if !is_awaited {
                scene.proxy.stall();
            }
            Ok::<_, tower::BoxError>(())
        });
        let service = ServiceBuilder::new().layer(layer).service(inner);
        let mut call = task::spawn(service.oneshot(item));
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
        let told = tokio::time::timeout(SOON, unsure.recv())
            .await
            .expect("nobody is told")
            .unwrap();
        assert_eq!(told, (item.into(), true));
        assert!(is_duplicate(&scene.near, item).await);
    }
    assert_eq!(told("nobody-awaits", "claim_lost"), 2);
}

/// What is handled and not recorded yet is given to nobody, by a process that ends in order either.
#[tokio::test]
async fn a_shutdown_gives_away_nothing_that_was_handled() {
    let server = RedisServer::start().await;
    for is_back in [true, false] {
        let store = Store::builder()
            .timeout(TIMEOUT)
            .redis(&server.url())
            .unwrap();
        let item = format!("is back: {is_back}");
        let claim = take(&exact(&store, "ends", LONG), &item).await;
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        assert!(claim.confirm().await.unwrap_err().is_unavailable());
        let limit = if is_back {
            SOON
        } else {
            Duration::from_millis(500)
        };
        let mut shutdown = Box::pin(store.shutdown(limit));
        if is_back {
            assert!(
                futures::poll!(&mut shutdown).is_pending(),
                "it does not wait"
            );
            server.cli(&["REPLICAOF", "NO", "ONE"]);
            shutdown.await.unwrap();
        } else {
            let left = shutdown.await.unwrap_err();
            assert!(
                left.to_string().contains("1 of confirmation \"ends\""),
                "{left}"
            );
            server.cli(&["REPLICAOF", "NO", "ONE"]);
        }
        match exact(&open(&server.url()), "ends", LONG)
            .try_claim(&item)
            .await
        {
            Ok(Claimed::Duplicate) => {}
            Err(error) if !is_back => assert!(error.is_refused(), "{error}"),
            given => panic!("{item}: {given:?}"),
        }
    }
}

/// What a store does with a claim whose confirmation gets no answer.
#[derive(Clone, Copy, Debug)]
enum Away {
    ReplyLost,
    Cut,
    Stalled,
    /// It comes back empty: the claim is gone, but the item was handled.
    Restarted,
}

#[tokio::test]
async fn what_could_not_be_confirmed_is_confirmed_when_the_store_is_back() {
    for away in [Away::ReplyLost, Away::Cut, Away::Stalled, Away::Restarted] {
        let name = &*format!("back-{away:?}");
        // After the latter, its holder hears at its end at the latest that it is lost.
        let is_lost = matches!(away, Away::Restarted);
        let ttl = if is_lost { SOON } else { LONG };
        let scene = Scene::set(name, ttl).await;
        let quick = Store::builder()
            .timeout(Duration::from_millis(300))
            .connect_timeout(TIMEOUT);
        let far = claims(&quick.redis(&scene.proxy.url()).unwrap(), name, ttl);
        let mut taken = None;
        eventually("a claim", SOON, async || {
            if let Ok(Claimed::New(claim)) = far.try_claim("item").await {
                taken = Some(claim);
            }
            taken.is_some()
        })
        .await;
        let (claim, server, proxy) = (taken.unwrap(), &scene.server, &scene.proxy);
        let handle = claim.handle();
        match away {
            Away::ReplyLost => proxy.drop_next_reply_after(claim.token().as_bytes()),
            Away::Cut => proxy.cut(),
            Away::Stalled => proxy.stall(),
            Away::Restarted => server.kill9(),
        }
        let error = claim.confirm().await.unwrap_err();
        assert!(
            error.is_unavailable() && !error.is_refused(),
            "{away:?}: {error}"
        );
        assert_eq!(told(name, "claim_not_confirmed"), 1, "{away:?}");
        if let Away::Cut | Away::Stalled = away {
            assert!(!scene.knows("item").await);
            let error = scene.near.try_claim("item").await.unwrap_err();
            assert!(
                error.is_refused(),
                "nobody else handles it meanwhile: {error}"
            );
        }
        match away {
            Away::ReplyLost => {}
            Away::Cut | Away::Stalled => proxy.heal(),
            Away::Restarted => server.restart().await,
        }
        eventually("it to be confirmed", SOON, async || {
            scene.knows("item").await
        })
        .await;
        assert!(is_duplicate(&scene.near, "item").await);
        scene.nothing_is_left().await;
        match is_lost {
            true => handle.lost().await,
            false => assert_eq!(told(name, "claim_lost"), 0, "{away:?}"),
        }
    }
}

fn is_told(error: &Error) {
    let text = error.to_string();
    assert!(
        error.is_wrong_type() && error.is_unavailable() && text.contains("WRONGTYPE"),
        "{error}"
    );
}

/// Whatever it is, it is left as it is, and nothing is lost once it is gone.
#[tokio::test]
async fn a_part_of_another_type_is_told_and_nothing_is_lost() {
    let scene = Scene::set("wrong-types", LONG).await;
    assert!(take(&scene.near, "known").await.confirm().await.unwrap());
    for part in ["config", "bits0"] {
        let (name, aside) = (scene.part(part), scene.part("aside"));
        let item = &*format!("confirmed {part}");
        let (confirmed, released) = (
            take(&scene.near, item).await,
            take(&scene.near, "released").await,
        );
        scene.server.cli(&["RENAME", &name, &aside]);
        scene.server.cli(&["RPUSH", &name, "a", "b"]);
        for item in ["known", "new"] {
            is_told(&scene.near.try_claim(item).await.unwrap_err());
            is_told(&scene.near.claim(item, LONG).await.unwrap_err());
            is_told(&scene.near.claim_anyway(item).await.unwrap_err());
        }
        is_told(&confirmed.confirm().await.unwrap_err());
        assert!(
            released.release().await.unwrap(),
            "to give it back takes no filter"
        );
        assert_eq!(scene.server.cli(&["LRANGE", &name, "0", "-1"]), "a\nb");
        scene.server.cli(&["RENAME", &aside, &name]);
        assert!(is_duplicate(&scene.near, "known").await);
        scene.nothing_is_left().await;
        for item in [item, "released", "new"] {
            assert!(take(&scene.near, item).await.release().await.unwrap());
        }
    }
    let claim = take(&scene.near, "a").await;
    let name = scene.claim();
    scene.server.cli(&["DEL", &name]);
    scene.server.cli(&["RPUSH", &name, "x"]);
    let (of_its_item, of_another) =
        tokio::join!(scene.near.try_claim("a"), scene.near.try_claim("c"));
    assert!(of_its_item.unwrap_err().is_wrong_type());
    drop(of_another.unwrap());
    match claim.confirm().await {
        Ok(was_held) => assert!(!was_held),
        Err(error) => is_told(&error),
    }
    assert_eq!(scene.server.cli(&["LRANGE", &name, "0", "-1"]), "x");
    scene.server.cli(&["DEL", &name]);
    drop(scene.near.try_claim("a").await.unwrap());
    scene.nothing_is_left().await;
}
