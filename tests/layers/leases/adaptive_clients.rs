//! A limit that adapts moves by what the service does, and not by what its clients do. In virtual time.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::post;
use futures::stream;
use http_body_util::BodyExt as _;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::wait_group::Adaptive;
use tower_distributed::{Store, WaitGroup, web};

const START: u32 = 200;
const MINUTE: Duration = Duration::from_secs(60);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Reads its request, then works for 5 ms.
async fn handle(request: Request) -> StatusCode {
    match request.into_body().collect().await {
        Ok(_) => {}
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR,
    }
    sleep(ms(5)).await;
    StatusCode::OK
}

/// A service with an adaptive limit, and its permits.
fn service(adaptive: Adaptive, handler: Router) -> (WaitGroup, Router) {
    let group = WaitGroup::new(&Store::in_memory(), "api", START).unwrap();
    let limit = web::concurrency_limit(group.clone(), |_: &Request<Body>| "all")
        .adaptive(adaptive)
        .unwrap();
    (group, Router::new().fallback_service(limit.layer(handler)))
}

/// A body of six bytes, of which each comes after a pause.
fn upload(pause: Duration) -> Body {
    let bytes = stream::unfold(0, move |sent| async move {
        if sent == 6 {
            return None;
        }
        sleep(pause).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"x")), sent + 1))
    });
    Body::from_stream(bytes)
}

/// Callers that each send one request after the other, and how many were served.
fn callers(
    count: usize,
    app: &Router,
    request: impl Fn() -> Body + Clone + Send + 'static,
) -> (JoinSet<()>, Arc<AtomicU64>) {
    let (mut callers, served) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for _ in 0..count {
        let (app, served, request) = (app.clone(), Arc::clone(&served), request.clone());
        callers.spawn(async move {
            loop {
                let response = app
                    .clone()
                    .oneshot(Request::post("/").body(request()).unwrap())
                    .await
                    .unwrap();
                if response.status() == StatusCode::OK {
                    served.fetch_add(1, Ordering::Relaxed);
                }
                sleep(ms(20)).await;
            }
        });
    }
    (callers, served)
}

async fn limit(group: &WaitGroup) -> u32 {
    group
        .inspect_limit("all")
        .await
        .unwrap()
        .map_or(START, |state| state.limit)
}

fn both() -> [Adaptive; 2] {
    [Adaptive::aimd(), Adaptive::gradient()]
}

/// Forty clients that take 6 s for 6 bytes each; or that upload for longer than the timeout of the limit, and give up. They do
/// not overload the service. Beside them are eight that do not. Without the former, 320/s are served.
#[tokio::test(start_paused = true)]
async fn slow_uploads_do_not_lower_the_limit() {
    for gives_up in [false, true] {
        for adaptive in both() {
            let (group, app) = service(adaptive, Router::new().fallback(handle));
            let mut slow: JoinSet<()> = JoinSet::new();
            if gives_up {
                for _ in 0..40 {
                    let app = app.clone();
                    slow.spawn(async move {
                        loop {
                            let request = Request::post("/").body(upload(MINUTE)).unwrap();
                            assert!(
                                timeout(ms(6000), app.clone().oneshot(request))
                                    .await
                                    .is_err()
                            );
                        }
                    });
                }
            } else {
                (slow, _) = callers(40, &app, || upload(ms(1000)));
            }
            let (_usual, served) = callers(8, &app, || Body::from("usual"));
            sleep(MINUTE).await;
            let (served, limit) = (served.load(Ordering::Relaxed), limit(&group).await);
            assert!(
                served > 60 * 300 && limit >= START,
                "{served} served, {limit}"
            );
            drop(slow);
        }
    }
}

/// An upload that breaks fails the request, whatever the handler makes of it.
#[tokio::test(start_paused = true)]
async fn uploads_that_break_are_no_samples() {
    for adaptive in both() {
        let refuses = async |request: Request| match request.into_body().collect().await {
            Ok(_) => StatusCode::OK,
            Err(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let (group, app) = service(adaptive, Router::new().fallback(refuses));
        let broken = || {
            Body::from_stream(stream::iter([Err::<Bytes, _>(std::io::Error::other(
                "it broke",
            ))]))
        };
        let (_broken, _) = callers(40, &app, broken);
        sleep(ms(10_000)).await;
        assert!(limit(&group).await >= START);
    }
}

/// A stream in both directions has no latency: the first part of the answer depends on what the client sends.
#[tokio::test(start_paused = true)]
async fn streams_in_both_directions_give_no_latency() {
    let echo = async |request: Request| {
        let mut body = request.into_body();
        // The head depends on the client, which sends the first message after a while.
        let first = body.frame().await;
        let (sender, answer) = futures::channel::mpsc::unbounded();
        tokio::spawn(async move {
            let mut next = first;
            while let Some(Ok(frame)) = next {
                let sent = sender.unbounded_send(Ok::<_, Infallible>(frame.into_data().unwrap()));
                if sent.is_err() {
                    return;
                }
                next = body.frame().await;
            }
        });
        sleep(ms(5)).await;
        Body::from_stream(answer)
    };
    for adaptive in both() {
        let (group, app) = service(adaptive, Router::new().route("/", post(echo)));
        let mut clients = JoinSet::new();
        for _ in 0..40 {
            let app = app.clone();
            clients.spawn(async move {
                loop {
                    let request = Request::post("/").body(upload(ms(6000))).unwrap();
                    let answer = app.clone().oneshot(request).await.unwrap();
                    assert_eq!(
                        answer.into_body().collect().await.unwrap().to_bytes().len(),
                        6
                    );
                }
            });
        }
        sleep(2 * MINUTE).await;
        let state = group.inspect_limit("all").await.unwrap();
        assert!(
            state.is_none_or(|state| state.latency.is_zero() && state.limit >= START),
            "{state:?}"
        );
    }
}

/// The time that the service itself takes counts, also of requests with slow uploads.
#[tokio::test(start_paused = true)]
async fn the_time_of_the_service_counts_beside_that_of_its_clients() {
    let slow = async |request: Request| {
        request.into_body().collect().await.unwrap();
        sleep(ms(70)).await;
    };
    let (group, app) = service(Adaptive::gradient(), Router::new().fallback(slow));
    let (_clients, _) = callers(40, &app, || upload(ms(100)));
    sleep(ms(20_000)).await;
    let state = group.inspect_limit("all").await.unwrap().unwrap();
    assert!((ms(70)..ms(75)).contains(&state.latency), "{state:?}");
    // A request that the client gives up while the service is late is a sample.
    let hangs = async |request: Request| {
        request.into_body().collect().await.unwrap();
        std::future::pending::<()>().await;
    };
    let (group, app) = service(Adaptive::aimd(), Router::new().fallback(hangs));
    for _ in 0..4 {
        let requests = (0..40).map(|_| {
            let request = Request::post("/").body(upload(ms(100))).unwrap();
            timeout(ms(6000), app.clone().oneshot(request))
        });
        futures::future::join_all(requests).await;
    }
    assert!(limit(&group).await < START);
}
