//! A tonic client whose channel is guarded: calls that are refused never leave.

use std::error::Error as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Request;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower::layer::util::Identity;
use tower_distributed::{RateLimitLayer, Refusal, RefusalKind, grpc};

use crate::health::{question, retry_delay, serve_counted};
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(refusals_are_statuses);

fn by_method(request: &Request<Body>) -> &str {
    request.uri().path()
}

/// Where that is set; else they are errors.
async fn refusals_are_statuses(stores: Stores) {
    let (channel, calls) = serve_counted!(Identity::new());
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_method);
    let plain = ServiceBuilder::new()
        .layer(limit.clone())
        .service(channel.clone());
    let limit = limit.reject_with(grpc::refuse());
    let mut client = HealthClient::new(ServiceBuilder::new().layer(limit).service(channel));
    client.check(question("ann")).await.unwrap();
    let status = client.check(question("ann")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let delay = retry_delay(&status);
    assert!(
        delay.is_some_and(|delay| delay > Duration::from_secs(3500)),
        "{delay:?}"
    );
    let status = HealthClient::new(plain)
        .check(question("ann"))
        .await
        .unwrap_err();
    assert_eq!(refusal(&status).kind(), RefusalKind::RateLimited);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    // A method with a bucket of its own, and a stream for an answer.
    client
        .watch(question("ann"))
        .await
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap()
        .unwrap();
}

fn refusal(status: &Status) -> &Refusal {
    status
        .source()
        .and_then(|source| source.downcast_ref())
        .unwrap_or_else(|| panic!("{status:?}"))
}
