//! Bans: a key that is refused too often is refused completely for some time.

#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::bucket::decision::Decision;
use crate::bucket::quota::Quota;
use crate::error::Error;
use crate::key::Key;
use crate::macros::in_range;
use crate::token_bucket::TokenBucket;

/// When a key is banned, and for how long.
///
/// A ban is a [block](TokenBucket::block_for) of the key's bucket, in all processes. Refusals during a ban do not
/// count, nor do refusals by a quota of 0. Refusals are counted in the same store, in the background, so some more
/// requests may be refused before the ban starts.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::token_bucket::Ban;
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "logins", Quota::per_minute(5))?;
/// // After 20 refusals within a minute: a ban of one minute, then two, four, up to one hour.
/// let ban = Ban::after(20, Duration::from_secs(60)).growing_up_to(Duration::from_secs(3600));
/// let layer = RateLimitLayer::new(bucket, |user: &String| user.clone()).ban(ban)?;
/// # let _: RateLimitLayer<_, ()> = layer;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    refusals: u32,
    span: Duration,
    longest: Duration,
}

impl Ban {
    /// Bans a key for `span` after `refusals` refusals within `span`.
    ///
    /// `refusals` is at least 1, and `span` is at least 1 µs. The count falls by one in each `span`, so a key that is
    /// refused only occasionally is not banned.
    #[must_use]
    pub fn after(refusals: u32, span: Duration) -> Self {
        Self {
            refusals,
            span,
            longest: span,
        }
    }

    /// Makes each ban twice as long as the previous one, up to `longest`, which is at least the `span`. Default: all
    /// bans are equally long. The count of bans falls by one in each period of twice `longest`.
    #[must_use]
    pub fn growing_up_to(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }
}

/// The maximum number of refusals that are counted at the same time, for all keys with the same place. Further
/// refusals in a flood are not counted.
const MOST_COUNTED: usize = 32;
const PLACES: usize = 64;

/// The bans of a layer, and the buckets that count refusals and bans.
#[derive(Clone, Debug)]
pub(super) struct Bans {
    ban: Ban,
    /// Uses one token for each refusal.
    refusals: TokenBucket,
    /// Uses one token for each ban.
    bans: TokenBucket,
    /// A permit for each refusal that is being counted, by the hash of the key.
    counting: Arc<[Arc<Semaphore>; PLACES]>,
}

impl Bans {
    pub(super) fn new(bucket: &TokenBucket, ban: Ban) -> Result<Self, Error> {
        let Ban {
            refusals,
            span,
            longest,
        } = ban;
        in_range(
            "the number of refusals before a ban",
            1..,
            "at least 1",
            refusals,
        )?;
        in_range(
            "the longest ban",
            span..,
            format_args!("at least {span:?}"),
            longest,
        )?;
        let told = |error: Error| {
            Error::invalid(format!(
                "invalid ban after {refusals} refusals for {span:?}: {error}"
            ))
        };
        let refusals = bucket
            .beside(".refusals", Quota::new(1, span).burst(refusals))
            .map_err(told)?;
        let doublings = longest
            .as_nanos()
            .checked_div(span.as_nanos())
            .map_or(0, |times| times.ilog2())
            + 1;
        let forgotten = Quota::new(1, longest.saturating_mul(2)).burst(doublings + 1);
        let bans = bucket.beside(".bans", forgotten).map_err(told)?;
        let counting = Arc::new(std::array::from_fn(|_| {
            Arc::new(Semaphore::new(MOST_COUNTED))
        }));
        Ok(Self {
            ban,
            refusals,
            bans,
            counting,
        })
    }

    /// Counts a refusal in the background.
    pub(super) fn refused(&self, bucket: &TokenBucket, key: &Key, decision: &Decision) {
        let is_blocked = !decision.state.blocked_for().is_zero();
        // With several limits, another limit may be blocked.
        if decision.by.map_or(is_blocked, |refuser| refuser.is_blocked) {
            return;
        }
        let mut hasher = DefaultHasher::new();
        key.as_bytes().hash(&mut hasher);
        let permits = &self.counting[hasher.finish() as usize % PLACES];
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
            return;
        };
        let this = self.clone();
        let bucket = bucket.clone();
        let key = key.clone();
        self.refusals.detached(async move {
            // A refusal that cannot be counted is ignored.
            drop(this.count(&bucket, key).await);
            drop(permit);
        });
    }

    async fn count(&self, bucket: &TokenBucket, key: Key) -> Result<(), Error> {
        let counted = self.refusals.count(key.clone()).await?;
        // The refusal that takes the last token starts the ban. Later refusals find no token.
        if !counted.is_admitted() || counted.remaining() > 0 {
            return Ok(());
        }
        // The key may already be banned: other processes may still refuse from their caches.
        if !bucket.peek(key.clone()).await?.blocked_for().is_zero() {
            return Ok(());
        }
        let ban = self.bans.count(key.clone()).await?;
        let ban = ban.state.tightest();
        let earlier = (ban.limit - 1).saturating_sub(ban.remaining);
        let span = self
            .ban
            .span
            .saturating_mul(1 << earlier.min(31))
            .min(self.ban.longest);
        bucket.block_for(key.clone(), span).await?;
        self.refusals.reset(key).await
    }
}
