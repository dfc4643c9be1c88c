//! A tonic server behind the layer: what its clients get is a status.

use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_distributed::extract::header;
use tower_distributed::{DedupeLayer, Store, grpc};

use crate::health::{retry_delay, serve_health};
use crate::items::{claim, dedupe, handled, is_handled};
use crate::stores::{SOON, Stores, away, on_each_store};

on_each_store!(a_duplicate_already_exists, what_is_in_flight_is_aborted, only_ok_counts_as_handled);

/// Serves gRPC health checks, each once.
async fn serve(store: &Store, wait: Option<Duration>) -> Channel {
    let mut layer = DedupeLayer::new(dedupe(store), header("message-id").unwrap().plain())
        .success(grpc::is_handled)
        .reject_with(grpc::refuse());
    if let Some(wait) = wait {
        layer = layer.max_wait(wait);
    }
    serve_health!(layer)
}

async fn check(channel: &Channel, id: &str, service: &str) -> Result<(), Status> {
    let mut request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
    request.metadata_mut().insert("message-id", id.parse().unwrap());
    HealthClient::new(channel.clone()).check(request).await.map(drop)
}

async fn a_duplicate_already_exists(stores: Stores) {
    handled(&stores, "m1").await;
    let channel = serve(&stores.open(), None).await;
    check(&channel, "m2", "").await.unwrap();
    for id in ["m1", "m2"] {
        let status = check(&channel, id, "").await.unwrap_err();
        assert_eq!((status.code(), retry_delay(&status)), (Code::AlreadyExists, None));
    }
}

async fn what_is_in_flight_is_aborted(stores: Stores) {
    let other = claim(&stores, "m1").await;
    let status = check(&serve(&stores.open(), None).await, "m1", "").await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert!(retry_delay(&status) == Some(Duration::from_secs(5)), "{status:?}");
    let waiting = serve(&stores.open(), Some(SOON)).await;
    let waiting = tokio::spawn(async move { check(&waiting, "m1", "").await });
    assert!(other.release().await.unwrap());
    waiting.await.unwrap().unwrap();
}

async fn only_ok_counts_as_handled(stores: Stores) {
    let channel = serve(&stores.open(), None).await;
    for _ in 0..2 {
        assert_eq!(check(&channel, "m1", "unknown").await.unwrap_err().code(), Code::NotFound);
        assert_eq!(is_handled(&stores, "m1").await, Some(false));
    }
    check(&channel, "m1", "").await.unwrap();
    assert_eq!(is_handled(&stores, "m1").await, Some(true));
}

#[tokio::test]
async fn an_outage_is_unavailable() {
    let status = check(&serve(&away(), None).await, "m1", "").await.unwrap_err();
    assert_eq!(
        (status.code(), retry_delay(&status)),
        (Code::Unavailable, Some(std::time::Duration::from_secs(1)))
    );
}
