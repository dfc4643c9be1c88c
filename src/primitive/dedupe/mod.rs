//! What was handled once is not handled again: claim, handle, confirm.
//!
//! ```
//! use std::time::Duration;
//! use tower_distributed::dedupe::{Claimed, Dedupe};
//! use tower_distributed::Store;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let week = Duration::from_secs(7 * 86_400);
//! let webhooks = Dedupe::exact(&store, "webhooks").capacity(1_000_000).remember_for(week).build()?;
//!
//! if let Claimed::New(claim) = webhooks.try_claim("evt_1").await? {
//!     // Handle it; if that fails, drop the claim.
//!     assert!(claim.confirm().await?); // nobody else has had it meanwhile
//! }
//! assert!(matches!(webhooks.try_claim("evt_1").await?, Claimed::Duplicate));
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! An item that is not known can be *claimed*, by one at a time in all processes. Whoever has the claim handles the item and
//! then [confirms](Claim::confirm) it, which notes that it was handled and gives the claim back, in one step. A claim that is
//! dropped, as after a failure, a panic or a timeout, is given back, and the item can be claimed again: a handler that fails
//! loses nothing. The claim of a process that was killed runs out after its [time to live](DedupeBuilder::ttl); while it is
//! held it is renewed.
//!
//! So each item is handled successfully at least once if it is sent again until it is; and once, unless a claim is *lost*
//! while its item is handled: by a process that stands still for longer than the time to live, or a store that forgets.
//! Somebody else may handle the same item then. It is never silent: [`confirm`](Claim::confirm) says so, and
//! [`lost`](crate::Lease::lost) as soon as it is known. A store that is away when an item is confirmed may not
//! know that it was handled; that is an error of `confirm`, which goes on trying in the background while the
//! claim lasts. A process that dies between handling and confirming leaves no trace of the handling: what must not
//! happen twice even then belongs into one transaction with the item's identifier.
//!
//! It takes one round trip to claim and another to confirm.
//!
//! # Exact mode or a filter
//!
//! Choose by what a lost message costs, and by memory. Both have the same claims, layers and events.
//!
//! | | [`Dedupe::exact`] | [`Dedupe::new`] on a [`BloomFilter`] |
//! |---|---|---|
//! | a new item is taken for a duplicate | never, but for a collision of 128 bits of SHA-256 | at the filter's false-positive rate, always the same items: **such an item is not handled, however often it is sent** |
//! | memory per message, with a million of them and a capacity of that | 22 bytes, 33 where it has run for long (25 and 47 with 10⁵ and 10⁴) | 8 bytes at a false-positive rate of 10⁻⁶, in two generations that are reserved in full |
//! | with more items than its capacity | exact; an item takes 72 bytes | [fails open](FilterFull::FailOpen): duplicates are handled again, which is told |
//! | remembered for | `remember_for` to 1.5 × as long | `remember_for` to 2 × as long |
//! | a duplicate behind [`http::dedupe`](crate::http::dedupe) | is acknowledged with 200 | is refused with 409, unless it was looked up |
//! | whoever chooses ids can make two of them collide | no | yes: XXH3 is no cryptographic hash |
//!
//! Take exact mode for payments, orders, and whatever nobody would miss until it is too late; also where ids come from
//! strangers. Take a filter where one message in `1 / false_positive_rate` may be lost, such as crawled URLs or metrics; or
//! where the truth is kept elsewhere and duplicates can be looked up there: with
//! [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate) of the layer or [`claim_anyway`](Dedupe::claim_anyway), no
//! message is lost to a filter. Where a client that repeats its request is to get the same response again, use
//! [`http::idempotency`](crate::http::idempotency).
//!
//! # The capacity
//!
//! It is the number of different items that come within `remember_for`: at 20 messages a second and a day,
//! 20 · 86 400 = 1 728 000. Take the busiest day. In both modes it is a part of what is stored: all processes must have the
//! same, and to change it takes another name.
//!
//! A **filter** must have [`remember_for`](crate::bloom_filter::BloomFilterBuilder::remember_for), or
//! [`remember_forever`](DedupeBuilder::remember_forever) must be said: a filter that never forgets fills up. Each of its two
//! generations lasts for `remember_for` and has room for the whole capacity, so at the stated rate none is ever more than
//! full. How full the newest is, is measured at each confirmation, without another round trip: see [`Dedupe::fill`], the gauge
//! `tower_distributed_filter_fill_ratio` and the events `filter_nearly_full` (80 %) and `filter_full` (100 %), each told
//! once when it is crossed. From there on what the filter takes for a duplicate is [handled](FilterFull), so that no new item
//! is lost.
//!
//! # Ids
//!
//! An item is named by any bytes of any length: what is kept of it is 16 bytes or a few bits, whatever its length, so an id
//! cannot fill the server. What it costs is hashing it. In this process an id lives as long as its request.
//!
//! Ids of different senders are the same item if their bytes are the same. Where several senders share a `Dedupe`, put the
//! sender into the item: [`Key::of`](crate::Key::of) keeps `("a", "b:c")` and `("a:b", "c")` apart. Take the sender that was
//! authenticated, not what the message says of itself, and authenticate *before* the item is claimed: see
//! [`http::dedupe`](crate::http::dedupe).
//!
//! ```
//! # use std::time::Duration;
//! # use tower_distributed::{Dedupe, Key, Store};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! # let day = Duration::from_secs(86_400);
//! # let orders = Dedupe::exact(&Store::in_memory(), "orders").remember_for(day).build()?;
//! let claimed = orders.try_claim(Key::of(["github", "evt_1"])).await?;
//! # Ok(()) }
//! ```
//!
//! # What exact mode keeps
//!
//! Of an item that was handled, the first 16 bytes of its SHA-256 (`d`). With `N` buckets, which is the capacity divided by 144
//! and rounded up, it belongs to number `b = (first 4 bytes of d, big-endian, · N) >> 32`. Time is cut into slices of `S`, half
//! of `remember_for` in µs rounded up; slice `n` of bucket `b` begins at `n · S − ⌊b · S / N⌋` of the server's clock. The
//! current slice and the two before it count.
//!
//! | Redis key | |
//! |---|---|
//! | `prefix:{name:b}:exact:i` | a hash: field `s` is the number `n` of its slice, with `n mod 3 = i`; each other field is a digest, its value empty. Expires when the slice no longer counts |
//! | `prefix:{name:b}:d:exact:claim` | who has claimed `d` (hexadecimal), with `exact:queue` and `exact:beats`: who waits |
//! | `prefix:{name:layout}:layout` | `exact1 N W`: `W` is `remember_for` in ms. Compared at first use, and again each half of `remember_for` |
//!
//! Redis keeps a hash of up to `hash-max-listpack-entries` fields (128 by default) as one packed list: at capacity one has
//! about 72. All of a digest is in one slot of a Cluster. Where the server's clock is set back, what was handled is remembered
//! for that much longer; where it is set forward, for that much less.

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

/// Claims on items, each of which is handled once. A cheap clone; see the [module](self) for the whole story.
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
    longest_wait: Option<Duration>,
    bypass: bool,
}

impl Asked {
    fn about<Q>(self, query: Q) -> Ask<Q> {
        let wait = self.longest_wait.map(|longest| Wait { longest: Some(longest), ..Wait::FOR_EVER });
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
    pub async fn claim(&self, item: impl AsRef<[u8]>, longest_wait: Duration) -> Result<Claimed, Error> {
        self.counted(item.as_ref(), Some(longest_wait)).await
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

    async fn counted(&self, item: &[u8], longest_wait: Option<Duration>) -> Result<Claimed, Error> {
        let claimed = match self.look(item, longest_wait).await {
            Ok(Looked::New(claim)) => Ok((Claimed::New(claim), Outcome::Admitted)),
            Ok(Looked::Known(Known::ByFullFilter)) => loop {
                match self.insist(item, longest_wait).await {
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
    pub(crate) async fn look(&self, item: &[u8], longest_wait: Option<Duration>) -> Result<Looked, Error> {
        self.ask(item, Asked { longest_wait, bypass: false }).await
    }

    /// Claims an item whether or not it is known, unless it had to wait and something came of it meanwhile. Not counted as a
    /// decision yet.
    pub(crate) async fn insist(&self, item: &[u8], longest_wait: Option<Duration>) -> Result<Looked, Error> {
        self.ask(item, Asked { longest_wait, bypass: true }).await
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
