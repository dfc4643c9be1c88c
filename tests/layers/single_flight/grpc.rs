//! tonic: calls are passed by what shares HTTP responses; typed services over a client can be shared.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use http::Request;
use tokio_test::{assert_pending, task};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::layer::util::Stack;
use tower::util::MapRequestLayer;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::StoreFailure;
use tower_distributed::extract::{SharedGet, header, shared_get};
use tower_distributed::response::{Answer, AnswerCodec, Responses};
use tower_distributed::single_flight::{Codec, SingleFlightBuilder};
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, SingleFlightLayer, Store, grpc};

use crate::health::{check, question, retry_delay, serve_health};
use crate::stores::{HOUR, SOON, Stores, away, on_each_store};
use support::eventually;

on_each_store!(
    a_server_passes_calls,
    a_channel_passes_calls,
    what_is_taken_for_alike_is_passed_too,
    typed_answers_are_shared,
    typed_failures_are_shared_where_the_flight_says_so,
    a_wait_that_is_too_long_ends_as_unavailable,
);

/// Serves gRPC health checks behind a layer; the channel, and how many calls have arrived.
macro_rules! serve {
    ($layer:expr) => {{
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let count = MapRequestLayer::new(move |request: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            request
        });
        (serve_health!(Stack::new(count, $layer)), calls)
    }};
}

type Builder = SingleFlightBuilder<Answer, Infallible>;

fn builder() -> Builder {
    SingleFlight::builder(AnswerCodec).ttl(HOUR).lease_ttl(Duration::from_secs(20))
}

fn build(builder: Builder, store: &Store) -> SingleFlight<Answer> {
    builder.build(store, "calls").unwrap()
}

async fn a_server_passes_calls(stores: Stores) {
    let (channel, calls) = serve!(single_flight(build(builder(), &stores.open()), shared_get()));
    for outcome in join_all((0..10).map(|_| check(&channel, "ann"))).await {
        outcome.unwrap();
    }
    let mut stream = HealthClient::new(channel).watch(question("ann")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 11);
}

async fn a_channel_passes_calls(stores: Stores) {
    let (channel, calls) = serve!(tower::layer::util::Identity::new());
    let layer = single_flight(build(builder(), &stores.open()), shared_get());
    let client = HealthClient::new(ServiceBuilder::new().layer(layer).service(channel));
    let all = (0..10).map(|_| {
        let mut client = client.clone();
        async move { client.check(question("ann")).await }
    });
    for outcome in join_all(all).await {
        outcome.unwrap();
    }
    let mut stream = client.clone().watch(question("ann")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 11);
}

/// A key of one's own lets calls take part; their answers are still not shared, and a stream is not held back.
async fn what_is_taken_for_alike_is_passed_too(stores: Stores) {
    let layer = single_flight(build(builder(), &stores.open()), SharedGet::new(header("x-tenant").unwrap()));
    let (channel, calls) = serve!(layer.reject_with(grpc::refuse()));
    for outcome in join_all((0..10).map(|_| check(&channel, "ann"))).await {
        outcome.unwrap();
    }
    let mut stream = HealthClient::new(channel.clone()).watch(question("ann")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    check(&channel, "ann").await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 12);
}

/// Of an answer the status, of a failure the code.
struct Numbers;

impl Codec<i32> for Numbers {
    fn name(&self) -> &str {
        "serving/1"
    }

    fn encode(&self, answer: &i32) -> Result<Vec<u8>, BoxError> {
        Ok(answer.to_be_bytes().into())
    }

    fn decode(&self, bytes: &[u8]) -> Result<i32, BoxError> {
        Ok(i32::from_be_bytes(bytes.try_into()?))
    }
}

impl Codec<Status> for Numbers {
    fn name(&self) -> &str {
        "code/1"
    }

    fn encode(&self, failure: &Status) -> Result<Vec<u8>, BoxError> {
        self.encode(&i32::from(failure.code()))
    }

    fn decode(&self, bytes: &[u8]) -> Result<Status, BoxError> {
        let code: i32 = self.decode(bytes)?;
        Ok(Status::new(Code::from(code), "as somebody else was told"))
    }
}

/// Asks for services by name, as two processes; what comes of it, and how many calls arrive.
async fn typed(
    stores: &Stores,
    set: fn(SingleFlightBuilder<i32, Status>) -> SingleFlightBuilder<i32, Status>,
    name: &'static str,
) -> (Vec<Result<i32, Code>>, usize) {
    let (channel, calls) = serve!(tower::layer::util::Identity::new());
    let process = || {
        let client = HealthClient::new(channel.clone());
        let check = service_fn(move |name: String| {
            let mut client = client.clone();
            async move { Ok(client.check(HealthCheckRequest { service: name }).await?.into_inner().status) }
        });
        let flight = set(SingleFlight::builder(Numbers).ttl(HOUR)).build(&stores.open(), "health").unwrap();
        ServiceBuilder::new()
            .layer(SingleFlightLayer::new(flight, |name: &String| name.clone()))
            .service(check)
    };
    let (here, there) = (process(), process());
    let all = (0..10).map(|number| if number % 2 == 0 { &here } else { &there }.clone().oneshot(name.into()));
    let told = join_all(all)
        .await
        .into_iter()
        .map(|outcome| outcome.map_err(|error: BoxError| error.downcast_ref::<Status>().unwrap().code()));
    (told.collect(), calls.load(Ordering::SeqCst))
}

async fn typed_answers_are_shared(stores: Stores) {
    assert_eq!(typed(&stores, |flight| flight, "").await, (vec![Ok(1); 10], 1));
}

async fn typed_failures_are_shared_where_the_flight_says_so(stores: Stores) {
    let (told, calls) = typed(&stores, |flight| flight, "nobody").await;
    assert_eq!((told, calls), (vec![Err(Code::NotFound); 10], 10));
    let (told, calls) = typed(&stores, |flight| flight.share_errors(Numbers).error_ttl(HOUR), "nobody").await;
    assert_eq!((told, calls), (vec![Err(Code::NotFound); 10], 1));
}

/// A call while somebody in another process holds the key.
async fn a_wait_that_is_too_long_ends_as_unavailable(stores: Stores) {
    let other = build(builder(), &stores.open());
    let held = Arc::new(AtomicUsize::new(0));
    let holds = Arc::clone(&held);
    let mut holding = task::spawn(other.run("ann", move || {
        holds.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    }));
    eventually("it to be held", SOON, async || {
        assert_pending!(holding.poll());
        held.load(Ordering::SeqCst) == 1
    })
    .await;
    let flight = build(builder().max_wait(Duration::from_millis(30)), &stores.open());
    let layer =
        SingleFlightLayer::new(flight, header("x-tenant").unwrap().plain()).capture(Responses::default());
    let (channel, _) = serve!(layer.reject_with(grpc::refuse()));
    let status = check(&channel, "ann").await.unwrap_err();
    drop(holding);
    eventually("it to be free", SOON, async || check(&channel, "ann").await.is_ok()).await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(retry_delay(&status).is_none());
}

#[tokio::test]
async fn an_outage_is_unavailable() {
    let flight = build(builder().on_store_failure(StoreFailure::FailClosed), &away());
    let layer =
        SingleFlightLayer::new(flight, header("x-tenant").unwrap().plain()).capture(Responses::default());
    let (channel, calls) = serve!(layer.reject_with(grpc::refuse()));
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!((status.code(), calls.load(Ordering::SeqCst)), (Code::Unavailable, 0));
    assert!(!status.message().contains("127.0.0.1"), "the cause is ours alone: {status}");
}
