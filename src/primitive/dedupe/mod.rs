//! What was handled once is not handled again: claim, handle, confirm.
//!
//! ```
//! use tower_distributed::dedupe::{Claimed, Dedupe};
//! use tower_distributed::{BloomFilter, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let seen = BloomFilter::new(&store, "webhooks", 1_000_000, 0.0001)?;
//! let webhooks = Dedupe::new(&seen)?;
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
//! An item that is not in the [filter](BloomFilter) can be *claimed*, by one at a time in all processes. Whoever has the
//! claim handles the item and then [confirms](Claim::confirm) it, which puts it into the filter and gives the claim
//! back, in one step. A claim that is dropped, as after a failure, a panic or a timeout, is given back, and the item can
//! be claimed again: a handler that fails loses nothing. The claim of a process that was killed runs out after its
//! [time to live](DedupeBuilder::ttl); while it is held it is renewed.
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
//! # What a false positive means
//!
//! The filter takes a few new items for ones that it knows: at its capacity one in `1 / rate`. **Such an item is taken
//! for a duplicate and not handled, however often it is sent**, until the filter forgets. So choose a rate at which
//! that is acceptable, or look up the duplicates where the truth is kept, and handle those that are none:
//! [`claim_anyway`](Dedupe::claim_anyway), or [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate) of the layer.
//! Memory is cheap: at a rate of 10⁻⁶ an item takes 29 bits.
//!
//! # When to store idempotency keys instead
//!
//! A filter remembers *that* an item was handled, and nothing else. Where a client that repeats its request is to get the
//! same response again (the `Idempotency-Key` header field of HTTP APIs), where the same key with another payload is to be
//! refused, or where not one new item may be dropped, store each key with its response in a database, and spend the
//! memory. A filter is for streams that are too many for that, and whose repetitions need no answer but "known":
//! webhooks, queue messages, events, crawled URLs.

mod builder;
pub(crate) mod claim;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use self::builder::DedupeBuilder;

use self::claim::{Claims, Found};
use crate::error::{Cause, Subject};
use crate::primitive::bloom_filter::{BloomFilter, Probe};
use crate::primitive::lease::{Admission, Ask, Got, Leases, Wait};
use crate::store::Owed;
use crate::store::timer::sleep;
use crate::telemetry::{self, Decisions, Event, Outcome, tell};
use crate::{Error, Lease, Store};

/// Claims on the items of a [`BloomFilter`]. A cheap clone; see the [module](self) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time: who waits leaves the queue, and what was claimed meanwhile is given
/// back. A claim that is being confirmed is confirmed in any case.
#[derive(Clone)]
pub struct Dedupe(Arc<Inner>);

struct Inner {
    filter: BloomFilter,
    builder: DedupeBuilder,
    leases: Leases<Claims>,
    decisions: Decisions,
}

/// What came of claiming an item.
#[derive(Debug)]
#[must_use = "a claim that is dropped is given back"]
pub enum Claimed {
    /// It is to be handled.
    New(Claim),
    /// By what the filter says it was handled before. That is wrong at the filter's [rate](BloomFilter::false_positive_rate).
    Duplicate,
}

impl Claimed {
    pub(crate) fn into_claim(self) -> Option<Claim> {
        match self {
            Self::New(claim) => Some(claim),
            Self::Duplicate => None,
        }
    }
}

impl Dedupe {
    /// Claims on the items of a filter, with the default settings. Whoever uses the same filter shares them.
    ///
    /// # Errors
    ///
    /// As [`DedupeBuilder::build`].
    pub fn new(filter: &BloomFilter) -> Result<Self, Error> {
        Self::builder().build(filter)
    }

    /// Settings of claims.
    pub fn builder() -> DedupeBuilder {
        DedupeBuilder::default()
    }

    fn open(filter: &BloomFilter, builder: DedupeBuilder) -> Self {
        let (filter, options) = (filter.clone(), builder.options.clone());
        let namespace = crate::store::Namespace::beside(filter.store(), filter.name());
        let (counts, decisions) =
            (telemetry::Leases::new("claim", filter.name()), Decisions::new("dedupe", filter.name()));
        let admission = Admission::new(filter.store(), &namespace, filter.clone());
        let leases = Leases::new(admission, options, counts);
        Self(Arc::new(Inner { filter, builder, leases, decisions }))
    }

    /// Claims an item: any bytes, also none.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where somebody else has claimed it; [`is_unavailable`](Error::is_unavailable);
    /// [`is_invalid`](Error::is_invalid) where a filter of another configuration is stored under the name.
    pub async fn try_claim(&self, item: impl AsRef<[u8]>) -> Result<Claimed, Error> {
        self.counted(self.ask(item.as_ref(), None, false).await)
    }

    /// Claims an item; where somebody else has, waits for what comes of it, up to this long.
    ///
    /// # Errors
    ///
    /// As [`try_claim`](Self::try_claim); the refusal also [is waited too long](Error::is_waited_too_long).
    pub async fn claim(&self, item: impl AsRef<[u8]>, longest_wait: Duration) -> Result<Claimed, Error> {
        self.counted(self.ask(item.as_ref(), Some(longest_wait), false).await)
    }

    /// Claims an item whether or not the filter says that it was handled: after a look at where the truth is kept.
    ///
    /// # Errors
    ///
    /// As [`try_claim`](Self::try_claim).
    pub async fn claim_anyway(&self, item: impl AsRef<[u8]>) -> Result<Claim, Error> {
        match self.counted(self.ask(item.as_ref(), None, true).await)? {
            Claimed::New(claim) => Ok(claim),
            Claimed::Duplicate => Err(unasked()),
        }
    }

    /// The filter.
    #[must_use]
    pub fn filter(&self) -> &BloomFilter {
        &self.0.filter
    }

    /// The same in another store.
    pub(crate) fn in_store(&self, store: &crate::Store) -> Result<Self, Error> {
        Ok(Self::open(&self.0.filter.in_store(store)?, self.0.builder.clone()))
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.0.decisions
    }

    fn counted(&self, claimed: Result<Claimed, Error>) -> Result<Claimed, Error> {
        let outcome = |claimed: Claimed| match claimed {
            Claimed::New(_) => (claimed, Outcome::Admitted),
            Claimed::Duplicate => (claimed, Outcome::Refused),
        };
        self.decisions().settle(claimed.map(outcome))
    }

    /// Not counted as a decision yet.
    pub(crate) async fn ask(
        &self,
        item: &[u8],
        longest_wait: Option<Duration>,
        bypass: bool,
    ) -> Result<Claimed, Error> {
        let filter = &self.0.filter;
        let probe = filter.probe(item);
        filter.open().await?;
        let wait = longest_wait.map(|longest| Wait { longest: Some(longest), ..Wait::FOR_EVER });
        let ask = Ask { bypass, ..Ask::about(probe, Subject::Flight, String::new(), 0, wait) };
        match self.0.leases.acquire_or_find(claim::key(&probe), ask).await? {
            Got::Lease(lease, _) => Ok(Claimed::New(Claim { lease, probe, dedupe: self.clone() })),
            Got::Done(Found::Seen) => Ok(Claimed::Duplicate),
            Got::Done(Found::Other(stored)) => Err(filter.mismatch(&stored)),
            Got::Done(Found::Full) => Err(full()),
        }
    }
}

fn full() -> Error {
    Error::overloaded("it takes no new key (max_keys), here for the filter of the item")
}

/// Whether it may be otherwise soon.
fn passes(error: &Error) -> bool {
    error.is_away() || error.is_overloaded()
}

fn unasked() -> Error {
    Error::unavailable(Cause::Unexpected, "a claim was refused for what it was not to look at")
}

/// An item that is claimed. If it is dropped, the item can be claimed again.
///
/// It is a [`Lease`]: renewed while it is held, and telling when it is [lost](Lease::lost). Its key names the item by its
/// hash. Its [handle](Lease::handle) has a fencing token, the time of the claim by the store's clock in µs: greater than
/// that of every claim on the item before, as long as that clock is not set back.
#[must_use = "a claim that is dropped is given back"]
pub struct Claim {
    lease: Lease,
    probe: Probe,
    dedupe: Dedupe,
}

impl Claim {
    /// Says that the item was handled: from here on it is a duplicate. Whether the claim was held to the end: if not,
    /// somebody else may have handled the item too.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) where it is not known whether the item is in the filter, and
    /// [`is_overloaded`](Error::is_overloaded) where it is not. It goes on trying in the background while the claim lasts;
    /// after that the item may be handled again.
    /// [`is_invalid`](Error::is_invalid) where meanwhile a filter of another configuration was stored under the name.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on even where the future is dropped.
    pub async fn confirm(self) -> Result<bool, Error> {
        self.confirm_and(|_| {}).await
    }

    /// The same; whoever is to hear of the outcome does so even where the future is dropped.
    pub(crate) async fn confirm_and(
        self,
        hear: impl FnOnce(&Result<bool, Error>) + Send + 'static,
    ) -> Result<bool, Error> {
        let store = self.dedupe.0.filter.store().clone();
        let (told, outcome) = oneshot::channel();
        let confirming = self.confirm_to_the_end(store.clone(), told);
        match (store.background(), Handle::try_current()) {
            (Some(background), _) => background.spawn(confirming),
            (None, Ok(runtime)) => drop(runtime.spawn(confirming)),
            (None, Err(_)) => confirming.await,
        }
        let heard = async move {
            let confirmed = outcome.await.unwrap_or_else(|_| Err(not_run()));
            hear(&confirmed);
            confirmed
        };
        match Handle::try_current() {
            Ok(runtime) => runtime.spawn(heard).await.unwrap_or_else(|_| Err(not_run())),
            Err(_) => heard.await,
        }
    }

    /// Gives it back: the item can be claimed again. Whether it was still held.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    pub async fn release(self) -> Result<bool, Error> {
        self.lease.release().await
    }

    /// On the store's own thread, so that no user code is called here.
    async fn confirm_to_the_end(self, store: Store, told: oneshot::Sender<Result<bool, Error>>) {
        let _owed = store.owed().map(Owed::guard);
        let mut confirmed = self.enter().await;
        self.note(&confirmed);
        // Who has gone away needs nothing.
        let _ = told.send(confirmed.clone());
        let mut pause = Duration::from_millis(20);
        // Also where it turns out to be lost meanwhile: the item was handled all the same.
        while confirmed.as_ref().is_err_and(passes) && Instant::now() < self.lease.until() {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            confirmed = self.enter().await;
        }
        if confirmed.is_ok() {
            self.lease.settled();
        }
    }

    /// Enters once that the item was handled.
    async fn enter(&self) -> Result<bool, Error> {
        let Inner { filter, leases, .. } = &*self.dedupe.0;
        match leases.admission.complete(&self.lease.state, self.probe).await? {
            Ok(was_held) => Ok(was_held),
            Err(Found::Other(stored)) => Err(filter.mismatch(&stored)),
            Err(Found::Full) => Err(full()),
            Err(Found::Seen) => Err(unasked()),
        }
    }

    /// Tells of what should not go unnoticed.
    fn note(&self, confirmed: &Result<bool, Error>) {
        let name = self.dedupe.0.filter.name();
        match confirmed {
            Ok(true) => {}
            Ok(false) => {
                self.lease.state.counts.lost();
                tell(name, Event::ClaimLost, "a claim was lost while its item was handled");
            }
            Err(error) => {
                let text = format_args!("that an item was handled could not be noted: {error}");
                tell(name, Event::ClaimNotConfirmed, text);
            }
        }
    }
}

fn not_run() -> Error {
    Error::unavailable(Cause::Disconnected, "the runtime that confirmed the claim has ended")
}

impl Deref for Claim {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.lease).finish()
    }
}

impl fmt::Debug for Dedupe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dedupe").field("filter", &self.0.filter.name()).finish_non_exhaustive()
    }
}
