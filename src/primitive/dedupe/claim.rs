//! An item that is claimed.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

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
use crate::store::timer::sleep;
use crate::telemetry::{Event, tell};
use crate::{Error, Lease, Store};

/// Where it is noted that the item was handled.
pub(super) enum Place {
    Filter(Arc<Filtered>, Probe),
    Exact(Arc<Exact>, Digest),
    /// With what came of it.
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

/// An item that is claimed. If it is dropped, the item can be claimed again.
///
/// It is a [`Lease`]: renewed while it is held, and telling when it is [lost](Lease::lost). Its key names the item by its
/// hash. Its [handle](Lease::handle) has a fencing token, the time of the claim by the store's clock in µs: greater than
/// that of every claim on the item before, as long as that clock is not set back.
#[must_use = "a claim that is dropped is given back"]
pub struct Claim {
    lease: Lease,
    place: Place,
}

impl Claim {
    pub(super) fn new(lease: Lease, place: Place) -> Self {
        Self { lease, place }
    }

    /// Says that the item was handled: from here on it is a duplicate. Whether the claim was held to the end: if not,
    /// somebody else may have handled the item too.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) where it is not known whether the item is noted, and
    /// [`is_overloaded`](Error::is_overloaded) where it is not. It goes on trying in the background while the claim lasts;
    /// after that the item may be handled again.
    /// [`is_invalid`](Error::is_invalid) where meanwhile another configuration was stored under the name.
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
        let store = self.place.store().clone();
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
        match &self.place {
            Place::Filter(filtered, probe) => filtered.confirm(&self.lease.state, *probe).await,
            Place::Exact(exact, digest) => exact.confirm(&self.lease.state, digest.clone()).await,
            #[cfg(feature = "http")]
            Place::Replay(replays, bytes) => replays.confirm(&self.lease.state, bytes).await,
        }
    }

    /// Tells of what should not go unnoticed.
    fn note(&self, confirmed: &Result<bool, Error>) {
        let name = self.place.name();
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

/// Whether it may be otherwise soon.
fn passes(error: &Error) -> bool {
    error.is_away() || error.is_overloaded()
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
