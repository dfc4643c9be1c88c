//! What is held for a while: [`Lease`], under permits and the guards of locks.
//!
//! A lease is held until it is [released](Lease::release) or dropped, and no longer than its time to live unless it
//! is renewed: by a watchdog, at a third of its time to live. So what a crashed process held is free again after
//! that time.
//!
//! # What a lease promises
//!
//! Its validity is counted from the moment when the call that got it was *sent*, less an allowance for clocks that
//! run at different speeds; so while [`is_held`](Lease::is_held) says yes, nobody else has been granted it.
//! [`lost`](Lease::lost) ends no later than the lease may, even if a renewal hangs and even if the store is
//! out of reach. What it cannot promise, see [`pitfalls`](crate::pitfalls).

mod admission;
#[cfg(test)]
mod agreement;
mod held;
pub(crate) mod kind;
mod number;
pub(crate) mod operations;
pub(crate) mod queue;
pub(crate) mod record;
mod releases;
mod renewals;
pub(crate) mod room;
mod settle;
mod terms;
mod waiters;
mod waiting;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

pub(crate) use self::admission::{Admission, Ask, Got, Wait};
pub(crate) use self::held::{Drift, Held};
pub(crate) use self::renewals::Renewals;
pub(crate) use self::settle::Settlement;
pub(crate) use self::terms::Terms;
use crate::{Error, Key};

/// Something that is held for a while, by the process that has this value. See the [module](self).
///
/// Dropping it releases it from a task of its own; [`release`](Self::release) also tells whether it was still held.
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    pub(in crate::primitive) held: Arc<Held>,
    /// `None` once it was released.
    keeper: Option<Arc<dyn Keeper>>,
}

/// Who granted a lease, and renews and takes it back.
pub(crate) trait Keeper: Send + Sync {
    /// Makes it valid for its full time to live; an error that [is lost](Error::is_lost) where it is over.
    fn extend(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<(), Error>>;

    /// Gives it back; whether it was still held.
    fn release(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<bool, Error>>;

    /// Gives it back in a task of its own, trying again while that matters.
    fn release_detached(self: Arc<Self>, held: Arc<Held>);

    /// Stops renewing it.
    fn forget(&self);
}

impl Lease {
    pub(crate) fn new(held: Arc<Held>, keeper: Arc<dyn Keeper>) -> Self {
        held.counts.began();
        Self { held, keeper: Some(keeper) }
    }

    /// What it is a lease of.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.held.key
    }

    /// What names the holder in the store. No other lease has the same, but for those that a process hands a
    /// [mutex](crate::mutex) on to within itself, one after the other, and where a function of the user's makes it.
    #[must_use]
    pub fn token(&self) -> &str {
        self.held.name()
    }

    /// Until when it is valid if it is not renewed. Renewals move it.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.held.until()
    }

    /// Whether it is valid now. Once it is not, it never is again.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// Ends when the lease does: when its time has run out without a renewal, when the store says that it is
    /// gone, or when it is released.
    ///
    /// Cancel safe. Borrows nothing, so it can be given away.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.held).lost()
    }

    /// What watches the lease without holding it: to hand to those who do the work.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        LeaseHandle(Arc::clone(&self.held))
    }

    /// Makes it valid for its full time to live from now on. The watchdog does so by itself.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) where it is not held any more; it never revives.
    /// [`is_unavailable`](Error::is_unavailable), which leaves it as it was.
    pub async fn extend(&self) -> Result<(), Error> {
        match &self.keeper {
            Some(keeper) => Arc::clone(keeper).extend(Arc::clone(&self.held)).await,
            None => Err(Error::lost()),
        }
    }

    /// Gives it back. Says whether it was still held: if not, somebody else may have held it meanwhile. Of a
    /// [mutex](crate::mutex) that is handed on within the process it says what the process knows.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable); it goes on being released in the background then, and runs out
    /// after its time to live in any case.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it is released even where the future is dropped.
    pub async fn release(mut self) -> Result<bool, Error> {
        let Some(keeper) = &self.keeper else { return Ok(false) };
        let released = Arc::clone(keeper).release(Arc::clone(&self.held)).await;
        if let Ok(was_held) = released {
            if !was_held {
                self.held.counts.lost();
            }
            // Nothing is left for `drop` to do.
            self.keeper = None;
        }
        released
    }

    /// Takes note that the store has it back.
    pub(crate) fn settled(mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.forget();
            self.held.end();
        }
    }

    pub(crate) fn fence(&self) -> u64 {
        u64::try_from(self.held.fence).unwrap_or(0)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.counts.ended();
        if let Some(keeper) = self.keeper.take() {
            if !self.held.is_held() {
                self.held.counts.lost();
            }
            keeper.release_detached(Arc::clone(&self.held));
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("key", self.key()).field("token", &self.token()).finish_non_exhaustive()
    }
}

/// Watches a [`Lease`] without holding it.
#[derive(Clone, Debug)]
pub struct LeaseHandle(Arc<Held>);

impl LeaseHandle {
    /// What it is a lease of.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// What names the holder in the store.
    #[must_use]
    pub fn token(&self) -> &str {
        self.0.name()
    }

    /// The fencing token of a mutex or a writer; of a reader, that of the last writer before it. `None` for permits,
    /// and where nobody has written for a week.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        u64::try_from(self.0.fence).ok().filter(|fence| *fence > 0)
    }

    /// Until when it is valid if it is not renewed.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.0.until()
    }

    /// Whether it is valid now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Ends when the lease does; see [`Lease::lost`].
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.0).lost()
    }
}
