//! Answers of flights, items that were handled, and idempotency records.

use tokio::sync::oneshot;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::single_flight::{Json, Postcard};
use tower_distributed::{BloomFilter, Dedupe, SingleFlight};

use super::{HOUR, MINUTE, Scene, are_stored};
use crate::claims::take;
use crate::stores::SOON;
use support::eventually;

#[tokio::test]
async fn answers_and_items() {
    let scene = Scene::new().await;
    let (here, there) = (&scene.here, &scene.there);
    let led = async || {
        let builder = || SingleFlight::<u64>::builder(Postcard).ttl(MINUTE);
        let [flight, other] = [here, there].map(|store| builder().build(store, "led").unwrap());
        let (go_on, goes_on) = oneshot::channel::<()>();
        let leader = tokio::spawn(async move {
            flight
                .run("k", move || async move { goes_on.await.map_or(0, |()| 7) })
                .await
                .unwrap()
        });
        eventually("a leader", SOON, async || {
            scene.server.query(&["EXISTS", "td:{led:k}:flight:lock"]) == Ok(1)
        })
        .await;
        let follower = scene
            .behind(
                "led",
                1,
                async move { other.run("k", || async { 9 }).await },
            )
            .await;
        let rows = "
            td:{led:k}:flight:lock | * | @-@.@
            td:{led:k}:flight:waiters | 60 | @-@.@ 0
            td:{led:k}:flight:beats | 60 | @-@.@ #
        ";
        let keys = scene.stored("led");
        assert!(are_stored(&keys, rows), "{keys:#?}");
        go_on.send(()).unwrap();
        assert_eq!(
            (leader.await.unwrap(), follower.await.unwrap().unwrap()),
            (7, 7)
        );
    };
    let rows = "td:{led:k}:flight:answer | 60 | # 60000000 60000000 postcard/1+ +\\x07";
    let heard = "td:wake:@ | 0 0 @\\x0apostcard/1+ 60000000 60000000 +\\x07";
    scene.row("led", led, rows, heard).await;

    let stale = async || {
        let builder = SingleFlight::<u64>::builder(Json).ttl(MINUTE).version("v2");
        let flight = builder
            .stale_while_revalidate(9 * MINUTE)
            .build(here, "stale")
            .unwrap();
        flight.run("k", || async { 7 }).await.unwrap()
    };
    let rows = "td:{stale:k}:flight:answer | 600 | # 60000000 600000000 json/1+v2 +7";
    scene.row("stale", stale, rows, "").await;
    let forgotten = async || {
        let flight = SingleFlight::<u64>::builder(Postcard)
            .ttl(MINUTE)
            .build(here, "forgotten")
            .unwrap();
        flight.forget("k").await.unwrap();
    };
    scene
        .row(
            "forgotten",
            forgotten,
            "",
            "td:wake:all | forget\\x0aforgotten\\x0ak",
        )
        .await;

    // The hash of `user-7` has these bits. The claim is on the empty item.
    let bits = "154789 229938 723424 788376 of 125001";
    let builder = BloomFilter::builder().bits(1_000_003).hashes(4);
    let filtered = async || {
        let filters = [here, there].map(|store| builder.build(store, "filtered").unwrap());
        assert!(filters[0].insert("user-7").await.unwrap());
        let [one, other] =
            filters.map(|filter| Dedupe::builder().remember_forever().build(&filter).unwrap());
        let claim = take(&one, "").await;
        let waiter = scene
            .behind("filtered", 1, async move { other.claim("", SOON).await })
            .await;
        (claim, waiter)
    };
    let rows = format!(
        "td:{{filtered:0}}:config | - | bloom1 1 1000003 4 0 0
        td:{{filtered:0}}:bits0 | - | {bits}
        td:{{filtered:0}}:99aa06d3014798d86001c324468d497f:claim | 30 | @-@.@
        td:{{filtered:0}}:99aa06d3014798d86001c324468d497f:waiters | 60 | @-@.@ 0
        td:{{filtered:0}}:99aa06d3014798d86001c324468d497f:beats | 60 | @-@.@ #"
    );
    scene.row("filtered", filtered, &rows, "").await;
    let hourly = builder.remember_for(HOUR).build(here, "hourly").unwrap();
    let rows = format!(
        "td:{{hourly:0}}:config | 25200 | bloom1 1 1000003 4 3600000 #
        td:{{hourly:0}}:bits# | 18000 | {bits}"
    );
    scene
        .row(
            "hourly",
            async || assert!(hourly.insert("user-7").await.unwrap()),
            &rows,
            "",
        )
        .await;

    // The digests of `evt_1` and `evt_2`.
    let items = async || {
        let builder = |store| {
            Dedupe::exact(store, "items")
                .capacity(100)
                .remember_for(2 * HOUR)
        };
        let [one, other] = [here, there].map(|store| builder(store).build().unwrap());
        assert!(take(&one, "evt_1").await.confirm().await.unwrap());
        let claim = take(&one, "evt_2").await;
        let waiter = scene
            .behind("items", 1, async move { other.claim("evt_2", SOON).await })
            .await;
        (claim, waiter)
    };
    let rows = "
        td:{items:layout}:layout | 18000 | exact1 1 7200000
        td:{items:0}:exact:# | * | s #, }NZv\\xea\\xe6\\xd8\\xc1eA\\x0a\\xc1\\x9f\\xe6ue
        td:{items:0}:e7a53ae46b784f8fc1105e6029d8fccf:exact:claim | 30 | @-@.@
        td:{items:0}:e7a53ae46b784f8fc1105e6029d8fccf:exact:waiters | 60 | @-@.@ 0
        td:{items:0}:e7a53ae46b784f8fc1105e6029d8fccf:exact:beats | 60 | @-@.@ #
    ";
    scene.row("items", items, rows, "").await;
}

/// The key `8e03978e` of the principal `ann`, and a request with the body `10 EUR`.
#[cfg(feature = "http")]
#[tokio::test]
async fn idempotency_records() {
    use axum::body::Body;
    use axum::http::{Method, Request, Response};

    let scene = Scene::new().await;
    let handle = async || {
        let principal = |_: &Request<Body>| "ann";
        let layer = tower_distributed::web::idempotency(&scene.here, "payments", principal)
            .build()
            .unwrap();
        let request = Request::builder().method(Method::POST).uri("/payments?v=1");
        let request = request
            .header("host", "shop.example")
            .header("content-type", "text/plain");
        let request = request
            .header("idempotency-key", "8e03978e")
            .body(Body::from("10 EUR"))
            .unwrap();
        let handler = service_fn(async |_: Request<Body>| {
            let response = Response::builder()
                .status(201)
                .header("content-type", "text/plain");
            Ok::<_, std::convert::Infallible>(
                response
                    .header("x-call", "1")
                    .body(Body::from("paid"))
                    .unwrap(),
            )
        });
        layer
            .layer(handler)
            .oneshot(request)
            .await
            .unwrap()
            .status()
    };
    let rows = concat!(
        "td:{payments:idempotency:0d1d3e3a962f3135c4fd89369f7f0df244d3df2bc9ec5298c801ca0610e7b32d}:flight:answer",
        r" | 86400 | # 86400000000 86400000000 idempotency/3+http/3 ",
        r"p\xa20\xee\xd4\x03q.\xe6\x86\xdfE\x88\x97\xe0\x3f\xc7z*y\xebjq\x03e6\x09Uw\xa8\xce+\x95",
        r"1\x00\xc9\x00\x00\x00\x00????\x00\x00\x00\x02\x00\x0ccontent-type\x00\x00\x00\x0atext/plain",
        r"\x00\x06x-call\x00\x00\x00\x011\x00\x00\x00\x00\x00\x00\x00\x04paid"
    );
    scene.row("payments", handle, rows, "").await;
}
