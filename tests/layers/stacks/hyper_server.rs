//! A hyper server through hyper-util, with bodies of its own choice.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use tower::{ServiceBuilder, service_fn};
use tower_distributed::RateLimitLayer;
use tower_distributed::extract::header;
use tower_distributed::response::{RateLimitFields, refuse};
use tower_distributed::token_bucket::Decision;
use tower_distributed::web::insert_decision;

use crate::net::{get, serve_each as serve};
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(full_bodies);

async fn full_bodies(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), header("x-api-key").unwrap().plain())
        .fields(RateLimitFields::default())
        .reject_with(refuse())
        .on_admit(insert_decision);
    let remaining = service_fn(async |request: Request<Incoming>| {
        let decision: Option<&Decision> = request.extensions().get();
        let body = decision.map_or("no limit".into(), |decision| decision.remaining().to_string());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(body)))
    });
    let url = serve(ServiceBuilder::new().layer(limit).service(remaining)).await;
    let allowed = get(&url, &[("x-api-key", "ann")]).await;
    assert_eq!((allowed.status, &*allowed.body), (StatusCode::OK, "0"));
    assert_eq!(allowed.header("ratelimit"), Some(r#""default";r=0;t=3600"#));
    let refused = get(&url, &[("x-api-key", "ann")]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::TOO_MANY_REQUESTS, &429.into()));
    let without_key = get(&url, &[]).await;
    assert_eq!(without_key.status, StatusCode::BAD_REQUEST);
    assert_eq!(without_key.json()["detail"], "the header field x-api-key is missing");
}
