//! The rate limit layer and its settings, see the public module [`token_bucket`](crate::token_bucket).

mod admit;
pub(crate) mod ban;
pub(crate) mod hooks;
pub(crate) mod keys;
pub(crate) mod quotas;

use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;
use tower_layer::Layer;

use crate::bucket::decision::Decision;
use crate::error::Error;
use crate::key::IntoKey as _;
use crate::key::Key;
use crate::layers::Layered;
use crate::layers::key::{Cost, DynKey, KeyExtractor, KeyFn};
use crate::layers::rate_limit::ban::{Ban, Bans};
use crate::layers::rate_limit::hooks::{BlockOnResponse, Hooks};
use crate::layers::rate_limit::keys::KeyExtractors;
use crate::layers::rate_limit::quotas::{Choice, ChooseQuotas, Table};
use crate::layers::refusal::AsError;
use crate::learn::LearnFromResponse;
use crate::refused_keys::RefusedKeys;
use crate::store::failure::{StoreFailure, StoreFailurePolicy};
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limiter::Limiter;
use crate::token_bucket::limits::TokenBuckets;

/// A [`Layer`] that limits the rate of requests per key; see the [module](crate::token_bucket).
///
/// The type parameters are the request type, the response type, and how refusals are returned: as errors by
/// default, or as responses with [`reject_with`](Self::reject_with). Closures are not part of the type, so a
/// function can return the layer and a struct can hold it:
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
///
/// With cost, hooks and refusals as responses:
///
/// ```
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::token_bucket::Decision;
/// use tower_distributed::{Key, Quota, RateLimitLayer, Refusal, Store, TokenBucket};
///
/// struct Query { user: String, tables: u32 }
/// struct Rows { text: String, left: u32 }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "queries", Quota::per_minute(10))?;
/// let limit = RateLimitLayer::new(bucket, |query: &Query| query.user.clone())
///     .cost(|query: &Query| query.tables)
///     .on_response(|decision: &Decision, rows: &mut Rows| rows.left = decision.remaining())
///     .on_refused(|_: &Query, user: &Key, _: &Decision| println!("{user:?} is refused"))
///     .reject_with(|refusal: Refusal| Rows { text: refusal.to_string(), left: 0 });
/// let mut query = limit.layer(service_fn(async |query: Query| {
///     Ok::<_, std::io::Error>(Rows { text: format!("{} tables", query.tables), left: 0 })
/// }));
///
/// let rows = query.ready().await?.call(Query { user: "ann".into(), tables: 4 }).await?;
/// assert_eq!((rows.text.as_str(), rows.left), ("4 tables", 6));
/// let rows = query.ready().await?.call(Query { user: "ann".into(), tables: 8 }).await?;
/// assert!(rows.text.starts_with("rate limit exceeded"));
/// # Ok(()) }
/// ```
#[derive_where(Clone; R)]
pub struct RateLimitLayer<Req, Res, R = AsError> {
    settings: Settings,
    /// The key of each limit.
    keys: Arc<[DynKey<Req>]>,
    /// `None`: every request costs one token.
    cost: Option<Arc<dyn Cost<Req> + Send + Sync>>,
    /// The last choice that returns quotas applies; if none does, the quotas of the bucket apply.
    quotas: Vec<Choice<Req>>,
    hooks: Hooks<Req, Res>,
    reject: R,
}

/// The settings that do not depend on the request and response types.
#[derive(Clone, Debug)]
struct Settings {
    limiter: Limiter,
    on_store_failure: StoreFailurePolicy<Limiter>,
    /// Whether all requests pass, see [`RateLimitLayer::shadow`].
    shadow: bool,
    ban: Option<Bans>,
}

impl<Req, Res> RateLimitLayer<Req, Res> {
    /// Creates a layer that limits requests with the buckets of a namespace, one bucket per key.
    ///
    /// A request that cannot be admitted now is refused. To let requests wait, set [`max_wait`](Self::max_wait).
    #[must_use]
    pub fn new(bucket: TokenBucket, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        Self::of(
            Limiter::One(bucket.with_max_wait(Duration::ZERO)),
            Arc::new([Arc::new(key)]),
        )
    }

    fn of(limiter: Limiter, keys: Arc<[DynKey<Req>]>) -> Self {
        let limiter = limiter.cache_refusals(true);
        let on_store_failure = StoreFailurePolicy::FailClosed;
        let settings = Settings {
            limiter,
            on_store_failure,
            shadow: false,
            ban: None,
        };
        Self {
            settings,
            keys,
            cost: None,
            quotas: Vec::new(),
            hooks: Hooks::default(),
            reject: AsError,
        }
    }

    /// Creates a layer with several limits, for example one per user, one per tenant and one global limit.
    ///
    /// A request is charged to all limits or to none; see [`TokenBuckets`]. `keys` is a tuple with one [`KeyExtractor`]
    /// for each limit. A limit whose key is `None` is skipped. If all keys are `None`, the request passes. A request
    /// without a part of a key [is refused](crate::RefusalKind::MissingPart).
    ///
    /// The first limit identifies the sender of the request:
    ///
    /// * [`quotas`](Self::quotas) and tables set the quotas of the first limit.
    /// * [`ban`](Self::ban) counts the refusals of the first limit.
    /// * [`block_on_response`](Self::block_on_response) blocks the key of the first limit.
    ///
    /// They do not apply to requests without a first key. [`on_refused`](Self::on_refused) gets the key of the
    /// limit that refused.
    ///
    /// Requests that [wait](Self::max_wait) try again when tokens may be available. They are not served in FIFO order.
    /// Under high load, a request may be refused although requests that came later are admitted.
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
        K: KeyExtractors<Req, N>,
    {
        Self::of(
            Limiter::All(limits.several().clone()),
            Arc::new(keys.into_extractors()),
        )
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Sets the cost of a request in tokens, by a closure from `&Req` to `u32`. Default: one token.
    ///
    /// A request that costs 0 passes without a call to the store.
    #[must_use]
    pub fn cost(mut self, cost: impl Cost<Req> + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Sets how long a request may wait for its tokens. Default: zero, requests do not wait.
    ///
    /// Waiters are served in FIFO order, except with [several limits](Self::all_of). A `max_wait` above zero turns
    /// [`cache_refusals`](Self::cache_refusals) off. You can turn it on again afterwards.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(100).burst(1))?;
    /// let limit = RateLimitLayer::new(bucket, |_: &&'static str| "all").max_wait(Duration::from_secs(1));
    /// let mut send = limit.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("sent")));
    ///
    /// assert_eq!(send.ready().await?.call("one").await?, "sent");
    /// assert_eq!(send.ready().await?.call("two").await?, "sent"); // after up to 10 ms
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        let longest = if self.settings.shadow {
            Duration::ZERO
        } else {
            max_wait
        };
        self.map_limiter(|limiter| {
            limiter
                .with_max_wait(longest)
                .cache_refusals(max_wait.is_zero())
        })
    }

    /// Sets whether this process caches refusals, and refuses requests without a call to the store; see
    /// [`TokenBucket::cache_refusals`]. Default: `true`, or `false` with a [`max_wait`](Self::max_wait).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// # let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(10))?;
    /// // Requests wait, and a client with far too many requests causes few calls to the store.
    /// let limit = RateLimitLayer::new(bucket, |sender: &String| sender.clone())
    ///     .max_wait(Duration::from_millis(200))
    ///     .cache_refusals(true);
    /// # let _: RateLimitLayer<_, ()> = limit;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn cache_refusals(self, cache: bool) -> Self {
        self.map_limiter(|limiter| limiter.cache_refusals(cache))
    }

    /// Prefetches tokens of hot keys, and admits requests with them without a call to the store; see
    /// [`TokenBucket::prefetch`]. Default: off.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tenants", Quota::per_second(50_000))?;
    /// let limit = RateLimitLayer::new(bucket, |tenant: &u64| *tenant).prefetch(Duration::from_millis(10))?;
    /// # let _: RateLimitLayer<_, ()> = limit;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `hold` is not 1 ms to 1 s, or the layer has
    /// [several limits](Self::all_of).
    pub fn prefetch(mut self, hold: Duration) -> Result<Self, Error> {
        let settings = &mut self.settings;
        settings.limiter = settings.limiter.clone().prefetch(hold)?;
        Ok(self)
    }

    /// Sets what to do while the store is unavailable. Default: [`StoreFailure::FailClosed`].
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, RateLimitLayer, Store, StoreFailure, TokenBucket};
    ///
    /// const REPLICAS: NonZeroU32 = NonZeroU32::new(5).unwrap(); // the number of processes
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let store = Store::redis("redis://127.0.0.1:1/")?; // no server listens there
    /// let bucket = TokenBucket::new(&store, "mail", Quota::per_minute(10))?;
    /// let limit = RateLimitLayer::new(bucket, |user: &&'static str| *user)
    ///     .on_store_failure(StoreFailure::LocalShare { replicas: REPLICAS });
    /// let mut send = limit.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("sent")));
    ///
    /// assert_eq!(send.ready().await?.call("ann").await?, "sent");
    /// assert_eq!(send.ready().await?.call("ann").await?, "sent");
    /// assert!(send.ready().await?.call("ann").await.is_err(), "a fifth of 10 requests a minute");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let Settings {
            limiter,
            on_store_failure: away,
            ..
        } = &mut self.settings;
        *away = StoreFailurePolicy::new(on_store_failure, |sharing| limiter.local_share(sharing));
        self
    }

    /// Turns on shadow mode: all requests pass immediately, as if there were no limit. Use it to see the effect of
    /// a limit before you enforce it.
    ///
    /// Requests that would have been refused, or would have waited, are counted as `shadowed`.
    /// [`on_refused`](Self::on_refused) is called for them. Requests that fit are charged.
    /// [`on_admit`](Self::on_admit) and [`on_response`](Self::on_response) are called only for requests that fit.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::token_bucket::Decision;
    /// use tower_distributed::{Key, Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_hour(1))?;
    /// let refused = Arc::new(AtomicU32::new(0));
    /// let counter = Arc::clone(&refused);
    /// let limit = RateLimitLayer::new(bucket, |user: &&'static str| *user)
    ///     .shadow()
    ///     .on_refused(move |_: &&'static str, _: &Key, _: &Decision| {
    ///         counter.fetch_add(1, Ordering::Relaxed);
    ///     });
    /// let mut send = limit.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("sent")));
    ///
    /// assert_eq!(send.ready().await?.call("ann").await?, "sent");
    /// assert_eq!(send.ready().await?.call("ann").await?, "sent");
    /// assert_eq!(refused.load(Ordering::Relaxed), 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.settings.shadow = true;
        self.map_limiter(|limiter| limiter.with_max_wait(Duration::ZERO))
    }

    /// Bans a key that is refused too often: all its requests are refused for some time, in all processes. See
    /// [`Ban`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the number of refusals or a duration is zero, if the longest ban
    /// is shorter than the first, or if it would take longer than 35 years until all refusals and bans are
    /// forgotten.
    pub fn ban(mut self, ban: Ban) -> Result<Self, Error> {
        self.settings.ban = Some(Bans::new(self.settings.limiter.first(), ban)?);
        Ok(self)
    }

    /// Returns refusals as responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
    /// [`Reject`](crate::Reject). The error type of the service is then that of the inner service. For HTTP, use
    /// `response::refuse()`; for gRPC, `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> RateLimitLayer<Req, Res, R2> {
        let Self {
            settings,
            keys,
            cost,
            quotas,
            hooks,
            reject: _,
        } = self;
        RateLimitLayer {
            settings,
            keys,
            cost,
            quotas,
            hooks,
            reject,
        }
    }

    /// Applies a function to the limits and to their local share.
    fn map_limiter(mut self, map: impl Fn(&Limiter) -> Limiter) -> Self {
        let Settings {
            limiter,
            on_store_failure,
            ..
        } = &mut self.settings;
        *limiter = map(limiter);
        if let StoreFailurePolicy::LocalShare(local) = on_store_failure {
            *local = map(local);
        }
        self
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Sets the quotas of a request, by a closure from `&Req` to [`Quotas`](crate::Quotas), an `Option` of them, a
    /// `Result` of either, or a boxed future of one of these. Default, and for `None`: the quotas of the bucket. An
    /// error [refuses the request](crate::token_bucket::IntoQuotas).
    ///
    /// If this is called more than once, or with [`quota_table`](Self::quota_table), the setting made last applies; if
    /// it returns `None`, the one made before it applies.
    ///
    /// ```
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, Quotas, RateLimitLayer, Store, TokenBucket};
    ///
    /// struct Call { user: u64, is_premium: bool }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "calls", Quota::per_minute(1))?;
    /// let premium = Quotas::new([Quota::per_minute(100)])?;
    /// let limit = RateLimitLayer::new(bucket, |call: &Call| call.user)
    ///     .quotas(move |call: &Call| call.is_premium.then(|| premium.clone()));
    /// let mut handle = limit.layer(service_fn(async |_: Call| Ok::<_, std::io::Error>("handled")));
    ///
    /// for _ in 0..3 {
    ///     assert_eq!(handle.ready().await?.call(Call { user: 7, is_premium: true }).await?, "handled");
    /// }
    /// assert!(handle.ready().await?.call(Call { user: 8, is_premium: false }).await.is_ok());
    /// assert!(handle.ready().await?.call(Call { user: 8, is_premium: false }).await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// With a future, the request waits for the lookup, for example of a customer's plan in a database. Set a timeout,
    /// and cache the results. While the database is unavailable, requests are refused with 503; they are not admitted
    /// under the quotas of another plan.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, Quotas, RateLimitLayer, Refusal, RefusalKind, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// async fn plan(customer: String) -> Result<Option<Quotas>, std::io::Error> {
    ///     match &*customer { // from a database
    ///         "acme" => Ok("100/s".parse().ok()),
    ///         "away" => Err(std::io::ErrorKind::NotConnected.into()),
    ///         _ => Ok(None), // the quotas of the bucket
    ///     }
    /// }
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(1))?;
    /// let limit = RateLimitLayer::new(bucket, |customer: &String| customer.clone())
    ///     .quotas(|customer: &String| Box::pin(plan(customer.clone())));
    /// let service = limit.layer(service_fn(async |_: String| Ok::<_, std::io::Error>("handled")));
    ///
    /// assert_eq!(service.clone().oneshot("acme".into()).await?, "handled");
    /// let error = service.oneshot("away".into()).await.unwrap_err();
    /// assert_eq!(error.downcast_ref().map(Refusal::kind), Some(RefusalKind::LookUpFailed));
    /// # Ok(()) }
    /// ```
    ///
    /// To change quotas at run time in all processes, pass [`FleetQuotas`](crate::FleetQuotas). Quotas that only this
    /// process changes can come from a `watch` channel of tokio: other processes do not see such a change. See
    /// [the bucket's documentation](crate::token_bucket#when-quotas-change) for the effect of a change on existing
    /// buckets.
    ///
    /// ```
    /// use tokio::sync::watch;
    /// use tower_distributed::{Quotas, RateLimitLayer, Store, TokenBucket};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let (configuration, quotas) = watch::channel("100/s".parse::<Quotas>()?);
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", quotas.borrow().clone())?;
    /// let layer = RateLimitLayer::new(bucket, |request: &String| request.clone())
    ///     .quotas(move |_: &String| quotas.borrow().clone());
    ///
    /// configuration.send_replace("50/s, burst 200".parse()?); // applies from the next request on
    /// # let _: RateLimitLayer<_, ()> = layer;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn quotas(mut self, quotas: impl ChooseQuotas<Req> + Send + Sync + 'static) -> Self {
        self.quotas.push(Choice::By(Arc::new(quotas)));
        self
    }

    /// Gives each row of a table its own limit, by a closure from `&Req` to the name of a row: for example a route,
    /// or a gRPC method. The table is a [`QuotaTable`](crate::QuotaTable), or a
    /// [`FleetTable`](crate::fleet::FleetTable), which is changed for the whole fleet.
    ///
    /// A key has one bucket for each row. Requests without a row use the [`quotas`](Self::quotas) set before the table.
    /// Quotas set after the table override it, also for requests with a row, so set default quotas before the table. If
    /// the closure fails, the request is refused.
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
    pub fn quota_table<N>(mut self, table: impl Into<Table>, name: N) -> Self
    where
        N: for<'a> KeyFn<&'a Req> + Send + Sync + 'static,
    {
        let table = table.into();
        self.quotas.push(Choice::InTable(Arc::new(move |request| {
            let Some(name) = name(request).into_key()? else {
                return Ok(None);
            };
            Ok(table.get(&name).map(|quotas| (name, quotas)))
        })));
        self
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Adds a hook for admitted requests: a closure of `(&Decision, &mut Req)`. It can count requests, or insert the
    /// decision into the request for the inner service. For HTTP, use `web::insert_decision`.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::token_bucket::Decision;
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// struct Call { user: u64, left: Option<u32> }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "calls", Quota::per_minute(10))?;
    /// let limit = RateLimitLayer::new(bucket, |call: &Call| call.user)
    ///     .on_admit(|decision: &Decision, call: &mut Call| call.left = Some(decision.remaining()));
    /// let handle = limit.layer(service_fn(async |call: Call| Ok::<_, std::io::Error>(call.left)));
    /// assert_eq!(handle.oneshot(Call { user: 7, left: None }).await?, Some(9));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_admit(
        mut self,
        on_admit: impl Fn(&Decision, &mut Req) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_admit.push(Arc::new(on_admit));
        self
    }

    /// Adds a hook for refused requests: a closure of `(&Req, &Key, &Decision)`. It can log requests, or count
    /// them. It is not called for refusals without a decision, as in an outage.
    #[must_use]
    pub fn on_refused(
        mut self,
        on_refused: impl Fn(&Req, &Key, &Decision) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_refused.push(Arc::new(on_refused));
        self
    }

    /// Counts which keys are refused most. With [several limits](Self::all_of), the key of the limit that refused is
    /// counted. See [`RefusedKeys`].
    #[must_use]
    pub fn count_refused(self, refused: &RefusedKeys) -> Self {
        let refused = refused.clone();
        self.on_refused(move |_, key, _| refused.record(key))
    }

    /// Sets the hook that writes the fields of admitted and refused responses.
    #[cfg(feature = "http")]
    pub(crate) fn with_fields(
        mut self,
        fields: impl Fn(&Decision, bool, &mut Res) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.fields = Some(Arc::new(fields));
        self
    }

    /// Adds a hook for the responses to admitted requests: a closure of `(&Decision, &mut Res)`. The decision
    /// has the [key](Decision::key). For the RateLimit fields of HTTP, use `fields`.
    #[must_use]
    pub fn on_response(
        mut self,
        on_response: impl Fn(&Decision, &mut Res) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_response.push(Arc::new(on_response));
        self
    }

    /// Reads from the inner service's responses how long to block their key, by a closure from `&Res` to
    /// `Option<Duration>`.
    ///
    /// If one process gets a 429 from the upstream, all processes stop. For HTTP, use `response::RetryAfter`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// struct Reply { status: u16, retry_after: u64 }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", Quota::per_second(10))?;
    /// let limit = RateLimitLayer::new(bucket, |host: &&'static str| *host)
    ///     .block_on_response(|reply: &Reply| (reply.status == 429).then(|| Duration::from_secs(reply.retry_after)));
    /// let upstream = async |_: &'static str| Ok::<_, std::io::Error>(Reply { status: 429, retry_after: 60 });
    /// let mut call = limit.layer(service_fn(upstream));
    ///
    /// assert_eq!(call.ready().await?.call("example.com").await?.status, 429);
    /// assert!(call.ready().await?.call("example.com").await.is_err(), "refused here, for 60 s");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn block_on_response(
        mut self,
        block: impl BlockOnResponse<Res> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.block_on_response.push(Arc::new(block));
        self
    }

    /// Learns the limit of an upstream from its responses, for a layer around a client. For HTTP, use
    /// `response::UpstreamLimits`. The last call replaces earlier ones.
    ///
    /// * A policy that the upstream sends becomes the quota of the key, in all processes. It replaces the quotas of the
    ///   bucket and those of [`quotas`](Self::quotas), which apply until a policy is received. It is stored beside the
    ///   bucket and expires 7 days after the last request. Other processes use it after their next response, or within
    ///   2 s.
    /// * If less remains at the upstream than the bucket has left, the bucket is charged the difference. Nothing is
    ///   given back, so requests in flight stay charged.
    /// * A response with a time to wait blocks the key, as in [`block_on_response`](Self::block_on_response).
    ///
    /// Responses may arrive in any order. A response to a request that was charged earlier does not replace what a
    /// response to a later request taught. Responses to requests that were decided with
    /// [prefetched](crate::TokenBucket::prefetch) tokens do not lower the level. The configured quotas apply to a
    /// request that costs more than the learned quotas can ever admit. With [several limits](Self::all_of), the quotas
    /// of the first limit are learned. A policy with a partition key (`pk`) counts as the policy of the request's key.
    ///
    /// Learned quotas are sent in the background, only if they are new, with one call per key at a time. The first
    /// request of a process for a key waits for a call that reads the quotas that other processes learned; in an
    /// outage, the configured quotas apply.
    ///
    /// ```
    /// # #[cfg(feature = "http")] {
    /// use http::{Request, Response};
    /// use tower_distributed::response::UpstreamLimits;
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let guess = Quota::per_second(10);
    /// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", guess)?;
    /// let per_host = RateLimitLayer::new(bucket, |request: &Request<String>| request.uri().host().map(str::to_owned))
    ///     .learn(UpstreamLimits::default());
    /// # let _: RateLimitLayer<_, Response<String>> = per_host;
    /// # Ok(()) }
    /// # main().unwrap();
    /// # }
    /// ```
    #[must_use]
    pub fn learn(mut self, limits: impl LearnFromResponse<Res> + Send + Sync + 'static) -> Self {
        self.hooks.learn = Some(Arc::new(limits));
        self.settings.limiter = self.settings.limiter.learning();
        self
    }

    /// Charges the additional cost of a request after its response, by a closure from `&Res` to `u32`: for example,
    /// the rows that a query returned, or the tokens of a language model. It is charged in addition to the
    /// [`cost`](Self::cost).
    ///
    /// The bucket may go into [debt](crate::TokenBucket::charge). It admits nothing until the debt is repaid by
    /// refilled tokens. The charge is made in the background; if the store is unavailable, it is lost. A request that
    /// passed without a decision is charged nothing. Let each request [cost](Self::cost) at least one token, because a
    /// request that costs 0 is never refused.
    ///
    /// ```
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "rows", Quota::per_minute(1000))?;
    /// let layer = RateLimitLayer::new(bucket, |_: &&str| "ann").cost_of_response(|rows: &Vec<u32>| rows.len() as u32);
    /// let mut query = layer.layer(service_fn(async |_: &str| Ok::<_, std::io::Error>(vec![7; 5000])));
    ///
    /// assert_eq!(query.ready().await?.call("all").await?.len(), 5000);
    /// assert!(query.ready().await?.call("all").await.is_err(), "4001 tokens of debt");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn cost_of_response(mut self, cost: impl Cost<Res> + Send + Sync + 'static) -> Self {
        self.hooks.cost_of_response.push(Arc::new(cost));
        self
    }
}

impl<S, Req, Res, R: Clone> Layer<S> for RateLimitLayer<Req, Res, R> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(inner, self.clone())
    }
}

debug!(RateLimitLayer<Req, Res, R>, settings);
