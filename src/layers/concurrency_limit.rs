//! The layer that handles requests under permits. See the public module `wait_group`.

use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;

use crate::adaptive::client_time::Client;
use crate::adaptive::table::AdaptiveLimits;
use crate::key::Key;
use crate::layers::Choose;
use crate::layers::key::{Extracted, KeyExtractor};
use crate::layers::lease::{
    Acquire, Acquired, Acquiring, LeaseLayer, Leased, Provide, Unobserved, UntilResponse, acquire,
};
use crate::layers::refusal::AsError;
use crate::lease::handle::Lease;
use crate::lease::settings::{KeyLimit, Source as LimitSource};
use crate::lease::waiter::Patience;
use crate::macros::setters;
use crate::store::failure::{StoreFailure, StoreFailurePolicy};
use crate::store::replicas::Replicas;
use crate::telemetry::counters::Decisions;
use crate::wait_group::turn::Turn;
use crate::wait_group::{CallLimit, WaitGroup};

/// A [`Layer`](tower_layer::Layer) that limits how many requests of a key the inner service handles at once.
///
/// See the [module](crate::wait_group) for details.
///
/// The type parameters are the request type, [how long](Self::hold) a permit is held, how [refusals](Self::reject_with)
/// are returned, and whether the limit [adapts](Self::adaptive).
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
pub type ConcurrencyLimitLayer<Req, H = UntilResponse, R = AsError, A = ()> =
    LeaseLayer<Req, Leased<RequestPermits<Req, A>, H>, R>;

/// The permits of the requests of a [`ConcurrencyLimitLayer`].
#[derive_where(Clone; A)]
pub struct RequestPermits<Req, A = ()> {
    pub(crate) source: Source,
    /// `None`: every request weighs 1.
    pub(crate) weight: Option<Choose<Req, u32>>,
    /// `None`: the limit of the WaitGroup.
    pub(crate) limit: Option<Choose<Req, Option<u32>>>,
    /// `None`: the turn of the WaitGroup.
    pub(crate) turn: Option<Choose<Req, Turn>>,
    /// Wraps a request to measure the time that its client takes, if the limit adapts. `None`: requests are not
    /// wrapped.
    pub(crate) watch: Option<Watch<Req>>,
    /// Observes the outcomes of requests. `()`: nothing is observed.
    pub(crate) observer: A,
}

/// Returns the wrapped request, and the record of its client's time.
pub(crate) type Watch<Req> = Arc<dyn Fn(Req) -> (Req, Client) + Send + Sync>;

/// The source of permits.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) group: WaitGroup,
    away: StoreFailurePolicy<(Replicas, WaitGroup)>,
    pub(crate) adaptive: Option<AdaptiveLimits>,
}

impl<Req> ConcurrencyLimitLayer<Req> {
    /// Creates a layer that handles each request under a permit of its key.
    #[must_use]
    pub fn new(group: WaitGroup, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        let source = Source {
            group,
            away: StoreFailurePolicy::FailClosed,
            adaptive: None,
        };
        let permits = RequestPermits {
            source,
            weight: None,
            limit: None,
            turn: None,
            watch: None,
            observer: (),
        };
        Self::of(Leased::of(permits), key)
    }
}

setters! { ConcurrencyLimitLayer<Req, H, R, A>:
    /// Sets the weight of a request, with a closure from `&Req` to `u32`. Default: 1.
    ///
    /// A request with the weight 0 passes without a permit and without a call to the store.
    #[must_use]
    fn weight(weight: impl Fn(&Req) -> u32 + Send + Sync + 'static)
        => provide.from.weight = Some(Arc::new(weight));

    /// Sets the limit for a request, with a closure from `&Req` to `Option<u32>`. A limit that is changed for the whole
    /// fleet comes from [`FleetLimit`](crate::fleet::FleetLimit), and counts where it is lower. Default, and for `None`: the
    /// limit of the WaitGroup.
    ///
    /// It bounds this request alone. A limit of 0 refuses the request as [`NoPermit`](crate::RefusalKind::NoPermit).
    #[must_use]
    fn limit(limit: impl Fn(&Req) -> Option<u32> + Send + Sync + 'static)
        => provide.from.limit = Some(Arc::new(limit));

    /// Sets the [turn](Turn) of a request: its flow, the share of the flow, and its class, with a closure from `&Req`
    /// to [`Turn`]. Default: the turn of the WaitGroup.
    ///
    /// A share or a class that is out of range refuses the request as [`Invalid`](crate::RefusalKind::Invalid).
    #[must_use]
    fn turn(turn: impl Fn(&Req) -> Turn + Send + Sync + 'static) => provide.from.turn = Some(Arc::new(turn));
}

impl<Req: 'static, H, R, A> ConcurrencyLimitLayer<Req, H, R, A> {
    /// Gives fair shares to the flows of requests, such as tenants, with a closure from `&Req` to the flow. See *Fair
    /// shares* of the [module](crate::wait_group#fair-shares). The other
    /// parts of the turn, set before by [`turn`](Self::turn) or [`priority`](Self::priority), are kept.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};
    ///
    /// struct Prompt { tenant: String, is_interactive: bool }
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let model = WaitGroup::builder(16).fair().priorities(2).build(&Store::in_memory(), "model")?;
    /// let limit = ConcurrencyLimitLayer::new(model, |_: &Prompt| "gpu")
    ///     .max_wait(Duration::from_secs(10))
    ///     .fair_by(|prompt: &Prompt| prompt.tenant.clone())
    ///     .priority(|prompt: &Prompt| if prompt.is_interactive { 0 } else { 1 });
    /// # let _: ConcurrencyLimitLayer<Prompt> = limit;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fair_by<F: Into<Key>>(self, flow: impl Fn(&Req) -> F + Send + Sync + 'static) -> Self {
        self.turned(move |turn, request| turn.flow(flow(request)))
    }

    /// Sets the class of a request, with a closure from `&Req` to the class: 0 is the highest. See *Classes* of the
    /// [module](crate::wait_group#classes). The other parts of the turn, set before by
    /// [`turn`](Self::turn) or [`fair_by`](Self::fair_by), are kept.
    #[must_use]
    pub fn priority(self, class: impl Fn(&Req) -> u8 + Send + Sync + 'static) -> Self {
        self.turned(move |turn, request| turn.class(class(request)))
    }

    fn turned(mut self, change: impl Fn(Turn, &Req) -> Turn + Send + Sync + 'static) -> Self {
        let before = self.provide.from.turn.take();
        let usual = self.provide.from.source.group.turn;
        let turn = move |request: &Req| {
            change(before.as_ref().map_or(usual, |turn| turn(request)), request)
        };
        self.provide.from.turn = Some(Arc::new(turn));
        self
    }
}

impl<Req, H, R, A> ConcurrencyLimitLayer<Req, H, R, A> {
    /// Sets what happens to requests while the store is unavailable. Default: [`StoreFailure::FailClosed`].
    ///
    /// With [`StoreFailure::LocalShare`], each process grants the limit divided by the number of replicas (at
    /// least one permit). A request whose weight is above this share is refused as
    /// [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable).
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let Source { group, away, .. } = &mut self.provide.from.source;
        *away = StoreFailurePolicy::new(on_store_failure, |sharing| group.local_share(sharing));
        self
    }
}

impl<Req> Unobserved for RequestPermits<Req> {}

impl<Req, A> Provide<Req> for RequestPermits<Req, A> {
    fn lease(&self, key: Extracted, request: &Req, max_wait: Option<Duration>) -> Acquiring<Lease> {
        let weight = self.weight.as_ref().map_or(1, |weight| weight(request));
        if weight == 0 {
            return Acquiring::Ready(Ok(None));
        }
        let limit = self.limit.as_ref().and_then(|limit| limit(request));
        let turn = self
            .turn
            .as_ref()
            .map_or(self.source.group.turn, |turn| turn(request));
        acquire(&self.source, key, (weight, limit, turn), max_wait)
    }
}

impl Source {
    /// Returns the weight and the limit of a request. `chosen` is the limit that the layer chose for it, if any. The
    /// limit of the fleet takes precedence, then the adaptive limit, then that of the WaitGroup.
    async fn limit(&self, key: &Key, weight: u32, chosen: Option<u32>) -> (u32, CallLimit) {
        let limit = self.group.limit_of_call(chosen);
        let (Some(adaptive), None) = (&self.adaptive, limit.of_key.and_then(|of_key| of_key.limit))
        else {
            return (weight, limit);
        };
        let most = chosen.unwrap_or(u32::MAX);
        let (weight, adapted) = adaptive.bounded(key, weight, most).await;
        let of_key = KeyLimit {
            source: LimitSource::Adaptive,
            version: 0,
            limit: Some(adapted.into()),
        };
        let of_key = (adapted < most).then_some(of_key);
        (
            weight,
            CallLimit {
                limit: adapted,
                chosen,
                of_key,
            },
        )
    }
}

impl Acquire for Source {
    /// The weight, the limit that was chosen for the request, and the turn.
    type Asked = (u32, Option<u32>, Turn);
    type Granted = Lease;

    fn decisions(&self) -> &Decisions {
        &self.group.decisions
    }

    fn is_in_memory(&self) -> bool {
        self.group.leases.namespace.store.is_in_memory()
    }

    async fn acquire(
        &self,
        key: Key,
        (weight, chosen, turn): (u32, Option<u32>, Turn),
        max_wait: Option<Duration>,
    ) -> Acquired<Lease> {
        let (weight, limit) = self.limit(&key, weight, chosen).await;
        let wait = max_wait.map(|max_wait| Patience {
            max_wait: Some(max_wait),
            ..self.group.wait
        });
        let asked = self
            .group
            .acquire(key.clone(), weight, limit, wait, turn)
            .await;
        let local = |(replicas, local): (Replicas, WaitGroup), outage| async move {
            let replicas = replicas.most();
            let share = if limit.limit == 0 {
                0
            } else {
                (limit.limit / replicas).max(1)
            };
            // The weight exceeds the local share only: the request is refused because of the outage.
            if weight > share && share > 0 {
                return Err(outage);
            }
            let limit = CallLimit {
                limit: share,
                chosen: None,
                of_key: None,
            };
            local
                .share(replicas)
                .acquire(key, weight, limit, wait, turn)
                .await
        };
        let settled = self.away.settle(asked, local).await;
        let lease = self.decisions().settle(settled)?;
        Ok(match &self.adaptive {
            Some(adaptive) => lease.map(|lease| adaptive.in_flight(lease, weight)),
            None => lease,
        })
    }
}

debug!(RequestPermits<Req, A: std::fmt::Debug>, source.group, observer);
