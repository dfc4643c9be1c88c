//! Quotas that change while they are used.

use std::sync::{Arc, PoisonError, RwLock};

use super::Quotas;
use crate::Error;

/// Quotas that are changed at run time, by an operator or a configuration that is read anew. Clones share.
///
/// What a change means for tokens that are owed is told in [the bucket's documentation](crate::token_bucket#when-quotas-change).
///
/// ```
/// use tower_distributed::{LiveQuotas, Quota, RateLimitLayer, Store, TokenBucket};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let quotas = LiveQuotas::new(Quota::per_second(100))?;
/// let bucket = TokenBucket::new(&Store::in_memory(), "api", quotas.get())?;
/// let layer = RateLimitLayer::new(bucket, |request: &String| request.clone()).quotas(quotas.clone());
///
/// quotas.set("50/s, burst 200")?; // from the next request on
/// # let _: RateLimitLayer<_, ()> = layer;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LiveQuotas(Arc<RwLock<Quotas>>);

impl LiveQuotas {
    /// The quotas to begin with.
    ///
    /// # Errors
    ///
    /// As [`Quotas::new`].
    pub fn new<Q>(quotas: Q) -> Result<Self, Error>
    where
        Q: TryInto<Quotas>,
        Error: From<Q::Error>,
    {
        Ok(Self(Arc::new(RwLock::new(quotas.try_into()?))))
    }

    /// The quotas as they are now.
    #[must_use]
    pub fn get(&self) -> Quotas {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Other quotas from now on.
    ///
    /// # Errors
    ///
    /// As [`Quotas::new`]; nothing has changed then.
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
