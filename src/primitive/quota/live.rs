//! Quotas that change at run time.

use std::sync::{Arc, PoisonError, RwLock};

use super::Quotas;
use crate::Error;

/// Quotas that can be changed at run time, for example when an operator changes the configuration.
///
/// Clones share the same quotas. See [the bucket's documentation](crate::token_bucket#when-quotas-change) for the
/// effect of a change on existing buckets.
///
/// ```
/// use tower_distributed::{LiveQuotas, Quota, RateLimitLayer, Store, TokenBucket};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let quotas = LiveQuotas::new(Quota::per_second(100))?;
/// let bucket = TokenBucket::new(&Store::in_memory(), "api", quotas.get())?;
/// let layer = RateLimitLayer::new(bucket, |request: &String| request.clone()).quotas(quotas.clone())?;
///
/// quotas.set("50/s, burst 200")?; // applies from the next request on
/// # let _: RateLimitLayer<_, ()> = layer;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LiveQuotas(Arc<RwLock<Quotas>>);

impl LiveQuotas {
    /// Creates live quotas with an initial value.
    ///
    /// # Errors
    ///
    /// The errors of [`Quotas::new`].
    pub fn new<Q>(quotas: Q) -> Result<Self, Error>
    where
        Q: TryInto<Quotas>,
        Error: From<Q::Error>,
    {
        Ok(Self(Arc::new(RwLock::new(quotas.try_into()?))))
    }

    /// Returns the current quotas.
    #[must_use]
    pub fn get(&self) -> Quotas {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the quotas.
    ///
    /// # Errors
    ///
    /// The errors of [`Quotas::new`]. On error, the quotas stay unchanged.
    pub fn set<Q>(&self, quotas: Q) -> Result<(), Error>
    where
        Q: TryInto<Quotas>,
        Error: From<Q::Error>,
    {
        let quotas = quotas.try_into()?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = quotas;
        Ok(())
    }
}
