//! axum: the layer on a router and on its routes, without a `HandleErrorLayer`.

use axum::routing::get as on_get;
use axum::{Extension, Router};
use http::StatusCode;
use tower::ServiceBuilder;
use tower_distributed::RateLimitLayer;
use tower_distributed::extract::{header, path};
use tower_distributed::response::refuse;
use tower_distributed::token_bucket::Decision;
use tower_distributed::web::insert_decision;

use crate::net::{get, serve};
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(
    routes_share_the_limit_and_handlers_see_the_decision,
    two_processes_share_the_limit,
    route_layer_leaves_unknown_paths_alone,
    service_builder_layers_a_router,
);

async fn remaining(Extension(decision): Extension<Decision>) -> String {
    decision.remaining().to_string()
}

fn api(stores: &Stores) -> Router {
    let layer = RateLimitLayer::new(at_most(3, &stores.open()), header("x-api-key").unwrap().plain())
        .reject_with(refuse())
        .on_admit(insert_decision);
    Router::new().route("/a", on_get(remaining)).route("/b", on_get(remaining)).layer(layer)
}

async fn routes_share_the_limit_and_handlers_see_the_decision(stores: Stores) {
    let url = serve(api(&stores)).await;
    let (a, b) = (format!("{url}/a"), format!("{url}/b"));
    let ann = [("x-api-key", "ann")];
    assert_eq!(get(&a, &ann).await.body, "2");
    assert_eq!(get(&b, &ann).await.body, "1");
    assert_eq!(get(&a, &ann).await.body, "0");
    assert_eq!(get(&b, &ann).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&a, &ann).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&a, &[("x-api-key", "bob")]).await.body, "2");
}

async fn two_processes_share_the_limit(stores: Stores) {
    let (here, there) = (serve(api(&stores)).await, serve(api(&stores)).await);
    let (here, there) = (format!("{here}/a"), format!("{there}/a"));
    let ann = [("x-api-key", "ann")];
    assert_eq!(get(&here, &ann).await.body, "2");
    assert_eq!(get(&there, &ann).await.body, "1");
    assert_eq!(get(&here, &ann).await.body, "0");
    assert_eq!(get(&there, &ann).await.status, StatusCode::TOO_MANY_REQUESTS);
}

async fn route_layer_leaves_unknown_paths_alone(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    let limit = RateLimitLayer::new(bucket, |_: &axum::extract::Request| "all").reject_with(refuse());
    let app = Router::new().route("/", on_get(async || "hello")).route_layer(limit);
    let url = serve(app).await;
    assert_eq!(get(&format!("{url}/nowhere"), &[]).await.status, StatusCode::NOT_FOUND);
    assert_eq!(get(&url, &[]).await.status, StatusCode::OK);
    assert_eq!(get(&url, &[]).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&format!("{url}/nowhere"), &[]).await.status, StatusCode::NOT_FOUND);
}

async fn service_builder_layers_a_router(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    let layers = ServiceBuilder::new()
        .layer(RateLimitLayer::new(bucket.clone(), path()).reject_with(refuse()))
        .layer(RateLimitLayer::new(bucket, header("x-api-key").unwrap().plain()).reject_with(refuse()));
    let url = serve(Router::new().fallback(async || "hello").layer(layers)).await;
    assert_eq!(get(&format!("{url}/1"), &[("x-api-key", "ann")]).await.status, StatusCode::OK);
    assert_eq!(get(&format!("{url}/1"), &[]).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&format!("{url}/2"), &[("x-api-key", "ann")]).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&format!("{url}/3"), &[("x-api-key", "bob")]).await.status, StatusCode::OK);
}
