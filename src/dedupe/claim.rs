//! The claim on an item.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::bloom_filter::bits::Probe;
use crate::dedupe::claims::{Claims, Common, HandledBy, Taken};
use crate::dedupe::exact::{Digest, ExactClaims};
use crate::dedupe::filter::FilterClaims;
use crate::error::Error;
use crate::lease::handle::{Lease, LeaseHandle, LeaseState};
#[cfg(feature = "http")]
use crate::single_flight::answer::{Entry, Flight};
use crate::store::detached::Work;
use crate::store::timer::{sleep, within};
use crate::telemetry::Event;
use crate::telemetry::emit::tell;

/// The place where a confirmation records that the item was handled.
#[derive(Clone)]
pub(super) enum Place {
    Filter(Arc<Claims<FilterClaims>>, Probe),
    Exact(Arc<Claims<ExactClaims>>, Digest),
    /// With the outcome, and the replacement that is recorded if there is no memory left for it.
    #[cfg(feature = "http")]
    Replay(Arc<Claims<Flight>>, Entry, Arc<[u8]>),
}

impl Place {
    fn common(&self) -> &Common {
        match self {
            Self::Filter(claims, _) => &claims.common,
            Self::Exact(claims, _) => &claims.common,
            #[cfg(feature = "http")]
            Self::Replay(claims, ..) => &claims.common,
        }
    }

    /// Replaces the outcome, if there is one, by the short replacement.
    fn shorten(&mut self) {
        #[cfg(feature = "http")]
        if let Self::Replay(_, entry, without) = self {
            entry.bytes = Arc::clone(without);
        }
    }

    async fn confirm(&self, state: &LeaseState, again: bool) -> Result<bool, Error> {
        match self {
            Self::Filter(claims, probe) => claims.confirm(state, probe, again).await,
            Self::Exact(claims, digest) => claims.confirm(state, digest, again).await,
            #[cfg(feature = "http")]
            Self::Replay(claims, entry, _) => claims.confirm(state, entry, again).await,
        }
    }
}

/// The result of a claim. For a duplicate, the source of this knowledge.
pub(crate) enum ClaimAnswer {
    New(Claim),
    HandledBy(HandledBy),
}

impl ClaimAnswer {
    /// `place` returns where the item is to be recorded.
    pub(super) fn of<I>(taken: Taken<I>, place: impl FnOnce(I) -> Place) -> Self {
        match taken {
            Taken::Lease(lease, item) => Self::New(Claim::new(lease, place(item))),
            Taken::HandledBy(known) => Self::HandledBy(known),
        }
    }
}

/// The claim on an item. When it is dropped, it is released, and the item can be claimed again.
///
/// A claim is a [`Lease`]: it is renewed while it is held, and signals when it is [lost](crate::LeaseHandle::lost). Its
/// key names the item by its hash. Its [handle](Lease::handle) has a fencing token: the time of the claim by the
/// store's clock, in µs. The token is greater than the token of every earlier claim on the item, as long as the store's
/// clock is not set back.
#[must_use = "a claim is released when it is dropped"]
pub struct Claim {
    lease: Lease,
    place: Place,
}

impl Claim {
    pub(super) fn new(lease: Lease, place: Place) -> Self {
        Self { lease, place }
    }

    /// Records that the item was handled, and releases the claim. From then on the item is a duplicate.
    ///
    /// Returns whether the claim was still held. If it was not, another caller may have handled the item too.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if it is unknown whether the item was recorded.
    /// [`is_overloaded`](Error::is_overloaded) if it was not recorded. After both errors, the claim is not released,
    /// and the call is retried in the background until the claim expires. If the retries fail too, the item may be
    /// handled again once the claim has expired. [`is_invalid`](Error::is_invalid) if another configuration was stored
    /// under the name in the meantime: then the claim is released.
    ///
    /// # Cancel safety
    ///
    /// Once the future is polled, the confirmation completes in the background even if the future is dropped. A future
    /// that is neither polled nor dropped delays it, and [`Store::shutdown`](crate::Store::shutdown) waits for it.
    pub async fn confirm(self) -> Result<bool, Error> {
        self.confirm_and(|_| {}).await
    }

    /// Confirms like [`confirm`](Self::confirm), and calls `hear` with the result even if the future is dropped.
    pub(crate) async fn confirm_and(
        self,
        hear: impl FnOnce(&Result<bool, Error>) + Send + 'static,
    ) -> Result<bool, Error> {
        let confirming = Confirmation::new(self);
        if let Some(confirmed) = confirming.enter_in_memory() {
            return confirming.answered(confirmed, hear);
        }
        let runtime = Handle::try_current().ok();
        let mut run = Run {
            first: Some(confirming.enter(false)),
            rest: Some((confirming, hear)),
            runtime,
        };
        let confirmed = poll_fn(|context| run.poll(context)).await;
        match run.rest.take() {
            Some((confirming, hear)) => confirming.answered(confirmed, hear),
            None => confirmed,
        }
    }

    /// Releases the claim, so that the item can be claimed again. Returns whether the claim was still held.
    ///
    /// ```
    /// use tower_distributed::dedupe::{Claimed, Dedupe};
    /// use tower_distributed::Store;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let day = std::time::Duration::from_secs(86_400);
    /// let events = Dedupe::exact(&Store::in_memory(), "events").remember_for(day).build()?;
    /// if let Claimed::New(claim) = events.try_claim("evt_1").await? {
    ///     // The database is down: another process, or this one, handles the event later.
    ///     assert!(claim.release().await?);
    /// }
    /// assert!(matches!(events.try_claim("evt_1").await?, Claimed::New(_)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The same errors as [`Lease::release`].
    pub async fn release(self) -> Result<bool, Error> {
        self.lease.release().await
    }
}

/// A claim whose item was handled. It is released only if the store replies that it cannot record the item. Otherwise
/// it is confirmed, or expires.
struct Confirmation {
    /// `None` after it was released.
    lease: Option<Lease>,
    handle: LeaseHandle,
    place: Place,
    /// A shutdown waits for it, and reports it if it does not complete. `None` before the first attempt has failed.
    work: Option<Work>,
}

impl Confirmation {
    fn new(Claim { lease, place }: Claim) -> Self {
        place
            .common()
            .store
            .owed()
            .into_iter()
            .for_each(|owed| owed.add(1));
        lease.state.settles();
        Self {
            handle: LeaseHandle::clone(&lease),
            lease: Some(lease),
            place,
            work: None,
        }
    }

    /// Makes one attempt to record that the item was handled. `again`: the reply to an earlier attempt is unknown.
    fn enter(&self, again: bool) -> Attempt {
        let place = self.place.clone();
        let state = Arc::clone(&self.handle.state);
        Box::pin(async move { place.confirm(&state, again).await })
    }

    /// The same in memory, where it completes immediately.
    fn enter_in_memory(&self) -> Option<Result<bool, Error>> {
        let is_in_memory = self.place.common().store.is_in_memory();
        is_in_memory.then(|| self.place.confirm(&self.handle.state, false).now_or_never())?
    }

    /// Applies the result of the first attempt, and calls `hear` with it.
    fn answered(
        self,
        confirmed: Result<bool, Error>,
        hear: impl FnOnce(&Result<bool, Error>),
    ) -> Result<bool, Error> {
        if let Some(confirming) = self.confirmed(&confirmed) {
            confirming.go_on(Self::retry);
        }
        hear(&confirmed);
        confirmed
    }

    /// Processes the result of the first attempt, and sends an event if the claim was lost or the confirmation failed.
    /// Returns the confirmation if it must be retried.
    fn confirmed(self, confirmed: &Result<bool, Error>) -> Option<Self> {
        let name = &self.place.common().name;
        match confirmed {
            Ok(true) => {}
            Ok(false) => {
                self.handle.state.count_loss();
                let text =
                    "a claim was lost while its item was handled: the item may be handled twice";
                tell(name, Event::ClaimLost, text);
            }
            Err(error) => {
                let text =
                    format_args!("the store could not record that an item was handled: {error}");
                tell(name, Event::ClaimNotConfirmed, text);
            }
        }
        self.settle(confirmed)
    }

    /// Releases the claim if the store cannot record the item. Returns the confirmation if it must be retried.
    fn settle(mut self, confirmed: &Result<bool, Error>) -> Option<Self> {
        let error = confirmed.as_ref().err()?;
        if error.is_overloaded() || error.is_out_of_memory() {
            self.place.shorten();
        }
        if error.is_away() || error.is_overloaded() {
            let Common { store, name, .. } = self.place.common();
            let work = || {
                store
                    .detached()
                    .begin(&format!("confirmation \"{name}\"").into())
            };
            self.work.get_or_insert_with(work);
            return Some(self);
        }
        drop(self.lease.take());
        None
    }

    /// Retries until the claim expires, even if the claim was lost: the item was handled.
    async fn retry(mut self) {
        let mut pause = Duration::from_millis(20);
        while Instant::now() < self.handle.until() {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            let confirmed = self.enter(true).await;
            let Some(this) = self.settle(&confirmed) else {
                return;
            };
            self = this;
        }
    }

    /// Finishes a confirmation whose caller was dropped. Its first attempt continues on the caller's runtime. If that
    /// runtime is blocked or has ended, the confirmation is sent once more from here.
    async fn finish(
        self,
        first: Option<Attempt>,
        runtime: Option<Handle>,
        hear: impl FnOnce(Result<bool, Error>),
    ) {
        let limit = self.place.common().store.call_limit();
        let answered = match (first, runtime) {
            (Some(first), Some(runtime)) => within(limit, runtime.spawn(first))
                .await
                .and_then(Result::ok),
            (Some(first), None) => within(limit, first).await,
            (None, _) => None,
        };
        let is_known =
            |confirmed: &Result<bool, Error>| !confirmed.as_ref().is_err_and(Error::is_ended);
        let confirmed = match answered.filter(is_known) {
            Some(confirmed) => confirmed,
            None => self.enter(true).await,
        };
        let retried = self.confirmed(&confirmed);
        hear(confirmed);
        if let Some(this) = retried {
            this.retry().await;
        }
    }

    /// Runs the rest of a confirmation independently of the caller.
    fn go_on<R: Future<Output = ()> + Send + 'static>(self, rest: impl FnOnce(Self) -> R) {
        let here = || Handle::try_current().ok();
        let store = &self.place.common().store;
        let in_memory = store.is_in_memory();
        let thread = store.background_for_a_task();
        let there = || thread.handle().ok();
        // In memory, retries use the clock of the caller, which a test may have paused.
        let place = if in_memory {
            here().or_else(there)
        } else {
            there().or_else(here)
        };
        if let Some(place) = place {
            let thread = thread.clone();
            let rest = rest(self);
            place.spawn(async move {
                rest.await;
                drop(thread);
            });
        }
    }
}

impl Drop for Confirmation {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.settled();
        }
        self.place
            .common()
            .store
            .owed()
            .into_iter()
            .for_each(|owed| owed.done(1));
    }
}

/// A pending attempt.
type Attempt = BoxFuture<'static, Result<bool, Error>>;

/// A pending confirmation, sent with other calls of its runtime. If it is dropped before its end, it is finished in the
/// background.
struct Run<F: FnOnce(&Result<bool, Error>) + Send + 'static> {
    /// `None` while it is polled, so that an attempt that panicked is not polled again.
    first: Option<Attempt>,
    /// With the user's function, which the background task must not call. `None` after the reply.
    rest: Option<(Confirmation, F)>,
    runtime: Option<Handle>,
}

impl<F: FnOnce(&Result<bool, Error>) + Send + 'static> Run<F> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        let Some(mut first) = self.first.take() else {
            return Poll::Pending;
        };
        let polled = first.as_mut().poll(context);
        self.first = Some(first).filter(|_| polled.is_pending());
        polled
    }
}

impl<F: FnOnce(&Result<bool, Error>) + Send + 'static> Drop for Run<F> {
    fn drop(&mut self) {
        let Some((confirming, hear)) = self.rest.take() else {
            return;
        };
        let first = self.first.take();
        let runtime = self.runtime.take();
        let place = runtime.clone();
        let hear = move |confirmed| {
            if let Some(place) = place {
                place.spawn(async move { hear(&confirmed) });
            }
        };
        confirming.go_on(|confirming| confirming.finish(first, runtime, hear));
    }
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
