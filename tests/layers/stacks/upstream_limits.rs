//! A fleet with a wrong guess learns the limit of an upstream that nobody configured: it gets hardly a refusal, and uses
//! nearly all that the upstream allows.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request as Incoming;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get as on_get;
use http::{Request, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::response::{RateLimitFields, UpstreamLimits};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, web};

const LIMIT: usize = 20;
const WINDOW: Duration = Duration::from_secs(1);
const PROCESSES: usize = 4;
const CALLERS: usize = 4;
/// The windows that count, after the first one.
const WINDOWS: usize = 6;

/// Several processes with several callers each send as much as they may to an upstream, whose responses are counted.
async fn keeps_to_the_limit(app: Router, limits: UpstreamLimits) {
    let store = Store::in_memory();
    // How many were admitted and refused in each window.
    let seen = Arc::new(Mutex::new([[0; 2]; WINDOWS + 2]));
    let (counted, began) = (Arc::clone(&seen), Instant::now());
    let app = app.layer(from_fn(move |request: Incoming, next: Next| {
        let (counted, window) = (
            Arc::clone(&counted),
            began.elapsed().as_millis() / WINDOW.as_millis(),
        );
        async move {
            let response = next.run(request).await;
            let is_refused = usize::from(response.status() != StatusCode::OK);
            counted.lock().unwrap()[window as usize][is_refused] += 1;
            response
        }
    }));
    let mut callers = JoinSet::new();
    for _ in 0..PROCESSES {
        let guess = TokenBucket::new(&store, "upstreams", Quota::per_second(100)).unwrap();
        let layer = RateLimitLayer::new(guess, |_: &Incoming| "upstream")
            .max_wait(Duration::from_secs(60))
            .learn(limits);
        let client = ServiceBuilder::new().layer(layer).service(app.clone());
        for _ in 0..CALLERS {
            let client = client.clone();
            callers.spawn(async move {
                loop {
                    let request = Request::get("/").body(Body::empty()).unwrap();
                    client.clone().oneshot(request).await.unwrap();
                }
            });
        }
    }
    sleep(WINDOW * (WINDOWS as u32 + 1)).await;
    callers.shutdown().await;
    let all = *seen.lock().unwrap();
    let learned = &all[1..=WINDOWS];
    assert!(
        learned.iter().all(|[_, refused]| *refused <= 1),
        "refused: {all:?}"
    );
    let admitted: usize = learned.iter().map(|[admitted, _]| admitted).sum();
    assert!(
        admitted * 100 >= 95 * LIMIT * WINDOWS,
        "{admitted} of {}: {all:?}",
        LIMIT * WINDOWS
    );
}

/// An upstream that admits requests by a rule. The rule returns what remains and when more is admitted, or `Err` with that
/// time if it refuses.
fn upstream(
    rule: impl FnMut(Instant) -> Result<(usize, Duration), Duration> + Send + 'static,
) -> Router {
    let rule = Arc::new(Mutex::new(rule));
    let answer = move || {
        let decided = (rule.lock().unwrap())(Instant::now());
        let (status, remaining, after) = match decided {
            Ok((remaining, after)) => (StatusCode::OK, remaining, after),
            Err(after) => (StatusCode::TOO_MANY_REQUESTS, 0, after),
        };
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        let mut response: Response = status.into_response();
        let mut add = |name: &'static str, value: String| {
            response.headers_mut().insert(name, value.parse().unwrap());
        };
        add(
            "ratelimit-policy",
            format!("\"default\";q={LIMIT};w={}", WINDOW.as_secs()),
        );
        add(
            "ratelimit",
            format!("\"default\";r={remaining};t={seconds}"),
        );
        if status != StatusCode::OK {
            add("retry-after-ms", (after.as_millis() + 1).to_string());
        }
        std::future::ready(Ok::<_, Infallible>(response))
    };
    Router::new().route("/", on_get(answer))
}

#[tokio::test(start_paused = true)]
async fn of_fixed_windows() {
    let mut current: Option<(Instant, usize)> = None;
    let app = upstream(move |now| {
        let (mut start, mut used) = current.unwrap_or((now, 0));
        while now >= start + WINDOW {
            (start, used) = (start + WINDOW, 0);
        }
        let left = start + WINDOW - now;
        current = Some((start, (used + 1).min(LIMIT)));
        if used < LIMIT {
            Ok((LIMIT - used - 1, left))
        } else {
            Err(left)
        }
    });
    keeps_to_the_limit(app, UpstreamLimits::default()).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_sliding_window() {
    let mut admitted = VecDeque::new();
    let app = upstream(move |now| {
        while admitted.front().is_some_and(|first| now >= *first + WINDOW) {
            admitted.pop_front();
        }
        let left = admitted
            .front()
            .map_or(WINDOW, |first| *first + WINDOW - now);
        if admitted.len() < LIMIT {
            admitted.push_back(now);
            Ok((LIMIT - admitted.len(), left))
        } else {
            Err(left)
        }
    });
    keeps_to_the_limit(app, UpstreamLimits::default()).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_token_bucket_with_the_fields_of_the_draft() {
    let bucket =
        TokenBucket::new(&Store::in_memory(), "all", Quota::per_second(LIMIT as u32)).unwrap();
    let layer = web::rate_limit(bucket, |_: &Incoming| "all").fields(RateLimitFields::default());
    let app = Router::new()
        .route("/", on_get(async || "hello"))
        .layer(layer);
    keeps_to_the_limit(app, UpstreamLimits::default()).await;
}

/// They tell the burst, and neither the rate nor a reset.
#[tokio::test(start_paused = true)]
async fn of_a_token_bucket_with_older_fields() {
    let bucket =
        TokenBucket::new(&Store::in_memory(), "all", Quota::per_second(LIMIT as u32)).unwrap();
    let answer = move || {
        let bucket = bucket.clone();
        async move {
            let decision = bucket.allow("all").await.unwrap();
            let mut response = match decision.retry_after() {
                None => StatusCode::OK.into_response(),
                Some(_) => StatusCode::TOO_MANY_REQUESTS.into_response(),
            };
            let mut add = |name: &'static str, value: u64| {
                response.headers_mut().insert(name, value.into());
            };
            add("x-ratelimit-limit", LIMIT as u64);
            add("x-ratelimit-remaining", decision.remaining().into());
            if let Some(after) = decision.retry_after() {
                add("retry-after", after.as_secs());
            }
            response
        }
    };
    let app = Router::new().route("/", on_get(answer));
    keeps_to_the_limit(app, UpstreamLimits::default().window(WINDOW).unwrap()).await;
}
