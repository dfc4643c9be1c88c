//! A lease as its holder has it: [`Lease`], the [`LeaseHandle`] that watches it, and the state that both share. Whether it is
//! valid is counted by the clock of this process.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::lease::options::Holding;
use crate::lease::process::event::{Grant, Release};
use crate::lease::token;
use crate::lease::token::Token;
use crate::store::background::Background;
use crate::store::detached::{Work, WorkMark};
use crate::store::timer::sleep_until;
use crate::store::validity::Validity;
use crate::sync::{lock, my_stripe};
use crate::telemetry::leases::Leases;

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

/// A [`Keeper`] that many leases share. The outer count is that of a [stripe](crate::sync::Stripes) of threads.
pub(super) type CommonKeeper = Arc<Arc<dyn Keeper>>;

/// What releases a lease.
enum Kept {
    /// Its namespace.
    Usual(CommonKeeper),
    By(Arc<dyn Keeper>),
    /// Nothing: it was released.
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
        let lease = self.handle();
        let background = keeper.background();
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

/// How often [`LeaseHandle::lost`] checks whether the host was suspended, and whether messages arrive.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches a [`Lease`] without holding it. In a layer, the handler can [take](Self::take) the lease by it.
///
/// ```
/// use tower_distributed::{Mutex, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let reports = Mutex::new(&Store::in_memory(), "reports")?;
/// let lock = reports.lock("2026-11").await?;
/// let handle = lock.handle(); // for the task that does the work
/// assert_eq!((handle.key(), handle.token(), handle.until()), (lock.key(), lock.token(), lock.until()));
/// assert_eq!(handle.fence(), Some(lock.fence())); // what the task writes to checks it
///
/// assert!(handle.is_held() && handle.time_left().as_secs() > 20); // of 30, until it is renewed
/// lock.unlock().await?;
/// assert!(!handle.is_held() && handle.time_left().is_zero());
/// handle.lost().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LeaseHandle {
    pub(crate) state: Arc<LeaseState>,
    pub(crate) slot: Slot,
}

/// Where a layer keeps the lease that a handler can take.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    Nowhere,
    /// In the state of the lease itself.
    Here,
    /// In that of the lease of a layer around.
    Around(Arc<LeaseState>),
}

impl LeaseHandle {
    pub(crate) fn new(grant: Grant, holding: &Arc<Holding>) -> Self {
        let state = State {
            validity: grant.validity.clone(),
            phase: Phase::Held,
            slot: None,
        };
        let state = Arc::new(LeaseState {
            grant,
            holding: Arc::clone(holding),
            stripe: my_stripe(),
            text: OnceLock::new(),
            work: OnceLock::new(),
            is_settling: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Notify::new(),
        });
        Self {
            state,
            slot: Slot::Nowhere,
        }
    }

    /// Returns the key that the lease is for.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.state.grant.key
    }

    /// Returns the name of the holder in the store.
    ///
    /// It is unique, with two exceptions. Holders of a [mutex](crate::mutex) that is handed on within a process
    /// have the same token, one after the other. A mutex [with values](crate::mutex::MutexBuilder::value_with)
    /// returns the value that the user's function made.
    #[must_use]
    pub fn token(&self) -> &str {
        token::name(
            self.state
                .text
                .get_or_init(|| self.state.grant.token.text()),
        )
    }

    /// Returns the fencing token of a mutex or a writer. For a reader, it is that of the last writer before it.
    /// Returns `None` for permits, and for readers if there was no writer for the
    /// [`fence_ttl`](crate::rw_lock::RwLockBuilder::fence_ttl).
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        u64::try_from(self.state.grant.fence)
            .ok()
            .filter(|fence| *fence > 0)
    }

    /// Returns until when the lease is valid if it is not renewed. Renewals move this time.
    #[must_use]
    pub fn until(&self) -> Instant {
        clock::without_suspend(lock(&self.state.state).validity.until())
    }

    /// Returns how long the lease is valid if it is not renewed; zero once it has ended.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        let now = clock::now();
        let mut state = lock(&self.state.state);
        if state.phase == Phase::Held && state.validity.holds(now) {
            state.validity.until() - now
        } else {
            Duration::ZERO
        }
    }

    /// Returns whether the lease is valid now. Once it is not, it never is again.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.time_left().is_zero()
    }

    /// Takes the lease from the layer that holds it for a request, to hold it for longer than the layer does, for example in
    /// a task that serves an upgraded connection. The layer no longer holds or watches it, and the caller must release or
    /// drop it.
    ///
    /// Returns `None` if the lease was taken before, or if the layer no longer holds it because the inner service has
    /// responded, failed or been dropped. Also for a handle of a [`Lease`] itself.
    ///
    /// Only permits and locks can be taken, not claims, nor the lead of a flight. If the layer of such a one is within a layer
    /// of permits or locks, what is taken is the permit or lock of the layer around it.
    ///
    /// ```
    /// use axum::{Extension, Router, routing::post};
    /// use http::{Request, StatusCode};
    /// use tower::ServiceExt;
    /// use tower_distributed::{LeaseHandle, Store, WaitGroup, extract, web};
    ///
    /// /// Responds immediately, and holds the permit until the work is done.
    /// async fn start(Extension(lease): Extension<LeaseHandle>) -> StatusCode {
    ///     let lease = lease.take();
    ///     tokio::spawn(async move {
    ///         work().await;
    ///         drop(lease); // releases it; `Lease::release` also returns whether it was still held
    ///     });
    ///     StatusCode::ACCEPTED
    /// }
    /// # async fn work() { std::future::pending().await }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = WaitGroup::new(&Store::in_memory(), "jobs", 2)?;
    /// let limit = web::concurrency_limit(jobs.clone(), extract::path());
    /// let app: Router = Router::new().route("/jobs", post(start)).layer(limit);
    ///
    /// let response = app.oneshot(Request::post("/jobs").body(axum::body::Body::empty())?).await?;
    /// assert_eq!(response.status(), StatusCode::ACCEPTED);
    /// drop(response);
    /// assert_eq!(jobs.count("/jobs").await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Upgrades
    ///
    /// The layer releases the lease of a WebSocket or another upgraded connection with the head of the response. A
    /// handler can take the lease and hold it until the connection is closed:
    ///
    /// ```
    /// use axum::{Extension, Router, extract::Request, response::IntoResponse, routing::get};
    /// use http::{StatusCode, header};
    /// use tower_distributed::{LeaseHandle, Store, WaitGroup, extract, web};
    ///
    /// async fn chat(Extension(lease): Extension<LeaseHandle>, mut request: Request) -> impl IntoResponse {
    ///     let lease = lease.take();
    ///     let upgrade = hyper::upgrade::on(&mut request); // or axum's WebSocketUpgrade::on_upgrade
    ///     tokio::spawn(async move {
    ///         let _lease = lease; // held until the connection ends, or the upgrade fails
    ///         if let Ok(connection) = upgrade.await {
    ///             serve(connection).await;
    ///         }
    ///     });
    ///     (StatusCode::SWITCHING_PROTOCOLS, [(header::CONNECTION, "upgrade"), (header::UPGRADE, "chat")])
    /// }
    /// # async fn serve(connection: hyper::upgrade::Upgraded) {}
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let chats = WaitGroup::new(&Store::in_memory(), "chats", 1000)?;
    /// let limit = web::concurrency_limit(chats, |_: &Request| "all");
    /// let app: Router = Router::new().route("/chat", get(chat)).layer(limit);
    /// # Ok(()) }
    /// ```
    #[must_use = "a lease that is dropped is released"]
    pub fn take(&self) -> Option<Lease> {
        match &self.slot {
            Slot::Nowhere => None,
            Slot::Here => self.state.take(),
            Slot::Around(state) => state.take(),
        }
    }

    /// The same handle, by which the lease of a layer around its own can be taken, if its own cannot.
    #[cfg(feature = "http")]
    pub(crate) fn within(&self, around: Option<&Self>) -> Self {
        let slot = match (&self.slot, around) {
            (Slot::Nowhere, Some(around)) => match &around.slot {
                Slot::Here => Slot::Around(Arc::clone(&around.state)),
                slot => slot.clone(),
            },
            (slot, _) => slot.clone(),
        };
        Self {
            state: Arc::clone(&self.state),
            slot,
        }
    }

    /// Completes when the lease ends: when it expires without a renewal, when the store reports that it is lost, or
    /// when it is released.
    ///
    /// After 1 s, it subscribes the process to messages of the store, if no waiter has done so: then a lease that is
    /// [revoked](crate::Mutex::revoke) is lost at once, and otherwise at its next renewal.
    ///
    /// Cancel safe. The future borrows nothing, so it can be moved to another task.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let lease = self.clone();
        async move {
            let mut since = lease.state.grant.at;
            loop {
                let changed = lease.state.changed.notified();
                lease.state.is_watched.store(true, Ordering::Relaxed);
                if !lease.is_held() {
                    return;
                }
                // Its own timer, so it does not depend on renewals.
                tokio::select! {
                    () = sleep_until(lease.until().min(Instant::now() + LOOK_EVERY)) => {
                        let now = clock::now();
                        // To look up a lease that has ended would release it too early.
                        if lease.is_held() {
                            lease.state.watched(since);
                        }
                        since = now;
                    }
                    () = changed => {}
                }
            }
        }
    }
}

/// The state of a lease in this process, shared by its guard and all its handles.
pub(crate) struct LeaseState {
    pub(crate) grant: Grant,
    pub(crate) holding: Arc<Holding>,
    /// The [stripe](crate::sync::Stripes) of the thread that acquired it.
    pub(super) stripe: usize,
    /// The text of its token, once it was needed.
    text: OnceLock<Arc<str>>,
    /// The work that it is held for, if that goes on when its callers leave.
    work: OnceLock<WorkMark>,
    /// Whether what was done under it is being recorded.
    is_settling: AtomicBool,
    /// Whether its loss was counted.
    is_lost: AtomicBool,
    /// Whether anybody waits for a change. Set before `state` is locked to look whether the lease is held, and read after it
    /// was locked to change that.
    is_watched: AtomicBool,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    validity: Validity,
    phase: Phase,
    /// The lease itself, while a layer holds it for a handler that may take it.
    slot: Option<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The holder has it, or it is offered to its waiter.
    Held,
    /// The holder is done with the lease, but the store keeps it for a while.
    Retained,
    /// The holder has given it up, or its waiter has not accepted it.
    Ended,
}

impl LeaseState {
    pub(crate) fn ttl(&self) -> Duration {
        self.holding.options.ttl
    }

    pub(crate) fn counts(&self) -> &Leases {
        &self.holding.leases
    }

    /// Counts the loss once, even if several tasks notice it.
    pub(crate) fn count_loss(&self) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            self.counts().lost();
        }
    }

    /// Lets handles of the lease take it.
    pub(crate) fn put(&self, lease: Lease) {
        lock(&self.state).slot = Some(lease);
    }

    /// Takes the lease that was [put](Self::put) here.
    pub(crate) fn take(&self) -> Option<Lease> {
        lock(&self.state).slot.take()
    }

    /// Whether a lease is here.
    pub(crate) fn can_be_taken(&self) -> bool {
        lock(&self.state).slot.is_some()
    }

    /// Wakes the tasks that wait for a change.
    fn wake(&self) {
        if self.is_watched.load(Ordering::Relaxed) {
            self.changed.notify_waiters();
        }
    }

    /// Whether it is to last even if this process ends: its holder is done, and others must not have it yet, or detached
    /// work still runs under it.
    pub(super) fn outlasts(&self) -> bool {
        lock(&self.state).phase == Phase::Retained
            || self.is_settling.load(Ordering::Relaxed)
            || self.work.get().is_some_and(WorkMark::runs)
    }

    /// What was done under it is being recorded: a shutdown does not give it to others before.
    pub(crate) fn settles(&self) {
        self.is_settling.store(true, Ordering::Relaxed);
    }

    /// Holds the lease for some work.
    pub(crate) fn belongs_to(&self, work: &Work) {
        // If it was acquired for the work around this one, it lasts for that.
        let _ = self.work.set(work.mark());
    }

    /// Holds the lease for the work that is being polled, if there is any.
    pub(crate) fn belongs_to_current_work(&self) {
        if let Some(mark) = WorkMark::current() {
            let _ = self.work.set(mark);
        }
    }

    /// Whether its work was left running by a shutdown, and was cut off: it is not released before its ttl.
    pub(super) fn is_cut_off(&self) -> bool {
        self.work.get().is_some_and(WorkMark::is_cut_off)
    }

    /// Sees to it that the loss of the lease is learned of soon. See [`Watched`](super::options::Watched).
    fn watched(&self, since: Instant) {
        if let Some(place) = self.holding.watched.as_ref().and_then(Weak::upgrade) {
            place.watched(self.grant.id, since);
        }
    }

    /// Records that a call sent at `sent` made the lease valid until then. Returns whether it is still valid.
    pub(crate) fn renewed(&self, sent: Instant, until: Instant, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let before = state.validity.until();
        let holds = state.validity.renewed(sent, until, now);
        let earlier = state.validity.until() < before;
        drop(state);
        if earlier {
            self.wake();
        }
        if holds {
            self.counts().renewed();
        }
        holds
    }

    /// Ends the lease. Its tasks learn of that by [`notify`](Self::notify).
    pub(super) fn end(&self, taken_back: bool) {
        let mut state = lock(&self.state);
        state.validity.end();
        if taken_back {
            state.phase = Phase::Ended;
        }
    }

    /// Notifies all tasks that wait for the end of the lease, and counts its loss, if it is lost. `is_given_up`: its holder
    /// held it until now.
    pub(super) fn notify(&self, is_given_up: bool) {
        self.wake();
        if !is_given_up && lock(&self.state).phase != Phase::Ended {
            self.count_loss();
        }
    }

    /// Ends the lease, which is lost.
    pub(crate) fn lose(&self) {
        self.end(false);
        self.notify(false);
    }

    /// Ends the lease for its holder. No other holder gets it yet.
    pub(super) fn retain(&self) {
        lock(&self.state).phase = Phase::Retained;
        self.wake();
    }

    /// Ends the lease for this holder. Returns for how long it was held, if that was until now.
    pub(crate) fn give_up(&self) -> Option<Duration> {
        let held = self.stop(clock::now());
        self.notify(held.is_some());
        held
    }

    /// Ends the lease for this holder. Returns for how long it was held, if that was until now. Its tasks learn of that by
    /// [`notify`](Self::notify).
    pub(super) fn stop(&self, now: Instant) -> Option<Duration> {
        let mut state = lock(&self.state);
        let was_held = state.validity.holds(now);
        state.validity.end();
        if was_held {
            state.phase = Phase::Ended;
        }
        was_held.then(|| now - self.grant.at)
    }

    /// Returns what to release.
    pub(super) fn release(&self, alive: Duration, now: Instant) -> Release {
        let lasts = lock(&self.state)
            .validity
            .until()
            .saturating_duration_since(now);
        let Grant {
            key, token, twice, ..
        } = &self.grant;
        Release::new(key, token, *twice, self.ttl(), lasts + alive)
    }
}

debug!(LeaseState, grant.token);

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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use super::*;
    use crate::mutex::Mutex as Locks;
    use crate::store::Store;

    /// Whether a task was woken since it was asked last.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn who_waits_for_the_loss_of_a_lease_learns_of_an_earlier_end() {
        let lock = Locks::new(&Store::in_memory(), "m")
            .unwrap()
            .try_lock("k")
            .await
            .unwrap();
        let (state, now) = (&lock.handle().state, clock::now());
        let woken = Arc::new(Woken::default());
        let waker = Arc::clone(&woken).into();
        let mut lost = pin!(lock.lost());
        let mut is_over = || {
            lost.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        };
        let is_woken = || woken.0.swap(false, Ordering::Relaxed);
        assert!(!is_over());
        for (seconds, is_earlier) in [(40, false), (20, true), (25, false)] {
            assert!(state.renewed(now, now + Duration::from_secs(seconds), now));
            assert_eq!((is_woken(), is_over()), (is_earlier, false), "{seconds}");
        }
        state.lose();
        assert!(is_woken() && is_over());
    }
}
