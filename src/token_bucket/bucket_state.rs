//! The state of a bucket, as callers see it.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;

use super::state::{Bucket, Level, Moment};
use crate::token_bucket::quota::{Limit, Quotas};

/// The state of a bucket.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Quota, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let quotas = [Quota::per_minute(10).named("minute"), Quota::per_hour(100).named("hour")];
/// let bucket = TokenBucket::new(&Store::in_memory(), "api", quotas)?;
///
/// let state = bucket.peek("ann").await?;
/// assert_eq!((state.remaining(), state.tightest().name), (10, "minute"));
/// assert_eq!(state.reset_after(), Some(Duration::ZERO)); // full
/// assert_eq!(state.blocked_for(), Duration::ZERO);
/// assert_eq!(state.available_after(11), None); // more than the burst of 10
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct BucketState {
    /// The quotas of the call.
    pub(crate) quotas: Quotas,
    pub(super) now: i64,
    pub(super) bucket: Bucket,
}

impl BucketState {
    /// Returns the number of tokens available now: the minimum over all quotas, or 0 while the bucket is blocked.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.bucket
            .pairs(&self.quotas)
            .map(|(level, limit)| self.tokens(level, limit))
            .min()
            .unwrap_or(0)
    }

    /// Returns when the bucket is full and unblocked again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.balances()
            .map(|balance| balance.reset_after)
            .try_fold(self.blocked_for(), |longest, reset| {
                reset.map(|reset| reset.max(longest))
            })
    }

    /// Returns how long the bucket stays blocked by [`TokenBucket::block_for`](crate::TokenBucket::block_for); zero
    /// if it is not blocked.
    #[must_use]
    pub fn blocked_for(&self) -> Duration {
        micros(self.blocked())
    }

    /// Returns the number of tokens that are [held](crate::TokenBucket::authorize). They count as used in
    /// [`remaining`](Self::remaining), but are not charged yet.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_minute(1000))?;
    /// let hold = bucket.authorize("ann", 400).await?;
    /// let state = bucket.peek("ann").await?;
    /// assert_eq!((state.held(), state.remaining()), (400, 600));
    /// # hold.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn held(&self) -> u32 {
        u32::try_from(self.bucket.held()).unwrap_or(u32::MAX)
    }

    pub(super) fn blocked(&self) -> i64 {
        self.bucket.blocked_until - self.now
    }

    /// Returns when `cost` tokens are available, if no other request takes any; `None` if never.
    #[must_use]
    pub fn available_after(&self, cost: u32) -> Option<Duration> {
        let mut after = self.bucket.clone();
        after.charge(&self.quotas, self.now, cost.into());
        let never = |(level, limit): (&Level, &Limit)| {
            limit.is_closed
                || i64::from(cost) > limit.burst
                || (limit.never_refill() && level.tokens(limit, self.now) < 0)
        };
        if after.pairs(&self.quotas).any(never) {
            return None;
        }
        let held_until = self.bucket.held_until(&self.quotas, self.now, cost);
        Some(micros(
            after.act(&self.quotas, self.now).max(held_until) - self.now,
        ))
    }

    /// Returns when there are tokens for a cost of each quota; `None` if never.
    pub(super) fn available_after_each(&self, costs: &[u32]) -> Option<Duration> {
        let mut each = self.bucket.pairs(&self.quotas).zip(costs).enumerate();
        each.try_fold(
            self.blocked_for(),
            |longest, (at, ((level, limit), cost))| {
                if self.free(level, limit) >= i64::from(*cost) {
                    return Some(longest);
                }
                let bucket =
                    Bucket::new(self.bucket.blocked_until, SmallVec::from_slice(&[*level]));
                let alone = Self {
                    quotas: self.quotas.part(at..at + 1),
                    now: self.now,
                    bucket,
                };
                alone.available_after(*cost).map(|after| after.max(longest))
            },
        )
    }

    /// The first quota that has fewer than `cost` tokens.
    pub(super) fn lacking(&self, cost: i64) -> Option<usize> {
        self.bucket
            .pairs(&self.quotas)
            .position(|(level, limit)| self.free(level, limit) < cost)
    }

    /// The tokens available now that are not held; negative if tokens are owed.
    fn free(&self, level: &Level, limit: &Limit) -> i64 {
        let free = level.tokens(limit, self.now) - self.bucket.held();
        if limit.is_closed { free.min(0) } else { free }
    }

    /// Returns the balance of each quota, in the order of the quotas.
    pub fn balances(&self) -> impl Iterator<Item = Balance<'_>> {
        self.bucket
            .pairs(&self.quotas)
            .map(|(level, limit)| self.balance(level, limit))
    }

    /// Returns the tightest quota: the one with the fewest tokens left; of equal ones, the slowest to refill.
    #[must_use]
    pub fn tightest(&self) -> Balance<'_> {
        let slowest = |balance: &Balance<'_>| Reverse(balance.reset_after.unwrap_or(Duration::MAX));
        let tightest = self
            .balances()
            .min_by_key(|balance| (balance.remaining, slowest(balance)));
        tightest.unwrap_or_else(|| self.balance(&self.bucket.levels[0], &self.quotas.limits()[0]))
    }

    /// The number of tokens available now under one quota.
    fn tokens(&self, level: &Level, limit: &Limit) -> u32 {
        if self.blocked() > 0 {
            return 0;
        }
        u32::try_from(self.free(level, limit).max(0)).unwrap_or(u32::MAX)
    }

    fn balance<'a>(&self, level: &Level, limit: &'a Limit) -> Balance<'a> {
        let (remaining, refills) = (self.tokens(level, limit), limit.num != 0);
        let window = level.window(self.now);
        let effective_window = || match (i64::from(remaining), window) {
            (0, _) => {
                level
                    .next(limit, self.now, self.bucket.held())
                    .max(self.now)
                    - self.now
            }
            (_, Some((_, next))) => next - self.now,
            (left, None) => Moment::default().advance(limit, left).ceil(),
        };
        let has_window = !limit.is_closed && (refills || window.is_some());
        Balance {
            name: &limit.name,
            limit: if limit.is_closed {
                0
            } else {
                u32::try_from(limit.burst).unwrap_or(u32::MAX)
            },
            remaining,
            window: has_window.then(|| micros(window.map_or(limit.span, |(length, _)| length))),
            effective_window: has_window.then(|| micros(effective_window().max(self.blocked()))),
            reset_after: match refills {
                _ if limit.is_closed => None,
                true => Some(micros(level.tat.ceil() - self.now)),
                false => level.unused_from().map(|from| micros(from - self.now)),
            },
        }
    }
}

impl fmt::Debug for BucketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketState")
            .field("blocked_for", &self.blocked_for())
            .field("balances", &self.balances().collect::<Vec<_>>())
            .finish()
    }
}

/// The state of a bucket under one of its quotas.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Quota, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(10).named("calls"))?;
/// let decision = bucket.allow_n("ann", 4).await?;
///
/// let balance = decision.state.tightest();
/// assert_eq!((balance.name, balance.limit, balance.remaining), ("calls", 10, 6));
/// assert_eq!(balance.window, Some(Duration::from_secs(1))); // 10 tokens at 10 a second
/// assert_eq!(balance.effective_window, Some(Duration::from_millis(600))); // the 6 that are left
/// assert_eq!(balance.reset_after, Some(Duration::from_millis(400))); // the 4 that are missing
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Balance<'a> {
    /// The [name](crate::Quota::named) of the quota.
    pub name: &'a str,
    /// The burst of the quota. 0: it is [closed](crate::token_bucket#closed-limits).
    pub limit: u32,
    /// The number of tokens available now.
    pub remaining: u32,
    /// How long an empty bucket takes to fill; `None` if it never does. For a calendar quota: the length of the current
    /// window; `None` in the decision on a cost of 0, which does not ask the store for the time.
    pub window: Option<Duration>,
    /// The time in which as many tokens come back as are [left](Self::remaining). A client that spreads the remaining
    /// tokens over this time is not refused. If no tokens are left: when the next token is available. For a calendar
    /// quota: when the next window starts. `None` if tokens never come back.
    pub effective_window: Option<Duration>,
    /// When the quota is full again; `None` if never.
    pub reset_after: Option<Duration>,
}

pub(super) fn micros(span: i64) -> Duration {
    Duration::from_micros(u64::try_from(span).unwrap_or(0))
}
