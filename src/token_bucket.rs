#![doc = include_str!("token_bucket/page.md")]

pub(crate) mod acquire;
mod authorize;
pub(crate) mod calls;
mod decide;
pub(crate) mod hold;
pub(crate) mod hold_all;
pub(crate) mod limiter;
pub(crate) mod limits;
pub(crate) mod local;
mod renewals;
pub(crate) mod upstream;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::bucket::adjust::{Adjust, Peek, Reset};
use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::charge::Charge;
use crate::bucket::holds::HoldOptions;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;
use crate::learn::table::LearnedQuotas;
use crate::macros::in_range;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::failure::Sharing;
use crate::store::replicas::Replicas;
use crate::telemetry::counters::Decisions;
use crate::token_bucket::calls::{Clients, to_micros};
use crate::token_bucket::local::Local;

pub use crate::bucket::charge::Costs;
pub use crate::bucket::chosen::{ChosenQuotas, IntoQuotas, QuotaTable};
pub use crate::bucket::decision::{Balance, BucketState, Decision};
pub use crate::bucket::holds::OnEnd;
pub use crate::layers::budget::{AtResponse, BudgetHold, BudgetLayer, Estimate, Meter};
pub use crate::layers::key::Cost;
pub use crate::layers::rate_limit::RateLimitLayer;
pub use crate::layers::rate_limit::ban::Ban;
pub use crate::layers::rate_limit::hooks::{Block, BlockOnResponse};
pub use crate::layers::rate_limit::keys::KeyExtractors;
pub use crate::layers::rate_limit::quotas::ChooseQuotas;
pub use crate::learn::{LearnFromResponse, Learned};
pub use crate::token_bucket::acquire::Reservation;
pub use crate::token_bucket::hold::{Captured, Hold, Usage};
pub use crate::token_bucket::hold_all::HoldAll;
pub use crate::token_bucket::limits::TokenBuckets;

/// A namespace of token buckets, one per key.
///
/// Cloning is cheap. See the [module](crate::token_bucket) for the algorithm and its guarantees.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time. If a request is dropped while it waits for the decision or for its
/// delay, a background task gives its tokens back, except for tokens on which later reservations depend.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    pub(crate) clients: Arc<Clients>,
    pub(crate) quotas: Quotas,
    /// The maximum delay of a reservation, µs.
    pub(crate) max_wait: i64,
    pub(crate) local: Local,
    /// The quotas that a layer learns from its upstream. Waiting requests use them after a block.
    pub(crate) learned: Option<LearnedQuotas>,
    pub(crate) holding: HoldOptions,
}

impl TokenBucket {
    /// Creates a handle to the buckets of the namespace `name` in a store, with one or several quotas.
    ///
    /// All handles with the same store and name share the buckets. If their quotas differ, for example during a
    /// deployment, each call uses the quotas of its own handle; see
    /// [when quotas change](crate::token_bucket#when-quotas-change).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 characters of `A-Z a-z 0-9 - _ . /`, and in the
    /// cases of [`Quotas::new`].
    pub fn new<Q>(store: &Store, name: &str, quotas: Q) -> Result<Self, Error>
    where
        Q: TryInto<Quotas>,
        Error: From<Q::Error>,
    {
        let quotas = quotas.try_into()?;
        let clients = Arc::new(Clients::new(store, name, &Namespace::new(store, name)?));
        Ok(Self::of(clients, quotas, MAX_SPAN))
    }

    pub(crate) fn of(clients: Arc<Clients>, quotas: Quotas, max_wait: i64) -> Self {
        let local = Local::default();
        let holding = HoldOptions::default();
        Self {
            clients,
            quotas,
            max_wait,
            local,
            learned: None,
            holding,
        }
    }

    /// Returns the state of a bucket without charging it.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_minute(10))?;
    /// bucket.allow("ann").await?;
    /// assert_eq!(bucket.peek("ann").await?.remaining(), 9);
    /// assert_eq!(bucket.peek("ann").await?.remaining(), 9);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded).
    pub async fn peek(&self, key: impl Into<Key>) -> Result<BucketState, Error> {
        Ok(self
            .clients
            .peek
            .run(key.into(), Peek)
            .await?
            .under(&self.quotas))
    }

    /// Charges `n` tokens even if they are not available: a penalty, or a cost that is known only afterwards.
    ///
    /// The bucket may go into debt, of at most 35 years. Refilled tokens repay the debt; until then the bucket admits
    /// nothing. Only the [quotas](Self::quotas) of this handle are charged.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "logins", Quota::per_minute(10))?;
    /// let state = bucket.charge("ann", 15).await?;
    /// assert_eq!(state.remaining(), 0);
    /// assert!(state.available_after(1).is_some_and(|after| after.as_secs() > 30), "5 tokens of debt, then 1 token");
    /// bucket.give_back("ann", 15).await?;
    /// assert!(bucket.allow_n("ann", 10).await?.is_admitted());
    /// # Ok(()) }
    /// ```
    ///
    /// To charge more for a request that a layer admitted, use the [key of its decision](Decision::key). It may differ
    /// from the value in the request: `header("x-tenant")` hashes it, for example.
    ///
    /// ```
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_distributed::{Key, Quota, RateLimitLayer, Store, TokenBucket, token_bucket::Decision};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// struct Call { tenant: &'static str, key: Option<Key> }
    ///
    /// let bucket = TokenBucket::new(&Store::in_memory(), "rows", Quota::per_hour(1000))?;
    /// let limit = RateLimitLayer::new(bucket.clone(), |call: &Call| Key::of(["tenant", call.tenant]))
    ///     .on_admit(|decision: &Decision, call: &mut Call| call.key = decision.key.clone());
    /// let query = limit.layer(service_fn(async |call: Call| match call.key {
    ///     Some(key) => Ok::<_, tower_distributed::Error>(bucket.charge(key, 50).await?.remaining()),
    ///     None => Ok(0), // in an outage, without a decision
    /// }));
    /// assert_eq!(query.oneshot(Call { tenant: "acme", key: None }).await?, 949); // 1 for the request, then 50
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the tokens may have been charged.
    /// [`is_overloaded`](Error::is_overloaded).
    pub async fn charge(&self, key: impl Into<Key>, n: u32) -> Result<BucketState, Error> {
        self.adjust(key.into(), n.into()).await
    }

    /// Adds `n` tokens, up to a full bucket: a reward, or the unused part of an estimated cost.
    ///
    /// The added tokens come on top of the number that [the bound](crate::token_bucket#without-tower) admits. To
    /// undo a reservation that has not acted yet, [cancel](Reservation::cancel) it.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the tokens may have been added.
    /// [`is_overloaded`](Error::is_overloaded).
    pub async fn give_back(&self, key: impl Into<Key>, n: u32) -> Result<BucketState, Error> {
        self.adjust(key.into(), -i64::from(n)).await
    }

    /// Fills a bucket and unblocks it.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let trial = TokenBucket::new(&Store::in_memory(), "trial", Quota::non_refilling(50))?;
    /// trial.allow_n("ann", 50).await?;
    /// trial.reset("ann").await?; // ann has bought another 50
    /// assert_eq!(trial.peek("ann").await?.remaining(), 50);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the bucket may have been reset.
    /// [`is_overloaded`](Error::is_overloaded).
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        let key: Key = key.into();
        self.local.forget(&key);
        let reset = self.clients.reset.run(key.clone(), Reset).await;
        // Once more, because requests during the reset may have cached an older state.
        self.local.forget(&key);
        reset
    }

    /// Blocks a bucket in all processes for `duration`, for example because the upstream answered 429.
    ///
    /// A longer block that exists is kept. The bucket keeps refilling during the block, so after
    /// it, waiting requests are admitted at once up to the burst, and then at the usual rate. Requests that would have acted during the block queue again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", Quota::per_second(10))?;
    /// bucket.block_for("example.com", Duration::from_secs(30)).await?;
    /// assert!(!bucket.allow("example.com").await?.is_admitted());
    /// let left = bucket.peek("example.com").await?.blocked_for();
    /// assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(30));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the bucket may have been blocked.
    /// [`is_overloaded`](Error::is_overloaded).
    pub async fn block_for(&self, key: impl Into<Key>, duration: Duration) -> Result<(), Error> {
        let key: Key = key.into();
        self.local.forget(&key);
        let blocked = self
            .clients
            .adjust
            .run(key.clone(), self.adjusting(0, duration))
            .await;
        self.local.forget(&key);
        blocked.map(drop)
    }

    /// Returns the quotas that calls through this handle use.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.clients.name
    }
}

/// Settings: handles to the same buckets with other settings.
impl TokenBucket {
    /// Returns a handle to the same buckets with other quotas, for example those of a customer's plan.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Quotas, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(10))?;
    /// let premium = Quotas::new([Quota::per_second(100)])?;
    /// let decision = bucket.with_quotas(&premium).allow("customer-1").await?;
    /// assert_eq!(decision.state.tightest().limit, 100);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_quotas(&self, quotas: &Quotas) -> Self {
        Self {
            quotas: quotas.clone(),
            ..self.clone()
        }
    }

    /// Returns a handle to the same buckets whose [`reserve`](Self::reserve) and [`wait`](Self::wait) refuse delays
    /// above `max_wait`.
    ///
    /// Default: no limit below 35 years.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(1))?;
    /// let bucket = bucket.with_max_wait(Duration::from_secs(10));
    /// bucket.wait("ann").await?;
    /// assert!(bucket.wait("ann").await.unwrap_err().is_refused(), "it would wait for 60 s");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self {
            max_wait: to_micros(max_wait),
            ..self.clone()
        }
    }

    /// Returns a handle to the same buckets that caches refusals in this process. Default: `false`, but `true` for
    /// a [layer](crate::RateLimitLayer::cache_refusals) without `max_wait`.
    ///
    /// A refusal contains the time when the next token is available. Until then, this process refuses all requests for
    /// the key without a call to the store. After that, it sends as many requests to the store as there can be tokens.
    /// So a refused key costs the store hardly more calls than its admitted requests, and the cache does not reduce the
    /// number of admitted requests.
    ///
    /// The cache learns within one second that another process gave tokens back, [reset](Self::reset) the bucket,
    /// or charged it under raised quotas. If this handle or one of its clones does so, the cache learns it
    /// immediately. The setting has no effect on a store in memory.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "logins", Quota::per_minute(5))?.cache_refusals(true);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn cache_refusals(&self, cache: bool) -> Self {
        Self {
            local: Local {
                refusals: cache,
                ..self.local.clone()
            },
            ..self.clone()
        }
    }

    /// Returns a handle to the same buckets that prefetches tokens of hot keys.
    ///
    /// The process charges several tokens of a hot key in one call, holds them for up to `hold`, and admits requests
    /// with them without a call to the store. This is for keys that one process requests thousands of times per second.
    /// The process detects these keys; other keys are not prefetched. A prefetch charges as many tokens as the
    /// process used during the last half of `hold`, but at most a quarter of the available tokens. Unused tokens are
    /// given back. The setting has no effect on a store in memory.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tenants", Quota::per_second(50_000))?;
    /// let bucket = bucket.prefetch(Duration::from_millis(10))?;
    /// assert!(bucket.prefetch(Duration::from_secs(2)).unwrap_err().is_invalid());
    /// # Ok(()) }
    /// ```
    ///
    /// # Guarantee
    ///
    /// In every interval of length `t`, requests worth at most `burst + rate·t + min(rate·hold, K)` tokens act. `K`
    /// is the largest number of tokens that all processes together hold at the same time. The bound also holds if
    /// processes crash or pause, and if requests are cancelled.
    ///
    /// * A request acts at most `hold` after its tokens were charged. So all requests that act within an interval
    ///   were charged within an interval that is longer by `hold`. This is the term `rate·hold`.
    /// * All of their tokens, except those already held at the start, were charged within the interval itself. This
    ///   is the term `K`.
    /// * A process uses its tokens for at most `hold` after it sent the prefetch, by a clock that keeps running while
    ///   the host is suspended. That clock exists on Linux; on other systems, a host must not be suspended.
    /// * Unused tokens are given back minus the tokens that were refilled since the charge: without the charge, the
    ///   bucket might have been full, and the refill would have been lost.
    ///
    /// # Limits
    ///
    /// * A [`reset`](Self::reset), or a failover that loses writes, admits up to `K` more tokens.
    /// * A [block](Self::block_for) immediately stops the tokens of the process that blocks; tokens of other
    ///   processes stop after at most `hold`.
    /// * On a Redis Cluster no tokens are given back, because its client may repeat calls.
    /// * Quotas that [never refill](crate::Quota::non_refilling) and
    ///   [calendar quotas](crate::token_bucket#calendar-quotas) are not prefetched.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `hold` is not 1 ms to 1 s. 10 ms is a good choice.
    pub fn prefetch(&self, hold: Duration) -> Result<Self, Error> {
        in_range(
            "hold",
            Duration::from_millis(1)..=Duration::from_secs(1),
            "1 ms to 1 s",
            hold,
        )?;
        let ahead = Some((to_micros(hold), Arc::default()));
        Ok(Self {
            local: Local {
                ahead,
                ..self.local.clone()
            },
            ..self.clone()
        })
    }
}

/// Calls for layers and other modules.
impl TokenBucket {
    /// The counters of decisions. The caller counts the decisions of [`acquire`](Self::acquire) and of a
    /// [`Limiter`](crate::token_bucket::limiter::Limiter).
    pub(crate) fn decisions(&self) -> &Decisions {
        &self.clients.decisions
    }

    pub(crate) async fn adjust(&self, key: Key, tokens: i64) -> Result<BucketState, Error> {
        let adjusted = self
            .clients
            .adjust
            .run(key.clone(), self.adjusting(tokens, Duration::ZERO))
            .await;
        if tokens < 0 {
            self.local.forget_refusal(&key, &self.quotas);
        }
        adjusted
    }

    /// Charges a key in the background.
    pub(crate) fn charge_detached(&self, key: Key, tokens: u32) {
        self.clients
            .adjust
            .detach(key, self.adjusting(tokens.into(), Duration::ZERO));
    }

    /// The same buckets with `max_wait` reduced by the time already waited.
    pub(crate) fn with_less_wait(&self, waited: Duration) -> Self {
        Self {
            max_wait: (self.max_wait - to_micros(waited)).max(0),
            ..self.clone()
        }
    }

    /// The same buckets, with quotas that are learned from an upstream.
    pub(crate) fn learning(&self) -> Self {
        let learned = Some(LearnedQuotas::new(&self.clients.store, self.name()));
        Self {
            learned,
            ..self.clone()
        }
    }

    /// The same buckets with the quotas that were learned for a key since this handle was created.
    pub(crate) fn under_learned(self, key: &Key) -> Self {
        let quotas = self.learned.as_ref().and_then(|learned| learned.known(key));
        quotas
            .map(|quotas| self.with_quotas(&quotas))
            .unwrap_or(self)
    }

    pub(crate) fn adjusting(&self, tokens: i64, block: Duration) -> Adjust {
        Adjust {
            quotas: self.quotas.clone(),
            tokens,
            block: to_micros(block),
        }
    }

    /// Reports that this number of values in a response of an upstream cannot be read.
    pub(crate) fn upstream_ignored(&self, values: u64) {
        self.clients.upstream.ignored(values);
    }

    /// Blocks a key in the background.
    pub(crate) fn block_detached(&self, key: Key, duration: Duration) {
        self.local.forget(&key);
        self.clients.adjust.detach(key, self.adjusting(0, duration));
    }

    /// Returns the buckets of this name in the memory of this process, which replaces the store while it is
    /// unavailable. Their quotas are divided by the number of processes that share them.
    pub(crate) fn local_share(&self, sharing: Sharing) -> Self {
        let name = self.name();
        let store = self.clients.store.local_share();
        let replicas = Some(Replicas::of(
            &self.clients.store,
            "token_bucket",
            name,
            sharing,
        ));
        let clients = Clients {
            replicas,
            ..Clients::new(store, name, &Namespace::open(store, name))
        };
        Self {
            clients: Arc::new(clients),
            local: Local::default(),
            learned: None,
            ..self.clone()
        }
    }

    /// Buckets in the same store whose name is the name of this namespace plus `ending`.
    pub(crate) fn beside(&self, ending: &str, quota: Quota) -> Result<Self, Error> {
        let store = &self.clients.store;
        let name = format!("{}{ending}", self.name());
        let clients = Arc::new(Clients::new(store, &name, &Namespace::open(store, &name)));
        Ok(Self::of(clients, quota.try_into()?, 0))
    }

    /// The same buckets as part of several limits: without waiting and prefetching.
    pub(crate) fn as_one_of_several(&self) -> Self {
        Self {
            max_wait: 0,
            local: Local {
                ahead: None,
                ..self.local.clone()
            },
            ..self.clone()
        }
    }

    /// Takes a token to count an event. It is not counted as a decision on a request.
    pub(crate) async fn count(&self, key: Key) -> Result<Decision, Error> {
        let charge = Charge::one(self.quotas.clone(), 1, 0);
        let charged = self.clients.charge.run(key, charge).await?;
        Ok(charged.decision())
    }

    /// Runs a task on the store's own thread, in the background. For a store in memory, the task is complete on
    /// return.
    pub(crate) fn detached(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.clients.store.background() {
            Some(background) => background.spawn(task),
            None => task.now_or_never().unwrap_or_default(),
        }
    }

    /// Returns this local share with its part of `quotas`.
    pub(crate) fn share_of(&self, quotas: &Quotas) -> Self {
        let parts = self
            .clients
            .replicas
            .as_ref()
            .map_or(NonZeroU32::MIN, Replicas::most);
        self.with_quotas(&quotas.share(parts))
    }
}
