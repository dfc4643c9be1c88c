//! axum: the layer on routers and routes, without a `HandleErrorLayer`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::routing::get as on_get;
use http::{Request, Response, StatusCode};
use tower::{Layer as _, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::extract::{SharedGet, shared_get};
use tower_distributed::response::AnswerCodec;
use tower_distributed::web::{InsertLease, single_flight};
use tower_distributed::{LeaseHandle, SingleFlight, Store};

use crate::net::{client, get, serve};
use crate::stores::{HOUR, Stores, on_each_store};
use crate::upstream::Upstream;

on_each_store!(handlers_can_have_the_lease, clients_that_go_away_hand_over);

fn flight(store: &Store) -> SingleFlight<tower_distributed::response::Answer> {
    SingleFlight::builder(AnswerCodec).ttl(HOUR).build(store, "pages").unwrap()
}

async fn handlers_can_have_the_lease(stores: Stores) {
    let layer = single_flight(flight(&stores.open()), shared_get()).on_lease(InsertLease);
    let fence = async |lease: Option<Extension<LeaseHandle>>| {
        lease.map_or("none".into(), |lease| format!("{:?}", lease.token()))
    };
    let url = serve(Router::new().route("/", on_get(fence)).layer(layer)).await;
    let told = get(&url, &[]).await.body;
    assert!(told.len() > 4 && told != "none", "{told}");
    assert_eq!(get(&url, &[]).await.body, told);
    assert_eq!(get(&url, &[("cookie", "a=b")]).await.body, "none");
}

/// A connection that is closed drops its response future, in the midst of a flight.
async fn clients_that_go_away_hand_over(stores: Stores) {
    let upstream = Upstream::start().await;
    let hangs = Arc::new(AtomicUsize::new(2));
    let app = async || {
        let layer = single_flight(flight(&stores.open()), SharedGet::new(|_: &Request<Body>| "all"));
        let (url, hangs) = (upstream.url.clone(), Arc::clone(&hangs));
        let proxy = move |_: Request<Body>| {
            // The first two never get an answer.
            let hang =
                hangs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            let url = if hang { format!("{url}/hang") } else { format!("{url}/") };
            async move { client().get(url).send().await.unwrap().text().await.unwrap() }
        };
        serve(Router::new().fallback(proxy).layer(layer)).await
    };
    let urls = [app().await, app().await, app().await];
    let ask = |process: usize| tokio::spawn(client().get(&urls[process]).send());
    let first = ask(0);
    upstream.reached_by(1).await;
    let second = ask(1);
    first.abort();
    upstream.reached_by(2).await;
    let others = [ask(2), ask(0), ask(2)];
    second.abort();
    for other in others {
        assert_eq!(other.await.unwrap().unwrap().text().await.unwrap(), "hello");
    }
    assert_eq!(upstream.requests(), 3);
}

/// Held by the compiler: what cannot fail still cannot.
#[tokio::test]
async fn a_service_that_cannot_fail_still_cannot() {
    fn cannot_fail<S: Service<Request<Body>, Error = Infallible>>(service: S) -> S {
        service
    }
    let layer = single_flight(flight(&Store::in_memory()), shared_get());
    let hello =
        tower::service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("hello"))));
    let service = cannot_fail(ServiceBuilder::new().layer(layer.clone()).service(hello));
    let Ok(response) = service.oneshot(Request::new(Body::empty())).await;
    assert_eq!(response.status(), StatusCode::OK);
    let routed = layer.layer(Router::<()>::new().route("/", on_get(async || "hello")));
    let Ok(response) = cannot_fail(routed).oneshot(Request::new(Body::empty())).await;
    assert_eq!(response.status(), StatusCode::OK);
}
