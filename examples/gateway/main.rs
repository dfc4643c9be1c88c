//! An API guarded by limits, locks, flights and filters that hold across processes, and a page that shows them at work.
//!
//! ```text
//! cargo run --example gateway                                        # state in this process
//! REDIS_URL=redis://127.0.0.1/ PORT=3001 cargo run --example gateway # state in Redis, shared by all
//! ```
//!
//! The API is in this file, `counting.rs`, `leases.rs`, `once.rs`, `policies.rs` and `queues.rs`; the page is in `page/`.

mod counting;
mod leases;
mod once;
mod page;
#[path = "../pages/mod.rs"]
mod pages;
mod policies;
mod queues;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Extension, Router};

use tower_distributed::extract::{ClientIp, Extractor, client_ip};
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Error, Quota, Store, TokenBucket, web};

use self::page::board::{Board, Seat};

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let port = match std::env::var("PORT") {
        Ok(port) => port
            .parse()
            .map_err(|_| format!("PORT must be 0 to 65535, is {port:?}"))?,
        Err(_) => 3000,
    };
    // Two gateways in one process: both answer on the page, and A on this port.
    let fleet = page::Fleet::start(std::env::var("REDIS_URL").ok(), &Board::default()).await?;
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}"))?;
    let base = format!("http://{}", listener.local_addr()?);
    println!("listening on {base}, state: {}", fleet.state_is_in());
    println!(
        "Open {base}/ in a browser: the page shows every layer at work, also for these commands."
    );
    println!("5 requests per second and client address, 10 at once. Try:");
    println!("  curl -i {base}/limited");
    println!(
        "  for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' {base}/limited; done; echo"
    );
    println!("  curl {base}/healthz; curl -i {base}/readyz");
    println!(
        "2 exports at once, and 10 s to wait for one's turn; readers share a document, a writer is alone:"
    );
    println!("  for i in 1 2 3; do curl -s {base}/export & done; wait");
    println!("  curl -X PUT -d 'hello' {base}/document/42; curl -i {base}/document/42");
    println!(
        "a report is made once for all who ask meanwhile; a webhook is handled once, unless it fails:"
    );
    println!("  for i in 1 2 3; do curl -s {base}/report/7 & done; wait");
    println!(
        "  for body in fail ok ok; do curl -i -H 'webhook-id: evt_1' -d $body {base}/webhook; done"
    );
    println!(
        "4 calls at once, and a tenant that always has some waiting while the page is open; the second queue is fair:"
    );
    println!("  for queue in fifo fair; do curl -H 'x-tenant: me' {base}/queue/$queue; done");
    println!("one billing run at a time; a second one is refused:");
    println!("  for i in 1 2; do curl -s -X POST {base}/billing & done; wait");

    let app = page::routes(&fleet).into_make_service_with_connect_info::<SocketAddr>();
    tokio::select! {
        served = axum::serve(listener, app).with_graceful_shutdown(pages::interrupted()) => served?,
        () = overdue() => eprintln!("some requests have not ended"),
    }
    // What goes on after its client has left ends first; then all that is held is released.
    fleet.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

/// The API of one gateway. The seat counts the requests for the page.
fn app(store: &Store, seat: &Seat) -> Result<Router, Error> {
    let limit = web::rate_limit(bucket(store)?, address()).count_refused(&seat.refused);
    let health = format!("ok, state: {store}\n");
    let store_asked = store.clone();
    Ok(Router::new()
        .merge(leases::routes(store)?)
        .merge(once::routes(store)?)
        .route_layer(from_fn_with_state(seat.clone(), page::board::follow))
        .route("/limited", get(limited).layer(limit))
        .merge(policies::routes(store, &seat.refused)?)
        .merge(counting::routes(store, &seat.alone)?)
        .route_layer(from_fn_with_state(seat.clone(), page::board::count))
        .merge(queues::routes(store, seat)?)
        .route("/healthz", get(move || std::future::ready(health.clone())))
        .route("/readyz", get(move || ready(store_asked.clone()))))
}

/// 5 requests per second, 10 at once.
fn bucket(store: &Store) -> Result<TokenBucket, Error> {
    TokenBucket::new(store, "gateway", Quota::per_second(5).burst(10))
}

/// With the feature `axum`, `client_ip()` finds the address by itself.
fn address() -> Extractor<ClientIp> {
    client_ip().peer(|info: &ConnectInfo<SocketAddr>| info.0.ip())
}

/// Whether this process should get requests: not while the store gives no answer. Its liveness is `/healthz`, which asks
/// nobody: a restart of this process does not bring Redis back.
async fn ready(store: Store) -> (StatusCode, String) {
    match store.ping().await {
        Ok(took) => {
            let version = store
                .stats()
                .server_version
                .map(|version| format!(" {version}"))
                .unwrap_or_default();
            (
                StatusCode::OK,
                format!("ready, {store}{version} answered in {took:?}\n"),
            )
        }
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready, {error}\n"),
        ),
    }
}

async fn limited(Extension(decision): Extension<Decision>) -> String {
    format!("hello, {} more at once\n", decision.remaining())
}

/// The end of the time in which requests may end: a client that does not read its response would keep the process. Billing
/// takes 8 s. A second signal ends it at once.
async fn overdue() {
    pages::interrupted().await;
    let _ = tokio::time::timeout(Duration::from_secs(10), pages::interrupted()).await;
}
