//! A tonic client whose channel is guarded: calls that are refused never leave.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Request;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;
use tower::ServiceBuilder;
use tower_distributed::{RateLimitLayer, Refusal, RefusalKind, grpc};

use crate::net::listen;
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(refusals_are_statuses, refusals_are_errors_by_default);

/// An upstream that counts how many calls reach it.
struct Upstream {
    channel: Channel,
    calls: Arc<AtomicUsize>,
}

impl Upstream {
    async fn start() -> Self {
        let (listener, address) = listen().await;
        let calls = Arc::new(AtomicUsize::new(0));
        let (_, health) = tonic_health::server::health_reporter();
        let counted = Arc::clone(&calls);
        let count = tower::util::MapRequestLayer::new(move |request: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            request
        });
        let server = Server::builder().layer(count).add_service(health);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { channel, calls }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

fn by_method(request: &Request<Body>) -> &str {
    request.uri().path()
}

fn question() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

async fn refusals_are_statuses(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_method).reject_with(grpc::refuse());
    let mut client = HealthClient::new(ServiceBuilder::new().layer(limit).service(upstream.channel.clone()));
    client.check(question()).await.unwrap();
    let status = client.check(question()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let delay = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert!(delay.is_some_and(|delay| delay > Duration::from_secs(3500)), "{delay:?}");
    assert_eq!(upstream.calls(), 1);
    // A method with a bucket of its own, and a stream for an answer.
    client.watch(question()).await.unwrap().into_inner().message().await.unwrap().unwrap();
}

async fn refusals_are_errors_by_default(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_method);
    let mut client = HealthClient::new(ServiceBuilder::new().layer(limit).service(upstream.channel.clone()));
    client.check(question()).await.unwrap();
    let status = client.check(question()).await.unwrap_err();
    assert_eq!(refusal(&status).kind(), RefusalKind::RateLimited);
    assert_eq!(upstream.calls(), 1);
}

fn refusal(status: &Status) -> &Refusal {
    status.source().and_then(|source| source.downcast_ref()).unwrap_or_else(|| panic!("{status:?}"))
}

#[tokio::test]
async fn errors_of_the_channel_stay_what_they_were() {
    let (listener, address) = listen().await;
    drop(listener);
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let plain = HealthClient::new(channel.clone()).check(question()).await.unwrap_err();
    let limit = RateLimitLayer::new(at_most(1, &tower_distributed::Store::in_memory()), by_method);
    let guarded = ServiceBuilder::new().layer(limit).service(channel);
    let status = HealthClient::new(guarded).check(question()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (plain.code(), plain.message()));
}
