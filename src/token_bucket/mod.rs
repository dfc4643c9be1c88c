#![doc = include_str!("page.md")]

mod acquire;
mod adjust;
mod ahead;
mod cancel;
mod change;
mod decision;
#[cfg(feature = "http")]
pub(crate) mod http;
pub(crate) mod layer;
pub(crate) mod levels;
mod local;
mod operations;
pub(crate) mod quota;
mod reservation;
mod returning;
mod several;
mod state;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::coop::consume_budget;

pub(crate) use self::acquire::Acquire;
pub use self::decision::{Balance, BucketState, Decision};
pub use self::layer::*;
pub use self::reservation::Reservation;
pub use self::several::TokenBuckets;
pub(crate) use self::several::{AcquireAll, Keys, Several};

use self::acquire::{Decide, current_waker};
use self::adjust::Adjust;
use self::ahead::Prefetch;
use self::cancel::Cancel;
use self::local::{Answer, Asked, Local};
use self::operations::{Peek, Reserve, Reset};
use self::returning::Returning;
use self::state::Ask;
pub(crate) use self::state::Bucket;
use crate::store::failure::Replicas;
use crate::store::{Client, Namespace, OperationFuture};
use crate::telemetry::{Decisions, Outcome};
use crate::token_bucket::quota::{MAX_SPAN, Quotas};
use crate::{Error, Key, Quota, Store, clock};

/// A namespace of token buckets, one per key.
///
/// Cloning is cheap. See the [module](crate::token_bucket) for the algorithm and its guarantees.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time. If a request is dropped while it waits for the decision or for its
/// delay, a background task gives its tokens back, as far as no later reservation depends on them.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    clients: Arc<Clients>,
    quotas: Quotas,
    /// The longest delay of a reservation, µs.
    max_wait: i64,
    local: Local,
}

#[derive(Debug)]
struct Clients {
    name: String,
    decisions: Decisions,
    reserve: Client<Reserve>,
    cancel: Client<Cancel>,
    adjust: Client<Adjust>,
    prefetch: Client<Prefetch>,
    peek: Client<Peek>,
    reset: Client<Reset>,
    returning: Returning,
    store: Store,
    namespace: Namespace<Bucket>,
    /// How many processes share the quotas, in a local share.
    replicas: Option<Replicas>,
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
        Ok(Self { clients, quotas, max_wait: MAX_SPAN, local: Local::default() })
    }

    /// Returns a handle to the same buckets with other quotas, for example those of a customer's plan.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Quotas, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(10))?;
    /// let premium = Quotas::new([Quota::per_second(100)])?;
    /// let decision = bucket.with_quotas(&premium).allow("customer-1").await?;
    /// assert_eq!(decision.limit(), 100);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_quotas(&self, quotas: &Quotas) -> Self {
        Self { quotas: quotas.clone(), ..self.clone() }
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
        Self { max_wait: to_micros(max_wait), ..self.clone() }
    }

    /// Returns a handle to the same buckets that caches refusals in this process. Default: `false`, but `true` for
    /// a [layer](crate::RateLimitLayer::cache_refusals) without `max_wait`.
    ///
    /// A refusal says when the next token comes. Until then, this process refuses all requests for the key without
    /// a call to the store. After that, it sends as many requests to the store as there can be tokens. So a refused
    /// key costs the store hardly more calls than its admitted requests, and as many requests are admitted as
    /// without the cache.
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
        Self { local: self.local.clone().with_refusals(cache), ..self.clone() }
    }

    /// Returns a handle to the same buckets that prefetches tokens of hot keys.
    ///
    /// The process charges several tokens of a hot key in one call, holds them for up to `hold`, and admits
    /// requests with them without a call to the store. This is for keys that one process requests thousands of
    /// times per second. The process detects these keys; other keys are not prefetched. A prefetch charges as many
    /// tokens as the process used in half of `hold` before, and at most a quarter of the available tokens. Unused
    /// tokens are given back. The setting has no effect on a store in memory.
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
    /// * A process uses its tokens for at most `hold` after it asked for them, by a clock that keeps running while
    ///   the host is suspended. That clock exists on Linux; on other systems, a host must not be suspended.
    /// * Unused tokens are given back minus the tokens that came back since the charge: without the charge, the
    ///   bucket might have been full, and these tokens would have been lost.
    ///
    /// # Limits
    ///
    /// * A [`reset`](Self::reset), or a failover that loses writes, admits up to `K` more tokens.
    /// * A [block](Self::block_for) immediately stops the tokens of the process that blocks; tokens of other
    ///   processes stop after at most `hold`.
    /// * On a Redis Cluster no tokens are given back, because its client may repeat calls.
    /// * Quotas that [never refill](crate::Quota::non_refilling) are not prefetched.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `hold` is not 1 ms to 1 s. 10 ms is a good choice.
    pub fn prefetch(&self, hold: Duration) -> Result<Self, Error> {
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&hold) {
            return Err(Error::invalid(format!("hold must be 1 ms to 1 s, is {hold:?}")));
        }
        Ok(Self { local: self.local.clone().with_prefetch(to_micros(hold)), ..self.clone() })
    }

    /// Takes one token if it is available now.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded). A refusal is not an
    /// error, but a [`Decision`].
    pub async fn allow(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.decide(key.into(), 1, 0).await
    }

    /// Takes `n` tokens if they are available now.
    ///
    /// If `n` is 0, the request is admitted without a call to the store, with the state of an unused bucket. The
    /// same applies to [`reserve_n`](Self::reserve_n) and [`wait_n`](Self::wait_n).
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded);
    /// [`is_exceeds_limit`](Error::is_exceeds_limit) if `n` is above the burst.
    pub async fn allow_n(&self, key: impl Into<Key>, n: u32) -> Result<Decision, Error> {
        self.decide(key.into(), n, 0).await
    }

    /// Reserves one token, now or in the future.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve_n`](Self::reserve_n).
    pub async fn reserve(&self, key: impl Into<Key>) -> Result<Reservation, Error> {
        self.reserve_n(key, 1).await
    }

    /// Reserves `n` tokens, now or in the future. The [`Reservation`] says when to act.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_second(1000))?;
    /// let first = bucket.reserve_n("ann", 1000).await?;
    /// let second = bucket.reserve_n("ann", 500).await?;
    /// assert!(first.delay().is_zero() && second.delay().as_millis() <= 500);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded).
    /// * [`is_exceeds_limit`](Error::is_exceeds_limit) if `n` is above the burst.
    /// * [`is_refused`](Error::is_refused) if the delay would exceed the [`max_wait`](Self::with_max_wait), or the
    ///   tokens never come back.
    pub async fn reserve_n(&self, key: impl Into<Key>, n: u32) -> Result<Reservation, Error> {
        let key: Key = key.into();
        let decision = self.decide(key.clone(), n, self.max_wait).await?;
        if decision.is_admitted() {
            Ok(Reservation::new(self.clone(), key, decision))
        } else {
            Err(decision.refused())
        }
    }

    /// Waits for one token.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(100).burst(1))?;
    /// for recipient in ["ann@example.com", "bob@example.com"] {
    ///     bucket.wait("smtp").await?;
    ///     println!("sent to {recipient}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`reserve_n`](Self::reserve_n).
    pub async fn wait(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.wait_n(key, 1).await
    }

    /// Waits for `n` tokens. Waiters are served in FIFO order.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_second(1000))?;
    /// let decision = bucket.wait_n("ann", 600).await?;
    /// assert_eq!((decision.cost(), decision.remaining()), (600, 400));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`reserve_n`](Self::reserve_n). They are returned immediately: a request that will be refused
    /// does not wait.
    pub async fn wait_n(&self, key: impl Into<Key>, n: u32) -> Result<Decision, Error> {
        let decision = counted(self.decisions(), self.clone().acquire(key.into(), n).await)?;
        if decision.is_admitted() { Ok(decision) } else { Err(decision.refused()) }
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
        self.look(key.into()).await
    }

    /// Charges `n` tokens even if they are not available: a penalty, or a cost that is known only afterwards.
    ///
    /// The bucket may go into debt, of at most 35 years. The debt is paid by the tokens that come back; until then
    /// the bucket admits nothing. Only the [quotas](Self::quotas) of this handle are charged.
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
    ///     .on_admit(|decision: &Decision, call: &mut Call| call.key = decision.key().cloned());
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
    /// The tokens come on top of what [the algorithm](crate::token_bucket#the-algorithm) admits. To take back a
    /// reservation that has not acted yet, [cancel](Reservation::cancel) it.
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
        // Again, because requests during the reset may have cached an older state.
        self.local.forget(&key);
        reset
    }

    /// Blocks a bucket in all processes for `duration`, for example because the upstream answered 429.
    ///
    /// A longer block that exists is kept. The bucket keeps refilling during the block. Waiting requests are
    /// admitted after the block, at the usual rate. Requests that would have acted during the block queue again.
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
        let blocked = self.clients.adjust.run(key.clone(), self.adjusting(0, duration)).await;
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

    /// The counters of decisions. The caller counts the decisions of [`acquire`](Self::acquire) and
    /// [`at_once`](Self::at_once).
    pub(crate) fn decisions(&self) -> &Decisions {
        &self.clients.decisions
    }

    async fn adjust(&self, key: Key, tokens: i64) -> Result<BucketState, Error> {
        let adjusted = self.clients.adjust.run(key.clone(), self.adjusting(tokens, Duration::ZERO)).await;
        if tokens < 0 {
            self.local.forget_refusal(&key, &self.quotas);
        }
        adjusted
    }

    /// Charges a key in the background.
    pub(crate) fn charge_detached(&self, key: Key, tokens: u32) {
        self.clients.adjust.detach(key, self.adjusting(tokens.into(), Duration::ZERO));
    }

    fn look(&self, key: Key) -> OperationFuture<Peek> {
        self.clients.peek.run(key, Peek { quotas: self.quotas.clone() })
    }

    /// The same buckets with `max_wait` reduced by the time already waited.
    fn with_less_wait(&self, waited: Duration) -> Self {
        Self { max_wait: (self.max_wait - to_micros(waited)).max(0), ..self.clone() }
    }

    pub(crate) fn acquire(self, key: Key, cost: u32) -> Acquire {
        Acquire::new(self, key, cost)
    }

    /// The decision, if it needs neither a wait nor a call to the store.
    pub(crate) fn at_once(
        &self,
        quotas: Option<&Quotas>,
        key: &Key,
        cost: u32,
    ) -> Option<Result<Decision, Error>> {
        let quotas = quotas.unwrap_or(&self.quotas);
        let ask = Ask { cost: cost.into(), wait: self.max_wait };
        if cost > quotas.max_cost() {
            return None;
        }
        if !self.clients.reserve.is_in_memory() {
            return self.local.known(quotas, key, ask, true).map(Ok);
        }
        if self.max_wait > 0 {
            return None;
        }
        self.clients.reserve.step(key, || Reserve { quotas: quotas.clone(), ask })
    }

    /// Looks up a request in the local state. `None` if this process neither has nor learns local state for it.
    fn answer(&self, key: &Key, ask: Ask) -> Option<Answer<Asked>> {
        if self.local.is_off() || self.clients.reserve.is_in_memory() {
            return None;
        }
        Some(self.local.answer(self, Cow::Borrowed(key), clock::micros(), ask, true))
    }

    fn adjusting(&self, tokens: i64, block: Duration) -> Adjust {
        Adjust { quotas: self.quotas.clone(), tokens, block: to_micros(block) }
    }

    /// Blocks a key in the background.
    pub(crate) fn block_detached(&self, key: Key, duration: Duration) {
        self.local.forget(&key);
        self.clients.adjust.detach(key, self.adjusting(0, duration));
    }

    /// Returns the buckets of this name in the memory of this process, which replaces the store while it is unavailable.
    /// Their quotas are divided by the number of processes that share them.
    pub(crate) fn local_share(&self, replicas: NonZeroU32) -> Self {
        let (name, store) = (self.name(), self.clients.store.local_share());
        let replicas = Some(Replicas::of(store, &format!("token_bucket {name}"), replicas));
        let clients = Clients { replicas, ..Clients::new(store, name, &Namespace::open(store, name)) };
        Self { clients: Arc::new(clients), local: Local::default(), ..self.clone() }
    }

    /// Other buckets in the same store. Their name is the name of this namespace plus `ending`.
    pub(crate) fn beside(&self, ending: &str, quota: Quota) -> Result<Self, Error> {
        let (store, name) = (&self.clients.store, format!("{}{ending}", self.name()));
        let clients = Arc::new(Clients::new(store, &name, &Namespace::open(store, &name)));
        Ok(Self { clients, quotas: quota.try_into()?, max_wait: 0, local: Local::default() })
    }

    /// The same buckets as part of several limits: without waiting and prefetching.
    fn as_one_of_several(&self) -> Self {
        Self { max_wait: 0, local: self.local.clone().without_prefetch(), ..self.clone() }
    }

    /// Takes a token to count an event. It is not counted as a decision on a request.
    pub(crate) async fn count(&self, key: Key) -> Result<Decision, Error> {
        self.clients
            .reserve
            .run(key, Reserve { quotas: self.quotas.clone(), ask: Ask { cost: 1, wait: 0 } })
            .await
    }

    /// Runs a task on the store's own thread, in the background. For a store in memory, the task is complete on
    /// return.
    pub(crate) fn detached(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.clients.store.background() {
            Some(background) => background.spawn(task),
            None => task.now_or_never().unwrap_or_default(),
        }
    }

    /// Returns this local share with the quotas and the longest wait of `other`.
    pub(crate) fn standing_in_for(&self, other: &Self) -> Self {
        let parts = self.clients.replicas.as_ref().map_or(NonZeroU32::MIN, Replicas::most);
        Self { quotas: other.quotas.share(parts), max_wait: other.max_wait, ..self.clone() }
    }

    async fn decide(&self, key: Key, cost: u32, wait: i64) -> Result<Decision, Error> {
        if (1..=self.quotas.max_cost()).contains(&cost)
            && let Some(decision) =
                self.local.known(&self.quotas, &key, Ask { cost: cost.into(), wait }, true)
        {
            // Yields to other tasks now and then, because this path never waits.
            consume_budget().await;
            self.decisions().count(Outcome::of(&decision));
            return Ok(decision);
        }
        let waker = current_waker().await;
        counted(self.decisions(), Decide::new(self, key, cost, wait, waker).await)
    }

    fn cancel(&self, key: &Key, cancel: Cancel) -> OperationFuture<Cancel> {
        self.clients.cancel.run(key.clone(), self.returned(key, cancel))
    }

    fn cancel_detached(&self, key: &Key, cancel: Cancel) {
        self.clients.cancel.detach(key.clone(), self.returned(key, cancel));
    }

    /// Takes back an admission, asked for at `sent`, whose request does not act.
    ///
    /// [`Cancel::unused`] must run exactly once. If the client may repeat it, it gives back all tokens if nothing was
    /// charged after them, and otherwise none.
    fn take_back(&self, key: &Key, state: &BucketState, cost: i64, sent: i64) {
        let cancel = match self.clients.cancel.may_repeat() {
            true => Cancel::safe_to_repeat(state, cost),
            false => Cancel::unused(state, cost, clock::micros() - sent),
        };
        self.cancel_detached(key, cancel);
    }

    /// Registers a cancellation in the local state.
    fn returned(&self, key: &Key, cancel: Cancel) -> Cancel {
        self.local.forget_refusal(key, &self.quotas);
        Cancel { _returning: Some(Arc::new(self.clients.returning.begin(key))), ..cancel }
    }
}

impl Clients {
    fn new(store: &Store, name: &str, namespace: &Namespace<Bucket>) -> Self {
        Self {
            name: name.to_owned(),
            decisions: Decisions::new("token_bucket", name),
            reserve: namespace.client(),
            cancel: namespace.client(),
            adjust: namespace.client(),
            prefetch: namespace.client(),
            peek: namespace.client(),
            reset: namespace.client(),
            returning: Returning::default(),
            store: store.clone(),
            namespace: namespace.clone(),
            replicas: None,
        }
    }
}

fn counted(decisions: &Decisions, decided: Result<Decision, Error>) -> Result<Decision, Error> {
    decisions.settle(decided.map(|decision| {
        let outcome = Outcome::of(&decision);
        (decision, outcome)
    }))
}

/// Converts to whole µs, rounded up, at most [`MAX_SPAN`].
fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(MAX_SPAN).min(MAX_SPAN)
}
