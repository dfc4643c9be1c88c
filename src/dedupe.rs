#![doc = include_str!("dedupe/page.md")]

mod builder;
pub(crate) mod claim;
pub(crate) mod claims;
pub(crate) mod exact;
pub(crate) mod filter;
#[cfg(feature = "http")]
pub(crate) mod replay;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bloom_filter::BloomFilter;
use crate::dedupe::claim::Place;
use crate::dedupe::claims::{Claims, Common, unasked};
use crate::dedupe::exact::{Exact, ExactClaims, Layout};
use crate::dedupe::filter::{FilterClaims, Filtered};
use crate::error::Error;
use crate::lease::options::LeaseOptions;
use crate::store::Store;
use crate::telemetry::Outcome;
use crate::telemetry::counters::Decisions;

pub use self::builder::{DedupeBuilder, ExactBuilder};
pub use self::claim::Claim;
pub(crate) use self::claim::ClaimAnswer;
pub use self::claims::FilterFull;
pub(crate) use self::claims::HandledBy;
pub use crate::layers::dedupe::go_on::GoOnLayer;
pub use crate::layers::dedupe::{DedupeLayer, DuplicateAction, Evidence, Unsure};

/// Claims items, so that each is handled once across all processes.
///
/// Clones are cheap and share their state. See the [module](crate::dedupe) for details.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time. A waiter then leaves the queue, and a claim that was already granted
/// is released. A confirmation that has begun always completes.
#[derive(Clone)]
pub struct Dedupe(Mode);

/// The mode: where handled items are recorded.
#[derive(Clone)]
enum Mode {
    Filter(Arc<Claims<FilterClaims>>),
    Exact(Arc<Claims<ExactClaims>>),
}

/// The result of [claiming](Dedupe::try_claim) an item.
#[derive(Debug)]
#[must_use = "a claim is released when it is dropped"]
pub enum Claimed {
    /// The item is new. The caller has claimed it and must handle it.
    New(Claim),
    /// The item was handled before. In exact mode this is certain. With a filter it is wrong at the filter's
    /// [false-positive rate](crate::bloom_filter::BloomFilterBuilder::false_positive_rate).
    Duplicate,
}

impl Dedupe {
    /// Creates a `Dedupe` with the default settings on a filter that
    /// [forgets](crate::bloom_filter::BloomFilterBuilder::remember_for).
    ///
    /// All processes that use the same filter share its claims.
    ///
    /// # Errors
    ///
    /// The same errors as [`DedupeBuilder::build`].
    pub fn new(filter: &BloomFilter) -> Result<Self, Error> {
        Self::builder().build(filter)
    }

    fn on_filter(filter: &BloomFilter, when_full: FilterFull, options: LeaseOptions) -> Self {
        let memory = Filtered::new(filter.clone(), when_full);
        Self(Mode::Filter(Claims::beside(
            filter.store(),
            filter.name(),
            memory,
            options,
        )))
    }

    fn exactly(store: &Store, name: &str, layout: Arc<Layout>, options: LeaseOptions) -> Self {
        let memory = Exact::new(store, name, layout);
        Self(Mode::Exact(Claims::beside(store, name, memory, options)))
    }

    fn common(&self) -> &Common {
        match &self.0 {
            Mode::Filter(claims) => &claims.common,
            Mode::Exact(claims) => &claims.common,
        }
    }

    /// The store, and the name in it.
    pub(crate) fn place(&self) -> (&Store, &str) {
        let Common { store, name, .. } = self.common();
        (store, name)
    }

    /// Claims an item, without waiting. An item is any bytes, and may be empty. A longer item only takes longer to
    /// hash.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) if another caller holds the claim on the item.
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    /// [`is_overloaded`](Error::is_overloaded) if a bound of the store is reached.
    /// [`is_invalid`](Error::is_invalid) if another configuration is stored under the name.
    pub async fn try_claim(&self, item: impl AsRef<[u8]>) -> Result<Claimed, Error> {
        self.counted(item.as_ref(), None).await
    }

    /// Claims an item. If another caller holds the claim, waits for up to `max_wait`.
    ///
    /// If the holder confirms, the item is a duplicate. If the holder releases or loses the claim, a waiter acquires
    /// it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::dedupe::{Claimed, Dedupe};
    /// use tower_distributed::Store;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let day = Duration::from_secs(86_400);
    /// let events = Dedupe::exact(&Store::in_memory(), "events").remember_for(day).build()?;
    /// let Claimed::New(claim) = events.try_claim("evt_1").await? else { return Ok(()) };
    ///
    /// let second = events.claim("evt_1", Duration::from_secs(5)); // waits for the first handler
    /// let (second, confirmed) = tokio::join!(second, claim.confirm());
    /// assert!(confirmed? && matches!(second?, Claimed::Duplicate));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The same errors as [`try_claim`](Self::try_claim). A refusal after `max_wait` also [is waited too
    /// long](Error::is_waited_too_long).
    pub async fn claim(
        &self,
        item: impl AsRef<[u8]>,
        max_wait: Duration,
    ) -> Result<Claimed, Error> {
        self.counted(item.as_ref(), Some(max_wait)).await
    }

    /// Claims an item even if it is a duplicate. Use it after your own record shows that the item was not handled.
    ///
    /// ```
    /// use tower_distributed::dedupe::{Claimed, Dedupe};
    /// use tower_distributed::{BloomFilter, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # async fn was_handled(_order: &str) -> bool { false }
    /// let day = std::time::Duration::from_secs(86_400);
    /// let filter = BloomFilter::builder().capacity(1_000_000).false_positive_rate(1e-6).remember_for(day);
    /// let orders = Dedupe::new(&filter.build(&Store::in_memory(), "orders")?)?;
    ///
    /// let claim = match orders.try_claim("order-7").await? {
    ///     Claimed::New(claim) => claim,
    ///     Claimed::Duplicate if was_handled("order-7").await => return Ok(()), // according to the database
    ///     Claimed::Duplicate => orders.claim_anyway("order-7").await?,         // the filter is wrong
    /// };
    /// claim.confirm().await?;
    /// # assert!(orders.claim_anyway("order-7").await?.release().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The same errors as [`try_claim`](Self::try_claim).
    pub async fn claim_anyway(&self, item: impl AsRef<[u8]>) -> Result<Claim, Error> {
        let claimed = match self.look(item.as_ref(), None, true).await {
            Ok(ClaimAnswer::New(claim)) => Ok(claim),
            Ok(ClaimAnswer::HandledBy(_)) => Err(unasked()),
            Err(error) => Err(error),
        };
        self.decisions().admitted(claimed)
    }

    /// Removes a handled item in exact mode, so that it is new again. Returns whether it was stored.
    ///
    /// An existing claim on the item stays valid, and its confirmation records the item again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::dedupe::{Claimed, Dedupe};
    /// # use tower_distributed::Store;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let events = Dedupe::exact(&Store::in_memory(), "events").remember_for(Duration::from_secs(3600)).build()?;
    /// if let Claimed::New(claim) = events.try_claim("evt_1").await? {
    ///     claim.confirm().await?;
    /// }
    /// assert!(events.forget("evt_1").await?);
    /// assert!(matches!(events.try_claim("evt_1").await?, Claimed::New(_)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_invalid`](Error::is_invalid) with a filter: one item cannot be removed from a Bloom filter.
    ///   [`claim_anyway`](Self::claim_anyway) claims an item that the filter contains.
    /// * Otherwise the same errors as [`try_claim`](Self::try_claim).
    pub async fn forget(&self, item: impl AsRef<[u8]>) -> Result<bool, Error> {
        match &self.0 {
            Mode::Exact(claims) => claims.memory().forget(item.as_ref()).await,
            Mode::Filter(_) => Err(cannot_forget(self.name())),
        }
    }

    /// Returns the filter, or `None` in exact mode.
    #[must_use]
    pub fn filter(&self) -> Option<&BloomFilter> {
        match &self.0 {
            Mode::Filter(claims) => Some(&claims.memory().filter),
            Mode::Exact(_) => None,
        }
    }

    /// Returns the name of the filter. In exact mode, returns the name that was given to [`exact`](Self::exact).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.common().name
    }

    /// Returns how full the filter is: 1 at its capacity.
    ///
    /// The value is the last that this process measured, at a confirmation or a duplicate. For a filter of several
    /// keys, it is the mean of the measured keys. It is `None` before the first measurement and in exact mode. This
    /// method does not call the store.
    ///
    /// ```
    /// use tower_distributed::dedupe::{Claimed, Dedupe};
    /// use tower_distributed::{BloomFilter, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let day = std::time::Duration::from_secs(86_400);
    /// let filter = BloomFilter::builder().capacity(1000).false_positive_rate(1e-6).remember_for(day);
    /// let urls = Dedupe::new(&filter.build(&Store::in_memory(), "urls")?)?;
    /// assert_eq!(urls.filter().and_then(|filter| filter.size().capacity), Some(1000));
    /// assert_eq!(urls.fill(), None);
    ///
    /// if let Claimed::New(claim) = urls.try_claim("https://example.com/").await? {
    ///     claim.confirm().await?;
    /// }
    /// assert!(urls.fill().is_some_and(|fill| fill < 0.1));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fill(&self) -> Option<f64> {
        match &self.0 {
            Mode::Filter(claims) => claims.memory().fill(),
            Mode::Exact(_) => None,
        }
    }

    /// Returns the same `Dedupe` in the memory of this process, which replaces the store while it is unavailable.
    pub(crate) fn local_share(&self) -> Self {
        match &self.0 {
            Mode::Filter(claims) => {
                let Filtered {
                    filter, when_full, ..
                } = claims.memory();
                Self::on_filter(
                    &filter.local_share(),
                    *when_full,
                    claims.leases.options().clone(),
                )
            }
            Mode::Exact(claims) => {
                let Common { store, name, .. } = &claims.common;
                let options = claims.leases.options();
                let layout = Arc::clone(&claims.memory().layout);
                Self::exactly(store.local_share(), name, layout, options.clone())
            }
        }
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.common().decisions
    }

    async fn counted(&self, item: &[u8], max_wait: Option<Duration>) -> Result<Claimed, Error> {
        let claimed = match self.look(item, max_wait, false).await {
            Ok(ClaimAnswer::New(claim)) => Ok((Claimed::New(claim), Outcome::Admitted)),
            Ok(ClaimAnswer::HandledBy(HandledBy::ByFullFilter)) => loop {
                match self.look(item, max_wait, true).await {
                    Ok(ClaimAnswer::New(claim)) => {
                        break Ok((Claimed::New(claim), Outcome::FilterFull));
                    }
                    // The call had to wait, so the store read the filter again.
                    Ok(ClaimAnswer::HandledBy(_)) => {}
                    Err(error) => break Err(error),
                }
            },
            Ok(ClaimAnswer::HandledBy(HandledBy::Exactly | HandledBy::ByFilter)) => {
                Ok((Claimed::Duplicate, Outcome::Refused))
            }
            Err(error) => Err(error),
        };
        self.decisions().settle(claimed)
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.common().store.is_in_memory()
    }

    /// Claims an item unless it is known. With `insists`, a known item is claimed too, unless the call had to wait and
    /// the item was handled during the wait. Does not count a decision.
    pub(crate) async fn look(
        &self,
        item: &[u8],
        max_wait: Option<Duration>,
        insists: bool,
    ) -> Result<ClaimAnswer, Error> {
        match &self.0 {
            Mode::Filter(claims) => {
                let taken = claims.claim(item, max_wait, insists).await?;
                let place = |probe| Place::Filter(Arc::clone(claims), probe);
                Ok(ClaimAnswer::of(taken, place))
            }
            Mode::Exact(claims) => {
                let taken = claims.claim(item, max_wait, insists).await?;
                let place = |digest| Place::Exact(Arc::clone(claims), digest);
                Ok(ClaimAnswer::of(taken, place))
            }
        }
    }
}

/// The error for removing an item from a filter.
pub(crate) fn cannot_forget(name: &str) -> Error {
    Error::invalid(format!(
        "a Bloom filter cannot forget one item: {name:?} is a filter; BloomFilter::clear forgets all items"
    ))
}

impl fmt::Debug for Dedupe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.filter().is_some() {
            "filter"
        } else {
            "exact"
        };
        f.debug_struct("Dedupe")
            .field(kind, &self.name())
            .finish_non_exhaustive()
    }
}
