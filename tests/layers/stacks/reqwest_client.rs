//! reqwest's `Client` as a service, guarded.

use std::time::Duration;

use reqwest::{Method, Request, StatusCode};
use tower::{Service as _, ServiceBuilder, ServiceExt as _};
use tower_distributed::{RateLimitLayer, Refusal, RefusalKind};

use crate::net::client;
use crate::stores::{Stores, at_most, on_each_store};
use crate::upstream::Upstream;

on_each_store!(refused_requests_never_leave);

fn request(upstream: &Upstream) -> Request {
    Request::new(Method::GET, upstream.url.parse().unwrap())
}

fn by_host(request: &Request) -> Option<&str> {
    request.url().host_str()
}

async fn refused_requests_never_leave(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let mut guarded = ServiceBuilder::new().layer(limit).service(client());
    let response = guarded.ready().await.unwrap().call(request(&upstream)).await.unwrap();
    assert_eq!((response.status(), response.text().await.unwrap()), (StatusCode::OK, "hello".into()));
    let error = guarded.ready().await.unwrap().call(request(&upstream)).await.unwrap_err();
    let refusal = error.downcast_ref::<Refusal>().unwrap();
    assert_eq!(refusal.kind(), RefusalKind::RateLimited);
    assert!(refusal.retry_after().is_some_and(|after| after > Duration::from_secs(3500)));
    assert_eq!(upstream.requests(), 1);
}
