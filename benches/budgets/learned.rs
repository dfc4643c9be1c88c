//! A fleet that learns the limit of an upstream: four processes of four callers with a wrong guess.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::get;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::response::UpstreamLimits;
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::figure;

const LIMIT: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);
const PROCESSES: usize = 4;
const CALLERS: usize = 4;
/// After the first one.
const WINDOWS: usize = 60;

/// The requests of each window that the upstream has admitted and refused.
type Windows = Arc<Mutex<Vec<[u32; 2]>>>;

pub fn run(bench: &Bench) {
    let [refused, used] = ["learned-429-per-window", "learned-utilisation"];
    if ![refused, used]
        .iter()
        .any(|name| bench.settings.wants(name))
    {
        return;
    }
    let windows = bench.runtime.block_on(fleet(bench));
    let learned = &windows[1..=WINDOWS];
    let most = learned
        .iter()
        .map(|[_, refused]| *refused)
        .max()
        .unwrap_or(0);
    let admitted: u32 = learned.iter().map(|[admitted, _]| admitted).sum();
    figure(
        refused,
        "refusals of a fixed window of 20/s, after the first one, at most",
        most.into(),
    );
    let allowed = LIMIT * WINDOWS as u32;
    figure(
        used,
        "admitted ÷ allowed by the upstream in the minute after its first window",
        f64::from(admitted) / f64::from(allowed),
    );
}

async fn fleet(bench: &Bench) -> Vec<[u32; 2]> {
    let (windows, began) = (Windows::default(), Instant::now());
    let upstream = upstream(&windows, began);
    let callers: Vec<_> = (0..PROCESSES)
        .flat_map(|_| {
            let store = Store::builder().redis(&bench.server.url).unwrap();
            let guess = TokenBucket::new(&store, "upstreams", Quota::per_second(100)).unwrap();
            let layer = RateLimitLayer::new(guess, |_: &Request<Body>| "upstream")
                .max_wait(Duration::from_secs(60))
                .learn(UpstreamLimits::default());
            let client = ServiceBuilder::new().layer(layer).service(upstream.clone());
            (0..CALLERS).map(move |_| {
                let client = client.clone();
                tokio::spawn(async move {
                    loop {
                        client
                            .clone()
                            .oneshot(Request::new(Body::empty()))
                            .await
                            .unwrap();
                    }
                })
            })
        })
        .collect();
    tokio::time::sleep(WINDOW * (WINDOWS as u32 + 1) + WINDOW / 10).await;
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    windows.lock().unwrap().clone()
}

/// Admits so many in each window, and tells it as many services do.
fn upstream(windows: &Windows, began: Instant) -> Router {
    let windows = Arc::clone(windows);
    let answer = async move || {
        let passed = began.elapsed();
        let window = (passed.as_millis() / WINDOW.as_millis()) as usize;
        let mut windows = windows.lock().unwrap();
        let length = windows.len().max(window + 1);
        windows.resize(length, [0, 0]);
        let is_admitted = windows[window][0] < LIMIT;
        windows[window][usize::from(!is_admitted)] += 1;
        let status = if is_admitted {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        let left = LIMIT - windows[window][0];
        let fields = [
            (
                "ratelimit-policy",
                format!("\"default\";q={LIMIT};w={}", WINDOW.as_secs()),
            ),
            ("ratelimit", format!("\"default\";r={left};t=1")),
        ];
        (status, fields).into_response()
    };
    Router::new().route("/", get(answer))
}
