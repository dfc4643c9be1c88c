//! [`ConcurrencyLimitLayer`]: at most so many requests of a key at once, across all processes.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{ConcurrencyLimitLayer, Refusal, Store, WaitGroup};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let exports = WaitGroup::new(&store, "exports", 1)?;
//!
//! let mut export = ServiceBuilder::new()
//!     .layer(ConcurrencyLimitLayer::new(exports.clone(), |tenant: &&'static str| *tenant))
//!     .service(service_fn(async |tenant: &'static str| Ok::<_, std::io::Error>(format!("export of {tenant}"))));
//!
//! assert_eq!(export.ready().await?.call("acme").await?, "export of acme");
//!
//! let elsewhere = exports.add("acme").await?; // in another process, perhaps
//! let error = export.ready().await?.call("acme").await.unwrap_err();
//! assert!(error.downcast_ref::<Refusal>().is_some());
//! # Ok(()) }
//! ```
//!
//! # What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; `None` lets a request pass. The
//! [`weight`](ConcurrencyLimitLayer::weight) is 1 unless set, the [`limit`](ConcurrencyLimitLayer::limit) is the
//! WaitGroup's. A request that cannot be admitted now is refused, unless it may
//! [wait](ConcurrencyLimitLayer::wait_up_to): first come, first served, across processes.
//!
//! # How long a permit is held
//!
//! Until there is a response, or with `http::UntilBodyEnd` until the end of its body; for HTTP,
//! `http::concurrency_limit` sets that and how refusals are told. A response that is dropped gives its permit back,
//! as does a response future. A permit that is lost, since the store forgot it, changes nothing for its request
//! unless [`cancel_when_lost`](ConcurrencyLimitLayer::cancel_when_lost) is set.
//!
//! `http::UntilBodyEnd` releases the permit of a body that makes no progress for 60 s, and can set a maximum. The permit
//! of an upgraded connection (WebSocket, CONNECT) is released with the head of the response. A handler can take its
//! permit along and hold it for longer: see [`LeaseSlot`](crate::leased::LeaseSlot).
//!
//! # When the store is away
//!
//! [`StoreFailure::FailClosed`] unless set.
//!
//! # Readiness
//!
//! `poll_ready` is the inner service's, with no I/O of its own; the instance that was polled ready is the one that is
//! called, from the response future. So what the readiness of the inner service reserves stays reserved while a
//! request waits for its permit.
//!
//! # Differences from `tower::limit::ConcurrencyLimitLayer`
//!
//! Tower's has one semaphore per service and waits in `poll_ready`. This one limits by key, all clones, routes and
//! processes share the permits, and it can refuse. The inner service must be `Clone`.

use std::num::NonZeroU32;
use std::time::Duration;

use tower_layer::Layer;

use crate::leased::{Away, Config, Leased, Leasing, UntilResponse, sealed, settings};
use crate::primitive::lease::Wait;
use crate::rate_limit::{Cost, OneToken};
use crate::{AsError, Key, Permit, Store, StoreFailure, WaitGroup};

/// The service of a [`ConcurrencyLimitLayer`].
pub type ConcurrencyLimit<S, K, W, L, H, N, R> = Leased<S, K, Permits<W, L>, H, N, R>;

/// A [`Layer`] that limits how many requests of a key the inner service handles at once; see the [module](self) for
/// the whole story.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimitLayer<K, W = OneToken, L = SameLimit, H = UntilResponse, N = (), R = AsError> {
    config: Config<K, Permits<W, L>, H, N, R>,
}

/// Which permits requests need.
#[derive(Clone, Debug)]
pub struct Permits<W, L> {
    group: WaitGroup,
    weight: W,
    limit: L,
    longest_wait: Option<Duration>,
    away: Away<LocalShare>,
}

/// In how many shares the limit is split, and the permits of this one.
type LocalShare = (NonZeroU32, WaitGroup);

/// Under which limit a request comes; `None`: that of the WaitGroup. Functions and closures from `&Req` to
/// `Option<u32>` do.
pub trait ChooseLimit<Req> {
    /// The limit.
    fn limit(&self, request: &Req) -> Option<u32>;
}

impl<Req, F: Fn(&Req) -> Option<u32>> ChooseLimit<Req> for F {
    fn limit(&self, request: &Req) -> Option<u32> {
        self(request)
    }
}

/// All requests come under the limit of the WaitGroup: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct SameLimit;

impl<Req> ChooseLimit<Req> for SameLimit {
    fn limit(&self, _: &Req) -> Option<u32> {
        None
    }
}

impl<K> ConcurrencyLimitLayer<K> {
    /// Handles requests under permits of a namespace, each by its key.
    #[must_use]
    pub fn new(group: WaitGroup, key: K) -> Self {
        let provide =
            Permits { group, weight: OneToken, limit: SameLimit, longest_wait: None, away: Away::FailClosed };
        Self {
            config: Config {
                key,
                provide,
                hold: UntilResponse,
                on_lease: (),
                reject: AsError,
                cancel_when_lost: false,
            },
        }
    }
}

impl<K, W, L, H, N, R> ConcurrencyLimitLayer<K, W, L, H, N, R> {
    /// How much a request weighs, by a closure from `&Req` to `u32`. Default: 1. What weighs nothing passes without
    /// asking.
    #[must_use]
    pub fn weight<W2>(self, weight: W2) -> ConcurrencyLimitLayer<K, W2, L, H, N, R> {
        let config = self.config.provide(|Permits { group, weight: _, limit, longest_wait, away }| Permits {
            group,
            weight,
            limit,
            longest_wait,
            away,
        });
        ConcurrencyLimitLayer { config }
    }

    /// Under which limit a request comes, by a closure from `&Req` to `Option<u32>`; `None`: that of the WaitGroup.
    #[must_use]
    pub fn limit<L2>(self, limit: L2) -> ConcurrencyLimitLayer<K, W, L2, H, N, R> {
        let config = self.config.provide(|Permits { group, weight, limit: _, longest_wait, away }| Permits {
            group,
            weight,
            limit,
            longest_wait,
            away,
        });
        ConcurrencyLimitLayer { config }
    }

    /// Lets requests wait for their permits, first come, first served, up to this long. How many may wait is the
    /// WaitGroup's [`longest_queue`](crate::wait_group::WaitGroupBuilder::longest_queue).
    #[must_use]
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.config.provide.longest_wait = Some(longest);
        self
    }

    /// What to do while the store gives no answer. Default: [`StoreFailure::FailClosed`].
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let permits = &mut self.config.provide;
        permits.away = match on_store_failure {
            StoreFailure::FailClosed => Away::FailClosed,
            StoreFailure::FailOpen => Away::FailOpen,
            StoreFailure::LocalShare { replicas } => {
                Away::LocalShare((replicas, permits.group.in_store(&Store::in_memory())))
            }
        };
        self
    }
}

settings!(ConcurrencyLimitLayer<K, W, L>);

impl<Req, W: Cost<Req>, L: ChooseLimit<Req>> sealed::Provide<Req> for Permits<W, L> {
    #[allow(private_interfaces)]
    fn lease(&self, key: Key, request: &Req) -> Leasing {
        let (group, away) = (self.group.clone(), self.away.clone());
        let (weight, limit) = (self.weight.cost(request), self.limit.limit(request));
        let wait = self.longest_wait.map(|longest| Wait { longest: Some(longest), ..group.wait });
        Box::pin(async move {
            if weight == 0 {
                return Ok(None);
            }
            let limit = limit.unwrap_or(group.limit());
            let asked = async {
                let asked = group.with_limit(limit)?.acquire(key.clone(), weight, wait).await;
                let local = |(replicas, local): LocalShare, outage| async move {
                    let share = (limit / replicas).max(1);
                    let asked = local.with_limit(share)?.acquire(key, weight, wait).await;
                    // What is too heavy for a share is refused for the outage.
                    asked.map_err(|refusal| if refusal.is_exceeds_limit() { outage } else { refusal })
                };
                away.settle(asked, local).await
            };
            let permit = group.decisions.settle(asked.await)?;
            Ok(permit.map(Permit::into_lease))
        })
    }
}

impl<S, K, W, L, H, N, R> Layer<S> for ConcurrencyLimitLayer<K, W, L, H, N, R>
where
    K: Clone,
    W: Clone,
    L: Clone,
    H: Clone,
    N: Clone,
    R: Clone,
{
    type Service = ConcurrencyLimit<S, K, W, L, H, N, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Leased::new(inner, self.config.clone())
    }
}
