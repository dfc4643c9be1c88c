//! What only layers have: limits that adapt to their service, and those that are learned from an upstream.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::Response;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::response::UpstreamLimits;
use tower_distributed::wait_group::{Adaptive, Classify, Signal};
use tower_distributed::{
    ConcurrencyLimitLayer, Error, Quota, RateLimitLayer, Refusal, RefusalKind, Store, StoreFailure,
    TokenBucket, WaitGroup,
};

use super::super::World;
use super::super::shape::Shape;
use super::flights::Run;
use super::permits;
use crate::server::lock;

/// The limits of an adaptive layer.
const LEAST: u32 = 1;
const MOST: u32 = 8;
/// A service gets slower with more than so many requests.
const CAPACITY: u32 = 4;

type Request = String;
type Permits = ConcurrencyLimitLayer<
    Request,
    tower_distributed::lease::UntilResponse,
    tower_distributed::AsError,
    Adaptive<Signals>,
>;
type Learning = RateLimitLayer<Request, Response<()>>;

/// An upstream with a window of a second, shared by all processes.
#[derive(Default)]
pub struct Upstream(Mutex<Option<(Instant, u32)>>);

/// What processes share also while the store is away. Each number of processes divides it.
const SHARED: u32 = 12;

/// What an upstream admits in a window.
const QUOTA: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// What a service may take.
const WORKS: Duration = Duration::from_secs(1);

impl Upstream {
    fn answer(&self) -> Response<()> {
        let now = Instant::now();
        let mut window = lock(&self.0);
        let (began, taken) = window.get_or_insert((now, 0));
        if *began + WINDOW <= now {
            (*began, *taken) = (now, 0);
        }
        *taken += 1;
        let (left, is_refused) = (QUOTA.saturating_sub(*taken), *taken > QUOTA);
        let resets = (*began + WINDOW - now).as_secs() + 1;
        let mut response = Response::builder().status(if is_refused { 429 } else { 200 });
        response = response.header("RateLimit-Policy", format!("\"u\";q={QUOTA};w=1"));
        response = response.header("RateLimit", format!("\"u\";r={left};t={resets}"));
        if is_refused {
            response = response.header("Retry-After", resets.to_string());
        }
        // All parts are valid.
        response.body(()).unwrap_or_default()
    }
}

pub struct Layers {
    adaptive: Permits,
    /// The permits of `adaptive`.
    group: WaitGroup,
    learning: Learning,
    shared: RateLimitLayer<Request, ()>,
    limited: ConcurrencyLimitLayer<Request>,
}

/// What an answer of the service says: whether it is well.
#[derive(Clone)]
pub struct Signals;

impl<E> Classify<bool, E> for Signals {
    fn classify(&self, outcome: &Result<bool, E>) -> Signal {
        match outcome {
            Ok(true) => Signal::Success,
            Ok(false) => Signal::Overload,
            Err(_) => Signal::Ignore,
        }
    }
}

/// Whether an error is a refusal of one of these kinds, or tells that the queue of this process was full, or too slow.
fn is_of(error: &tower::BoxError, kinds: &[RefusalKind]) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| {
        kinds.contains(&refusal.kind()) || refusal.kind() == RefusalKind::Overloaded
    })
}

impl Layers {
    pub fn new(shape: &Shape, store: &Store) -> Result<Self, Error> {
        let group = permits(shape, LEAST).build(store, "a")?;
        let adaptive = if shape.setting(12, 2) == 0 {
            Adaptive::aimd()
        } else {
            Adaptive::gradient()
        };
        let adaptive = adaptive.min(LEAST).max(MOST).classify(Signals);
        let adaptive =
            ConcurrencyLimitLayer::new(group.clone(), Request::clone).adaptive(adaptive)?;
        let bucket = TokenBucket::new(store, "l", Quota::per_second(50))?;
        let learning = RateLimitLayer::new(bucket, Request::clone);
        let limits = UpstreamLimits::default();
        let learning = learning.learn(move |response: &Response<()>| {
            limits.read(response.status(), response.headers())
        });
        let shared = TokenBucket::new(store, "c", Quota::per_second(SHARED).burst(SHARED))?;
        let replicas = NonZeroU32::new(shape.processes as u32).unwrap_or(NonZeroU32::MIN);
        let shared = RateLimitLayer::new(shared, Request::clone).on_store_failure(
            StoreFailure::CountedShare {
                replicas,
                at_least: replicas,
            },
        );
        let limited = permits(shape, SHARED).build(store, "cs")?;
        let limited = ConcurrencyLimitLayer::new(limited, Request::clone)
            .on_store_failure(StoreFailure::LocalShare { replicas });
        Ok(Self {
            adaptive,
            group,
            learning,
            shared,
            limited,
        })
    }
}

impl World {
    pub(super) async fn adapt(self: &Arc<Self>, layers: &Layers, key: &str) -> Option<()> {
        let (world, name) = (Arc::clone(self), format!("a:{key}"));
        let service = service_fn(move |_: Request| {
            let (world, name) = (Arc::clone(&world), name.clone());
            async move {
                let running = world.judges.begins(&name);
                if running > MOST && world.runs_alone() {
                    world.condemn(format!("{name}: {running} run, at most {MOST} may"));
                }
                let slow = u64::from(running.saturating_sub(CAPACITY));
                sleep(Duration::from_millis(world.network.draw(20 + 50 * slow))).await;
                world.judges.ends(&name);
                Ok::<_, tower::BoxError>(running <= 2 * CAPACITY)
            }
        });
        let service = layers.adaptive.layer(service);
        let answer = service
            .oneshot(key.to_owned())
            .map(|answer| Ok(answer.map_err(|error| error.to_string())));
        let answer: BoxFuture<'static, Result<Result<bool, String>, Error>> = answer.boxed();
        // Errors are those of the permits, which other callers judge.
        self.call("adaptive", self.shape.max_wait + WORKS, answer)
            .await;
        if self.network.happens(100) {
            let limit = self
                .ask("look at a limit", layers.group.inspect_limit(key))
                .await??
                .limit;
            if !(LEAST..=MOST).contains(&limit) {
                self.condemn(format!(
                    "a:{key}: the limit {limit} is not {LEAST} to {MOST}"
                ));
            }
        }
        Some(())
    }

    /// A limit that each process applies to its share while the store is away: the store and all shares together admit at
    /// most twice as much.
    async fn share_alone(self: &Arc<Self>, layers: &Layers, key: &str) -> Option<()> {
        let terms = (f64::from(2 * SHARED), f64::from(2 * SHARED));
        let (name, since, began) = (format!("c:{key}"), self.judges.losses(), Instant::now());
        let service = service_fn(|_: Request| async { Ok::<_, tower::BoxError>(()) });
        let service = layers.shared.layer(service);
        let answer: BoxFuture<'static, _> = service.oneshot(key.to_owned()).map(Ok).boxed();
        match self.ask("shared", answer).await? {
            Ok(()) if self.judges.losses() == since && !self.may_forget() => {
                self.judges.asked(&name, terms, 1.0);
                self.judges.charged(&name, began, 1.0, Some(true));
            }
            Err(error) if !is_of(&error, &[RefusalKind::RateLimited]) => {
                self.condemn(format!("{name}: neither admitted nor refused: {error}"));
            }
            _ => {}
        }
        Some(())
    }

    /// The same for permits: the store and all shares together admit at most twice as many at once.
    async fn limit_alone(self: &Arc<Self>, layers: &Layers, key: &str) -> Option<()> {
        let (world, name, since) = (Arc::clone(self), format!("cs:{key}"), self.judges.losses());
        let service = service_fn(move |_: Request| {
            let (world, name) = (Arc::clone(&world), name.clone());
            async move {
                let running = world.judges.begins(&name);
                if running > 2 * SHARED && world.has_all(since) {
                    world.condemn(format!(
                        "{name}: {running} run, of {SHARED} in the store and in shares"
                    ));
                }
                let run = Run::new(&world, name);
                world.pause(20).await;
                drop(run);
                Ok::<_, tower::BoxError>(())
            }
        });
        let answer: BoxFuture<'static, _> = layers
            .limited
            .layer(service)
            .oneshot(key.to_owned())
            .map(Ok)
            .boxed();
        let answer = self
            .call("limited", self.shape.max_wait + WORKS, answer)
            .await;
        let kinds = [
            RefusalKind::NoPermit,
            RefusalKind::WaitedTooLong,
            RefusalKind::LeaseLost,
        ];
        if let Some(Ok(Err(error))) = answer
            && !is_of(&error, &kinds)
        {
            self.condemn(format!("cs:{key}: neither admitted nor refused: {error}"));
        }
        Some(())
    }

    pub(super) async fn learn(self: &Arc<Self>, layers: &Layers, key: &str) -> Option<()> {
        match self.network.draw(4) {
            0 => return self.share_alone(layers, key).await,
            1 => return self.limit_alone(layers, key).await,
            _ => {}
        }
        let world = Arc::clone(self);
        let service = service_fn(move |_: Request| {
            let world = Arc::clone(&world);
            async move {
                world.pause(5).await;
                Ok::<_, Infallible>(world.upstream.answer())
            }
        });
        let service = layers.learning.layer(service);
        let answer = async { Ok(service.oneshot(key.to_owned()).await) };
        if self.ask("learn", answer).await?.ok()?.status() == 429 {
            self.judges.count("refused upstream");
        }
        Some(())
    }
}
