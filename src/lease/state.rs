//! The holder's view of a lease: [`LeaseHandle`], and the state behind it. Its validity is counted by the clock of this
//! process.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::handle::Lease;
use super::options::Holding;
use super::token;
use super::tokens::{Grant, Release};
use super::validity::Validity;
use crate::store::detached::{Work, WorkMark};
use crate::store::timer::sleep_until;
use crate::sync::{lock, my_stripe};
use crate::telemetry::Leases;
use crate::{Key, clock};

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
        let State {
            validity,
            phase: Phase::Held,
            ..
        } = &mut *state
        else {
            return Duration::ZERO;
        };
        if validity.holds(now) {
            validity.until() - now
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
            (
                Slot::Nowhere,
                Some(Self {
                    slot: Slot::Here,
                    state,
                }),
            ) => Slot::Around(Arc::clone(state)),
            (Slot::Nowhere, Some(Self { slot, .. })) => slot.clone(),
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
                        // To ask about a lease that has ended would release it too early.
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
    /// The text of its token, once somebody has asked for it.
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

    /// Wakes who waits for a change.
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
        let State {
            validity, phase, ..
        } = &mut *lock(&self.state);
        validity.end();
        if taken_back {
            *phase = Phase::Ended;
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
        let State {
            validity, phase, ..
        } = &mut *lock(&self.state);
        let was_held = validity.holds(now);
        validity.end();
        if was_held {
            *phase = Phase::Ended;
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use super::*;
    use crate::{Mutex as Locks, Store};

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
