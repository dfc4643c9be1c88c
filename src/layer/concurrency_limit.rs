//! The layer that handles requests under permits. See the public module `wait_group`.

use std::sync::Arc;
use std::time::Duration;

use crate::layer::away::Away;
use crate::layer::leased::{
    Acquire, Config, LeaseService, Leased, Leasing, Provide, UntilResponse, settings,
};
use crate::layer::rate_limit::Cost;
use crate::primitive::lease::Wait;
use crate::store::failure::Replicas;
use crate::telemetry::Decisions;
use crate::{AsError, Extracted, Key, KeyExtractor, Permit, StoreFailure, WaitGroup};

/// The service of a [`ConcurrencyLimitLayer`].
pub type ConcurrencyLimit<S, Req, H = UntilResponse, R = AsError> = LeaseService<S, Req, H, R>;

/// A [`Layer`](tower_layer::Layer) that limits how many requests of a key the inner service handles at once.
///
/// See the [module](crate::wait_group) for details.
///
/// The type parameters are the request type, [how long](Self::hold) a permit is held, and how
/// [refusals](Self::reject_with) are returned.
///
/// ```
/// use std::time::Duration;
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::{ConcurrencyLimitLayer, LeaseHandle, Refusal, Store, StoreFailure, WaitGroup};
///
/// struct Export { tenant: String, rows: u32, is_premium: bool, permit: Option<LeaseHandle> }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 10)?;
/// let limit = ConcurrencyLimitLayer::new(exports, |export: &Export| export.tenant.clone())
///     .weight(|export: &Export| export.rows.div_ceil(1000))     // a permit for each 1000 rows
///     .limit(|export: &Export| export.is_premium.then_some(50)) // otherwise 10, the limit of the WaitGroup
///     .max_wait(Duration::from_secs(10))
///     .on_store_failure(StoreFailure::FailOpen)
///     .on_lease(|permit: &LeaseHandle, export: &mut Export| export.permit = Some(permit.clone()))
///     .cancel_when_lost(true)                                   // stop an export whose permit is lost
///     .reject_with(|refusal: Refusal| format!("refused: {refusal}"));
/// let mut export = limit.layer(service_fn(async |export: Export| {
///     Ok::<_, std::io::Error>(format!("{} rows, with a permit: {}", export.rows, export.permit.is_some()))
/// }));
///
/// let large = |is_premium| Export { tenant: "acme".into(), rows: 20_000, is_premium, permit: None };
/// assert_eq!(export.ready().await?.call(large(true)).await?, "20000 rows, with a permit: true");
/// let refused = export.ready().await?.call(large(false)).await?;
/// assert_eq!(refused, "refused: a weight of 20 can never be admitted by a limit of 10");
/// # Ok(()) }
/// ```
pub struct ConcurrencyLimitLayer<Req, H = UntilResponse, R = AsError> {
    config: Config<Req, Permits<Req>, H, R>,
}

/// Acquires the permits of requests.
struct Permits<Req> {
    source: Source,
    /// `None`: every request weighs 1.
    weight: Option<Arc<dyn Cost<Req> + Send + Sync>>,
    /// `None`: the limit of the WaitGroup.
    limit: Option<Arc<dyn ChooseLimit<Req> + Send + Sync>>,
    max_wait: Option<Duration>,
}

/// Where permits come from.
#[derive(Clone, Debug)]
struct Source {
    group: WaitGroup,
    away: Away<(Replicas, WaitGroup)>,
}

/// Chooses the limit for a request. Functions and closures from `&Req` to `Option<u32>` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose the limit of a `{Req}`",
    note = "pass a closure with a typed argument that returns `Option<u32>`: `|request: &Request| Some(3)`"
)]
pub trait ChooseLimit<Req> {
    /// Returns the limit. `None`: the limit of the WaitGroup.
    fn limit(&self, request: &Req) -> Option<u32>;
}

impl<Req, F: Fn(&Req) -> Option<u32>> ChooseLimit<Req> for F {
    fn limit(&self, request: &Req) -> Option<u32> {
        self(request)
    }
}

impl<Req> ConcurrencyLimitLayer<Req> {
    /// Creates a layer that handles each request under a permit of its key.
    #[must_use]
    pub fn new(group: WaitGroup, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        let source = Source { group, away: Away::FailClosed };
        let permits = Permits { source, weight: None, limit: None, max_wait: None };
        Self { config: Config::new(Arc::new(key), permits) }.cancel_when_lost(false)
    }
}

impl<Req, H, R> ConcurrencyLimitLayer<Req, H, R> {
    /// Sets the weight of a request, with a closure from `&Req` to `u32`. Default: 1.
    ///
    /// A request with the weight 0 passes without a permit and without a call to the store.
    #[must_use]
    pub fn weight(mut self, weight: impl Cost<Req> + Send + Sync + 'static) -> Self {
        self.config.provide.weight = Some(Arc::new(weight));
        self
    }

    /// Sets the limit for a request, with a closure from `&Req` to `Option<u32>`. Default, and for `None`: the
    /// limit of the WaitGroup.
    ///
    /// A limit of 0 refuses the request as [`Invalid`](crate::RefusalKind::Invalid).
    #[must_use]
    pub fn limit(mut self, limit: impl ChooseLimit<Req> + Send + Sync + 'static) -> Self {
        self.config.provide.limit = Some(Arc::new(limit));
        self
    }

    /// Sets how long a request waits for its permit. Default: it does not wait. Waiting requests are served in the
    /// order of arrival.
    ///
    /// [`max_waiters`](crate::wait_group::WaitGroupBuilder::max_waiters) limits the number of waiting requests.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.config.provide.max_wait = Some(max_wait);
        self
    }

    /// Sets what happens to requests while the store is unavailable. Default: [`StoreFailure::FailClosed`].
    ///
    /// With [`StoreFailure::LocalShare`], each process grants the limit divided by the number of replicas (at
    /// least one permit). A request whose weight is above this share is refused as
    /// [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable).
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let Source { group, away } = &mut self.config.provide.source;
        *away = Away::new(on_store_failure, |replicas| group.local_share(replicas));
        self
    }
}

settings!(ConcurrencyLimitLayer);

impl<Req> Provide<Req> for Permits<Req> {
    fn lease(&self, key: Extracted, request: &Req) -> Leasing {
        let group = &self.source.group;
        let weight = self.weight.as_ref().map_or(1, |weight| weight.cost(request));
        if weight == 0 {
            return Leasing::Ready(Ok(None));
        }
        let limit = self.limit.as_ref().and_then(|limit| limit.limit(request)).unwrap_or(group.limit());
        let wait = self.max_wait.map(|max_wait| Wait { max_wait: Some(max_wait), ..group.wait });
        Leasing::new(&self.source, key, Asked { weight, limit, wait })
    }
}

/// What a request asks for.
#[derive(Clone, Copy)]
struct Asked {
    weight: u32,
    limit: u32,
    wait: Option<Wait>,
}

impl Acquire for Source {
    type Asked = Asked;

    fn decisions(&self) -> &Decisions {
        &self.group.decisions
    }

    fn is_immediate(&self, asked: Asked) -> bool {
        self.group.is_in_memory() && asked.wait.is_none()
    }

    async fn take(&self, key: Key, Asked { weight, limit, wait }: Asked) -> Leased {
        let asked = self.group.acquire(key.clone(), weight, limit, wait).await;
        let local = |(replicas, local): (Replicas, WaitGroup), outage| async move {
            let share = (limit / replicas.most()).max(1);
            let asked = local.acquire(key, weight, share, wait).await;
            // A request that is too heavy for the share only is refused because of the outage.
            asked.map_err(|refusal| if refusal.is_exceeds_limit() { outage } else { refusal })
        };
        let settled = self.away.settle(asked, local).await;
        Ok(self.decisions().settle(settled)?.map(Permit::into_lease))
    }
}

impl<Req> Clone for Permits<Req> {
    fn clone(&self) -> Self {
        let Self { source, weight, limit, max_wait } = self;
        Self { source: source.clone(), weight: weight.clone(), limit: limit.clone(), max_wait: *max_wait }
    }
}

impl<Req> std::fmt::Debug for Permits<Req> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permits").field("group", &self.source.group).finish_non_exhaustive()
    }
}
