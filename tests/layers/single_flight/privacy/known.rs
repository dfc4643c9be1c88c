//! What has gone wrong elsewhere, each by itself.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::OriginalUri;
use axum::routing::get as on_get;
use futures::future::join_all;
use http::{HeaderMap, Request, Response};
use tower::ServiceExt as _;
use tower_distributed::extract::{SharedGet, path, path_and_query, shared_get};
use tower_distributed::response::AnswerCodec;
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, Store};

use super::origin::Origin;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    a_stale_answer_is_for_those_who_ask_alike,
    a_private_request_never_sees_a_stale_answer,
    what_turned_private_is_not_shared,
    two_variants_do_not_flip,
    no_key_gives_one_user_what_is_anothers,
    identity_fields_are_private,
);

async fn body(response: Response<Body>) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn asks(app: &Router, path: &str, fields: &[(&str, &str)]) -> String {
    let mut request = Request::get(path).header("host", "a.example").header("x-nonce", "1");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    body(app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()).await
}

/// An app in each of two processes, with answers that are stale at once.
fn stale_apps(stores: &Stores, app: &Router) -> [Router; 2] {
    [(); 2].map(|()| {
        let flight = SingleFlight::builder(AnswerCodec)
            .pass_for(std::time::Duration::from_millis(1))
            .ttl(Duration::from_millis(1))
            .stale_while_revalidate(HOUR);
        let flight = flight.build(&stores.open(), "public").unwrap();
        app.clone().layer(single_flight(
            flight,
            shared_get().ignore_field("x-nonce").unwrap().ignore_field("x-region").unwrap(),
        ))
    })
}

async fn language(headers: HeaderMap) -> ([(&'static str, &'static str); 1], String) {
    let language = headers.get("accept-language").map_or("none", |value| value.to_str().unwrap());
    ([("vary", "accept-language")], language.to_owned())
}

async fn a_stale_answer_is_for_those_who_ask_alike(stores: Stores) {
    let apps = stale_apps(&stores, &Router::new().route("/", on_get(language)));
    for round in 0..30 {
        for own in ["de", "en", "fr"] {
            let app = &apps[round % 2];
            assert_eq!(asks(app, "/", &[("accept-language", own)]).await, own);
        }
        assert_eq!(asks(&apps[0], "/", &[]).await, "none");
    }
}

async fn a_private_request_never_sees_a_stale_answer(stores: Stores) {
    let greet = async |headers: HeaderMap| {
        let known = |name| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        known("cookie").or(known("authorization")).or(known("x-api-key")).unwrap_or("nobody".into())
    };
    let apps = stale_apps(&stores, &Router::new().route("/", on_get(greet)));
    for round in 0..20 {
        let app = &apps[round % 2];
        assert_eq!(asks(app, "/", &[]).await, "nobody");
        for field in ["cookie", "authorization", "x-api-key"] {
            let own = format!("ann{round}");
            assert_eq!(asks(app, "/", &[(field, &own)]).await, own);
        }
    }
}

/// The fields by which gateways and identity-aware proxies name the user, without a setting.
async fn identity_fields_are_private(stores: Stores) {
    let account = async |headers: HeaderMap| {
        let user = headers.iter().find(|(_, value)| *value == "ann" || *value == "bob");
        user.map_or("nobody", |(_, value)| value.to_str().unwrap()).to_owned()
    };
    let flight = SingleFlight::builder(AnswerCodec).ttl(HOUR).build(&stores.open(), "public").unwrap();
    let app = Router::new().route("/account", on_get(account)).layer(single_flight(flight, shared_get()));
    for field in [
        "x-api-key",
        "x-auth-request-user",
        "x-forwarded-user",
        "x-amzn-oidc-identity",
        "x-goog-authenticated-user-id",
        "x-ssl-client-s-dn",
    ] {
        for user in ["ann", "bob"] {
            assert_eq!(asks(&app, "/account", &[(field, user)]).await, user, "{field}");
        }
    }
}

/// What was for all may be served while it is stale; what is for one is for one.
async fn what_turned_private_is_not_shared(stores: Stores) {
    let origin = Origin::default();
    let flight = |flight: super::Builder| flight.ttl(Duration::from_millis(1)).stale_while_revalidate(HOUR);
    let app = origin.behind(&stores.open(), flight);
    for _ in 0..40 {
        let request = Request::get("/sometimes").header("x-nonce", "1").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let for_one = response.headers().contains_key("set-cookie");
        assert_eq!(body(response).await.contains("x-nonce"), for_one);
    }
}

/// Each variant has a place of its own, whichever came first.
async fn two_variants_do_not_flip(stores: Stores) {
    let origin = Origin::default();
    let apps = [(); 2].map(|()| origin.behind(&stores.open(), |flight| flight.ttl(HOUR)));
    for round in 0..10 {
        let calls = (0..20).map(|number| {
            let own = ["de", "en"][(round + number) % 2];
            let app = &apps[number / 2 % 2];
            async move { asks(app, "/language", &[("accept-language", own)]).await }
        });
        for (number, told) in join_all(calls).await.into_iter().enumerate() {
            assert!(told.contains(["[\"de\"]", "[\"en\"]"][(round + number) % 2]), "{told}");
        }
    }
    assert_eq!(origin.handled(), 2);
}

/// A key that says too little, as `path()` does: the layer looks at the request itself.
async fn no_key_gives_one_user_what_is_anothers(stores: Stores) {
    const PRIVATE: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "range", "if-none-match"];
    let echo = async |request: Request<Body>| {
        let fields =
            PRIVATE.map(|name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned()));
        let seen = format!("{} {fields:?} ", request.method());
        seen + &body(Response::new(request.into_body())).await
    };
    let apps = [(); 2].map(|()| {
        let flight = SingleFlight::builder(AnswerCodec)
            .pass_for(std::time::Duration::from_millis(1))
            .ttl(HOUR)
            .build(&stores.open(), "public")
            .unwrap();
        Router::new()
            .route("/me", axum::routing::any(echo))
            .layer(single_flight(flight, SharedGet::new(path())))
    });
    let users = (0..60).map(|number| {
        let (app, user) = (apps[number % 2].clone(), format!("user-{number}"));
        async move {
            let request = Request::builder().uri("/me");
            let (request, sent) = match number % 6 {
                5 => (request.method("POST").body(Body::from(user.clone())), "POST"),
                field => (request.header(PRIVATE[field], &user).body(Body::empty()), "GET"),
            };
            let told = body(app.oneshot(request.unwrap()).await.unwrap()).await;
            assert!(told.starts_with(sent) && told.contains(&user), "{user} was told {told}");
        }
    });
    join_all(users).await;
    // What is public is shared; HEAD has no body, and keeps that for itself.
    let head = Request::head("/me").body(Body::empty()).unwrap();
    assert_eq!(body(apps[0].clone().oneshot(head).await.unwrap()).await, "");
    assert!(asks(&apps[1], "/me", &[]).await.starts_with("GET"));
}

/// axum strips the prefix of nested routers from the URI that their layers see, and keeps the whole of it aside.
#[tokio::test]
async fn nested_routers_do_not_answer_for_each_other() {
    let flight = SingleFlight::builder(AnswerCodec)
        .pass_for(std::time::Duration::from_millis(1))
        .ttl(HOUR)
        .build(&Store::in_memory(), "public")
        .unwrap();
    let key = SharedGet::new(path_and_query().uri(|uri: &OriginalUri| &uri.0));
    let layer = single_flight(flight, key);
    let version =
        |text: &'static str| Router::new().route("/prices", on_get(async move || text)).layer(layer.clone());
    let app = Router::new().nest("/v1", version("one")).nest("/v2", version("two"));
    let told = (asks(&app, "/v1/prices", &[]).await, asks(&app, "/v2/prices", &[]).await);
    assert_eq!(told, ("one".into(), "two".into()));
}

#[tokio::test]
async fn a_client_cannot_hold_up_what_is_refreshed_in_the_background() {
    let origin = Origin::default();
    let app = origin.behind(&Store::in_memory(), |flight| {
        flight.ttl(Duration::from_millis(1)).stale_while_revalidate(HOUR)
    });
    asks(&app, "/plain", &[]).await;
    let handled = origin.handled();
    eventually("a fresh answer to be made", SOON, async || {
        drop(asks(&app, "/plain", &[]).await);
        origin.handled() > handled + 2
    })
    .await;
}
