//! The HTTP layer of single flights: a hit in the local cache, and an origin that fails.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tower::{Service as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::extract::shared_get;
use tower_distributed::response::AnswerCodec;
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, Store};

use crate::common::Bench;
use crate::common::report::figure;
use crate::common::stats::median;

const HIT: &str = "l1-hit-ns";
const FAILING: &str = "failing-origin-seconds";
const BODY: usize = 10 * 1024;
const REQUESTS: usize = 20_000;
const CALLERS: usize = 100;

pub fn run(bench: &Bench) {
    if bench.settings.wants(HIT) {
        let hits =
            (0..bench.settings.rounds).map(|_| bench.runtime.block_on(hit(&bench.server.url)));
        let nanos = median(hits.collect::<Vec<_>>());
        figure(
            HIT,
            "ns of a request through web::single_flight, 10 KiB in the local cache",
            nanos,
        );
    }
    if bench.settings.wants(FAILING) {
        bench.server.empty();
        let seconds = bench.runtime.block_on(failing(&bench.server.url));
        let measures =
            "s until 100 callers over 2 stores are answered; the origin answers 500 after 1 s";
        figure(FAILING, measures, seconds);
    }
}

/// Nanoseconds per request.
async fn hit(url: &str) -> f64 {
    let store = Store::redis(url).unwrap();
    let flight = SingleFlight::builder(AnswerCodec)
        .ttl(Duration::from_secs(600))
        .local_cache(1 << 20);
    let layer = single_flight(flight.build(&store, "local").unwrap(), shared_get());
    let answer =
        async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from(vec![7; BODY])));
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(answer));
    let request = || {
        let request = Request::get("/prices?of=tea")
            .header("host", "api.example.com")
            .header("accept", "*/*");
        request
            .header("user-agent", "bench")
            .body(Body::empty())
            .unwrap()
    };
    // Until the subscription stands, which says what is forgotten.
    for _ in 0..200 {
        let response = service
            .ready()
            .await
            .unwrap()
            .call(request())
            .await
            .unwrap();
        assert_eq!(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .len(),
            BODY
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let requests: Vec<_> = (0..REQUESTS).map(|_| request()).collect();
    let began = Instant::now();
    for request in requests {
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    began.elapsed().as_nanos() as f64 / REQUESTS as f64
}

/// Until the last is answered.
async fn failing(url: &str) -> f64 {
    let processes = [(); 2].map(|()| {
        let flight = SingleFlight::builder(AnswerCodec)
            .build(&Store::redis(url).unwrap(), "failing")
            .unwrap();
        let origin = async |_: Request<Body>| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut response = Response::new(Body::from("out of order"));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            Ok::<_, Infallible>(response)
        };
        ServiceBuilder::new()
            .layer(single_flight(flight, shared_get()))
            .service(service_fn(origin))
    });
    let began = Instant::now();
    let calls = (0..CALLERS).map(|number| {
        let request = Request::get("/")
            .header("host", "api.example.com")
            .body(Body::empty())
            .unwrap();
        tokio::spawn(processes[number % 2].clone().oneshot(request))
    });
    for response in join_all(calls).await {
        assert_eq!(
            response.unwrap().unwrap().status(),
            StatusCode::INTERNAL_SERVER_ERROR
        );
    }
    began.elapsed().as_secs_f64()
}
