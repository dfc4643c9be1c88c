//! A service with limits, a lock, flights and a filter, and their metrics for Prometheus at `/metrics`.
//!
//! ```text
//! cargo run --features metrics,operator --example prometheus
//! REDIS_URL=redis://127.0.0.1/ PORT=3001 cargo run --features metrics,operator --example prometheus
//! ```
//!
//! Beside this file are `dashboard.json` (in Grafana: Dashboards, New, Import), `alerts.yml` (a rule file of Prometheus),
//! `alerts_test.yml` (`promtool test rules alerts_test.yml`), and `prometheus.yml`, which scrapes this service:
//! `prometheus --config.file=prometheus.yml`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request};
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, post};
use axum::{Router, serve};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tower_distributed::extract::{self, client_ip};
use tower_distributed::{
    BloomFilter, Dedupe, Error, Mutex, Quota, SingleFlight, Store, TokenBucket, WaitGroup,
    response, web,
};

/// Upper bounds in seconds. A call times out after 0.5 s by default.
const CALL_SECONDS: [f64; 11] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];
const BATCH_OPERATIONS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// How often recorded values are moved into the buckets. Without it they pile up until the next scrape.
const UPKEEP: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = match std::env::var("PORT") {
        Ok(port) => port
            .parse()
            .map_err(|_| format!("PORT must be 0 to 65535, is {port:?}"))?,
        Err(_) => 3000,
    };
    let metrics = recorder()?;
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}"))?;
    let base = format!("http://{}", listener.local_addr()?);
    println!("listening on {base}, state: {store}. Try:");
    println!(
        "  for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' {base}/limited; done; echo"
    );
    println!("  for i in 1 2 3; do curl -s {base}/export & curl -s {base}/report/7 & done; wait");
    println!("  for i in 1 2; do curl -s -X POST -H 'webhook-id: evt_1' {base}/webhook; done");
    println!("  for i in 1 2; do curl -s -X POST {base}/billing & done; wait");
    println!("  curl -s {base}/metrics");

    let upkeep = metrics.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    serve(
        listener,
        app(&store, metrics)?.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

/// Installs the recorder of this process. Histograms have buckets, which can be summed over processes; summaries cannot.
fn recorder() -> Result<PrometheusHandle, BuildError> {
    let name = |name: &str| Matcher::Full(format!("tower_distributed_{name}"));
    PrometheusBuilder::new()
        .set_buckets_for_metric(name("call_seconds"), &CALL_SECONDS)?
        .set_buckets_for_metric(name("batch_operations"), &BATCH_OPERATIONS)?
        .install_recorder()
}

fn app(store: &Store, metrics: PrometheusHandle) -> Result<Router, Error> {
    let bucket = TokenBucket::new(store, "api", Quota::per_second(5).burst(10))?;
    let address = client_ip().peer(|info: &ConnectInfo<SocketAddr>| info.0.ip());
    let exports = WaitGroup::new(store, "exports", 2)?;
    let exports =
        web::concurrency_limit(exports, |_: &Request| "all").max_wait(Duration::from_secs(10));
    let billing = Mutex::builder()
        .ttl(Duration::from_secs(3))
        .build(store, "billing")?;
    let reports = SingleFlight::builder(response::AnswerCodec).build(store, "reports")?;
    let webhooks = BloomFilter::builder()
        .capacity(1_000)
        .false_positive_rate(0.000_1)
        .remember_for(Duration::from_secs(3600))
        .build(store, "webhooks")?;
    let webhooks = web::dedupe(Dedupe::new(&webhooks)?, extract::header("webhook-id")?);
    Ok(Router::new()
        .route(
            "/limited",
            get(async || "hello\n").layer(web::rate_limit(bucket, address)),
        )
        .route("/export", get(work).layer(exports))
        .route(
            "/billing",
            post(work).layer(web::mutex(billing, |_: &Request| "month")),
        )
        .route(
            "/report/{id}",
            get(work).layer(web::single_flight(reports, extract::shared_get())),
        )
        .route("/webhook", post(async || "handled\n").layer(webhooks))
        // Keep it on an internal address: it tells the names of all limits.
        .route(
            "/metrics",
            get(async move || ([(CONTENT_TYPE, TEXT)], metrics.render())),
        ))
}

/// The text format of Prometheus.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

async fn work() -> &'static str {
    tokio::time::sleep(Duration::from_millis(200)).await;
    "done\n"
}
