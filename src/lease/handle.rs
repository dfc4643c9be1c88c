//! The holder's side of a lease: [`Lease`], and its [`Keeper`].

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::state::LeaseHandle;
use super::token::Token;
use crate::store::background::Background;
use crate::store::timer::sleep_until;
use crate::{Error, Key, clock};

/// A permit or lock that this process holds for a limited time. See the [module](crate::lease).
///
/// When it is dropped, it is released in the background. [`release`](Self::release) also returns whether it was
/// still held. It derefs to its [`LeaseHandle`]; a clone of it is a handle, which does not hold the lease.
///
/// ```
/// use tokio::time::Instant;
/// use tower_distributed::{Mutex, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// # async fn write_report() {}
/// let reports = Mutex::new(&Store::in_memory(), "reports")?;
/// let lock = reports.lock("2026-11").await?; // the guard of a lock derefs to its lease
/// println!("{} holds {:?} for {:?}", lock.token(), lock.key(), lock.time_left());
/// assert!(lock.until() > Instant::now());
///
/// let lost = lock.lost();
/// let work = tokio::spawn(async move {
///     tokio::select! {
///         () = lost => "stopped: the lock is lost",
///         () = write_report() => "written",
///     }
/// });
/// assert_eq!(work.await.ok(), Some("written"));
/// lock.extend().await?; // an error if the lock was lost
/// assert!(lock.is_held());
/// # Ok(()) }
/// ```
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    handle: LeaseHandle,
    kept: Kept,
    /// How long it is held at least, even if it is released earlier.
    at_least_for: Duration,
    /// Dropped after the lease is released.
    beside: Option<Box<dyn Any + Send + Sync>>,
}

/// A keeper that many leases have. The outer count is that of a [stripe](crate::sync::Stripes) of threads.
pub(super) type CommonKeeper = Arc<Arc<dyn Keeper>>;

/// Who keeps a lease.
enum Kept {
    /// Its namespace.
    Usual(CommonKeeper),
    By(Arc<dyn Keeper>),
    /// Nobody: it was released.
    Released,
}

/// The side that granted a lease: it renews the lease and takes it back.
pub(crate) trait Keeper: Send + Sync {
    /// Renews a lease that is held for its full ttl. Fails with an error that [is lost](Error::is_lost) if the lease has
    /// ended.
    fn extend(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<(), Error>>;

    /// Releases the lease. Returns whether it was still held.
    fn release(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<bool, Error>>;

    /// Releases the lease with the others that are released at the same time: in one call, where that is possible.
    fn release_together(
        self: Arc<Self>,
        lease: LeaseHandle,
    ) -> BoxFuture<'static, Result<bool, Error>> {
        self.release(lease)
    }

    /// Releases the lease if that can be done at once, without any work that is left. Returns whether it was released.
    fn release_at_once(&self, _lease: &LeaseHandle) -> bool {
        false
    }

    /// Releases the lease in the background, with retries while the store may still hold it.
    fn release_detached(self: Arc<Self>, lease: &LeaseHandle);

    /// Records that the store has released the lease.
    fn released(self: Arc<Self>, lease: &LeaseHandle);

    /// Where work runs that must not depend on the caller.
    fn background(&self) -> Background;

    /// Stops tracking the lease, and leaves it in the store for others to release.
    fn let_go(self: Arc<Self>, lease: LeaseHandle) {
        self.released(&lease);
    }
}

/// How a keeper releases a lease.
type Releases = fn(Arc<dyn Keeper>, LeaseHandle) -> BoxFuture<'static, Result<bool, Error>>;

impl Lease {
    pub(crate) fn new(handle: LeaseHandle, keeper: Arc<dyn Keeper>) -> Self {
        Self::of(handle, Kept::By(keeper))
    }

    /// The same, for a keeper that many leases have.
    pub(super) fn with(handle: LeaseHandle, keeper: &CommonKeeper) -> Self {
        Self::of(handle, Kept::Usual(Arc::clone(keeper)))
    }

    fn of(handle: LeaseHandle, kept: Kept) -> Self {
        handle.state.counts().began();
        let at_least_for = handle.state.holding.options.at_least_for;
        Self {
            handle,
            kept,
            at_least_for,
            beside: None,
        }
    }

    /// Returns the keeper of the lease, unless it was released.
    fn keeper(&self) -> Option<&Arc<dyn Keeper>> {
        match &self.kept {
            Kept::Usual(keeper) => Some(keeper),
            Kept::By(keeper) => Some(keeper),
            Kept::Released => None,
        }
    }

    /// Takes the lease from its keeper.
    fn take_keeper(&mut self) -> Option<Arc<dyn Keeper>> {
        let keeper = self.keeper().cloned();
        self.kept = Kept::Released;
        keeper
    }

    /// Keeps a value until the lease is released.
    pub(crate) fn beside(self, value: impl Any + Send + Sync) -> Self {
        let mut lease = self;
        lease.beside = Some(Box::new(value));
        lease
    }

    /// Returns a handle that watches the lease without holding it, for the tasks that do the work.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        self.handle.clone()
    }

    /// Renews the lease for its full ttl from now on. The watchdog also does this.
    ///
    /// # Errors
    ///
    /// * [`is_lost`](Error::is_lost): the lease is no longer held. It never revives.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable. The lease is unchanged.
    pub async fn extend(&self) -> Result<(), Error> {
        match self.keeper() {
            Some(keeper) if self.is_held() => Arc::clone(keeper).extend(self.handle()).await,
            _ => Err(Error::lost()),
        }
    }

    /// Releases the lease. Returns whether it was still held. If not, another holder may have had it in the
    /// meantime.
    ///
    /// If a [mutex](crate::mutex) is handed on within the process, the result is what this process knows, without a
    /// call to the store.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the store is unavailable. The release is then retried in the
    /// background. The lease expires after its ttl in any case.
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, the lease is released even if the future is dropped.
    pub async fn release(self) -> Result<bool, Error> {
        self.release_by(<dyn Keeper as Keeper>::release).await
    }

    /// The same, with the others that are released at the same time: in one call, where that is possible.
    pub(crate) async fn release_together(self) -> Result<bool, Error> {
        self.release_by(<dyn Keeper as Keeper>::release_together)
            .await
    }

    async fn release_by(mut self, release: Releases) -> Result<bool, Error> {
        if let Some(due) = self.not_before() {
            let was_held = self.is_held();
            self.release_at(due);
            return Ok(was_held);
        }
        let Some(keeper) = self.keeper() else {
            return Ok(false);
        };
        let released = release(Arc::clone(keeper), self.handle()).await;
        if let Ok(was_held) = released {
            if !was_held {
                self.state.count_loss();
            }
            // There is nothing left for `drop` to do.
            self.kept = Kept::Released;
        }
        released
    }

    /// Like [`release`](Self::release), but fails if the lease was not held to the end.
    ///
    /// ```
    /// use tower_distributed::{Lease, Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let imports = WaitGroup::new(&Store::in_memory(), "imports", 1)?;
    /// let lease = Lease::from(imports.add("acme").await?);
    /// // Import here.
    /// lease.release_checked().await?; // an error if another process may have imported meanwhile
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_lost`](Error::is_lost): the lease was no longer held.
    /// * [`is_unavailable`](Error::is_unavailable): as for [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// As for [`release`](Self::release).
    pub async fn release_checked(self) -> Result<(), Error> {
        if self.release().await? {
            Ok(())
        } else {
            Err(Error::lost())
        }
    }

    /// Releases a lease under which nothing ran: its hold time does not count.
    pub(crate) fn decline(self) {
        self.state.end(true);
    }

    /// Gives up the lease without releasing it. Returns its key and token.
    pub(crate) fn into_token(mut self) -> (Key, Token) {
        if let Some(keeper) = self.take_keeper() {
            keeper.let_go(self.handle());
        }
        (self.state.grant.key.clone(), self.state.grant.token.clone())
    }

    /// Records that the store has released the lease.
    pub(crate) fn settled(mut self) {
        self.settled_in_place();
    }

    fn settled_in_place(&mut self) {
        if let Some(keeper) = self.take_keeper() {
            keeper.released(&self.handle);
        }
    }

    /// Releases the lease in the background, for a holder that is done, whatever becomes of the work it belongs to.
    pub(crate) fn give_back(mut self) {
        self.release_in_background();
        self.kept = Kept::Released;
    }

    fn release_in_background(&self) {
        if let Some(keeper) = self.keeper()
            && !keeper.release_at_once(&self.handle)
        {
            Arc::clone(keeper).release_detached(&self.handle);
        }
    }

    /// Holds the lease for this long at least, counted from its grant, even if it is released earlier.
    pub(crate) fn hold_at_least(&mut self, span: Duration) {
        self.at_least_for = span;
    }

    /// What [`hold_at_least`](Self::hold_at_least) or its namespace says.
    pub(crate) fn at_least_for(&self) -> Duration {
        self.at_least_for
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.state.ttl()
    }

    /// When it may be released, if that is not now.
    fn not_before(&self) -> Option<Instant> {
        if self.at_least_for.is_zero() {
            return None;
        }
        let due = clock::without_suspend(self.state.grant.at.checked_add(self.at_least_for)?);
        (self.is_held() && due > Instant::now()).then_some(due)
    }

    /// Ends the lease for its holder, and releases it to the store later. It is renewed until then, and expires after
    /// its ttl if this process ends before.
    fn release_at(&mut self, due: Instant) {
        let Some(keeper) = self.take_keeper() else {
            return;
        };
        let (lease, background) = (self.handle(), keeper.background());
        lease.state.retain();
        let thread = background.clone();
        background.spawn(async move {
            sleep_until(due).await;
            keeper.release_detached(&lease);
            drop(thread);
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.state.counts().ended();
        if let Some(due) = self.not_before() {
            return self.release_at(due);
        }
        if self.state.is_cut_off() {
            self.settled_in_place();
        }
        self.release_in_background();
    }
}

impl Deref for Lease {
    type Target = LeaseHandle;

    fn deref(&self) -> &LeaseHandle {
        &self.handle
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.key())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

/// Implements a guard, whose field is a lease: how it is released, that it becomes its lease, and derefs to it.
macro_rules! guard {
    ($guard:ident.$lease:tt, $what:literal, $release:ident) => {
        impl $guard {
            #[doc = concat!("Releases ", $what, ". Returns whether it was still held. See [`Lease::release`].")]
            ///
            /// # Errors
            ///
            /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
            pub async fn $release(self) -> Result<bool, Error> {
                self.$lease.release().await
            }
        }

        /// The lease has [`release_checked`](Lease::release_checked) as well.
        impl From<$guard> for Lease {
            fn from(guard: $guard) -> Self {
                guard.$lease
            }
        }

        impl std::ops::Deref for $guard {
            type Target = Lease;

            fn deref(&self) -> &Lease {
                &self.$lease
            }
        }
    };
}
pub(crate) use guard;
