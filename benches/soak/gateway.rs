//! The process under load: every layer of this crate, as in the example `gateway`. The handlers do next to nothing, so
//! the layers are the load.
//!
//! All state that grows with the load expires within 8 s, so a run of 30 s or more has a steady state in its last two
//! thirds.

use std::net::Ipv4Addr;
use std::process::{self, ExitCode};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::task::yield_now;
use tower_distributed::{
    BloomFilter, Dedupe, Error, Mutex, Quota, RwLock, SingleFlight, Store, TokenBucket, WaitGroup, extract,
    response, web,
};

use crate::child::{self, Role, tell};
use crate::{CLUSTER, common};

/// The header that names the user.
pub const USER: &str = "x-user";

const PATIENCE: Duration = Duration::from_secs(10);
const REMEMBER: Duration = Duration::from_secs(5);

/// Every tenth report is longer than what is part of a message.
const SHORT: usize = 1000;
const LONG: usize = 20_000;

/// Serves until it is killed. Tells its port and its process id.
pub fn play(role: &Role) -> ExitCode {
    let store = match &*role.name {
        CLUSTER => Store::builder().cluster(role.url.split(',')).unwrap(),
        _ => Store::redis(&role.url).unwrap(),
    };
    common::runtime().unwrap().block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        child::wait_for_the_others();
        tell(&[u32::from(port), process::id()]);
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        axum::serve(listener, app(&store).unwrap()).await.unwrap();
    });
    ExitCode::SUCCESS
}

fn app(store: &Store) -> Result<Router, Error> {
    let user = || extract::header(USER);
    let all = TokenBucket::new(store, "soak-all", Quota::per_second(10_000))?;
    let limited = TokenBucket::new(store, "soak-limited", Quota::per_second(10))?;
    let exports = WaitGroup::new(store, "soak-exports", 8)?;
    let documents = RwLock::new(store, "soak-documents")?;
    let invoices = Mutex::new(store, "soak-invoices")?;
    let reports = SingleFlight::builder(response::AnswerCodec)
        .ttl(Duration::from_millis(500))
        .build(store, "soak-reports")?;
    let webhooks = Dedupe::exact(store, "soak-webhooks").capacity(50_000).remember_for(REMEMBER).build()?;
    let events = BloomFilter::builder()
        .capacity(100_000)
        .false_positive_rate(1e-6)
        .remember_for(REMEMBER)
        .build(store, "soak-events")?;
    let key = |_: &axum::extract::Request| "all";
    Ok(Router::new()
        .route("/limited", get(work).layer(web::rate_limit(limited, user()?)))
        .route("/export", get(work).layer(web::concurrency_limit(exports, key).max_wait(PATIENCE)))
        .route(
            "/document/{id}",
            get(work).put(work).layer(web::rw_lock(documents, extract::path()).max_wait(PATIENCE)),
        )
        .route("/invoice/{id}", post(work).layer(web::mutex(invoices, extract::path()).max_wait(PATIENCE)))
        .route("/report/{id}", get(report).layer(web::single_flight(reports, extract::shared_get())))
        .route("/webhook", post(work).layer(web::dedupe(webhooks, extract::header("webhook-id")?)))
        .route("/event", post(work).layer(web::dedupe(Dedupe::new(&events)?, extract::header("webhook-id")?)))
        .layer(web::rate_limit(all, user()?)))
}

/// Gives the others a turn, so that they meet it under way.
async fn work() -> &'static str {
    yield_now().await;
    "done\n"
}

async fn report(Path(id): Path<u32>) -> String {
    yield_now().await;
    "r".repeat(if id % 10 == 0 { LONG } else { SHORT })
}
