//! A held lease in this process: the guard [`Lease`], the [`LeaseHandle`] that watches it, and the state that both
//! share.
//! Its validity is measured with the clock of this process.

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
use crate::lease::operations::Release;
use crate::lease::options::Holding;
use crate::lease::process::event::Grant;
use crate::lease::token;
use crate::lease::token::Token;
use crate::store::background::Background;
use crate::store::detached::{Work, WorkMark};
use crate::store::timer::sleep_until;
use crate::store::validity::Validity;
use crate::sync::{lock, my_stripe};

/// A permit or lock that this process holds for a limited time. See the [module](crate::lease).
///
/// When it is dropped, it is released in the background. [`release`](Self::release) also returns whether it was still
/// held. It derefs to its [`LeaseHandle`]; a clone of a handle watches the lease, but does not hold it.
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
    owner: Owner,
    /// The minimum hold time: an earlier release takes effect only after it.
    at_least_for: Duration,
    /// Dropped after the lease is released.
    with_guard: Option<Box<dyn Any + Send + Sync>>,
}

/// A [`LeaseOwner`] that many leases share. The outer count is that of a [stripe](crate::sync::Stripes) of threads.
pub(crate) type CommonOwner = Arc<Arc<dyn LeaseOwner>>;

/// The owner that releases a lease.
pub(crate) enum Owner {
    /// The namespace of the lease.
    Common(CommonOwner),
    By(Arc<dyn LeaseOwner>),
    /// No owner: the lease is already released.
    Released,
}

/// The side that granted a lease: it renews and releases the lease.
pub(crate) trait LeaseOwner: Send + Sync {
    /// Renews a held lease for its full ttl. Fails with an error that [is lost](Error::is_lost) if the lease has ended.
    fn extend(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<(), Error>>;

    /// Releases the lease. Returns whether it was still held.
    fn release(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<bool, Error>>;

    /// Releases the lease, in one call with leases that are released at the same time, if possible.
    fn release_together(
        self: Arc<Self>,
        lease: LeaseHandle,
    ) -> BoxFuture<'static, Result<bool, Error>> {
        self.release(lease)
    }

    /// Releases the lease if this takes no further work. Returns whether it was released.
    fn release_at_once(&self, _lease: &LeaseHandle) -> bool {
        false
    }

    /// Releases the lease in the background, with retries while the store may still hold it.
    fn release_detached(self: Arc<Self>, lease: &LeaseHandle);

    /// Records that the store has released the lease.
    fn released(self: Arc<Self>, lease: &LeaseHandle);

    /// The runtime for work that must not depend on the caller.
    fn background(&self) -> Background;

    /// Stops tracking the lease, and leaves it in the store for others to release.
    fn detach(self: Arc<Self>, lease: LeaseHandle) {
        self.released(&lease);
    }
}

/// A method of [`LeaseOwner`] that releases a lease.
type Releases = fn(Arc<dyn LeaseOwner>, LeaseHandle) -> BoxFuture<'static, Result<bool, Error>>;

impl Lease {
    pub(crate) fn new(handle: LeaseHandle, owner: Owner) -> Self {
        handle.state.holding.leases.began();
        let at_least_for = handle.state.holding.options.at_least_for;
        Self {
            handle,
            owner,
            at_least_for,
            with_guard: None,
        }
    }

    /// Returns the owner of the lease, unless the lease was released.
    fn owner(&self) -> Option<&Arc<dyn LeaseOwner>> {
        match &self.owner {
            Owner::Common(owner) => Some(owner),
            Owner::By(owner) => Some(owner),
            Owner::Released => None,
        }
    }

    /// Takes the owner out of the lease, which is then no longer released on drop.
    fn take_owner(&mut self) -> Option<Arc<dyn LeaseOwner>> {
        let owner = self.owner().cloned();
        self.owner = Owner::Released;
        owner
    }

    /// Attaches a value that is dropped after the lease is released.
    pub(crate) fn with_guard(self, value: impl Any + Send + Sync) -> Self {
        let mut lease = self;
        lease.with_guard = Some(Box::new(value));
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
        match self.owner() {
            Some(owner) if self.is_held() => Arc::clone(owner).extend(self.handle()).await,
            _ => Err(Error::lost()),
        }
    }

    /// Releases the lease. Returns whether it was still held. If not, another holder may have held it in the meantime.
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
        self.release_by(<dyn LeaseOwner as LeaseOwner>::release)
            .await
    }

    /// Like [`release`](Self::release), in one call with leases that are released at the same time, if possible.
    pub(crate) async fn release_together(self) -> Result<bool, Error> {
        self.release_by(<dyn LeaseOwner as LeaseOwner>::release_together)
            .await
    }

    async fn release_by(mut self, release: Releases) -> Result<bool, Error> {
        if let Some(due) = self.not_before() {
            let was_held = self.is_held();
            self.release_at(due);
            return Ok(was_held);
        }
        let Some(owner) = self.owner() else {
            return Ok(false);
        };
        let released = release(Arc::clone(owner), self.handle()).await;
        if let Ok(was_held) = released {
            if !was_held {
                self.state.count_loss();
            }
            // There is nothing left for `drop` to do.
            self.owner = Owner::Released;
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
        if let Some(owner) = self.take_owner() {
            owner.detach(self.handle());
        }
        (self.state.grant.key.clone(), self.state.grant.token.clone())
    }

    /// Records that the store has released the lease.
    pub(crate) fn settled(mut self) {
        self.settled_in_place();
    }

    fn settled_in_place(&mut self) {
        if let Some(owner) = self.take_owner() {
            owner.released(&self.handle);
        }
    }

    /// Releases the lease in the background, even if the detached work that it belongs to was cut off.
    pub(crate) fn give_back(mut self) {
        self.release_in_background();
        self.owner = Owner::Released;
    }

    fn release_in_background(&self) {
        if let Some(owner) = self.owner()
            && !owner.release_at_once(&self.handle)
        {
            Arc::clone(owner).release_detached(&self.handle);
        }
    }

    /// Sets the minimum hold time, counted from the grant: an earlier release takes effect only after it.
    pub(crate) fn hold_at_least(&mut self, span: Duration) {
        self.at_least_for = span;
    }

    /// Returns the minimum hold time: that of [`hold_at_least`](Self::hold_at_least), or else that of the namespace.
    pub(crate) fn at_least_for(&self) -> Duration {
        self.at_least_for
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.state.ttl()
    }

    /// Returns the end of the minimum hold time if it is in the future and the lease is held.
    fn not_before(&self) -> Option<Instant> {
        if self.at_least_for.is_zero() {
            return None;
        }
        let due = clock::without_suspend(self.state.grant.at.checked_add(self.at_least_for)?);
        (self.is_held() && due > Instant::now()).then_some(due)
    }

    /// Ends the lease for its holder now, and releases it to the store at `due`. It is renewed until then. If this
    /// process ends before, the lease expires after its ttl.
    fn release_at(&mut self, due: Instant) {
        let Some(owner) = self.take_owner() else {
            return;
        };
        let lease = self.handle();
        let background = owner.background();
        lease.state.retain();
        let thread = background.clone();
        background.spawn(async move {
            sleep_until(due).await;
            owner.release_detached(&lease);
            drop(thread);
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.state.holding.leases.ended();
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

/// The interval at which [`LeaseHandle::lost`] checks whether the host was suspended, and whether messages arrive.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches a [`Lease`] without holding it. In a layer, the handler can use it to [take](Self::take) the lease.
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

/// The place from which a handler can take a lease that a layer holds.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    Nowhere,
    /// The [`LeaseState`] of the lease itself.
    Here,
    /// The [`LeaseState`] of the lease of an outer layer.
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

    /// Returns the fencing token of a mutex or a writer. For a reader, it is the token of the last writer before it.
    /// Returns `None` for permits, and for readers if there was no writer within the last
    /// [`fence_ttl`](crate::rw_lock::RwLockBuilder::fence_ttl).
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        u64::try_from(self.state.grant.fence)
            .ok()
            .filter(|fence| *fence > 0)
    }

    /// Returns the time until which the lease is valid if it is not renewed. Renewals move this time.
    #[must_use]
    pub fn until(&self) -> Instant {
        clock::without_suspend(lock(&self.state.state).validity.until())
    }

    /// Returns how long the lease stays valid if it is not renewed; zero once it has ended.
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

    /// Returns whether the lease is valid now. An invalid lease never becomes valid again.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.time_left().is_zero()
    }

    /// Takes the lease from the layer that holds it for a request, in order to hold it for longer than the layer does:
    /// for example, in a task that serves an upgraded connection. The layer no longer holds or watches it, and the
    /// caller must release or drop it.
    ///
    /// Returns `None` if the lease was taken before, or if the layer no longer holds it because the inner service has
    /// responded, failed or been dropped. A handle that was made from a [`Lease`] also returns `None`.
    ///
    /// Only permits and locks can be taken, not claims, nor the lead of a flight. If a layer of claims or flights is
    /// inside a layer of permits or locks, this method takes the permit or lock of the outer layer.
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

    /// Returns the handle with access to the lease of the outer layer, in case its own lease cannot be taken.
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
    /// After 1 s, it subscribes the process to messages of the store, unless a waiter has already done so. With the
    /// subscription, a [revoked](crate::Mutex::revoke) lease is lost at once, otherwise at its next renewal.
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
                // A timer of its own, so that it does not depend on renewals.
                tokio::select! {
                    () = sleep_until(lease.until().min(Instant::now() + LOOK_EVERY)) => {
                        let now = clock::now();
                        // A look-up of a lease that has ended would release it too early.
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
    /// The text of the token, made on first use.
    text: OnceLock<Arc<str>>,
    /// The detached work that the lease is held for.
    work: OnceLock<WorkMark>,
    /// Whether the outcome of the work under the lease is being stored.
    is_settling: AtomicBool,
    /// Whether the loss was counted.
    is_lost: AtomicBool,
    /// Whether a task waits for a change. The task sets it before it locks `state` to check whether the lease is held.
    /// The side that changes `state` reads it after it has locked `state`.
    is_watched: AtomicBool,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    validity: Validity,
    phase: Phase,
    /// The lease itself, while a layer holds it and a handler may take it.
    slot: Option<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The holder holds the lease, or it is offered to its waiter.
    Held,
    /// The holder has released the lease, but the store keeps it until the minimum hold time is over.
    Retained,
    /// The holder has released the lease, or its waiter did not accept it.
    Ended,
}

impl LeaseState {
    pub(crate) fn ttl(&self) -> Duration {
        self.holding.options.ttl
    }

    /// Counts the loss only once, even if several tasks notice it.
    pub(crate) fn count_loss(&self) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            self.holding.leases.lost();
        }
    }

    /// Makes the lease available to [`take`](Self::take).
    pub(crate) fn put(&self, lease: Lease) {
        lock(&self.state).slot = Some(lease);
    }

    /// Takes the lease that was [put](Self::put) here.
    pub(crate) fn take(&self) -> Option<Lease> {
        lock(&self.state).slot.take()
    }

    /// Whether [`take`](Self::take) would return a lease.
    pub(crate) fn can_be_taken(&self) -> bool {
        lock(&self.state).slot.is_some()
    }

    /// Wakes the tasks that wait for a change.
    fn wake(&self) {
        if self.is_watched.load(Ordering::Relaxed) {
            self.changed.notify_waiters();
        }
    }

    /// Whether a shutdown must not release the lease: its minimum hold time is not over, its outcome is being stored,
    /// or detached work still runs under it.
    pub(super) fn outlasts(&self) -> bool {
        lock(&self.state).phase == Phase::Retained
            || self.is_settling.load(Ordering::Relaxed)
            || self.work.get().is_some_and(WorkMark::runs)
    }

    /// Marks that the outcome of the work is being stored: a shutdown does not release the lease before.
    pub(crate) fn settles(&self) {
        self.is_settling.store(true, Ordering::Relaxed);
    }

    /// Binds the lease to detached work.
    pub(crate) fn belongs_to(&self, work: &Work) {
        // A lease that outer work acquired stays bound to the outer work.
        let _ = self.work.set(work.mark());
    }

    /// Binds the lease to the detached work that is being polled, if there is any.
    pub(crate) fn belongs_to_current_work(&self) {
        if let Some(mark) = WorkMark::current() {
            let _ = self.work.set(mark);
        }
    }

    /// Whether a shutdown cut off the detached work of the lease. Such a lease is not released before its ttl.
    pub(super) fn is_cut_off(&self) -> bool {
        self.work.get().is_some_and(WorkMark::is_cut_off)
    }

    /// Makes sure that a loss of the lease is noticed soon. See [`Watched`](super::options::Watched).
    fn watched(&self, since: Instant) {
        if let Some(place) = self.holding.watched.as_ref().and_then(Weak::upgrade) {
            place.watched(self.grant.id, since);
        }
    }

    /// Records that a call sent at `sent` made the lease valid until `until`. Returns whether the lease is still valid.
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
            self.holding.leases.renewed();
        }
        holds
    }

    /// Ends the lease. A call of [`notify`](Self::notify) must follow.
    pub(super) fn end(&self, taken_back: bool) {
        let mut state = lock(&self.state);
        state.validity.end();
        if taken_back {
            state.phase = Phase::Ended;
        }
    }

    /// Wakes all tasks that wait for the end of the lease. Counts a loss unless `is_given_up` (its holder held it until
    /// now) or the lease had already ended.
    pub(super) fn notify(&self, is_given_up: bool) {
        self.wake();
        if !is_given_up && lock(&self.state).phase != Phase::Ended {
            self.count_loss();
        }
    }

    /// Ends the lease as lost.
    pub(crate) fn lose(&self) {
        self.end(false);
        self.notify(false);
    }

    /// Ends the lease for its holder. No other holder gets it until the minimum hold time is over.
    pub(super) fn retain(&self) {
        lock(&self.state).phase = Phase::Retained;
        self.wake();
    }

    /// Ends the lease for its holder. Returns the hold time, if the lease was held until now.
    pub(crate) fn give_up(&self) -> Option<Duration> {
        let held = self.stop(clock::now());
        self.notify(held.is_some());
        held
    }

    /// Ends the lease for its holder. Returns the hold time, if the lease was held until now. A call of
    /// [`notify`](Self::notify) must follow.
    pub(super) fn stop(&self, now: Instant) -> Option<Duration> {
        let mut state = lock(&self.state);
        let was_held = state.validity.holds(now);
        state.validity.end();
        if !was_held {
            return None;
        }
        state.phase = Phase::Ended;
        Some(now - self.grant.at)
    }

    /// Returns the release of this lease, to be sent to the store.
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

/// Implements a guard with a lease as its field: its release method, its conversion into the lease, and `Deref` to the
/// lease.
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

    /// Whether a task was woken since the last check.
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
