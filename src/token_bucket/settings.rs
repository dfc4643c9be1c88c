//! The settings of a bucket: handles to the same buckets that decide in another way.

use std::sync::Arc;
use std::time::Duration;

use super::TokenBucket;
use super::calls::to_micros;
use super::local::Local;
use crate::Error;
use crate::setters::in_range;
use crate::token_bucket::quota::Quotas;

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
