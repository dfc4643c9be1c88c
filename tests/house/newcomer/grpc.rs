//! A limit per gRPC method and client.

use std::net::Ipv4Addr;

use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_distributed::extract::{client_ip, grpc_method};
use tower_distributed::{Quota, Store, TokenBucket, grpc};

#[tokio::test]
async fn program() {
    let bucket = TokenBucket::new(&Store::in_memory(), "calls", Quota::per_hour(1)).unwrap();
    let (_reporter, health) = tonic_health::server::health_reporter();
    // user: grpc
    let limit = grpc::rate_limit(bucket, grpc_method().and(client_ip()));
    let server = Server::builder().layer(limit).add_service(health);
    // end
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    client.check(HealthCheckRequest::default()).await.unwrap();
    let refused = client
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    client.watch(HealthCheckRequest::default()).await.unwrap();
}
