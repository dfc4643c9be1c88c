//! The claim on an item.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::exact::{Digest, Exact};
use super::filtered::Filtered;
#[cfg(feature = "http")]
use super::replay::Replays;
use crate::error::Cause;
use crate::primitive::bloom_filter::Probe;
use crate::store::Owed;
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
        let store = self.place.store().clone();
        let (told, mut outcome) = oneshot::channel();
        let thread = store.background().and_then(|background| background.handle().ok());
        let confirming = Confirming { claim: Some(self), store }.run(told);
        match thread {
            Some(thread) => drop(thread.spawn(confirming)),
            None => finish(Box::pin(confirming)).await,
        }
        match outcome.try_recv() {
            Err(TryRecvError::Empty) => {}
            told => {
                let confirmed = told.unwrap_or_else(|_| Err(not_run()));
                hear(&confirmed);
                return confirmed;
            }
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
    /// Confirms, and retries until the claim expires. It runs on the store's thread, so it must not call user code.
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

/// Runs a confirmation in memory, where it ends in its first poll unless it has to be retried, or where no thread can be
/// started. A task goes on with it; without a runtime, the caller does.
async fn finish(mut confirming: Pin<Box<impl Future<Output = ()> + Send + 'static>>) {
    if poll_fn(|context| Poll::Ready(confirming.as_mut().poll(context))).await.is_ready() {
        return;
    }
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(confirming)),
        Err(_) => confirming.await,
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
