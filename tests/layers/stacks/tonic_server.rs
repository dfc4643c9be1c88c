//! A tonic server behind the layer: what its clients get is a status.

use std::time::Duration;

use tonic::Code;
use tower_distributed::extract::{client_ip, header};
use tower_distributed::{RateLimitLayer, grpc};

use crate::health::{check, retry_delay, serve_health};
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(refusals_are_resource_exhausted_with_a_retry_delay, peers_are_known_by_their_address);

async fn refusals_are_resource_exhausted_with_a_retry_delay(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(2, &stores.open()), header("x-tenant").unwrap().plain());
    let channel = serve_health!(limit.reject_with(grpc::refuse()));
    check(&channel, "ann").await.unwrap();
    check(&channel, "ann").await.unwrap();
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let delay = retry_delay(&status);
    let within = Duration::from_secs(3500)..=Duration::from_secs(3600);
    assert!(delay.is_some_and(|delay| within.contains(&delay)), "{delay:?}");
    check(&channel, "bob").await.unwrap();
}

async fn peers_are_known_by_their_address(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    let channel = serve_health!(RateLimitLayer::new(bucket.clone(), client_ip()).reject_with(grpc::refuse()));
    check(&channel, "ann").await.unwrap();
    assert_eq!(check(&channel, "bob").await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(bucket.peek("127.0.0.1").await.unwrap().remaining(), 0);
}
