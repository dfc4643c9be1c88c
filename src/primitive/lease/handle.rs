//! What the holder of a lease has in hands: [`Lease`], and [`LeaseHandle`] for those who only watch it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::state::LeaseState;
use crate::store::background::Background;
use crate::store::timer::sleep_until;
use crate::{Error, Key};

/// Something that is held for a while, by the process that has this value. See the [module](crate::lease).
///
/// Dropping it releases it from a task of its own; [`release`](Self::release) also tells whether it was still held.
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    pub(in crate::primitive) state: Arc<LeaseState>,
    /// `None` once it was released.
    keeper: Option<Arc<dyn Keeper>>,
    /// How long it is held at least, even if it is released earlier.
    at_least_for: Duration,
    /// Dropped after the lease is released.
    beside: Option<Box<dyn Any + Send + Sync>>,
}

/// Who granted a lease, and renews and takes it back.
pub(crate) trait Keeper: Send + Sync {
    /// Makes it valid for its full time to live; an error that [is lost](Error::is_lost) where it is over.
    fn extend(self: Arc<Self>, state: Arc<LeaseState>) -> BoxFuture<'static, Result<(), Error>>;

    /// Gives it back; whether it was still held.
    fn release(self: Arc<Self>, state: Arc<LeaseState>) -> BoxFuture<'static, Result<bool, Error>>;

    /// Gives it back in a task of its own, trying again while that matters.
    fn release_detached(self: Arc<Self>, state: Arc<LeaseState>);

    /// The store has it back.
    fn released(&self, state: &LeaseState);

    /// It is kept for others to give it back.
    fn let_go(self: Arc<Self>, state: Arc<LeaseState>) {
        self.released(&state);
    }
}

impl Lease {
    pub(crate) fn new(state: Arc<LeaseState>, keeper: Arc<dyn Keeper>) -> Self {
        state.counts.began();
        let at_least_for = state.holding.options.at_least_for;
        Self { state, keeper: Some(keeper), at_least_for, beside: None }
    }

    /// Keeps a value until the lease is released.
    pub(crate) fn beside(self, value: impl Any + Send + Sync) -> Self {
        let mut lease = self;
        lease.beside = Some(Box::new(value));
        lease
    }

    /// What it is a lease of.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.state.tenure.key
    }

    /// What names the holder in the store. No other lease has the same, but for those that a process hands a
    /// [mutex](crate::mutex) on to within itself, one after the other, and where a function of the user's makes it.
    #[must_use]
    pub fn token(&self) -> &str {
        self.state.name()
    }

    /// Until when it is valid if it is not renewed. Renewals move it.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.state.tenure.until()
    }

    /// Whether it is valid now. Once it is not, it never is again.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.state.is_held()
    }

    /// Ends when the lease does: when its time has run out without a renewal, when the store says that it is
    /// gone, or when it is released.
    ///
    /// Cancel safe. Borrows nothing, so it can be given away.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.state).lost()
    }

    /// What watches the lease without holding it: to hand to those who do the work.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        LeaseHandle(Arc::clone(&self.state))
    }

    /// Makes it valid for its full time to live from now on. The watchdog does so by itself.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) where it is not held any more; it never revives.
    /// [`is_unavailable`](Error::is_unavailable), which leaves it as it was.
    pub async fn extend(&self) -> Result<(), Error> {
        match &self.keeper {
            Some(keeper) => Arc::clone(keeper).extend(Arc::clone(&self.state)).await,
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
        if let Some(due) = self.not_before() {
            let was_held = self.is_held();
            self.release_at(due);
            return Ok(was_held);
        }
        let Some(keeper) = &self.keeper else { return Ok(false) };
        let released = Arc::clone(keeper).release(Arc::clone(&self.state)).await;
        if let Ok(was_held) = released {
            if !was_held {
                self.state.counts.lost();
            }
            // Nothing is left for `drop` to do.
            self.keeper = None;
        }
        released
    }

    /// As [`release`](Self::release), with an error where it was not held to the end.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) where it was not held any more; [`is_unavailable`](Error::is_unavailable).
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    pub async fn release_checked(self) -> Result<(), Error> {
        if self.release().await? { Ok(()) } else { Err(Error::lost()) }
    }

    /// Lets go of it without giving it back; what it is called in the store.
    pub(crate) fn into_token(mut self) -> (Key, Arc<str>) {
        if let Some(keeper) = self.keeper.take() {
            keeper.let_go(Arc::clone(&self.state));
        }
        (self.state.tenure.key.clone(), Arc::clone(&self.state.tenure.token))
    }

    /// Takes note that the store has it back.
    pub(crate) fn settled(mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.released(&self.state);
            self.state.tenure.end();
        }
    }

    pub(crate) fn fence(&self) -> u64 {
        u64::try_from(self.state.fence).unwrap_or(0)
    }
}

impl Lease {
    /// Holds the lease for this long at least, counted from its grant, even if it is released earlier.
    pub(crate) fn hold_at_least(&mut self, span: Duration) {
        self.at_least_for = span;
    }

    /// What [`hold_at_least`](Self::hold_at_least) or its namespace says.
    pub(crate) fn at_least_for(&self) -> Duration {
        self.at_least_for
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.state.tenure.ttl
    }

    /// When it may be released, if that is not now.
    fn not_before(&self) -> Option<Instant> {
        let due = self.state.began.checked_add(self.at_least_for)?;
        (self.is_held() && due > Instant::now()).then_some(due)
    }

    /// Releases the lease later. It is renewed until then, and runs out if this process ends before.
    fn release_at(&mut self, due: Instant) {
        let Some(keeper) = self.keeper.take() else { return };
        let (state, beside) = (Arc::clone(&self.state), self.beside.take());
        let background = Background::thread();
        let thread = background.clone();
        background.spawn(async move {
            sleep_until(due).await;
            keeper.release_detached(state);
            drop((beside, thread));
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.state.counts.ended();
        if let Some(due) = self.not_before() {
            return self.release_at(due);
        }
        if let Some(keeper) = self.keeper.take() {
            keeper.release_detached(Arc::clone(&self.state));
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
pub struct LeaseHandle(Arc<LeaseState>);

impl LeaseHandle {
    /// What it is a lease of.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.tenure.key
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
        self.0.tenure.until()
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
