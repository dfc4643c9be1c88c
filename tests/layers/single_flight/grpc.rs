//! tonic: calls are passed by what shares HTTP responses.

use std::sync::atomic::Ordering;

use futures::future::join_all;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower::layer::util::Identity;
use tower_distributed::extract::{SharedGet, header, shared_get};
use tower_distributed::grpc;
use tower_distributed::web::single_flight;

use crate::flights::pages;
use crate::health::{question, serve_counted as serve};
use crate::stores::{Stores, on_each_store};

on_each_store!(calls_are_passed);

/// Ten calls at once, and one for a stream.
macro_rules! call {
    ($channel:expr) => {{
        let client = HealthClient::new($channel);
        let calls = (0..10).map(|_| {
            let mut client = client.clone();
            async move { client.check(question("ann")).await }
        });
        for outcome in join_all(calls).await {
            outcome.unwrap();
        }
        let mut stream = client
            .clone()
            .watch(question("ann"))
            .await
            .unwrap()
            .into_inner();
        stream.message().await.unwrap().unwrap();
    }};
}

/// By a server, by a channel, and where a key of one's own lets calls take part: their answers are still not shared, and a
/// stream is not held back.
async fn calls_are_passed(stores: Stores) {
    let (channel, calls) =
        serve!(single_flight(pages(&stores), shared_get()).reject_with(grpc::refuse()));
    call!(channel);
    assert_eq!(calls.load(Ordering::SeqCst), 11);
    let (channel, calls) = serve!(Identity::new());
    call!(
        ServiceBuilder::new()
            .layer(single_flight(pages(&stores), shared_get()).reject_with(grpc::refuse()))
            .service(channel)
    );
    assert_eq!(calls.load(Ordering::SeqCst), 11);
    let layer = single_flight(pages(&stores), SharedGet::new(header("x-tenant").unwrap()));
    let (channel, calls) = serve!(layer.reject_with(grpc::refuse()));
    call!(channel);
    assert_eq!(calls.load(Ordering::SeqCst), 11);
}
