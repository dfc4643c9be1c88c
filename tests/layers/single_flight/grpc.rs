//! tonic: calls are passed by what shares HTTP responses; typed services over a client can be shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use http::Request;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::layer::util::Stack;
use tower::util::MapRequestLayer;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::extract::{SharedGet, header, shared_get};
use tower_distributed::response::AnswerCodec;
use tower_distributed::single_flight::{Codec, SingleFlightBuilder};
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, SingleFlightLayer, grpc};

use crate::health::{question, serve_health};
use crate::stores::{HOUR, Stores, on_each_store};

on_each_store!(
    calls_are_passed,
    typed_answers_are_shared,
    typed_failures_are_shared_where_the_flight_says_so,
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
        let mut stream = client.clone().watch(question("ann")).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
    }};
}

/// By a server, by a channel, and where a key of one's own lets calls take part: their answers are still not shared, and a
/// stream is not held back.
async fn calls_are_passed(stores: Stores) {
    let flight = || SingleFlight::builder(AnswerCodec).ttl(HOUR).build(&stores.open(), "calls").unwrap();
    let (channel, calls) = serve!(single_flight(flight(), shared_get()));
    call!(channel);
    assert_eq!(calls.load(Ordering::SeqCst), 11);
    let (channel, calls) = serve!(tower::layer::util::Identity::new());
    call!(ServiceBuilder::new().layer(single_flight(flight(), shared_get())).service(channel));
    assert_eq!(calls.load(Ordering::SeqCst), 11);
    let layer = single_flight(flight(), SharedGet::new(header("x-tenant").unwrap()));
    let (channel, calls) = serve!(layer.reject_with(grpc::refuse()));
    call!(channel);
    assert_eq!(calls.load(Ordering::SeqCst), 11);
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
