//! A hyper server through hyper-util, with bodies of its own choice, over HTTP/1 and HTTP/2.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use tower::{ServiceBuilder, service_fn};
use tower_distributed::LeaseHandle;
use tower_distributed::extract::path;
use tower_distributed::web::{concurrency_limit, rw_lock};

use crate::families::{Other, locks, permits};
use crate::net::{get, hellos_over_http2, serve_each as serve};
use crate::stores::{SOON, Stores, on_each_store};

on_each_store!(full_bodies, no_more_at_once_than_the_limit_over_http1, and_over_http2);

async fn full_bodies(stores: Stores) {
    let token = service_fn(async |request: Request<Incoming>| {
        let lease: Option<&LeaseHandle> = request.extensions().get();
        let text = lease.map_or("no lease".into(), |lease| lease.token().to_owned());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(text)))
    });
    let lock = rw_lock(locks(&stores.open()), path());
    let url = serve(ServiceBuilder::new().layer(lock).service(token)).await;
    let answer = get(&format!("{url}/1"), &[]).await;
    assert!(answer.status == StatusCode::OK && answer.body.len() > 16, "{answer:?}");
    let other = Other::holds(&stores, "/2").await;
    let refused = get(&format!("{url}/2"), &[]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::LOCKED, &423.into()));
    other.leaves().await;
}

/// How many requests are inside at once, and were at most.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A server that takes three at a time; the others wait.
async fn serve_three(stores: &Stores, gauge: &Arc<Gauge>) -> String {
    let gauge = Arc::clone(gauge);
    let work = service_fn(move |_: Request<Incoming>| {
        let gauge = Arc::clone(&gauge);
        async move {
            let now = gauge.now.fetch_add(1, Ordering::SeqCst) + 1;
            gauge.most.fetch_max(now, Ordering::SeqCst);
            for _ in 0..9 {
                tokio::task::yield_now().await;
            }
            gauge.now.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Infallible>(Response::new("hello".to_owned()))
        }
    });
    let limit = concurrency_limit(permits(&stores.open(), 3), path()).max_wait(SOON);
    serve(ServiceBuilder::new().layer(limit).service(work)).await
}

async fn no_more_at_once_than_the_limit_over_http1(stores: Stores) {
    let gauge = Arc::default();
    let url = serve_three(&stores, &gauge).await;
    for answer in join_all((0..20).map(|_| get(&url, &[]))).await {
        assert_eq!((answer.status, &*answer.body), (StatusCode::OK, "hello"));
    }
    assert!((1..=3).contains(&gauge.most.load(Ordering::SeqCst)));
}

async fn and_over_http2(stores: Stores) {
    let gauge = Arc::default();
    let url = serve_three(&stores, &gauge).await;
    hellos_over_http2(&url, 20).await;
    assert!((1..=3).contains(&gauge.most.load(Ordering::SeqCst)));
}
