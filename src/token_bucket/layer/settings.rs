//! The layer and its settings.

use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;
use tower_layer::Layer;

use super::ban::{Ban, Bans};
use super::hooks::Hooks;
use super::keys::KeyExtractors;
use super::quotas::Choice;
use crate::middleware::away::Away;
use crate::middleware::key::DynKey;
use crate::middleware::{Cost, Layered};
use crate::token_bucket::limiter::Limiter;
use crate::{AsError, Error, KeyExtractor, StoreFailure, TokenBucket, TokenBuckets};

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
    pub(super) settings: Settings,
    /// The key of each limit.
    pub(super) keys: Arc<[DynKey<Req>]>,
    /// `None`: every request costs one token.
    pub(super) cost: Option<Arc<dyn Cost<Req> + Send + Sync>>,
    /// The last one that chooses quotas applies; if none does, those of the bucket.
    pub(super) quotas: Vec<Choice<Req>>,
    pub(super) hooks: Hooks<Req, Res>,
    pub(super) reject: R,
}

/// The settings that do not depend on the request and response types.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) limiter: Limiter,
    pub(super) on_store_failure: Away<Limiter>,
    /// Whether all requests pass.
    pub(super) shadow: bool,
    pub(super) ban: Option<Bans>,
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
        let on_store_failure = Away::FailClosed;
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
    /// A request is charged to all limits or to none; see [`TokenBuckets`]. `keys` is a tuple with one
    /// [`KeyExtractor`] for each limit. A limit whose key is `None` is not asked. If all keys are `None`, the request
    /// passes. A request without a part of a key [is refused](crate::RefusalKind::MissingPart).
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
    /// Requests that [wait](Self::max_wait) ask again when there may be tokens. They are not served in FIFO order.
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
    /// // Requests wait, and a client that asks far too much costs the store few calls.
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
        *away = Away::new(on_store_failure, |sharing| limiter.local_share(sharing));
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

    /// Changes the limits, and their local share.
    fn map_limiter(mut self, map: impl Fn(&Limiter) -> Limiter) -> Self {
        let Settings {
            limiter,
            on_store_failure,
            ..
        } = &mut self.settings;
        *limiter = map(limiter);
        if let Away::LocalShare(local) = on_store_failure {
            *local = map(local);
        }
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
