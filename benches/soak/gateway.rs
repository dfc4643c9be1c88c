//! The process under load: every layer of this crate, as in the example `gateway`. The handlers do next to nothing, so
//! the layers are the load, or else they tell a referee.
//!
//! All state that grows with the load expires within 8 s, so a run of 30 s or more has a steady state in its last two
//! thirds. With a referee, items are remembered for longer.

use std::io::stdin;
use std::net::Ipv4Addr;
use std::process::{self, ExitCode};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::task::{spawn_blocking, yield_now};
use tower_distributed::{
    BloomFilter, Dedupe, Error, Mutex, Quota, RwLock, SingleFlight, Store, StoreFailure,
    TokenBucket, WaitGroup, dedupe, extract, response, web,
};

use crate::child::{self, Role, tell};
use crate::deploys::presence::Presences;
use crate::deploys::terms;
use crate::deploys::visit::VISIT;
use crate::routes::MESSAGE;
use crate::{CLUSTER, DEPLOYS, common};

/// The header that names the user.
pub const USER: &str = "x-user";

/// What differs between the modes.
pub struct Terms {
    /// The beginning of all names in Redis.
    pub names: &'static str,
    pub ttl: Duration,
    pub max_wait: Duration,
    pub remember: Duration,
    /// Of one user.
    pub limited: Quota,
    pub budget: Quota,
}

/// Every tenth report is longer than what is part of a message.
const SHORT: usize = 1000;
const LONG: usize = 20_000;

/// Exports at once.
pub const PERMITS: u32 = 8;
/// Tokens that a completion holds.
pub const ESTIMATE: u32 = 10;

/// Serves until its standard input is closed. Tells its port and its process id.
pub fn play(role: &Role) -> ExitCode {
    let (store, terms) = match &*role.name {
        DEPLOYS => (terms::store(&role.url), terms::of_this_process()),
        CLUSTER => (
            Store::builder().cluster(role.url.split(',')).unwrap(),
            AT_FULL_SPEED,
        ),
        _ => (Store::redis(&role.url).unwrap(), AT_FULL_SPEED),
    };
    common::runtime().unwrap().block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let presences = Presences::of_this_process().await;
        child::wait_for_the_others();
        let closed = spawn_blocking(|| stdin().read_line(&mut String::new()));
        tell(&[u32::from(port), process::id()]);
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        let app = app(&store, terms, presences.as_ref())
            .unwrap()
            .layer(axum::Extension(presences));
        let ended = async { drop(closed.await) };
        axum::serve(listener, app)
            .with_graceful_shutdown(ended)
            .await
            .unwrap();
        store.shutdown(Duration::from_secs(5)).await.unwrap();
    });
    ExitCode::SUCCESS
}

const AT_FULL_SPEED: Terms = Terms {
    names: "soak",
    ttl: Duration::from_secs(30),
    max_wait: Duration::from_secs(10),
    remember: Duration::from_secs(5),
    limited: Quota::per_second(10),
    budget: Quota::per_second(100),
};

fn app(store: &Store, terms: Terms, presences: Option<&Presences>) -> Result<Router, Error> {
    let Terms {
        ttl,
        max_wait,
        remember,
        limited,
        budget,
        names,
    } = terms;
    let name = |name| format!("{names}-{name}");
    let user = || extract::header(USER);
    let message = || extract::header(MESSAGE);
    let all = TokenBucket::new(store, &name("all"), Quota::per_second(10_000))?;
    let limited = TokenBucket::new(store, &name("limited"), limited)?;
    let budget = TokenBucket::new(store, &name("budget"), budget)?.with_hold_ttl(ttl)?;
    let exports = WaitGroup::builder(PERMITS)
        .ttl(ttl)
        .build(store, &name("exports"))?;
    let documents = RwLock::builder()
        .ttl(ttl)
        .build(store, &name("documents"))?;
    let invoices = Mutex::builder().ttl(ttl).build(store, &name("invoices"))?;
    let reports = SingleFlight::builder(response::AnswerCodec)
        .ttl(Duration::from_millis(500))
        .lease_ttl(ttl)
        .cancel_when_lost(true)
        .on_store_failure(StoreFailure::FailClosed)
        .build(store, &name("reports"))?;
    let webhooks = Dedupe::exact(store, &name("webhooks"));
    let webhooks = webhooks
        .capacity(50_000)
        .remember_for(remember)
        .ttl(ttl)
        .build()?;
    let events = BloomFilter::builder()
        .capacity(100_000)
        .false_positive_rate(1e-6)
        .remember_for(remember)
        .build(store, &name("events"))?;
    let events = Dedupe::builder().ttl(ttl).build(&events)?;
    let key = |_: &Request| "all";
    // No report depends on the fields that callers and the referee add. Any other field makes a request private.
    let shared = extract::shared_get()
        .ignore_field(USER)?
        .ignore_field(MESSAGE)?
        .ignore_field(VISIT)?;
    let unsure = |path: &'static str| {
        let presences = presences.cloned();
        move |unsure: &dedupe::Unsure| {
            presences
                .iter()
                .for_each(|presences| presences.unsure(path, unsure))
        }
    };
    Ok(Router::new()
        .route(
            "/limited",
            get(work).layer(web::rate_limit(limited, user()?)),
        )
        .route(
            "/export",
            get(work).layer(web::concurrency_limit(exports, key).max_wait(max_wait)),
        )
        .route(
            "/document/{id}",
            get(work)
                .put(work)
                .layer(web::rw_lock(documents, extract::path()).max_wait(max_wait)),
        )
        .route(
            "/invoice/{id}",
            post(work).layer(web::mutex(invoices, extract::path()).max_wait(max_wait)),
        )
        .route(
            "/report/{id}",
            get(report).layer(web::single_flight(reports, shared).on_lease(web::InsertLease)),
        )
        .route(
            "/webhook",
            post(work).layer(web::dedupe(webhooks, message()?).on_unsure(unsure("/webhook"))),
        )
        .route(
            "/event",
            post(work).layer(web::dedupe(events, message()?).on_unsure(unsure("/event"))),
        )
        .route(
            "/completion",
            post(work).layer(web::token_budget(budget, user()?, |_: &Request| ESTIMATE)),
        )
        .layer(web::rate_limit(all, user()?)))
}

/// Tells the referee, or gives the others a turn, so that they meet it under way.
async fn work(request: Parts) -> &'static str {
    match request.extensions.get::<Option<Presences>>() {
        Some(Some(presences)) => presences.work(&request).await,
        _ => yield_now().await,
    }
    "done\n"
}

async fn report(request: Parts) -> String {
    let is_long = request.uri.path().ends_with('0');
    work(request).await;
    "r".repeat(if is_long { LONG } else { SHORT })
}
