//! Limits that adapt, beside clients that upload slowly, and beside errors that do not depend on the load.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use futures::stream;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::wait_group::{Adaptive, Signal};
use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup, web};

use crate::common::Bench;
use crate::common::report::{figure, note};

const SLOW: &str = "adaptive-slow-clients-goodput";
const ERRORS: [(u32, &str); 4] = [
    (1, "adaptive-constant-errors-throughput-1"),
    (2, "adaptive-constant-errors-throughput-2"),
    (5, "adaptive-constant-errors-throughput-5"),
    (20, "adaptive-constant-errors-throughput-20"),
];
const CALLERS: usize = 100;
const SERVICE: Duration = Duration::from_millis(30);
const FAR: Duration = Duration::from_secs(60);

pub fn run(bench: &Bench) {
    if bench.settings.wants(SLOW) {
        let span = bench.settings.length * 20;
        let measure =
            |adaptive: Adaptive, slow| bench.runtime.block_on(served(bench, adaptive, slow, span));
        let ratios = [("aimd", Adaptive::aimd()), ("gradient", Adaptive::gradient())].map(|(name, adaptive)| {
            let (without, with) = (measure(adaptive, 0), measure(adaptive, 40));
            note(format!("{name}: {with:.0}/s beside 40 clients that upload 6 bytes in 6 s, {without:.0}/s without."));
            with / without
        });
        let measures = "answers/s to 8 callers beside 40 slow uploads ÷ without, the lower of aimd and gradient";
        figure(SLOW, measures, ratios[0].min(ratios[1]));
    }
    if ERRORS.iter().any(|(_, name)| bench.settings.wants(name)) {
        errors(bench);
    }
}

fn errors(bench: &Bench) {
    let span = bench.settings.length * 10;
    let kinds: [fn() -> Adaptive; 2] = [Adaptive::aimd, Adaptive::gradient];
    let measure = |kind: fn() -> Adaptive, fails| {
        bench
            .runtime
            .block_on(succeeded(bench, kind(), fails, span))
    };
    let without = kinds.map(|kind| measure(kind, 0));
    for (fails, name) in ERRORS {
        if bench.settings.wants(name) {
            let with = kinds.map(|kind| measure(kind, fails));
            let [aimd, gradient] = [with[0] / without[0], with[1] / without[1]];
            note(format!(
                "{fails} % of errors: aimd {aimd:.3}, gradient {gradient:.3} of the same without errors."
            ));
            let measures =
                "successes/s with errors at any load ÷ without, the lower of aimd and gradient";
            figure(name, measures, aimd.min(gradient));
        }
    }
}

fn permits(bench: &Bench, limit: u32) -> WaitGroup {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let name = format!("faults-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    WaitGroup::new(
        &Store::builder().redis(&bench.server.url).unwrap(),
        &name,
        limit,
    )
    .unwrap()
}

/// Answers per second to eight callers, beside so many clients that upload slowly.
async fn served(bench: &Bench, adaptive: Adaptive, slow: usize, span: Duration) -> f64 {
    let limit = web::concurrency_limit(permits(bench, 200), |_: &Request<Body>| "all");
    let limit = limit.watch_body(Body::new).adaptive(adaptive).unwrap();
    let service =
        BoxCloneSyncService::new(limit.layer(service_fn(async |request: Request<Body>| {
            let is_whole = request.into_body().collect().await.is_ok();
            sleep(Duration::from_millis(5)).await;
            Ok::<_, Infallible>(
                Response::builder()
                    .status(if is_whole { 200 } else { 400 })
                    .body(Body::empty())
                    .unwrap(),
            )
        })));
    let (mut callers, served) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for caller in 0..slow + 8 {
        let (service, served) = (service.clone(), Arc::clone(&served));
        callers.spawn(async move {
            loop {
                let body = if caller < slow {
                    upload()
                } else {
                    Body::from("usual")
                };
                let answer = service
                    .clone()
                    .oneshot(Request::post("/").body(body).unwrap())
                    .await
                    .unwrap();
                if caller >= slow && answer.status() == 200 {
                    served.fetch_add(1, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
    }
    sleep(span).await;
    served.load(Ordering::Relaxed) as f64 / span.as_secs_f64()
}

/// Six bytes in 6 s.
fn upload() -> Body {
    Body::from_stream(stream::unfold(0, |sent| async move {
        if sent == 6 {
            return None;
        }
        sleep(Duration::from_secs(1)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"x")), sent + 1))
    }))
}

/// Successes per second of a service without a limit of its own, which fails so many per cent of its requests.
async fn succeeded(bench: &Bench, adaptive: Adaptive, fails: u32, span: Duration) -> f64 {
    let adaptive = adaptive.classify(|outcome: &Result<(), io::Error>| match outcome {
        Ok(()) => Signal::Success,
        Err(_) => Signal::Overload,
    });
    let limit = ConcurrencyLimitLayer::new(permits(bench, 100), |(): &()| "all").max_wait(FAR);
    let service = limit
        .adaptive(adaptive)
        .unwrap()
        .layer(service_fn(move |()| async move {
            sleep(SERVICE).await;
            if rand::random_range(0..100) < fails {
                Err(io::Error::other("it fails"))
            } else {
                Ok(())
            }
        }));
    let (mut callers, succeeded) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for _ in 0..CALLERS {
        let (service, succeeded) = (service.clone(), Arc::clone(&succeeded));
        callers.spawn(async move {
            loop {
                let outcome: Result<(), BoxError> = service.clone().oneshot(()).await;
                succeeded.fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed);
            }
        });
    }
    let began = Instant::now();
    sleep(span).await;
    succeeded.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}
