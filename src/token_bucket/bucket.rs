//! The buckets of a namespace.

use std::sync::Arc;
use std::time::Duration;

use super::Reservation;
use super::bucket_state::BucketState;
use super::calls::{Clients, counted};
use super::decision::Decision;
use super::holds::HoldOptions;
use super::learn::LearnedQuotas;
use super::local::Local;
use super::operations::Reset;
use super::peek::Peek;
use crate::store::Namespace;
use crate::token_bucket::quota::{MAX_SPAN, Quotas};
use crate::{Error, Key, Store};

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
    pub(super) clients: Arc<Clients>,
    pub(super) quotas: Quotas,
    /// The longest delay of a reservation, µs.
    pub(super) max_wait: i64,
    pub(super) local: Local,
    /// The quotas that a layer learns from its upstream. Waiting requests use them after a block.
    pub(super) learned: Option<LearnedQuotas>,
    pub(super) holding: HoldOptions,
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

    pub(super) fn of(clients: Arc<Clients>, quotas: Quotas, max_wait: i64) -> Self {
        let (local, holding) = (Local::default(), HoldOptions::default());
        Self {
            clients,
            quotas,
            max_wait,
            local,
            learned: None,
            holding,
        }
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
    /// assert_eq!((decision.cost, decision.remaining()), (600, 400));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`reserve_n`](Self::reserve_n). They are returned immediately: a request that will be refused
    /// does not wait.
    pub async fn wait_n(&self, key: impl Into<Key>, n: u32) -> Result<Decision, Error> {
        let decision = counted(self.decisions(), self.acquire(key.into(), n).await)?;
        if decision.is_admitted() {
            Ok(decision)
        } else {
            Err(decision.refused())
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
