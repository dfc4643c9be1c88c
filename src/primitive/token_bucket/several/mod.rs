//! Several limits that are charged together, all or none.

mod asking;
mod step;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

pub(crate) use self::asking::AcquireAll;
pub(super) use self::step::ReserveAll;
#[cfg(test)]
pub(super) use self::step::{Buckets, CancelAll, Decided};
pub(super) use self::terms::Terms;
use super::TokenBucket;
use super::decision::{BucketState, Decision, Refuser};
use super::state::Bucket;
use crate::primitive::quota::Quotas;
use crate::store::{Cells, Client, Namespace, lock};
use crate::telemetry::{Decisions, Outcome};
use crate::{Error, IntoKey, Key, Store};

/// Several limits over different keys, such as one per user, one per tenant and one for all: a request is charged to all of
/// them, or to none.
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
/// The buckets are those of the [`TokenBucket`]s: requests that are charged to one alone are charged to the same.
///
/// # What is told
///
/// One [`Decision`], with the quotas of all limits: each by the name of its limit, `users`, or with its own name after that,
/// `users.hourly`. A refusal [from memory](TokenBucket::cache_refusals), or on the way from one limit to the next, tells of the
/// limit that refused alone. Nothing waits here; [`retry_after`](Decision::retry_after) says when all limits that are told of
/// may have tokens. While one of them is [blocked](TokenBucket::block_for), none is told to have tokens left.
///
/// # One step, or one after the other
///
/// Where all limits are in one [`Store`], which is no Cluster, a request is one step in one round trip, and what others see
/// is before it or after it. On a Cluster this is so where the keys happen to be of one hash slot.
///
/// Else the limits are asked one after the other. The first that refuses ends it, is the only one that is told of, and what was
/// charged before is taken back, less what came back meanwhile, and nothing where reservations wait in that bucket: so no limit
/// ever admits more than by itself. Until then others may be refused by what is taken back. Put the limit that refuses
/// most first. On a Cluster, whose client may repeat calls, it is taken back where nothing has come after it, else not at
/// all; nor are tokens of quotas that never refill. Where limits are in different stores and one of them is away, the request
/// is one that gets no answer: no limit is charged, and a layer does what it is set to do then.
///
/// # Cancel safety
///
/// A request that is dropped before it is decided is taken back, as far as nothing was built upon it.
#[derive(Clone)]
pub struct TokenBuckets<const N: usize>(Several);

impl<const N: usize> TokenBuckets<N> {
    /// Puts limits together: one to eight.
    ///
    /// Refusals are answered [from memory](TokenBucket::cache_refusals) where the bucket says so. Nothing is
    /// [charged ahead](TokenBucket::prefetch).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where there are none or more than eight, or two have one name: that could be one
    /// bucket twice.
    pub fn new(buckets: [TokenBucket; N]) -> Result<Self, Error> {
        Several::new(&buckets).map(Self)
    }

    /// Takes one token of each bucket, if all of them have one now.
    ///
    /// A limit whose key is `None` is not asked. Keys of different types are each made a [`Key`] first.
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
    /// [`is_unavailable`](Error::is_unavailable): then any of them may have been charged.
    /// [`is_overloaded`](Error::is_overloaded) where a store takes no more. A refusal is not an error here, but a [`Decision`].
    pub async fn allow<K: IntoKey>(&self, keys: [K; N]) -> Result<Decision, Error> {
        self.allow_n(keys, 1).await
    }

    /// Takes `n` tokens of each bucket, if all of them have so many now.
    ///
    /// # Errors
    ///
    /// As [`allow`](Self::allow), and [`is_exceeds_burst`](Error::is_exceeds_burst) where one of them never holds so many.
    pub async fn allow_n<K: IntoKey>(&self, keys: [K; N], n: u32) -> Result<Decision, Error> {
        let keys: Keys = keys.into_iter().map(IntoKey::into_key).collect::<Result<_, _>>()?;
        let key = Key::of_some(keys.iter().map(Option::as_ref));
        let decided = self.0.decide(key, n).await;
        self.0.decisions().settle(decided.map(|decision| {
            let outcome = Outcome::of(&decision);
            (decision, outcome)
        }))
    }

    pub(crate) fn several(&self) -> &Several {
        &self.0
    }
}

/// The keys of a request, by limit; `None`: that limit is not asked. As one key they are made by [`Key::of_some`].
pub(crate) type Keys = SmallVec<[Option<Key>; 3]>;

/// Several limits. A cheap clone.
#[derive(Clone)]
pub(crate) struct Several(Arc<Limits>);

struct Limits {
    buckets: Box<[TokenBucket]>,
    terms: Arc<Terms>,
    places: Arc<Places>,
}

/// What does not depend on the quotas.
struct Places {
    together: Together,
    decisions: Decisions,
    /// Those of some of the limits, by a bit for each.
    some: Mutex<HashMap<u8, Arc<Places>>>,
}

/// How all limits are charged in one step.
enum Together {
    InMemory(Box<[Arc<Cells<Bucket>>]>),
    Redis(Client<ReserveAll>),
    /// They are not in one place.
    No,
}

impl Several {
    fn new(buckets: &[TokenBucket]) -> Result<Self, Error> {
        let of = buckets.len();
        if !(1..=8).contains(&of) {
            return Err(Error::invalid(format!("one to eight limits can be charged together, got {of}")));
        }
        for (position, bucket) in buckets.iter().enumerate() {
            if buckets[..position].iter().any(|other| other.name() == bucket.name()) {
                let name = bucket.name();
                return Err(Error::invalid(format!(
                    "two limits that are charged together are named {name:?}"
                )));
            }
        }
        let this = Self::new_places(buckets.iter().map(TokenBucket::as_one_of_several).collect());
        let names: Vec<_> = this.0.terms.all().limits().iter().map(|limit| &limit.name).collect();
        for (position, name) in names.iter().enumerate() {
            if names[..position].contains(name) {
                return Err(Error::invalid(format!(
                    "two quotas of limits that are charged together would be told as {name:?}: name one otherwise"
                )));
            }
        }
        Ok(this)
    }

    fn new_places(buckets: Box<[TokenBucket]>) -> Self {
        let places = Arc::new(Places::new(&buckets));
        Self::of(buckets, places)
    }

    fn of(buckets: Box<[TokenBucket]>, places: Arc<Places>) -> Self {
        Self(Arc::new(Limits { terms: Arc::new(Terms::new(&buckets)), buckets, places }))
    }

    /// The limits that have a key.
    fn with_keys(&self, keys: &Keys) -> Self {
        let bits = keys.iter().enumerate().map(|(limit, key)| u8::from(key.is_some()) << limit).sum();
        let some = self.0.buckets.iter().zip(keys).filter(|(_, key)| key.is_some());
        let buckets: Box<[_]> = some.map(|(bucket, _)| bucket.clone()).collect();
        let new = || Arc::new(Places::new(&buckets));
        let places = Arc::clone(lock(&self.0.places.some).entry(bits).or_insert_with(new));
        Self::of(buckets, places)
    }

    /// The same limits, where the first has other quotas.
    pub(crate) fn with_quotas_of_first(&self, quotas: &Quotas) -> Self {
        let first = self.0.buckets.iter().take(1).map(|bucket| bucket.with_quotas(quotas));
        let buckets = first.chain(self.0.buckets.iter().skip(1).cloned()).collect();
        Self::of(buckets, Arc::clone(&self.0.places))
    }

    pub(crate) fn cache_refusals(&self, cache: bool) -> Self {
        let buckets = self.0.buckets.iter().map(|bucket| bucket.cache_refusals(cache)).collect();
        Self::of(buckets, Arc::clone(&self.0.places))
    }

    pub(crate) fn in_store(&self, store: &Store) -> Self {
        Self::new_places(self.0.buckets.iter().map(|bucket| bucket.in_store(store)).collect())
    }

    /// These limits with a share of the quotas of others.
    pub(crate) fn standing_in_for(&self, other: &Self, parts: NonZeroU32) -> Self {
        let buckets = self.0.buckets.iter().zip(&*other.0.buckets);
        let buckets = buckets.map(|(bucket, other)| bucket.standing_in_for(other, parts)).collect();
        Self::of(buckets, Arc::clone(&self.0.places))
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.0.places.decisions
    }

    /// The bucket of the first limit: of whoever makes the request.
    pub(crate) fn first(&self) -> &TokenBucket {
        &self.0.buckets[0]
    }

    /// Charges all limits, under the quotas of an admission by them, without anybody waiting for that.
    pub(crate) fn charge_detached(&self, keys: Keys, decision: &Decision, tokens: u32) {
        // Those of each limit stand side by side. Only the first may have another number of them than its bucket.
        let quotas = decision.state.quotas();
        let mut end = quotas.limits().len();
        for (limit, (bucket, key)) in self.0.buckets.iter().zip(keys).enumerate().rev() {
            let Some(key) = key else { continue };
            let start = if limit == 0 { 0 } else { end.saturating_sub(bucket.quotas().limits().len()) };
            bucket.with_quotas(&quotas.part(start..end)).charge_detached(key, tokens);
            end = start;
        }
    }

    /// What the caller is told of what one limit says alone.
    fn alone(&self, limit: usize, decision: Decision) -> Decision {
        let quota = decision.state.lacking(decision.cost).unwrap_or(0) as u8;
        let is_blocked = decision.state.bucket.start(decision.state.now) > decision.state.now;
        let refuser = Refuser { limit: limit as u8, quota, is_blocked };
        let refuser = (!decision.admitted).then_some(refuser);
        let quotas = self.0.terms.alone(limit).clone();
        Decision { by: refuser, state: BucketState { quotas, ..decision.state }, ..decision }
    }
}

impl Places {
    fn new(buckets: &[TokenBucket]) -> Self {
        let names: Vec<_> = buckets.iter().map(TokenBucket::name).collect();
        let decisions = Decisions::new("token_bucket", &names.join("+"));
        Self { together: Together::new(buckets), decisions, some: Mutex::default() }
    }
}

impl Together {
    fn new(buckets: &[TokenBucket]) -> Self {
        let namespaces: Vec<_> = buckets.iter().map(|bucket| bucket.clients.namespace.clone()).collect();
        if let Some(joined) = Namespace::joined(&namespaces) {
            return Self::Redis(joined.client());
        }
        let store = buckets.first().map(|bucket| &bucket.clients.store);
        if buckets.iter().any(|bucket| store.is_none_or(|store| !bucket.clients.store.is_same(store))) {
            return Self::No;
        }
        let cells: Option<_> = namespaces.iter().map(|namespace| namespace.cells().cloned()).collect();
        cells.map_or(Self::No, Self::InMemory)
    }
}

impl<const N: usize> fmt::Debug for TokenBuckets<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.0.buckets).finish()
    }
}
