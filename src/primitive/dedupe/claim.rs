//! The claim on an item.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::exact::{Digest, Exact};
use super::filtered::Filtered;
#[cfg(feature = "http")]
use super::replay::Replays;
use crate::error::Cause;
use crate::primitive::bloom_filter::Probe;
use crate::store::Owed;
use crate::store::background::Background;
use crate::store::timer::sleep;
use crate::telemetry::{Event, tell};
use crate::{Error, Lease, Store};

/// Where a confirmation records that the item was handled.
pub(super) enum Place {
    Filter(Arc<Filtered>, Probe),
    Exact(Arc<Exact>, Digest),
    /// With the outcome.
    #[cfg(feature = "http")]
    Replay(Arc<Replays>, Arc<[u8]>),
}

impl Place {
    fn store(&self) -> &Store {
        match self {
            Self::Filter(filtered, _) => filtered.filter.store(),
            Self::Exact(exact, _) => exact.store(),
            #[cfg(feature = "http")]
            Self::Replay(replays, _) => replays.store(),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Filter(filtered, _) => filtered.filter.name(),
            Self::Exact(exact, _) => exact.name(),
            #[cfg(feature = "http")]
            Self::Replay(replays, _) => replays.name(),
        }
    }
}

/// The claim on an item. When it is dropped, it is released, and the item can be claimed again.
///
/// A claim is a [`Lease`]: it is renewed while it is held, and signals when it is [lost](crate::LeaseHandle::lost). Its key
/// names the item by its hash. Its [handle](Lease::handle) has a fencing token: the time of the claim by the
/// store's clock, in µs. The token is greater than the token of every earlier claim on the item, as long as the
/// store's clock is not set back.
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
    /// [`is_overloaded`](Error::is_overloaded) if it was not recorded. After both, the call is retried in the
    /// background until the claim expires, which is not released. If the retries fail too, the item may be handled again
    /// once the claim has expired.
    /// [`is_invalid`](Error::is_invalid) if another configuration was stored under the name meanwhile: then the claim is
    /// released.
    ///
    /// # Cancel safety
    ///
    /// Once the future is polled, the confirmation completes even if the future is dropped.
    pub async fn confirm(self) -> Result<bool, Error> {
        self.confirm_and(|_| {}).await
    }

    /// Confirms like [`confirm`](Self::confirm), and calls `hear` with the outcome even if the future is dropped.
    pub(crate) async fn confirm_and(
        self,
        hear: impl FnOnce(&Result<bool, Error>) + Send + 'static,
    ) -> Result<bool, Error> {
        let (told, outcome) = oneshot::channel();
        let mut heard = Heard { outcome, hear: Some(hear) };
        let mut run = Run::new(self, told);
        // It leaves from here, with the calls of others. What does not end here goes on in the background.
        poll_fn(|context| {
            run.poll(context);
            heard.poll(context)
        })
        .await
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

    /// Tries once to record that the item was handled.
    async fn enter(&self) -> Result<bool, Error> {
        match &self.place {
            Place::Filter(filtered, probe) => filtered.confirm(&self.lease.state, *probe).await,
            Place::Exact(exact, digest) => exact.confirm(&self.lease.state, digest.clone()).await,
            #[cfg(feature = "http")]
            Place::Replay(replays, bytes) => replays.confirm(&self.lease.state, bytes).await,
        }
    }

    /// Sends an event if the claim was lost or the confirmation failed.
    fn note(&self, confirmed: &Result<bool, Error>) {
        let name = self.place.name();
        match confirmed {
            Ok(true) => {}
            Ok(false) => {
                self.lease.state.counts.lost();
                let text = "a claim was lost while its item was handled: the item may be handled twice";
                tell(name, Event::ClaimLost, text);
            }
            Err(error) => {
                let text = format_args!("the store could not record that an item was handled: {error}");
                tell(name, Event::ClaimNotConfirmed, text);
            }
        }
    }
}

/// A claim whose item was handled. Whatever becomes of its confirmation, it is not released before the store has answered
/// that it cannot record the item: it is confirmed, or expires.
struct Confirming {
    /// `None` after it was dropped.
    claim: Option<Claim>,
    store: Store,
}

impl Confirming {
    /// Confirms, and retries until the claim expires. It may run on the store's thread, so it must not call user code.
    async fn run(mut self, told: oneshot::Sender<Result<bool, Error>>) {
        let (Some(claim), _owed) = (&self.claim, self.store.owed().map(Owed::guard)) else { return };
        let mut confirmed = claim.enter().await;
        claim.note(&confirmed);
        // Fails only if the caller dropped the future.
        let _ = told.send(confirmed.clone());
        let mut pause = Duration::from_millis(20);
        // Retries even if the claim was lost meanwhile, since the item was handled.
        while confirmed.as_ref().is_err_and(passes) && Instant::now() < claim.lease.until() {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            confirmed = claim.enter().await;
        }
        if confirmed.is_err_and(|error| !passes(&error)) {
            drop(self.claim.take());
        }
    }
}

impl Drop for Confirming {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            claim.lease.settled();
        }
    }
}

/// A confirmation that is under way. If it is dropped before its end, it goes on in the background.
struct Run {
    store: Store,
    confirming: Option<BoxFuture<'static, ()>>,
}

impl Run {
    fn new(claim: Claim, told: oneshot::Sender<Result<bool, Error>>) -> Self {
        let store = claim.place.store().clone();
        let confirming = Confirming { claim: Some(claim), store: store.clone() }.run(told);
        Self { store, confirming: Some(Box::pin(confirming)) }
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(confirming) = &mut self.confirming
            && confirming.as_mut().poll(context).is_ready()
        {
            self.confirming = None;
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A future that has panicked cannot be polled again.
        let Some(confirming) = self.confirming.take().filter(|_| !std::thread::panicking()) else { return };
        let here = || Handle::try_current().ok();
        let remote = self.store.background().cloned();
        let thread = remote.clone().unwrap_or_else(Background::thread);
        let there = || thread.handle().ok();
        // In memory, retries follow the clock of the caller, which a test may have paused.
        let place = if remote.is_some() { there().or_else(here) } else { here().or_else(there) };
        if let Some(place) = place {
            let thread = thread.clone();
            place.spawn(async move {
                confirming.await;
                drop(thread);
            });
        }
    }
}

/// Calls the user's function with the outcome of a confirmation: in the caller's task, or, if its future is dropped, in a
/// task of its own.
struct Heard<F: FnOnce(&Result<bool, Error>) + Send + 'static> {
    outcome: oneshot::Receiver<Result<bool, Error>>,
    hear: Option<F>,
}

impl<F: FnOnce(&Result<bool, Error>) + Send + 'static> Heard<F> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        let confirmed = ready!(Pin::new(&mut self.outcome).poll(context)).unwrap_or_else(|_| Err(not_run()));
        if let Some(hear) = self.hear.take() {
            hear(&confirmed);
        }
        Poll::Ready(confirmed)
    }
}

impl<F: FnOnce(&Result<bool, Error>) + Send + 'static> Drop for Heard<F> {
    fn drop(&mut self) {
        let (Some(hear), Ok(runtime)) = (self.hear.take(), Handle::try_current()) else { return };
        let (_, gone) = oneshot::channel();
        let outcome = std::mem::replace(&mut self.outcome, gone);
        runtime.spawn(async move { hear(&outcome.await.unwrap_or_else(|_| Err(not_run()))) });
    }
}

/// Returns whether a retry may succeed soon.
fn passes(error: &Error) -> bool {
    error.is_away() || error.is_overloaded()
}

fn not_run() -> Error {
    Error::unavailable(Cause::Ended, "the runtime shut down while it confirmed the claim")
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
