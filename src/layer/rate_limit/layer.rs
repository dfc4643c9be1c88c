//! The layer and its settings.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::ban::{Ban, Bans};
use super::future::Granted;
use super::hooks::{ChargeAfter, Cost, Hooks, Observe, OnAdmit, OnRefused, OnResponse};
use super::limiter::{AllOf, Asking, KeyExtractors, Limiter};
use super::quotas::{ChooseQuotas, DynQuotas, InTable, LookUp, QuotaTable, QuotasFuture, RowName};
use super::service::RateLimit;
use crate::layer::key::{DynKey, SkipIf};
use crate::primitive::token_bucket::Decision;
use crate::telemetry::Outcome;
use crate::{AsError, Key, KeyExtractor, Quotas, Store, StoreFailure, TokenBucket, TokenBuckets};

/// A [`Layer`] that limits how many requests of a key reach the inner service; see the [module](crate::token_bucket) for
/// the whole story.
///
/// Its parameters are the types of the requests and the responses, and what becomes of refusals: errors, or responses
/// by [`reject_with`](Self::reject_with). Closures are not part of the type, so a function can return the layer and a
/// struct can hold it:
///
/// ```
/// use tower_distributed::{Error, Quota, RateLimitLayer, Store, TokenBucket};
///
/// struct Mail { sender: String }
///
/// fn per_sender(store: &Store) -> Result<RateLimitLayer<Mail, ()>, Error> {
///     let bucket = TokenBucket::new(store, "mail", Quota::per_minute(10))?;
///     Ok(RateLimitLayer::new(bucket, |mail: &Mail| mail.sender.clone()))
/// }
/// # per_sender(&Store::in_memory()).unwrap();
/// ```
pub struct RateLimitLayer<Req, Res, R = AsError> {
    config: Config<Req, Res, R>,
}

/// All that a service needs to know; shared by its clones.
pub(super) struct Config<Req, Res, R> {
    pub(super) settings: Settings,
    pub(super) key: DynKey<Req>,
    /// `None`: every request costs one token.
    pub(super) cost: Option<Arc<dyn Cost<Req> + Send + Sync>>,
    /// `None`: those of the bucket.
    pub(super) quotas: Option<DynQuotas<Req>>,
    pub(super) hooks: Hooks<Req, Res>,
    pub(super) reject: R,
}

/// What does not depend on the kinds of requests.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) limiter: Limiter,
    pub(super) on_store_failure: Away,
    /// Whether nothing is refused.
    pub(super) shadow: bool,
    pub(super) ban: Option<Bans>,
}

#[derive(Clone, Debug)]
pub(super) enum Away {
    FailClosed,
    FailOpen,
    LocalShare { replicas: NonZeroU32, local: Limiter },
}

impl<Req, Res> RateLimitLayer<Req, Res> {
    /// Limits requests by the buckets of a namespace, each by its key.
    ///
    /// Requests that cannot be admitted now are refused; [`max_wait`](Self::max_wait) lets them wait.
    #[must_use]
    pub fn new(bucket: TokenBucket, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        Self::of(Limiter::One(bucket.with_max_wait(Duration::ZERO)), Arc::new(key))
    }

    fn of(limiter: Limiter, key: DynKey<Req>) -> Self {
        let limiter = limiter.cache_refusals(true);
        let settings = Settings { limiter, on_store_failure: Away::FailClosed, shadow: false, ban: None };
        let hooks = Hooks::NONE;
        Self { config: Config { settings, key, cost: None, quotas: None, hooks, reject: AsError } }
    }

    /// Limits requests by several limits at once, each by a key of its own, by a tuple of [`KeyExtractor`](crate::KeyExtractor)s:
    /// per user, per tenant and for all. A request is charged to all of them or to none; see [`TokenBuckets`]. A limit whose
    /// key is `None` is not asked; where all are, the request passes.
    ///
    /// The first limit is that of whoever makes the request: [`quotas`](Self::quotas) and tables set those of the first,
    /// [`ban`](Self::ban) counts its refusals, and [`observe`](Self::observe) blocks its key; requests without a first key
    /// have none of these. [`on_refused`](Self::on_refused) gets the key of the limit that refused. Requests that
    /// [wait](Self::max_wait) ask again when there may be tokens, in no order: in a crowd some may be refused in the end
    /// whose turn it was.
    ///
    /// ```
    /// # use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, TokenBuckets};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// struct Call { user: u64, tenant: Option<String> }
    ///
    /// let store = Store::in_memory();
    /// let limits = TokenBuckets::new([
    ///     TokenBucket::new(&store, "users", Quota::per_second(10))?,
    ///     TokenBucket::new(&store, "tenants", Quota::per_second(100))?,
    ///     TokenBucket::new(&store, "all", Quota::per_second(1000))?,
    /// ])?;
    /// let keys = (|call: &Call| call.user, |call: &Call| call.tenant.clone(), |_: &Call| "");
    /// let layer = RateLimitLayer::all_of(limits, keys);
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn all_of<K, const N: usize>(limits: TokenBuckets<N>, keys: K) -> Self
    where
        K: KeyExtractors<Req, N> + Send + Sync + 'static,
    {
        Self::of(Limiter::all(limits.several()), Arc::new(AllOf(keys)))
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// How many tokens a request costs, by a closure from `&Req` to `u32`. Default: one. What costs nothing
    /// passes without asking.
    #[must_use]
    pub fn cost(mut self, cost: impl Cost<Req> + Send + Sync + 'static) -> Self {
        self.config.cost = Some(Arc::new(cost));
        self
    }

    /// Under which quotas a request comes, by a closure from `&Req` to `Option<Quotas>`; `None`: the
    /// bucket's.
    ///
    /// For quotas that change at run time there is [`LiveQuotas`](crate::LiveQuotas), for those that have to be looked up
    /// [`look_up_quotas`](Self::look_up_quotas), for those of routes [`quota_table`](Self::quota_table).
    #[must_use]
    pub fn quotas(mut self, quotas: impl ChooseQuotas<Req> + Send + Sync + 'static) -> Self {
        self.config.quotas = Some(Arc::new(quotas));
        self
    }

    /// Lets requests wait for their tokens up to this long: first come, first served, but for those of
    /// [several limits](Self::all_of). Refusals are then no longer
    /// [cached](Self::cache_refusals), unless that is switched on afterwards.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.map_limiter(|limiter| limiter.with_max_wait(max_wait).cache_refusals(max_wait.is_zero()))
    }

    /// Whether requests are refused without asking the store where it would refuse them, by what it told last; see
    /// [`TokenBucket::cache_refusals`]. Default: `true`; with [`max_wait`](Self::max_wait), `false`.
    #[must_use]
    pub fn cache_refusals(self, cache: bool) -> Self {
        self.map_limiter(|limiter| limiter.cache_refusals(cache))
    }

    /// Charges the tokens of hot keys ahead and admits requests by them without asking the store; see
    /// [`TokenBucket::prefetch`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](crate::Error::is_invalid) where `hold` is not 1 ms to 1 s, and of a layer by
    /// [several limits](Self::all_of).
    pub fn prefetch(mut self, hold: Duration) -> Result<Self, crate::Error> {
        let settings = &mut self.config.settings;
        settings.limiter = settings.limiter.clone().prefetch(hold)?;
        Ok(self)
    }

    /// What to do while the store gives no answer. Default: [`StoreFailure::FailClosed`].
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        self.config.settings.on_store_failure = match on_store_failure {
            StoreFailure::FailClosed => Away::FailClosed,
            StoreFailure::FailOpen => Away::FailOpen,
            StoreFailure::LocalShare { replicas } => Away::LocalShare {
                replicas,
                local: self.config.settings.limiter.in_store(&Store::in_memory()),
            },
        };
        self
    }

    /// Shows admitted requests the decision, by a closure of `(&Decision, &mut Req)`: to count, or to put it
    /// where the inner service finds it. For HTTP there is `web::InsertDecision`.
    #[must_use]
    pub fn on_admit(mut self, on_admit: impl OnAdmit<Req> + Send + Sync + 'static) -> Self {
        self.config.hooks.on_admit.push(Arc::new(on_admit));
        self
    }

    /// Shows requests that are refused, with their keys and the decision, by a closure of `(&Req, &Key, &Decision)`: to log
    /// them, or to count them by what they ask for. Refusals without a decision, as in an outage, are not shown.
    #[must_use]
    pub fn on_refused(mut self, on_refused: impl OnRefused<Req> + Send + Sync + 'static) -> Self {
        self.config.hooks.on_refused.push(Arc::new(on_refused));
        self
    }

    /// Lets all requests through, at once, as if there were no limit, and counts those that would have been refused or would
    /// have waited as `shadowed`: to see what a limit would do before it does. Requests that fit are charged;
    /// [`on_refused`](Self::on_refused) is called, [`on_admit`](Self::on_admit) and [`on_response`](Self::on_response) for
    /// those that fit alone.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.config.settings.shadow = true;
        self
    }

    /// Shows the responses to admitted requests the decision, by a closure of `(&Decision, &mut Res)`. For
    /// HTTP there is `response::RateLimitFields`.
    #[must_use]
    pub fn on_response(mut self, on_response: impl OnResponse<Res> + Send + Sync + 'static) -> Self {
        self.config.hooks.on_response.push(Arc::new(on_response));
        self
    }

    /// Reads in the inner service's responses for how long their key is to be blocked, by a closure from
    /// `&Res` to `Option<Duration>`: one process hears the upstream's 429, all stop. For HTTP there is
    /// `response::RetryAfter`.
    #[must_use]
    pub fn observe(mut self, observe: impl Observe<Res> + Send + Sync + 'static) -> Self {
        self.config.hooks.observe.push(Arc::new(observe));
        self
    }

    /// Charges what a request turned out to cost, once the inner service has answered, by a closure from `&Res` to `u32`: the rows
    /// that a query returned, the tokens of a language model. It comes on top of the [`cost`](Self::cost) that was charged before.
    ///
    /// The bucket may go into [debt](TokenBucket::charge), and admits nothing until that has come back. Nobody waits for the
    /// charge; where the store is away it is lost. What was let through without a decision is charged nothing: let each request
    /// [cost](Self::cost) at least one token beforehand, since those that cost none are never refused.
    ///
    /// ```
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "rows", Quota::per_minute(1000))?;
    /// let layer = RateLimitLayer::new(bucket, |_: &&str| "ann").charge_after(|rows: &Vec<u32>| rows.len() as u32);
    /// let mut query = layer.layer(service_fn(async |_: &str| Ok::<_, std::io::Error>(vec![7; 5000])));
    ///
    /// assert_eq!(query.ready().await?.call("all").await?.len(), 5000);
    /// assert!(query.ready().await?.call("all").await.is_err(), "4001 tokens of debt");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn charge_after(mut self, cost: impl ChargeAfter<Res> + Send + Sync + 'static) -> Self {
        self.config.hooks.charge_after.push(Arc::new(cost));
        self
    }

    /// Lets requests pass without a limit, by a closure from `&Req` to `bool`: health checks, or callers on a list.
    ///
    /// ```
    /// # use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// # let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(10))?;
    /// let trusted = ["10.0.0.1", "10.0.0.2"];
    /// let layer = RateLimitLayer::new(bucket, |address: &String| address.clone())
    ///     .skip_if(move |address: &String| trusted.contains(&address.as_str()));
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn skip_if(mut self, skip: impl Fn(&Req) -> bool + Send + Sync + 'static) -> Self
    where
        Req: 'static,
    {
        self.config.key = Arc::new(SkipIf(self.config.key, skip));
        self
    }

    /// Bans a key that was refused too often: it is refused everything for a while, in all processes. See [`Ban`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](crate::Error::is_invalid) where the number or a span is zero, or the spans so long that it takes longer
    /// than 35 years to forget all.
    pub fn ban(mut self, ban: Ban) -> Result<Self, crate::Error> {
        self.config.settings.ban = Some(Bans::new(self.config.settings.limiter.first(), ban)?);
        Ok(self)
    }

    /// Bans a key for `span` once it was refused so often within as long: [`ban`](Self::ban) with [`Ban::after`].
    ///
    /// # Errors
    ///
    /// As [`ban`](Self::ban).
    pub fn ban_after(self, refusals: u32, span: Duration) -> Result<Self, crate::Error> {
        self.ban(Ban::after(refusals, span))
    }

    /// Gives each row of a table a limit of its own, by a closure from `&Req` to the name of a row: a route, a gRPC method. A key
    /// has a bucket for each row. Requests that are in no row come under the quotas that were set before.
    ///
    /// ```
    /// # use tower_distributed::{Quota, QuotaTable, RateLimitLayer, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// struct Call { method: &'static str, user: u64 }
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(100))?;
    /// let table = QuotaTable::new([("/shop.Orders/Place", "5/s"), ("/shop.Search/Find", "20/s, burst 50")])?;
    /// let layer = RateLimitLayer::new(bucket, |call: &Call| call.user).quota_table(table, |call: &Call| call.method);
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn quota_table(self, table: QuotaTable, name: impl RowName<Req> + Send + Sync + 'static) -> Self
    where
        Req: 'static,
    {
        let mut layer = self.map_limiter(Limiter::in_table);
        let Config { settings, key, quotas, .. } = &mut layer.config;
        if let Away::LocalShare { local, .. } = &mut settings.on_store_failure {
            *local = local.clone().in_table();
        }
        let name = Arc::new(name);
        *key = Arc::new(InTable { table: table.clone(), name: Arc::clone(&name), outside: Arc::clone(key) });
        *quotas = Some(Arc::new(InTable { table, name, outside: quotas.take() }));
        layer
    }

    /// Looks up the quotas of a request, by a closure from `&Req` to a future of `Option<Quotas>`: the plan of a customer, in a
    /// database. `None`: the bucket's. The request waits for it, so keep what was looked up in a cache.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Quotas, RateLimitLayer, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// async fn plan(customer: String) -> Option<Quotas> {
    ///     let text = if customer == "acme" { "100/s" } else { "10/s" }; // from a database
    ///     text.parse().ok()
    /// }
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(1))?;
    /// let layer = RateLimitLayer::new(bucket, |customer: &String| customer.clone())
    ///     .look_up_quotas(|customer: &String| plan(customer.clone()));
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn look_up_quotas<F, Fut>(self, look_up: F) -> Self
    where
        F: Fn(&Req) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Quotas>> + Send + 'static,
    {
        self.quotas(LookUp(look_up))
    }

    /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
    /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is
    /// `response::refuse()`, for gRPC `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> RateLimitLayer<Req, Res, R2> {
        let Config { settings, key, cost, quotas, hooks, reject: _ } = self.config;
        RateLimitLayer { config: Config { settings, key, cost, quotas, hooks, reject } }
    }

    fn map_limiter(mut self, map: impl FnOnce(Limiter) -> Limiter) -> Self {
        self.config.settings.limiter = map(self.config.settings.limiter);
        self
    }
}

impl Settings {
    /// Asks for a request.
    pub(super) fn acquire(&self, quotas: Option<&Quotas>, key: Key, cost: u32) -> Asking {
        self.limiter.acquire(quotas, key, cost, !self.shadow)
    }

    /// As what a request is counted.
    pub(super) fn counted(&self, outcome: Outcome, may_pass: bool) -> Outcome {
        if self.shadow && !may_pass { Outcome::Shadowed } else { outcome }
    }

    /// Whether a request passes whose extractor failed. It is counted.
    pub(super) fn passes_without_key(&self, error: &crate::Error) -> bool {
        self.limiter.decisions().count(self.counted(Outcome::of_error(error), false));
        self.shadow
    }

    /// Sees to it that a key is blocked, in a task of its own.
    pub(super) fn block(&self, key: Key, duration: Duration) {
        if let Away::LocalShare { local, .. } = &self.on_store_failure {
            local.block(key.clone(), duration);
        }
        self.limiter.block(key, duration);
    }

    /// Charges what a request turned out to cost, in a task of its own.
    pub(super) fn charge(&self, key: Key, granted: &Granted, tokens: u32) {
        let limiter = match &self.on_store_failure {
            Away::LocalShare { local, .. } if granted.by_share => local,
            _ => &self.limiter,
        };
        limiter.charge(key, &granted.decision, tokens);
    }
}

impl<Req, Res, R> Config<Req, Res, R> {
    /// Whether requests cost different numbers of tokens.
    pub(super) fn is_weighted(&self) -> bool {
        self.cost.is_some() || !self.hooks.charge_after.is_empty()
    }

    /// How many tokens a request costs.
    pub(super) fn cost(&self, request: &Req) -> u32 {
        self.cost.as_ref().map_or(1, |cost| cost.cost(request))
    }

    /// Under which quotas a request comes; `None`: those of the bucket.
    pub(super) fn quotas(&self, request: &Req) -> Option<Quotas> {
        self.quotas.as_ref()?.quotas(request)
    }

    /// The same, where they are looked up.
    pub(super) fn look_up_quotas(&self, request: &Req) -> Option<QuotasFuture> {
        self.quotas.as_ref()?.look_up(request)
    }

    /// A request is refused.
    pub(super) fn refused(&self, request: &Req, key: &Key, decision: &Decision) {
        let by = self.settings.limiter.refused(key, decision);
        let (limit, key) = by.as_ref().map_or((0, key), |(limit, key)| (*limit, key));
        self.hooks.refused(request, key, decision);
        if let Some(bans) = &self.settings.ban
            && !self.settings.shadow
            && limit == 0
        {
            bans.refused(self.settings.limiter.first(), key, decision);
        }
    }
}

impl<S, Req, Res, R: Clone> Layer<S> for RateLimitLayer<Req, Res, R> {
    type Service = RateLimit<S, Req, Res, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.config.clone()))
    }
}

impl<Req, Res, R: Clone> Clone for RateLimitLayer<Req, Res, R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<Req, Res, R: Clone> Clone for Config<Req, Res, R> {
    fn clone(&self) -> Self {
        let Self { settings, key, cost, quotas, hooks, reject } = self;
        Self {
            settings: settings.clone(),
            key: Arc::clone(key),
            cost: cost.clone(),
            quotas: quotas.clone(),
            hooks: hooks.clone(),
            reject: reject.clone(),
        }
    }
}

impl<Req, Res, R> fmt::Debug for RateLimitLayer<Req, Res, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("settings", &self.config.settings).finish_non_exhaustive()
    }
}
