//! The layer that authorizes an estimate for each request and captures its actual usage: its settings, the hold of a
//! request, and the meters that read the usage.

mod admit;

use std::sync::Arc;

use derive_where::derive_where;
use smallvec::{SmallVec, smallvec};
use tower_layer::Layer;

use crate::bucket::decision::Decision;
#[cfg(feature = "http")]
use crate::bucket::quota::Limit;
use crate::error::Error;
use crate::key::Key;
use crate::layers::Layered;
use crate::layers::key::{Cost, DynKey, KeyExtractor};
use crate::layers::rate_limit::keys::KeyExtractors;
use crate::layers::refusal::AsError;
use crate::store::failure::{StoreFailure, StoreFailurePolicy};
use crate::token_bucket::TokenBucket;
use crate::token_bucket::hold::{Hold, Usage};
use crate::token_bucket::hold_all::HoldSet;
use crate::token_bucket::limiter::Limiter;
use crate::token_bucket::limits::{TokenBuckets, keys_of};
#[cfg(feature = "http")]
use crate::token_bucket::upstream::UpstreamEvents;

/// A [`Layer`] for requests whose cost is known only at the end: it [authorizes](TokenBucket::authorize) an estimate,
/// and captures what was used.
///
/// The tokens of the estimate are held while the request is handled, and are not available to other requests. Unused
/// tokens are released as soon as the usage is captured. So an estimate that is too high wastes no quota, and
/// concurrent requests cannot exceed it together.
///
/// The inner service adds to the [`Usage`] of the request, which it gets through [`on_hold`](Self::on_hold); a
/// [`Meter`] reads usage from the response. The usage is captured when the hold ends: with the response, or with the
/// end of its body (`response::MeterBody`). If the inner service or the body fails, or is dropped because the client
/// disconnected or a timeout expired, the usage counted so far is captured, or [at least the
/// estimate](Self::broken_costs_estimate). If nothing was counted, the hold ends as set by
/// [`OnEnd`](crate::token_bucket::OnEnd): by default, the estimate is charged.
///
/// A usage above the estimate is charged as debt. It is never refused, because the work is done.
///
/// A hold lasts until the work ends: if clients may read a body slowly, put a timeout for bodies around the layer. If
/// two such layers are nested and the inner one refuses a request, the outer one charges its estimate.
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
    settings: Settings<Req>,
    meter: M,
    reject: R,
}

/// The settings whose types do not change.
#[derive_where(Clone)]
struct Settings<Req> {
    limits: Limiter,
    /// The key of each limit.
    keys: Arc<[DynKey<Req>]>,
    estimate: Estimator<Req>,
    on_hold: Vec<OnHold<Req>>,
    broken_costs_estimate: bool,
    on_store_failure: StoreFailurePolicy<Limiter>,
}

type OnHold<Req> = Arc<dyn Fn(&Usage, &mut Req) + Send + Sync>;

impl<Req> BudgetLayer<Req> {
    /// Creates a layer that holds an estimate of the tokens that a request uses. `estimate` is a closure from `&Req` to
    /// `u32`.
    ///
    /// A request whose estimate is not available now is refused, with the time at which it may be available. An
    /// estimate above the burst is refused as [`ExceedsBurst`](crate::RefusalKind::ExceedsBurst). An estimate of 0
    /// holds one token, because estimates often come from clients. A request without a key passes, and is charged
    /// nothing.
    #[must_use]
    pub fn new(
        bucket: TokenBucket,
        key: impl KeyExtractor<Req> + Send + Sync + 'static,
        estimate: impl Cost<Req> + Send + Sync + 'static,
    ) -> Self {
        Self::of(
            Limiter::One(bucket),
            Arc::new([Arc::new(key)]),
            metered(estimate),
        )
    }

    fn of(limits: Limiter, keys: Arc<[DynKey<Req>]>, estimate: Estimator<Req>) -> Self {
        let settings = Settings {
            limits,
            keys,
            estimate,
            on_hold: Vec::new(),
            broken_costs_estimate: false,
            on_store_failure: StoreFailurePolicy::FailClosed,
        };
        Self {
            settings,
            meter: AtResponse,
            reject: AsError,
        }
    }

    /// Creates a layer with several limits, such as requests and tokens per minute, or tokens per user, per tenant and
    /// for all.
    ///
    /// A request holds tokens of all limits or of none; see [`TokenBuckets::authorize`]. `keys` is a tuple with one
    /// [`KeyExtractor`] for each limit. A limit whose key is `None` is skipped. `estimate` is a closure from `&Req` to
    /// an [`Estimate`] for each limit: a fixed estimate is captured unchanged, and each other limit captures the
    /// [`Usage`]. Each key has at most 1024 holds at a time, so a limit with one key for all requests has at most 1024
    /// requests in flight.
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
    /// Adds a closure of `(&Usage, &mut Req)` that is called before the inner service, for requests that have a hold.
    /// The work counts its usage there. For HTTP, use `web::insert_usage`.
    #[must_use]
    pub fn on_hold(mut self, on_hold: impl Fn(&Usage, &mut Req) + Send + Sync + 'static) -> Self {
        self.settings.on_hold.push(Arc::new(on_hold));
        self
    }

    /// Reads the usage from responses, with a closure of `(&Res, &Usage)` or another [`Meter`]. For HTTP, use
    /// `response::MeterBody`. Default: nothing is read, so only the inner service counts usage.
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
            settings, reject, ..
        } = self;
        BudgetLayer {
            settings,
            meter,
            reject,
        }
    }

    /// Sets whether a broken request costs at least its estimate. A request is broken if the inner service or the body
    /// fails, or is dropped because the client disconnected, before its usage [is complete](Usage::complete). Default:
    /// `false`, it costs the usage counted so far.
    ///
    /// Set this if the whole usage is known only at the end and only a part of it, such as the input tokens, is counted
    /// earlier. Otherwise a client that disconnects early pays for the input only. A usage is complete with the
    /// response, or with the end of its body or the field in its trailers (`response::MeterBody`).
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
    pub fn broken_costs_estimate(mut self, costs_estimate: bool) -> Self {
        self.settings.broken_costs_estimate = costs_estimate;
        self
    }

    /// Sets what happens to requests while the store is unavailable. Default: [`StoreFailure::FailClosed`].
    ///
    /// With [`StoreFailure::FailOpen`], a request passes, and is charged nothing. With [`StoreFailure::LocalShare`],
    /// each process holds tokens of its share of the quotas; an estimate above the burst of this share is refused as
    /// [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable).
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let limits = &self.settings.limits;
        self.settings.on_store_failure =
            StoreFailurePolicy::new(on_store_failure, |sharing| limits.local_share(sharing));
        self
    }

    /// Turns refusals into responses, with a closure from [`Refusal`](crate::Refusal) to the response, or with another
    /// [`Reject`](crate::Reject). Default: a refusal is a boxed error. For HTTP, use `response::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> BudgetLayer<Req, M, R2> {
        let Self {
            settings, meter, ..
        } = self;
        BudgetLayer {
            settings,
            meter,
            reject,
        }
    }
}

impl<S, Req, M: Clone, R: Clone> Layer<S> for BudgetLayer<Req, M, R> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(inner, self.clone())
    }
}

debug!(BudgetLayer<Req, M, R>, settings.limits);

/// The estimated usage of a request for one of [several limits](BudgetLayer::all_of).
///
/// ```
/// use tower_distributed::token_bucket::Estimate;
///
/// struct Prompt { max_tokens: u32 }
///
/// // For the limits `requests` and `tokens`.
/// let estimate = |prompt: &Prompt| [Estimate::Fixed(1), Estimate::Metered(prompt.max_tokens)];
/// assert_eq!(estimate(&Prompt { max_tokens: 1200 })[1], Estimate::Metered(1200));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// This number of tokens, regardless of the [`Usage`], such as one request. If it is 0, the limit is skipped.
    Fixed(u32),
    /// Approximately this number of tokens; the [`Usage`] of the request is captured. If it is 0, one token is held,
    /// because estimates often come from clients.
    Metered(u32),
}

impl Estimate {
    /// The number of tokens to hold.
    fn tokens(self) -> u32 {
        match self {
            Self::Fixed(tokens) => tokens,
            Self::Metered(tokens) => tokens.max(1),
        }
    }
}

/// One per limit. One limit needs no allocation.
type Estimates = SmallVec<[Estimate; 3]>;

/// Estimates what a request uses.
type Estimator<Req> = Arc<dyn Fn(&Req) -> Estimates + Send + Sync>;

/// The estimator of one limit.
fn metered<Req>(estimate: impl Cost<Req> + Send + Sync + 'static) -> Estimator<Req> {
    Arc::new(move |request| smallvec![Estimate::Metered(estimate.cost(request))])
}

/// Holds the estimates for a key.
async fn hold(limits: &Limiter, key: Key, estimates: &[Estimate]) -> Result<BudgetHold, Error> {
    match limits {
        Limiter::One(bucket) => {
            let tokens = estimates.first().map_or(1, |estimate| estimate.tokens());
            bucket.hold(key, tokens).await.map(BudgetHold::of_one)
        }
        Limiter::All(limits) => {
            let usage = Usage::default();
            let mut keys = keys_of(&key);
            let usage_of = |estimate: &Estimate| match estimate {
                Estimate::Fixed(tokens) => Usage::of(*tokens),
                Estimate::Metered(_) => usage.clone(),
            };
            let usages: SmallVec<[Usage; 3]> = estimates.iter().map(usage_of).collect();
            for (key, _) in keys
                .iter_mut()
                .zip(estimates)
                .filter(|(_, it)| **it == Estimate::Fixed(0))
            {
                *key = None;
            }
            let tokens: SmallVec<[u32; 3]> =
                estimates.iter().map(|estimate| estimate.tokens()).collect();
            let held = HoldSet::authorize(limits, keys, &tokens, &usages).await?;
            Ok(BudgetHold::of_all(held, usage))
        }
    }
}

/// The tokens that a request of a [`BudgetLayer`] holds, of one limit or of several. Its [usage](Self::usage) is
/// captured when it is dropped.
#[derive(Debug)]
#[must_use = "a hold that is dropped ends at once"]
pub struct BudgetHold {
    held: Held,
    /// Whether it captures at least the estimate, unless its usage is complete.
    broken_costs_estimate: bool,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a hold of one limit, which is the usual one, needs no memory of its own"
)]
enum Held {
    One(Hold),
    All(Box<(HoldSet, Usage)>),
}

impl BudgetHold {
    fn of_one(hold: Hold) -> Self {
        Self {
            held: Held::One(hold),
            broken_costs_estimate: false,
        }
    }

    /// `usage`: the usage of the limits that are metered.
    fn of_all(holds: HoldSet, usage: Usage) -> Self {
        Self {
            held: Held::All(Box::new((holds, usage))),
            broken_costs_estimate: false,
        }
    }

    fn broken_costs_estimate(self, costs_estimate: bool) -> Self {
        let mut this = self;
        this.broken_costs_estimate = costs_estimate;
        this
    }

    /// Returns the usage so far, which the caller adds to. If nothing is counted, the hold ends as set by
    /// [`OnEnd`](crate::token_bucket::OnEnd).
    #[must_use]
    pub fn usage(&self) -> &Usage {
        match &self.held {
            Held::One(hold) => hold.usage(),
            Held::All(all) => &all.1,
        }
    }

    /// Returns the decision that admitted the request. Its [cost](Decision::cost) is the estimate.
    #[must_use]
    pub fn decision(&self) -> Decision {
        match &self.held {
            Held::One(hold) => hold.decision(),
            Held::All(all) => all.0.decision().clone(),
        }
    }

    /// The default maximum for a usage that an upstream reports: the burst plus the tokens that refill within a day. If
    /// there are several quotas, the smallest such number.
    #[cfg(feature = "http")]
    pub(crate) fn believed(&self) -> u32 {
        let quotas = match &self.held {
            Held::One(hold) => &hold.state().quotas,
            Held::All(all) => &all.0.decision().state.quotas,
        };
        let in_a_day = |limit: &Limit| (86_400e6 / limit.interval()) as i64;
        let most = quotas
            .limits()
            .iter()
            .map(|limit| limit.burst.saturating_add(in_a_day(limit)))
            .min();
        most.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// `None`: no limit has a key.
    #[cfg(feature = "http")]
    pub(crate) fn upstream(&self) -> Option<&UpstreamEvents> {
        match &self.held {
            Held::One(hold) => Some(hold.upstream()),
            Held::All(all) => all.0.upstream(),
        }
    }

    /// Waits until the tokens are no longer held, like [`Hold::lost`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time.
    pub async fn lost(&self) {
        match &self.held {
            Held::One(hold) => hold.lost().await,
            Held::All(all) => all.0.lost().await,
        }
    }
}

impl Drop for BudgetHold {
    fn drop(&mut self) {
        if !self.broken_costs_estimate || self.usage().is_complete() {
            return;
        }
        match &mut self.held {
            Held::One(hold) => hold.capture_at_least_held(),
            Held::All(all) => all.0.capture_at_least_held(),
        }
    }
}

/// Reads the usage of a request from its response, and decides when the hold of the request ends.
///
/// Functions and closures of `(&Res, &Usage)` are meters: they count in the usage, and the hold ends with the response.
/// For HTTP, see `response::MeterBody`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read a usage from a `{Res}`",
    note = "pass a closure with typed arguments: `|response: &Response, usage: &Usage| usage.set(...)`",
    note = "for the body of an HTTP response, pass `response::MeterBody`"
)]
pub trait Meter<Res> {
    /// The response that the layer returns.
    type Response;

    /// Attaches the hold to a response, or drops it, which captures its [usage](BudgetHold::usage). The implementation
    /// marks the usage [as complete](Usage::complete). `None`: the request passed without a hold.
    fn meter(&self, response: Res, hold: Option<BudgetHold>) -> Self::Response;

    /// Takes the hold of a request whose inner service has failed. By default it is dropped.
    fn failed(&self, hold: BudgetHold) {
        drop(hold);
    }

    /// Writes the decision into the response to a refused request. By default, it does nothing.
    fn refused(&self, _decision: &Decision, _response: &mut Self::Response) {}
}

/// The [`Meter`] that reads nothing: the hold ends with the response. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtResponse;

impl<Res> Meter<Res> for AtResponse {
    type Response = Res;

    fn meter(&self, response: Res, hold: Option<BudgetHold>) -> Res {
        hold.inspect(|hold| hold.usage().complete());
        response
    }
}

impl<Res, F: Fn(&Res, &Usage)> Meter<Res> for F {
    type Response = Res;

    fn meter(&self, response: Res, hold: Option<BudgetHold>) -> Res {
        if let Some(hold) = hold {
            self(&response, hold.usage());
            hold.usage().complete();
        }
        response
    }
}
