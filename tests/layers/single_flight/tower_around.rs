//! Around hyper's client, and among tower's own layers: they see its readiness and its delays, and it sees theirs.

use std::convert::Infallible;

use futures::future::join_all;
use http::{Request, StatusCode};
use tower::util::BoxCloneService;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::SingleFlightLayer;
use tower_distributed::response::{Answer, Responses};

use crate::flights::pages;
use crate::stores::{Stores, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(one_request_of_many_leaves);

type By = fn(&Request<String>) -> &'static str;
type Flights = SingleFlightLayer<Request<String>, Answer, Infallible, Responses>;

async fn one_request_of_many_leaves(stores: Stores) {
    let by: By = |_| "all";
    let flights: Flights = SingleFlightLayer::new(pages(&stores), by).capture(Responses::default());
    let inner = ServiceBuilder::new()
        .buffer(32)
        .concurrency_limit(3)
        .service(hyper_client());
    let flying = ServiceBuilder::new()
        .layer(flights)
        .service(BoxCloneService::new(inner));
    let service = ServiceBuilder::new()
        .buffer(8)
        .concurrency_limit(3)
        .service(BoxCloneService::new(flying));
    let upstream = Upstream::start().await;
    let calls = (0..20).map(|_| service.clone().oneshot(upstream.get()));
    for outcome in join_all(calls).await {
        assert_eq!(outcome.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(upstream.requests(), 1);
}
