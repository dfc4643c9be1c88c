//! One axum handler: alone, and within layers. Each service is a process of its own.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::response::IntoResponse as _;
use axum::routing::get;
use tower_distributed::{
    Dedupe, Error, Quota, RwLock, SingleFlight, Store, TokenBucket, WaitGroup, extract, response,
    web,
};

use crate::child::Role;
use crate::served::{RUNS, serve};

/// Per second and user, and so many at once: more than anybody asks for.
const ENOUGH: u32 = 100_000_000;
/// How long ids are remembered.
const REMEMBER: Duration = Duration::from_secs(10);
/// How long tokens that are charged ahead are kept.
const HOLD: Duration = Duration::from_millis(10);

/// What the rate limit writes.
const FIELDS: [(&str, &str); 2] = [
    ("ratelimit-policy", r#""default";q=100000000;w=1"#),
    ("ratelimit", r#""default";r=99999999;t=1"#),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Bare,
    /// The handler writes the fields that the rate limit writes.
    BareWithFields,
    /// One layer, in memory.
    RateLimit,
    Dedupe,
    ConcurrencyLimit,
    RwLock,
    SingleFlight,
    /// All of them.
    FiveLayers,
    /// The rate limit alone, on Redis, by user.
    Redis,
    /// The same with one key for all.
    RedisOneKey,
    /// The same with tokens charged ahead.
    RedisPrefetch,
}

impl Service {
    pub const ALL: [Self; 11] = [
        Self::Bare,
        Self::BareWithFields,
        Self::RateLimit,
        Self::Dedupe,
        Self::ConcurrencyLimit,
        Self::RwLock,
        Self::SingleFlight,
        Self::FiveLayers,
        Self::Redis,
        Self::RedisOneKey,
        Self::RedisPrefetch,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Bare => "handler alone",
            Self::BareWithFields => "handler that writes the RateLimit fields",
            Self::RateLimit => "rate limit, in memory",
            Self::Dedupe => "dedupe, in memory",
            Self::ConcurrencyLimit => "concurrency limit, in memory",
            Self::RwLock => "reader-writer lock, in memory",
            Self::SingleFlight => "single flight, in memory",
            Self::FiveLayers => "all five layers, in memory",
            Self::Redis => "rate limit on Redis, 100 users",
            Self::RedisOneKey => "rate limit on Redis, one key",
            Self::RedisPrefetch => "rate limit on Redis, one key, prefetch",
        }
    }

    fn app(self, url: &str) -> Result<Router, Error> {
        let runs = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&runs);
        let handler = async move || {
            runs.fetch_add(1, Ordering::Relaxed);
            let mut response = "hello\n".into_response();
            if self == Self::BareWithFields {
                FIELDS.into_iter().for_each(|(name, value)| {
                    response
                        .headers_mut()
                        .insert(name, HeaderValue::from_static(value));
                });
            }
            response
        };
        let documents = self.layered(Router::new().route("/document/{id}", get(handler)), url)?;
        Ok(documents.route(
            RUNS,
            get(async move || told.load(Ordering::Relaxed).to_string()),
        ))
    }

    /// From the inside to the outside.
    fn layered(self, mut app: Router, url: &str) -> Result<Router, Error> {
        let store = match self {
            Self::Redis | Self::RedisOneKey | Self::RedisPrefetch => Store::redis(url)?,
            _ => Store::in_memory(),
        };
        let bucket = || TokenBucket::new(&store, "users", Quota::per_second(ENOUGH));
        let has = |layer| self == layer || self == Self::FiveLayers;
        if has(Self::SingleFlight) {
            let flights = SingleFlight::builder(response::AnswerCodec).build(&store, "flights")?;
            app = app.layer(web::single_flight(
                flights,
                extract::shared_get().ignore_field("x-user")?,
            ));
        }
        if has(Self::RwLock) {
            app = app.layer(web::rw_lock(
                RwLock::new(&store, "documents")?,
                extract::path(),
            ));
        }
        if has(Self::ConcurrencyLimit) {
            let permits = WaitGroup::new(&store, "permits", 1000)?;
            app = app.layer(web::concurrency_limit(permits, |_: &Request| "all"));
        }
        if has(Self::Dedupe) {
            let seen = Dedupe::exact(&store, "seen")
                .capacity(10_000_000)
                .remember_for(REMEMBER)
                .build()?;
            app = app.layer(web::dedupe(seen, extract::header("webhook-id")?));
        }
        if has(Self::RateLimit) || self == Self::Redis {
            app = app.layer(web::rate_limit(bucket()?, extract::header("x-user")?));
        }
        if self == Self::RedisOneKey {
            app = app.layer(web::rate_limit(bucket()?, |_: &Request| "all"));
        }
        if self == Self::RedisPrefetch {
            app = app.layer(web::rate_limit(
                bucket()?.prefetch(HOLD)?,
                |_: &Request| "all",
            ));
        }
        Ok(app)
    }
}

/// Serves as one of them.
pub fn play(role: &Role) -> ExitCode {
    let service = Service::ALL[role.name.parse::<usize>().unwrap()];
    serve(async { service.app(&role.url).unwrap() })
}
