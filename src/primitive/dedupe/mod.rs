//! The claims of items. See the public module `dedupe`.

mod builder;
mod claim;
pub(crate) mod exact;
mod fill;
pub(crate) mod filtered;
#[cfg(feature = "http")]
mod replay;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::builder::{DedupeBuilder, FilterFull};
pub use self::claim::Claim;
pub use self::exact::ExactBuilder;
#[cfg(feature = "http")]
pub(crate) use self::replay::{Replay, ReplayClaim, Replays};

use self::claim::Place;
use self::exact::Exact;
use self::filtered::Filtered;
use crate::error::{Cause, Subject};
use crate::primitive::bloom_filter::BloomFilter;
use crate::primitive::lease::{Ask, LeaseOptions, Wait};
use crate::telemetry::{Decisions, Outcome};
use crate::{Error, Lease, Store};

/// Claims on items, each of which is handled once. A cheap clone; see the [module](crate::dedupe) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time: who waits leaves the queue, and what was claimed meanwhile is given
/// back. A claim that is being confirmed is confirmed in any case.
#[derive(Clone)]
pub struct Dedupe(Arc<Inner>);

struct Inner {
    memory: Memory,
    decisions: Decisions,
}

/// Where it is noted what was handled.
#[derive(Clone)]
enum Memory {
    Filter(Arc<Filtered>),
    Exact(Arc<Exact>),
}

/// What came of claiming an item.
#[derive(Debug)]
#[must_use = "a claim that is dropped is given back"]
pub enum Claimed {
    /// It is to be handled.
    New(Claim),
    /// It was handled before. In exact mode that is certain; by a filter it is wrong at its
    /// [false-positive rate](BloomFilter::false_positive_rate).
    Duplicate,
}

/// The same, and by what it is known.
pub(crate) enum Looked {
    New(Claim),
    Known(Known),
}

/// By what an item is known that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Exactly,
    ByFilter,
    /// The filter holds more than its capacity, and the item is to be handled for that.
    ByFullFilter,
}

/// What asking for an item brings; `Q` is where it belongs.
enum Found<Q> {
    New(Lease, Q),
    Known(Known),
}

/// How an item is asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    max_wait: Option<Duration>,
    bypass: bool,
}

impl Asked {
    fn about<Q>(self, query: Q) -> Ask<Q> {
        let wait = self.max_wait.map(|max_wait| Wait { max_wait: Some(max_wait), ..Wait::FOR_EVER });
        Ask { bypass: self.bypass, ..Ask::about(query, Subject::Flight, String::new(), 0, wait) }
    }
}

impl Dedupe {
    /// Claims on the items of a filter that [forgets](crate::bloom_filter::BloomFilterBuilder::remember_for), with the
    /// default settings. Whoever uses the same filter shares them.
    ///
    /// # Errors
    ///
    /// As [`DedupeBuilder::build`].
    pub fn new(filter: &BloomFilter) -> Result<Self, Error> {
        Self::builder().build(filter)
    }

    /// Settings of claims on the items of a filter.
    pub fn builder() -> DedupeBuilder {
        DedupeBuilder::default()
    }

    /// Settings of claims without false positives, named `name` in a store. Whoever uses the same store and name shares
    /// them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Dedupe, Store};
    ///
    /// let payments = Dedupe::exact(&Store::in_memory(), "payments")
    ///     .capacity(1_000_000)
    ///     .remember_for(Duration::from_secs(7 * 86_400))
    ///     .build()?;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    pub fn exact(store: &Store, name: &str) -> ExactBuilder {
        ExactBuilder::new(store, name)
    }

    fn on_filter(filter: &BloomFilter, options: LeaseOptions, when_full: FilterFull) -> Self {
        Self::open(Memory::Filter(Arc::new(Filtered::open(filter.clone(), options, when_full))))
    }

    fn exactly(exact: Exact) -> Self {
        Self::open(Memory::Exact(Arc::new(exact)))
    }

    fn open(memory: Memory) -> Self {
        let decisions = Decisions::new("dedupe", memory.name());
        Self(Arc::new(Inner { memory, decisions }))
    }

    /// Claims an item: any bytes, also none.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where somebody else has claimed it; [`is_unavailable`](Error::is_unavailable);
    /// [`is_invalid`](Error::is_invalid) where another configuration is stored under the name.
    pub async fn try_claim(&self, item: impl AsRef<[u8]>) -> Result<Claimed, Error> {
        self.counted(item.as_ref(), None).await
    }

    /// Claims an item; where somebody else has, waits for what comes of it, up to this long.
    ///
    /// # Errors
    ///
    /// As [`try_claim`](Self::try_claim); the refusal also [is waited too long](Error::is_waited_too_long).
    pub async fn claim(&self, item: impl AsRef<[u8]>, max_wait: Duration) -> Result<Claimed, Error> {
        self.counted(item.as_ref(), Some(max_wait)).await
    }

    /// Claims an item whether or not it is known: after a look at where the truth is kept.
    ///
    /// # Errors
    ///
    /// As [`try_claim`](Self::try_claim).
    pub async fn claim_anyway(&self, item: impl AsRef<[u8]>) -> Result<Claim, Error> {
        let claimed = match self.insist(item.as_ref(), None).await {
            Ok(Looked::New(claim)) => Ok(claim),
            Ok(Looked::Known(_)) => Err(unasked()),
            Err(error) => Err(error),
        };
        self.decisions().admitted(claimed)
    }

    /// The filter; `None` in exact mode.
    #[must_use]
    pub fn filter(&self) -> Option<&BloomFilter> {
        match &self.0.memory {
            Memory::Filter(filtered) => Some(&filtered.filter),
            Memory::Exact(_) => None,
        }
    }

    /// The name of the filter, or of what is remembered exactly.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.memory.name()
    }

    /// How full the filter is, by what this process has seen of it: 1 at its capacity. `None` until it has seen anything, and
    /// in exact mode. Nothing is asked of the store for it.
    #[must_use]
    pub fn fill(&self) -> Option<f64> {
        match &self.0.memory {
            Memory::Filter(filtered) => filtered.fill(),
            Memory::Exact(_) => None,
        }
    }

    /// The same in another store.
    pub(crate) fn in_store(&self, store: &Store) -> Result<Self, Error> {
        Ok(Self::open(match &self.0.memory {
            Memory::Filter(filtered) => Memory::Filter(Arc::new(filtered.in_store(store)?)),
            Memory::Exact(exact) => Memory::Exact(Arc::new(exact.in_store(store)?)),
        }))
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.0.decisions
    }

    async fn counted(&self, item: &[u8], max_wait: Option<Duration>) -> Result<Claimed, Error> {
        let claimed = match self.look(item, max_wait).await {
            Ok(Looked::New(claim)) => Ok((Claimed::New(claim), Outcome::Admitted)),
            Ok(Looked::Known(Known::ByFullFilter)) => loop {
                match self.insist(item, max_wait).await {
                    Ok(Looked::New(claim)) => break Ok((Claimed::New(claim), Outcome::FilterFull)),
                    // It had to wait, and then the filter was asked.
                    Ok(Looked::Known(_)) => {}
                    Err(error) => break Err(error),
                }
            },
            Ok(Looked::Known(Known::Exactly | Known::ByFilter)) => Ok((Claimed::Duplicate, Outcome::Refused)),
            Err(error) => Err(error),
        };
        self.decisions().settle(claimed)
    }

    /// Claims an item that is not known. Not counted as a decision yet.
    pub(crate) async fn look(&self, item: &[u8], max_wait: Option<Duration>) -> Result<Looked, Error> {
        self.ask(item, Asked { max_wait, bypass: false }).await
    }

    /// Claims an item whether or not it is known, unless it had to wait and something came of it meanwhile. Not counted as a
    /// decision yet.
    pub(crate) async fn insist(&self, item: &[u8], max_wait: Option<Duration>) -> Result<Looked, Error> {
        self.ask(item, Asked { max_wait, bypass: true }).await
    }

    async fn ask(&self, item: &[u8], asked: Asked) -> Result<Looked, Error> {
        let (lease, place) = match &self.0.memory {
            Memory::Filter(filtered) => match filtered.claim(item, asked).await? {
                Found::New(lease, probe) => (lease, Place::Filter(Arc::clone(filtered), probe)),
                Found::Known(known) => return Ok(Looked::Known(known)),
            },
            Memory::Exact(exact) => match exact.claim(item, asked).await? {
                Found::New(lease, digest) => (lease, Place::Exact(Arc::clone(exact), digest)),
                Found::Known(known) => return Ok(Looked::Known(known)),
            },
        };
        Ok(Looked::New(Claim::new(lease, place)))
    }
}

impl Memory {
    fn name(&self) -> &str {
        match self {
            Self::Filter(filtered) => filtered.filter.name(),
            Self::Exact(exact) => exact.name(),
        }
    }
}

fn no_room() -> Error {
    Error::overloaded("it takes no new key (max_keys), here to note that an item was handled")
}

fn unasked() -> Error {
    Error::unavailable(Cause::Unexpected, "a claim was refused for what it was not to look at")
}

impl fmt::Debug for Dedupe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.filter().is_some() { "filter" } else { "exact" };
        f.debug_struct("Dedupe").field(kind, &self.name()).finish_non_exhaustive()
    }
}
