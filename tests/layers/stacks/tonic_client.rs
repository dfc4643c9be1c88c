//! A tonic client whose channel is guarded: calls that are refused never leave.

use std::error::Error as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Request;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower::layer::util::Identity;
use tower_distributed::{RateLimitLayer, Refusal, RefusalKind, grpc};

use crate::health::{question, retry_delay, serve_counted};
use crate::net::listen;
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(refusals_are_statuses, refusals_are_errors_by_default);

fn by_method(request: &Request<Body>) -> &str {
    request.uri().path()
}

async fn refusals_are_statuses(stores: Stores) {
    let (channel, calls) = serve_counted!(Identity::new());
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_method).reject_with(grpc::refuse());
    let mut client = HealthClient::new(ServiceBuilder::new().layer(limit).service(channel));
    client.check(question("ann")).await.unwrap();
    let status = client.check(question("ann")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let delay = retry_delay(&status);
    assert!(delay.is_some_and(|delay| delay > Duration::from_secs(3500)), "{delay:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    // A method with a bucket of its own, and a stream for an answer.
    client.watch(question("ann")).await.unwrap().into_inner().message().await.unwrap().unwrap();
}

async fn refusals_are_errors_by_default(stores: Stores) {
    let (channel, calls) = serve_counted!(Identity::new());
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_method);
    let mut client = HealthClient::new(ServiceBuilder::new().layer(limit).service(channel));
    client.check(question("ann")).await.unwrap();
    let status = client.check(question("ann")).await.unwrap_err();
    assert_eq!(refusal(&status).kind(), RefusalKind::RateLimited);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

fn refusal(status: &Status) -> &Refusal {
    status.source().and_then(|source| source.downcast_ref()).unwrap_or_else(|| panic!("{status:?}"))
}

#[tokio::test]
async fn errors_of_the_channel_stay_what_they_were() {
    let (listener, address) = listen().await;
    drop(listener);
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let plain = HealthClient::new(channel.clone()).check(question("ann")).await.unwrap_err();
    let limit = RateLimitLayer::new(at_most(1, &tower_distributed::Store::in_memory()), by_method);
    let guarded = ServiceBuilder::new().layer(limit).service(channel);
    let status = HealthClient::new(guarded).check(question("ann")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (plain.code(), plain.message()));
}
