//! [`TokenBuckets`]: one to eight limits that are charged together, all of them or none.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::task::coop::consume_budget;

use crate::bucket::Bucket;
use crate::bucket::charge::{Charge, Costs, JoinedTerms, MOST_LIMITS, Price};
use crate::bucket::decision::{BucketState, Decision, Refuser};
use crate::bucket::hold::HoldSteps;
use crate::bucket::quotas::repeated;
use crate::error::Error;
use crate::key::IntoKey;
use crate::key::{Key, parts};
use crate::macros::in_range;
use crate::store::client::{Client, Namespace};
use crate::store::failure::Sharing;
use crate::store::memory::cells::Cells;
use crate::sync::lock;
use crate::telemetry::counters::Decisions;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::calls::counted;

/// Several limits over different keys, such as one per user, one per tenant and one global limit.
///
/// A request is charged to all of them, or to none: one token of each, or a [cost](Costs) for each, such as one request
/// and 1200 tokens. For a cost that is known only at the end, [hold](Self::authorize) an estimate first.
///
/// ```
/// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limits = TokenBuckets::new([
///     TokenBucket::new(&store, "users", Quota::per_second(10))?,
///     TokenBucket::new(&store, "tenants", Quota::per_minute(2))?,
///     TokenBucket::new(&store, "all", Quota::per_second(1000))?,
/// ])?;
///
/// assert!(limits.allow(["ann", "acme", "-"]).await?.is_admitted());
/// assert!(limits.allow(["bob", "acme", "-"]).await?.is_admitted());
/// let refused = limits.allow(["ann", "acme", "-"]).await?;
/// assert_eq!(refused.refused_by(), Some("tenants"));
/// # Ok(()) }
/// ```
///
/// A limit is the [`TokenBucket`] itself: requests that are charged to this bucket alone use the same tokens.
///
/// # The decision
///
/// A request has one [`Decision`], with the quotas of all limits. The name of a quota is the name of its limit, such as
/// `users`. If the quota has a name, it is appended: `users.hourly`. A [cached](TokenBucket::cache_refusals) refusal
/// contains only the quotas of the limit that refused; so does a refusal if the limits are decided one after the other.
///
/// No call waits for tokens. [`retry_after`](Decision::retry_after) is the time when all limits in the decision may
/// have tokens. While one limit is [blocked](TokenBucket::block_for), the decision reports no remaining tokens for any
/// limit.
///
/// # One operation, or one after the other
///
/// If all limits are in one [`Store`](crate::Store) that is not a Cluster, a request is one atomic operation in one
/// round trip. On a Cluster, this is so if all keys of the request are in the same hash slot.
///
/// Otherwise the limits are decided one after the other, until one refuses. Then the tokens charged so far are given
/// back, minus the tokens that refilled since the charge. Nothing is given back to a bucket with reservations that have
/// not acted yet. So no limit ever admits more than it would alone.
///
/// * Until the tokens are given back, they can cause refusals of other requests. Put the limit that refuses most
///   first.
/// * On a Cluster, whose client may repeat calls, the tokens of a bucket are given back in full if nothing was charged
///   after them, otherwise not at all. Tokens of quotas that never refill, and of calendar quotas, are not given back.
/// * If the limits are in different stores and one store is unavailable, the request fails with that error, and no
///   limit is charged. A layer then applies its [`StoreFailure`](crate::StoreFailure) setting.
///
/// # Cancel safety
///
/// If a request is dropped before its decision, its charges are taken back, except for tokens on which later charges
/// depend.
#[derive(Clone, Debug)]
pub struct TokenBuckets<const N: usize>(Several);

impl<const N: usize> TokenBuckets<N> {
    /// Combines one to eight limits.
    ///
    /// Each limit keeps its setting of [`cache_refusals`](TokenBucket::cache_refusals). Nothing is
    /// [prefetched](TokenBucket::prefetch).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if there are no limits or more than eight, if two limits have the same
    /// name (they could be the same bucket), or if two quotas would have the same name in the decision.
    pub fn new(buckets: [TokenBucket; N]) -> Result<Self, Error> {
        Several::new(&buckets).map(Self)
    }

    /// Takes one token of each bucket, if all buckets have one now.
    ///
    /// A limit whose key is `None` is skipped. To use keys of different types, convert each to a [`Key`] first.
    ///
    /// ```
    /// # use tower_distributed::{Key, Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let users = TokenBucket::new(&store, "users", Quota::per_second(10))?;
    /// let tenants = TokenBucket::new(&store, "tenants", Quota::per_second(100))?;
    /// let limits = TokenBuckets::new([users, tenants])?;
    /// let (user, tenant): (u64, Option<&str>) = (7, None);
    /// assert!(limits.allow([Some(Key::from(user)), tenant.map(Key::from)]).await?.is_admitted());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): some limits may have been charged.
    /// [`is_overloaded`](Error::is_overloaded): nothing was charged. A refusal is not an error, but a [`Decision`].
    pub async fn allow<K: IntoKey>(&self, keys: [K; N]) -> Result<Decision, Error> {
        self.allow_n(keys, 1).await
    }

    /// Takes `n` tokens of each bucket, or the numbers in an array, if all buckets have these tokens now.
    ///
    /// A limit whose cost is 0 is skipped.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let requests = TokenBucket::new(&store, "requests", Quota::per_minute(60))?;
    /// let tokens = TokenBucket::new(&store, "tokens", Quota::per_minute(2000))?;
    /// let limits = TokenBuckets::new([requests, tokens])?;
    /// assert!(limits.allow_n(["ann", "ann"], [1, 1200]).await?.is_admitted());
    /// let refused = limits.allow_n(["ann", "ann"], [1, 1200]).await?;
    /// assert_eq!((refused.refused_by(), refused.cost), (Some("tokens"), 1200));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`allow`](Self::allow); [`is_exceeds_limit`](Error::is_exceeds_limit) if a cost is above the
    /// burst of a quota of its limit.
    pub async fn allow_n<K: IntoKey>(
        &self,
        keys: [K; N],
        n: impl Costs<N>,
    ) -> Result<Decision, Error> {
        let key = Key::of_some(extracted(keys)?.iter().map(Option::as_ref));
        // Yields to other tasks regularly, before anything is charged: in memory, this call has no other await point
        // that waits.
        consume_budget().await;
        counted(
            self.0.decisions(),
            self.0.decide(&key, Price::new(n.each())).await,
        )
    }

    pub(crate) fn several(&self) -> &Several {
        &self.0
    }
}

/// The keys of a request, one per limit. A limit whose key is `None` is skipped. [`Key::of_some`] combines them into
/// one key.
pub(crate) type Keys = SmallVec<[Option<Key>; 3]>;

pub(crate) fn extracted<K: IntoKey>(keys: impl IntoIterator<Item = K>) -> Result<Keys, Error> {
    keys.into_iter().map(IntoKey::into_key).collect()
}

/// Splits a combined key into the keys of each limit.
pub(crate) fn keys_of(key: &Key) -> Keys {
    parts(key.as_bytes())
        .map(|part| part.map(Key::from))
        .collect()
}

/// Several limits. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Several {
    pub(crate) limits: Arc<Limits>,
    /// Zero, except for the requests of a layer.
    pub(crate) max_wait: Duration,
}

pub(crate) struct Limits {
    pub(crate) buckets: Box<[TokenBucket]>,
    pub(crate) terms: Arc<JoinedTerms>,
    pub(crate) places: Arc<Places>,
}

/// The part of [`Limits`] that does not depend on the quotas.
pub(crate) struct Places {
    pub(crate) together: Together,
    decisions: Decisions,
    /// The same part for subsets of the limits; each bit stands for a limit.
    some: Mutex<HashMap<u8, Arc<Places>>>,
}

/// How all limits are charged in one operation.
pub(crate) enum Together {
    InMemory(Box<[Arc<Cells<Bucket>>]>),
    Redis(Client<Charge>, Client<HoldSteps>),
    /// They cannot be charged in one operation.
    No,
}

impl Several {
    fn new(buckets: &[TokenBucket]) -> Result<Self, Error> {
        let of = buckets.len();
        in_range("the number of limits", 1..=MOST_LIMITS, "1 to 8", of)?;
        if let Some(name) = repeated(buckets.iter().map(TokenBucket::name)) {
            return Err(Error::invalid(format!(
                "limits that are charged together must have different names, two are named {name:?}"
            )));
        }
        let this = Self::new_places(buckets.iter().map(TokenBucket::as_one_of_several).collect());
        if let Some(name) = repeated(
            this.limits
                .terms
                .all
                .limits()
                .iter()
                .map(|limit| &limit.name),
        ) {
            return Err(Error::invalid(format!(
                "two quotas of the limits have the same name {name:?}: name one of them differently"
            )));
        }
        Ok(this)
    }

    fn new_places(buckets: Box<[TokenBucket]>) -> Self {
        let places = Arc::new(Places::new(&buckets));
        Self::of(buckets, places)
    }

    fn of(buckets: Box<[TokenBucket]>, places: Arc<Places>) -> Self {
        let limits = Arc::new(Limits {
            terms: Arc::new(terms_of(&buckets)),
            buckets,
            places,
        });
        Self {
            limits,
            max_wait: Duration::ZERO,
        }
    }

    /// The limits that have a key.
    pub(crate) fn with_keys(&self, keys: &Keys) -> Self {
        let bits = keys
            .iter()
            .enumerate()
            .map(|(limit, key)| u8::from(key.is_some()) << limit)
            .sum();
        let some = self
            .limits
            .buckets
            .iter()
            .zip(keys)
            .filter(|(_, key)| key.is_some());
        let buckets: Box<[_]> = some.map(|(bucket, _)| bucket.clone()).collect();
        let new = || Arc::new(Places::new(&buckets));
        let places = Arc::clone(
            lock(&self.limits.places.some)
                .entry(bits)
                .or_insert_with(new),
        );
        Self::of(buckets, places)
    }

    pub(crate) fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self {
            max_wait,
            ..self.clone()
        }
    }

    pub(crate) fn local_share(&self, sharing: Sharing) -> Self {
        let buckets = self
            .limits
            .buckets
            .iter()
            .map(|bucket| bucket.local_share(sharing));
        Self {
            max_wait: self.max_wait,
            ..Self::new_places(buckets.collect())
        }
    }

    pub(crate) fn map(&self, map: impl Fn(usize, &TokenBucket) -> TokenBucket) -> Self {
        let buckets = self
            .limits
            .buckets
            .iter()
            .enumerate()
            .map(|(limit, bucket)| map(limit, bucket));
        let this = Self::of(buckets.collect(), Arc::clone(&self.limits.places));
        Self {
            max_wait: self.max_wait,
            ..this
        }
    }

    /// The decision on a request that is charged to no limit.
    pub(crate) fn free(&self) -> Decision {
        Decision::free(self.limits.terms.all.clone())
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.limits.places.decisions
    }

    pub(crate) fn buckets(&self) -> &[TokenBucket] {
        &self.limits.buckets
    }

    /// Charges all limits in the background, under the quotas of the decision that admitted the request.
    pub(crate) fn charge_detached(&self, keys: Keys, decision: &Decision, tokens: u32) {
        // The quotas of a limit are adjacent. Only the first limit may have other quotas than its bucket.
        let quotas = &decision.state.quotas;
        let mut end = quotas.limits().len();
        for (limit, (bucket, key)) in self.limits.buckets.iter().zip(keys).enumerate().rev() {
            let Some(key) = key else { continue };
            let start = if limit == 0 {
                0
            } else {
                end.saturating_sub(bucket.quotas().limits().len())
            };
            bucket
                .with_quotas(&quotas.part(start..end))
                .charge_detached(key, tokens);
            end = start;
        }
    }

    /// Converts the decision of one limit to a decision of several limits, which contains the quotas of this limit
    /// only.
    pub(crate) fn alone(&self, limit: usize, decision: Decision) -> Decision {
        let refuser = (!decision.admitted)
            .then(|| Refuser::new(limit, 0, &decision.state, decision.cost.into()));
        let quotas = self.limits.terms.alone[limit].clone();
        Decision {
            by: refuser,
            state: BucketState {
                quotas,
                ..decision.state
            },
            ..decision
        }
    }
}

/// The terms of these buckets.
pub(crate) fn terms_of(buckets: &[TokenBucket]) -> JoinedTerms {
    JoinedTerms::new(
        buckets
            .iter()
            .map(|bucket| (bucket.name(), bucket.quotas())),
    )
}

impl Places {
    fn new(buckets: &[TokenBucket]) -> Self {
        let names: Vec<_> = buckets.iter().map(TokenBucket::name).collect();
        let decisions = Decisions::new("token_bucket", &names.join("+"));
        Self {
            together: Together::new(buckets),
            decisions,
            some: Mutex::default(),
        }
    }
}

impl Together {
    fn new(buckets: &[TokenBucket]) -> Self {
        let namespaces: Vec<_> = buckets
            .iter()
            .map(|bucket| bucket.clients.namespace.clone())
            .collect();
        if let Some(joined) = Namespace::joined(&namespaces) {
            return Self::Redis(joined.client(), joined.client());
        }
        let store = buckets.first().map(|bucket| &bucket.clients.store);
        if buckets
            .iter()
            .any(|bucket| store.is_none_or(|store| !bucket.clients.store.is_same(store)))
        {
            return Self::No;
        }
        let cells: Option<_> = namespaces
            .iter()
            .map(|namespace| namespace.cells().cloned())
            .collect();
        cells.map_or(Self::No, Self::InMemory)
    }
}

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.limits.buckets).finish()
    }
}
