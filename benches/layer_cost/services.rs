//! One axum handler: alone, and within one layer. Each service is a process of its own.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;
use http_body_util::BodyExt as _;
use tower::util::MapResponseLayer;
use tower_distributed::{
    Dedupe, Error, Mutex, Quota, RwLock, SingleFlight, Store, TokenBucket, WaitGroup, extract,
    response, web,
};

use crate::child::Role;
use crate::hand_layers;
use crate::served::{RUNS, serve};

/// Per second and key: more than anybody asks for.
const ENOUGH: u32 = 1_000_000;
/// How long ids are remembered.
const REMEMBER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    Rate,
    Permit,
    Mutex,
    RwLock,
    Dedupe,
    Flight,
    /// All but the mutex.
    Five,
    /// What each of them cannot cost less than in axum: a layer that does nothing but watch the body.
    Empty,
    /// Five of these.
    FiveEmpty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Bare,
    Memory(Job),
    Redis(Job),
    Hand(Job),
}

use Job::{
    Dedupe as Claim, Empty, Five, FiveEmpty, Flight, Mutex as Lock, Permit, Rate, RwLock as Shared,
};
use Service::{Bare, Hand, Memory, Redis};

impl Service {
    pub const ALL: [Self; 20] = [
        Bare,
        Memory(Rate),
        Memory(Permit),
        Memory(Lock),
        Memory(Shared),
        Memory(Claim),
        Memory(Flight),
        Memory(Five),
        Memory(Empty),
        Memory(FiveEmpty),
        Redis(Rate),
        Hand(Rate),
        Redis(Permit),
        Hand(Permit),
        Redis(Lock),
        Hand(Lock),
        Redis(Claim),
        Hand(Claim),
        Redis(Flight),
        Hand(Flight),
    ];

    pub fn title(self) -> String {
        match self {
            Bare => "handler alone".into(),
            Memory(job) => format!("{}, in memory", job.name()),
            Redis(job) => format!("{}, on redis", job.name()),
            Hand(job) => format!("{}, by hand", job.name()),
        }
    }

    async fn app(self, url: &str) -> Result<Router, Error> {
        let runs = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&runs);
        let handler = async move || {
            runs.fetch_add(1, Ordering::Relaxed);
            "hello\n"
        };
        let app = Router::new().route("/document/{id}", get(handler));
        let app = match self {
            Bare => app,
            Memory(job) => job.layered(app, &Store::in_memory())?,
            Redis(job) => job.layered(app, &Store::redis(url)?)?,
            Hand(job) => hand_layers::layered(job, app, url).await,
        };
        Ok(app.route(
            RUNS,
            get(async move || told.load(Ordering::Relaxed).to_string()),
        ))
    }
}

impl Job {
    pub fn name(self) -> &'static str {
        match self {
            Rate => "rate",
            Permit => "permit",
            Lock => "mutex",
            Shared => "rwlock",
            Claim => "dedupe",
            Flight => "flight",
            Five => "five-layers",
            Empty => "empty",
            FiveEmpty => "five-empty",
        }
    }

    /// From the inside to the outside.
    fn layered(self, mut app: Router, store: &Store) -> Result<Router, Error> {
        let has = |layer| self == layer || self == Five && layer != Lock;
        let id = || extract::header("webhook-id");
        let empty = match self {
            Empty => 1,
            FiveEmpty => 5,
            _ => 0,
        };
        for _ in 0..empty {
            let watch = |response: Response| response.map(|body| body.map_frame(|frame| frame));
            app = app.layer(MapResponseLayer::new(watch));
        }
        if has(Flight) {
            let flights = SingleFlight::builder(response::AnswerCodec).build(store, "flights")?;
            app = app.layer(web::single_flight(
                flights,
                extract::shared_get().ignore_field("x-user")?,
            ));
        }
        if has(Shared) {
            app = app.layer(web::rw_lock(RwLock::new(store, "documents")?, id()?));
        }
        if has(Lock) {
            app = app.layer(web::mutex(Mutex::new(store, "documents")?, id()?));
        }
        if has(Permit) {
            let permits = WaitGroup::new(store, "permits", 1000)?;
            app = app.layer(web::concurrency_limit(permits, |_: &Request| "all"));
        }
        if has(Claim) {
            let seen = Dedupe::exact(store, "seen")
                .capacity(10_000_000)
                .remember_for(REMEMBER)
                .build()?;
            app = app.layer(web::dedupe(seen, id()?));
        }
        if has(Rate) {
            let bucket = TokenBucket::new(store, "users", Quota::per_second(ENOUGH))?;
            app = app.layer(web::rate_limit(bucket, id()?));
        }
        Ok(app)
    }
}

/// Serves as one of them.
pub fn play(role: &Role) -> ExitCode {
    let service = Service::ALL[role.name.parse::<usize>().unwrap()];
    serve(async { service.app(&role.url).await.unwrap() })
}
