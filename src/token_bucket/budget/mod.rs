//! The layer that authorizes an estimate for each request, and captures what the request has used.

mod estimate;
mod future;
mod hold;
mod meter;

use std::sync::Arc;

use derive_where::derive_where;
use tower_layer::Layer;

pub use self::estimate::Estimate;
use self::estimate::{Estimates, Estimator};
pub use self::hold::BudgetHold;
pub use self::meter::{AtResponse, Meter};
use super::holds::Usage;
use super::layer::KeyExtractors;
use super::limiter::Limiter;
use crate::middleware::away::Away;
use crate::middleware::key::DynKey;
use crate::middleware::{Cost, Layered};
use crate::{AsError, Error, Extracted, KeyExtractor, StoreFailure, TokenBucket, TokenBuckets};

/// A [`Layer`] for requests whose cost is known only at the end: it [authorizes](TokenBucket::authorize) an estimate, and
/// captures what was used.
///
/// The tokens of the estimate are held while the request is handled. No other request gets them, and what is not used is
/// free at once. So requests neither waste a quota by estimates that are too high, nor overrun it together.
///
/// The work counts its [`Usage`]: the inner service gets it through [`on_hold`](Self::on_hold), and a [`Meter`] reads it
/// from the response. The usage is captured when the hold ends: with the response, or with the end of its body
/// (`response::MeterBody`). If the inner service or the body fails, or is dropped because the client has gone or a timeout
/// is over, what was counted so far is captured, or [at least the estimate](Self::broken_costs_estimate). If nothing was counted, the hold ends as
/// [`OnEnd`](super::OnEnd) says: by default, the estimate is charged.
///
/// A usage above the estimate is charged as debt. It is never refused, because the work is done.
///
/// A hold lasts as long as the work: around a body that clients may read slowly, put a time-out for bodies. Of two layers
/// around each other, the outer one charges its estimate for what the inner one refuses.
///
/// The type parameters are the request type, how the usage is read from responses, and how refusals are returned.
///
/// ```
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_distributed::token_bucket::Usage;
/// use tower_distributed::{BudgetLayer, Quota, Store, TokenBucket};
///
/// struct Prompt { tenant: String, max_tokens: u32, usage: Usage }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let tokens = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_hour(10_000))?;
/// let budget = BudgetLayer::new(
///     tokens.clone(),
///     |prompt: &Prompt| prompt.tenant.clone(),
///     |prompt: &Prompt| prompt.max_tokens,
/// )
/// .on_hold(|usage: &Usage, prompt: &mut Prompt| prompt.usage = usage.clone());
/// let model = budget.layer(service_fn(async |prompt: Prompt| {
///     prompt.usage.set(831); // of 1200
///     Ok::<_, std::io::Error>("an answer")
/// }));
///
/// let prompt = Prompt { tenant: "acme".into(), max_tokens: 1200, usage: Usage::default() };
/// assert_eq!(model.oneshot(prompt).await?, "an answer");
/// assert_eq!(tokens.peek("acme").await?.remaining(), 9169);
/// # Ok(()) }
/// ```
#[derive_where(Clone; M, R)]
pub struct BudgetLayer<Req, M = AtResponse, R = AsError> {
    pub(super) limits: Limiter,
    /// The key of each limit.
    pub(super) keys: Arc<[DynKey<Req>]>,
    pub(super) estimate: Estimator<Req>,
    pub(super) on_hold: Vec<OnHold<Req>>,
    pub(super) meter: M,
    pub(super) broken_costs_estimate: bool,
    pub(super) on_store_failure: Away<Limiter>,
    pub(super) reject: R,
}

type OnHold<Req> = Arc<dyn Fn(&Usage, &mut Req) + Send + Sync>;

impl<Req> BudgetLayer<Req> {
    /// Creates a layer that holds an estimate of the tokens that a request uses. `estimate` is a closure from `&Req` to
    /// `u32`.
    ///
    /// A request whose estimate is not available now is refused, with the time at which it may be. One whose estimate is above
    /// the burst is refused as [`ExceedsBurst`](crate::RefusalKind::ExceedsBurst). An estimate of 0 holds one token, because
    /// estimates often come from clients. A request without a key passes, and is charged nothing.
    #[must_use]
    pub fn new(
        bucket: TokenBucket,
        key: impl KeyExtractor<Req> + Send + Sync + 'static,
        estimate: impl Cost<Req> + Send + Sync + 'static,
    ) -> Self {
        Self::of(
            Limiter::One(bucket),
            Arc::new([Arc::new(key)]),
            estimate::metered(estimate),
        )
    }

    fn of(limits: Limiter, keys: Arc<[DynKey<Req>]>, estimate: Estimator<Req>) -> Self {
        let (meter, on_store_failure, reject) = (AtResponse, Away::FailClosed, AsError);
        let (on_hold, broken_costs_estimate) = (Vec::new(), false);
        Self {
            limits,
            keys,
            estimate,
            on_hold,
            meter,
            broken_costs_estimate,
            on_store_failure,
            reject,
        }
    }

    /// Creates a layer with several limits, such as requests and tokens per minute, or tokens per user, per tenant and for all.
    ///
    /// A request holds tokens of all limits or of none; see [`TokenBuckets::authorize`]. `keys` is a tuple with one
    /// [`KeyExtractor`] for each limit. A limit whose key is `None` is not asked. `estimate` is a closure from `&Req` to an
    /// [`Estimate`] for each limit: what is fixed is captured as it is, and the [`Usage`] is captured of all other limits.
    /// Each key has at most 1024 holds at a time, so a limit for all requests has at most as many in flight.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::token_bucket::{Estimate, Usage};
    /// use tower_distributed::{BudgetLayer, Quota, Refusal, Store, TokenBucket, TokenBuckets};
    ///
    /// struct Prompt { tenant: String, max_tokens: u32, usage: Usage }
    ///
    /// fn tenant(prompt: &Prompt) -> &str { &prompt.tenant }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let store = Store::in_memory();
    /// let requests = TokenBucket::new(&store, "requests", Quota::per_hour(60))?;
    /// let tokens = TokenBucket::new(&store, "tokens", Quota::per_hour(10_000))?;
    /// let budget = BudgetLayer::all_of(
    ///     TokenBuckets::new([requests.clone(), tokens.clone()])?,
    ///     (tenant, tenant),
    ///     |prompt: &Prompt| [Estimate::Fixed(1), Estimate::Metered(prompt.max_tokens)],
    /// )
    /// .on_hold(|usage: &Usage, prompt: &mut Prompt| prompt.usage = usage.clone());
    /// let model = budget.layer(service_fn(async |prompt: Prompt| {
    ///     prompt.usage.set(831);
    ///     Ok::<_, std::io::Error>("an answer")
    /// }));
    ///
    /// let prompt = |max_tokens| Prompt { tenant: "acme".into(), max_tokens, usage: Usage::default() };
    /// model.clone().oneshot(prompt(1200)).await?;
    /// assert_eq!(requests.peek("acme").await?.remaining(), 59);
    /// assert_eq!(tokens.peek("acme").await?.remaining(), 9169);
    /// let refusal = model.oneshot(prompt(9500)).await.unwrap_err();
    /// let refusal = refusal.downcast_ref::<Refusal>().and_then(Refusal::decision);
    /// assert_eq!(refusal.and_then(|decision| decision.refused_by()), Some("tokens"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn all_of<K, const N: usize>(
        limits: TokenBuckets<N>,
        keys: K,
        estimate: impl Fn(&Req) -> [Estimate; N] + Send + Sync + 'static,
    ) -> Self
    where
        K: KeyExtractors<Req, N>,
    {
        let estimate = Arc::new(move |request: &Req| Estimates::from_slice(&estimate(request)));
        Self::of(
            Limiter::All(limits.several().clone()),
            Arc::new(keys.into_extractors()),
            estimate,
        )
    }
}

impl<Req, M, R> BudgetLayer<Req, M, R> {
    /// Adds a closure of `(&Usage, &mut Req)` that is called before the inner service, for requests that have a hold. The
    /// work counts its usage there. For HTTP, use `web::insert_usage`.
    #[must_use]
    pub fn on_hold(mut self, on_hold: impl Fn(&Usage, &mut Req) + Send + Sync + 'static) -> Self {
        self.on_hold.push(Arc::new(on_hold));
        self
    }

    /// Reads the usage from responses, with a closure of `(&Res, &Usage)` or another [`Meter`]. For HTTP, use
    /// `response::MeterBody`. Default: only what the work counts.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::token_bucket::Usage;
    /// use tower_distributed::{BudgetLayer, Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let rows = TokenBucket::new(&Store::in_memory(), "rows", Quota::per_hour(1000))?;
    /// let query = BudgetLayer::new(rows.clone(), |_: &&str| "ann", |_: &&str| 500)
    ///     .meter(|rows: &Vec<u32>, usage: &Usage| usage.set(rows.len() as u32))
    ///     .layer(service_fn(async |_: &str| Ok::<_, std::io::Error>(vec![7; 20])));
    /// assert_eq!(query.oneshot("all").await?.len(), 20);
    /// assert_eq!(rows.peek("ann").await?.remaining(), 980);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn meter<M2>(self, meter: M2) -> BudgetLayer<Req, M2, R> {
        let Self {
            limits,
            keys,
            estimate,
            on_hold,
            meter: _,
            broken_costs_estimate,
            on_store_failure,
            reject,
        } = self;
        BudgetLayer {
            limits,
            keys,
            estimate,
            on_hold,
            meter,
            broken_costs_estimate,
            on_store_failure,
            reject,
        }
    }

    /// Sets whether a request that breaks costs at least its estimate: if the inner service or the body fails, or is dropped
    /// because the client has gone, before its usage [is complete](Usage::complete). Default: `false`, so that it costs what was
    /// counted so far.
    ///
    /// Turn it on where the usage is told at the end, and only a part of it, such as the tokens of the input, is counted before:
    /// else a client that leaves early pays for the input alone. A usage is complete with the response, or with the end of its
    /// body or the field in its trailers (`response::MeterBody`).
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::token_bucket::Usage;
    /// use tower_distributed::{BudgetLayer, Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let tokens = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_hour(10_000))?;
    /// let model = BudgetLayer::new(tokens.clone(), |_: &&str| "ann", |_: &&str| 600)
    ///     .broken_costs_estimate(true)
    ///     .on_hold(|usage: &Usage, _: &mut &str| usage.set(25)) // the input
    ///     .layer(service_fn(async |_: &str| Err::<&str, _>(std::io::Error::other("broken"))));
    /// assert!(model.oneshot("prompt").await.is_err());
    /// assert_eq!(tokens.peek("ann").await?.remaining(), 9400);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn broken_costs_estimate(self, costs_estimate: bool) -> Self {
        Self {
            broken_costs_estimate: costs_estimate,
            ..self
        }
    }

    /// Sets what happens to requests while the store is unavailable. Default: [`StoreFailure::FailClosed`].
    ///
    /// With [`StoreFailure::FailOpen`], a request passes, and is charged nothing. With [`StoreFailure::LocalShare`], each
    /// process holds tokens of its share of the quotas; an estimate above the burst of this share is refused as
    /// [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable).
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        self.on_store_failure =
            Away::new(on_store_failure, |sharing| self.limits.local_share(sharing));
        self
    }

    /// Turns refusals into responses, with a closure from [`Refusal`](crate::Refusal) to the response, or with another
    /// [`Reject`](crate::Reject). Default: a refusal is a boxed error. For HTTP, use `response::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> BudgetLayer<Req, M, R2> {
        let Self {
            limits,
            keys,
            estimate,
            on_hold,
            meter,
            broken_costs_estimate,
            on_store_failure,
            reject: _,
        } = self;
        BudgetLayer {
            limits,
            keys,
            estimate,
            on_hold,
            meter,
            broken_costs_estimate,
            on_store_failure,
            reject,
        }
    }
}

/// Holds the estimates for a key. `None`: the request passes without a hold.
async fn authorize(
    limits: Limiter,
    away: Away<Limiter>,
    key: Extracted,
    estimates: Estimates,
) -> Result<Option<BudgetHold>, Error> {
    let decisions = limits.decisions();
    let Some(key) = decisions.extracted(key.await)? else {
        return Ok(None);
    };
    let asked = estimate::hold(&limits, key.clone(), &estimates).await;
    let local = async |local: Limiter, outage| {
        let held = estimate::hold(&local.standing_in_for(&limits), key, &estimates).await;
        // An estimate that is too high for the share only is refused because of the outage.
        held.map_err(|refusal: Error| {
            if refusal.is_exceeds_limit() {
                outage
            } else {
                refusal
            }
        })
    };
    decisions.settle(away.settle(asked, local).await)
}

impl<S, Req, M: Clone, R: Clone> Layer<S> for BudgetLayer<Req, M, R> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(inner, self.clone())
    }
}

debug!(BudgetLayer<Req, M, R>, limits);
