//! How long the body of a response holds its lease: [`UntilBodyEnd`] sets the limits, [`TimedLease`] is a lease that is
//! released at a limit, and [`Timers`] check the leases of all bodies of a layer, even if no task polls a body.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Response, StatusCode};
use http_body::{Body, Frame};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::BoxError;

use crate::error::Error;
use crate::http::body::{Attached, HeldBody};
use crate::layers::lease::Hold;
use crate::lease::handle::Lease;
use crate::macros::in_range;
use crate::store::background::Background;
use crate::store::memory::clock::callers_clock;
use crate::store::notifier::Link;
use crate::store::scheduler::{PeriodicTask, Scheduler, Signal};
use crate::sync::{Stripes, lock, my_stripe};

#[cfg(test)]
mod tests;

/// Holds the lease of a request until the body of its response has ended, failed, or been dropped, but not beyond
/// the limits below.
///
/// | limit | default | the lease is released |
/// |---|---|---|
/// | [`idle_timeout`](Self::idle_timeout) | 60 s | when the body has yielded no frame for this long |
/// | [`max_hold`](Self::max_hold) | none | this long after the head of the response, even if the body makes progress |
///
/// When a client stops reading, the server stops polling the body, so the idle timeout applies. It does not apply
/// to streams that send data regularly, such as server-sent events with keep-alives. The timers of the limits run
/// on this crate's own thread: they work even if no task polls the body, and while the body's runtime is blocked.
///
/// At a limit the body continues without its lease by default. [`LeaseEnd::Abort`] ends it with an error.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::response::{LeaseEnd, UntilBodyEnd};
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let hold = UntilBodyEnd::default()
///     .idle_timeout(Duration::from_secs(30))?
///     .max_hold(Duration::from_secs(3600))?
///     .on_lease_end(LeaseEnd::Abort);
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let limit = web::concurrency_limit(exports, extract::path()).hold(hold);
/// let app: Router = Router::new().route("/export", get(async || "all of it")).layer(limit);
/// # Ok(()) }
/// ```
///
/// # Upgrades
///
/// If the connection is upgraded, the lease is released with the head of the response: at `101 Switching Protocols`
/// (WebSocket), and at a successful response to `CONNECT`, whose body servers drop. To hold the lease as long as
/// the upgraded connection, take it in the handler: see [`LeaseHandle::take`](crate::LeaseHandle::take).
#[derive(Clone, Debug)]
pub struct UntilBodyEnd {
    limits: Limits,
    timers: Arc<Stripes<Arc<Timers>>>,
}

/// The behaviour of a body whose lease ends first. Set it with [`UntilBodyEnd::on_lease_end`].
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use axum::body::{Body, Bytes};
/// use http::{Request, Response};
/// use http_body_util::BodyExt;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_distributed::response::{LeaseEnd, UntilBodyEnd};
/// use tower_distributed::{ConcurrencyLimitLayer, Error, Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let silent = service_fn(async |_: Request<Body>| {
///     let chunks = futures::stream::pending::<Result<Bytes, Infallible>>();
///     Ok::<_, Infallible>(Response::new(Body::from_stream(chunks)))
/// });
/// let hold = UntilBodyEnd::default().idle_timeout(Duration::from_millis(10))?.on_lease_end(LeaseEnd::Abort);
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 1)?;
/// let service = ConcurrencyLimitLayer::new(exports.clone(), |_: &Request<Body>| "all").hold(hold).layer(silent);
///
/// let response = service.oneshot(Request::new(Body::empty())).await?;
/// let error = response.into_body().collect().await.unwrap_err();
/// assert!(error.downcast_ref::<Error>().is_some_and(Error::is_body_timeout));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseEnd {
    /// The body continues without the lease. Other requests may get the permit or the lock while it continues.
    #[default]
    Detach,
    /// The body ends with an [`Error`]: [`is_body_timeout`](Error::is_body_timeout) at a limit,
    /// [`is_lost`](Error::is_lost) if the lease was lost. Servers then close the connection or reset the stream, so the
    /// client detects that the response is incomplete.
    ///
    /// The lease is released at the limit in any case. The task that last polled the body is woken, and the next poll
    /// returns the error. If the client does not read, the server may not poll the body until the client reads again.
    Abort,
}

impl UntilBodyEnd {
    /// Sets how long the body may yield no frame (of data or trailers) before the lease is released. The time is
    /// counted from the head of the response, and then from frame to frame. Default: 60 s.
    ///
    /// A stream with longer pauses needs a longer timeout, keep-alives in the stream, or
    /// [`no_idle_timeout`](Self::no_idle_timeout). HTTP/2 pings are not frames of the body.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `span` is 0 s.
    pub fn idle_timeout(mut self, span: Duration) -> Result<Self, Error> {
        in_range(
            "idle_timeout",
            Duration::from_nanos(1)..,
            "more than 0 s",
            span,
        )?;
        self.limits.idle_timeout = Some(span);
        Ok(self)
    }

    /// Disables the idle timeout. Set [`max_hold`](Self::max_hold) in this case: otherwise a client that stops
    /// reading holds its lease until its connection is closed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::response::UntilBodyEnd;
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let hold = UntilBodyEnd::default().no_idle_timeout().max_hold(Duration::from_secs(3600))?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn no_idle_timeout(mut self) -> Self {
        self.limits.idle_timeout = None;
        self
    }

    /// Sets how long after the head of the response the lease is released, even if the body makes progress. The
    /// time until the head does not count. Default: no limit. To hold leases until the head only, set
    /// `until_response` on the layer.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `span` is 0 s.
    pub fn max_hold(mut self, span: Duration) -> Result<Self, Error> {
        in_range("max_hold", Duration::from_nanos(1).., "more than 0 s", span)?;
        self.limits.max_hold = Some(span);
        Ok(self)
    }

    /// Sets what happens to a body whose lease ends first, because it was released at a limit or lost. Default:
    /// [`LeaseEnd::Detach`].
    #[must_use]
    pub fn on_lease_end(mut self, on_lease_end: LeaseEnd) -> Self {
        self.limits.on_lease_end = on_lease_end;
        self
    }
}

/// A body that holds a lease until it ends; see [`UntilBodyEnd`].
///
/// Its error is a [`BoxError`] that contains the error of the inner body, or an [`Error`] if the body was
/// [aborted](LeaseEnd::Abort).
pub type LeasedBody<B> = HeldBody<B, TimedLease>;

impl<B: Body> Hold<Response<B>> for UntilBodyEnd {
    type Response = Response<LeasedBody<B>>;

    fn hold(&self, response: Response<B>, lease: Option<Lease>) -> Self::Response {
        let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        response.map(|body| {
            let lease = lease.filter(|_| !is_upgrade && !body.is_end_stream());
            let timers = &self.timers[my_stripe()];
            let lease = lease.map(|lease| TimedLease::new(lease, self.limits, timers));
            HeldBody::new(body, lease)
        })
    }
}

impl<B: Body<Error: Into<BoxError>>> Attached<B> for TimedLease {
    type Error = BoxError;

    fn inner_error(error: B::Error) -> BoxError {
        error.into()
    }

    fn poll_abort(&mut self, context: &mut Context<'_>) -> Poll<BoxError> {
        self.poll_limits(context).map(Into::into)
    }

    fn on_frame(&mut self, _: &Frame<B::Data>, is_last: bool) {
        if !is_last {
            lock(&self.shared.state).progressed = Instant::now();
        }
    }

    fn on_end(self) {}
}

impl Default for UntilBodyEnd {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            timers: Timers::stripes(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    idle_timeout: Option<Duration>,
    max_hold: Option<Duration>,
    on_lease_end: LeaseEnd,
}

impl Default for Limits {
    fn default() -> Self {
        let idle_timeout = Some(Duration::from_secs(60));
        Self {
            idle_timeout,
            max_hold: None,
            on_lease_end: LeaseEnd::default(),
        }
    }
}

/// A lease that is released at its limits, or when this is dropped.
pub struct TimedLease {
    shared: Arc<Shared>,
    timers: Arc<Timers>,
}

/// The state that the body shares with the timers.
struct Shared {
    limits: Limits,
    began: Instant,
    state: Mutex<State>,
}

struct State {
    /// `None` once the lease was released.
    lease: Option<Lease>,
    /// When the body yielded its last frame; before the first frame, when the body began.
    progressed: Instant,
    /// When the timers check the lease next.
    due: Option<Instant>,
    /// The error of the limit at which the lease was released.
    exceeded: Option<Error>,
    /// The waker of the task that polls the body, if an abort must wake it.
    waker: Option<Waker>,
}

impl Limits {
    fn aborts(&self) -> bool {
        self.on_lease_end == LeaseEnd::Abort
    }

    fn idle_until(&self, progressed: Instant) -> Option<Instant> {
        progressed.checked_add(self.idle_timeout?)
    }

    fn max_until(&self, began: Instant) -> Option<Instant> {
        began.checked_add(self.max_hold?)
    }

    /// When the lease of a body is checked next.
    fn next_check(
        &self,
        began: Instant,
        progressed: Instant,
        lease: Option<&Lease>,
    ) -> Option<Instant> {
        let lost = lease.filter(|_| self.aborts()).map(|lease| lease.until());
        [self.idle_until(progressed), self.max_until(began), lost]
            .into_iter()
            .flatten()
            .min()
    }
}

impl TimedLease {
    fn new(lease: Lease, limits: Limits, timers: &Arc<Timers>) -> Self {
        let now = callers_clock();
        let began = now.0;
        let due = limits.next_check(began, began, Some(&lease));
        let state = State {
            lease: Some(lease),
            progressed: began,
            due,
            exceeded: None,
            waker: None,
        };
        let shared = Arc::new(Shared {
            limits,
            began,
            state: Mutex::new(state),
        });
        if let Some(due) = due {
            timers.insert(due, Arc::clone(&shared), now);
        }
        Self {
            shared,
            timers: Arc::clone(timers),
        }
    }

    /// Returns the error when the body must be aborted.
    fn poll_limits(&self, context: &Context<'_>) -> Poll<Error> {
        if !self.shared.limits.aborts() {
            return Poll::Pending;
        }
        let mut state = lock(&self.shared.state);
        if let Some(error) = self.shared.end(&state, Instant::now()) {
            return Poll::Ready(error);
        }
        if !state
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(context.waker()))
        {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Shared {
    /// Releases the lease if a limit is reached; otherwise schedules the next check.
    fn check(self: &Arc<Self>, now: Instant, timers: &Arc<Timers>) {
        let mut state = lock(&self.state);
        if state.lease.is_none() {
            return;
        }
        let Some(error) = self.end(&state, now) else {
            return self.schedule(&mut state, timers);
        };
        state.exceeded = Some(error.clone());
        let lease = state.lease.take();
        let waker = state.waker.take();
        drop(state);
        let outlived = lease.as_deref().filter(|_| !self.limits.aborts()).cloned();
        drop(lease);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(lease) = outlived {
            lease.state.holding.leases.outlived(&error);
        }
    }

    /// Schedules the next check. The caller holds the lock of the state, so that a lease that is dropped at the same
    /// time does not remain in the timers.
    fn schedule(self: &Arc<Self>, state: &mut State, timers: &Arc<Timers>) {
        state.due = self
            .limits
            .next_check(self.began, state.progressed, state.lease.as_ref());
        if let Some(due) = state.due {
            timers.insert(due, Arc::clone(self), callers_clock());
        }
    }

    /// Returns the error if the lease has ended before the body.
    fn end(&self, state: &State, now: Instant) -> Option<Error> {
        if state.exceeded.is_some() {
            return state.exceeded.clone();
        }
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        if is_over(self.limits.max_until(self.began)) {
            return Some(Error::body_timeout("held for longer than max_hold"));
        }
        if is_over(self.limits.idle_until(state.progressed)) {
            return Some(Error::body_timeout("no progress within idle_timeout"));
        }
        let is_lost =
            self.limits.aborts() && !state.lease.as_ref().is_some_and(|lease| lease.is_held());
        is_lost.then(Error::lost)
    }
}

impl Drop for TimedLease {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        let lease = state.lease.take();
        let due = state.due.take();
        drop(state);
        if let Some(due) = due {
            self.timers.remove(due, &self.shared);
        }
        drop(lease);
    }
}

impl fmt::Debug for TimedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lock(&self.shared.state).lease.fmt(f)
    }
}

/// One stripe of the timers of a layer. A frame does not reschedule a lease; the check reads the body's progress when
/// it is due.
struct Timers {
    scheduler: Arc<Scheduler>,
    state: Mutex<TimersState>,
}

#[derive(Default)]
struct TimersState {
    /// The leases, sorted by the time of their next check.
    leases: BTreeMap<(Instant, Address), Arc<Shared>>,
    /// When the scheduler checks them next, at the latest; `None`: it does not.
    planned: Option<Instant>,
    /// Whether a caller used a clock other than the system's. Then each lease is reported to the scheduler, because
    /// the clocks of callers may differ.
    strayed: bool,
}

/// Distinguishes leases that are due at the same time.
type Address = usize;

impl Timers {
    /// Creates the timers of a layer.
    fn stripes() -> Arc<Stripes<Arc<Self>>> {
        let no_pushes = watch::channel(Link::Down).1;
        let scheduler = Scheduler::new(no_pushes, Background::thread(), true);
        let timers = || {
            Arc::new(Self {
                scheduler: Arc::clone(&scheduler),
                state: Mutex::default(),
            })
        };
        let stripes = Stripes::new(timers);
        stripes.iter().for_each(|timers| scheduler.join(timers));
        Arc::new(stripes)
    }

    /// `now`: the time of the caller's clock, and whether that is the system's clock.
    fn insert(&self, due: Instant, lease: Arc<Shared>, (now, is_the_systems): (Instant, bool)) {
        let mut state = lock(&self.state);
        state.leases.insert((due, address(&lease)), lease);
        state.strayed |= !is_the_systems;
        let is_planned = state
            .planned
            .is_some_and(|planned| now < planned && planned <= due);
        if is_planned && !state.strayed {
            return;
        }
        state.planned = Some(due);
        drop(state);
        self.scheduler.schedule(due);
    }

    fn remove(&self, due: Instant, lease: &Arc<Shared>) {
        lock(&self.state).leases.remove(&(due, address(lease)));
    }

    fn pop(&self, now: Instant) -> Option<Arc<Shared>> {
        let mut state = lock(&self.state);
        state
            .leases
            .first_entry()
            .filter(|first| first.key().0 <= now)
            .map(|first| first.remove())
    }
}

fn address(lease: &Arc<Shared>) -> Address {
    Arc::as_ptr(lease).addr()
}

impl PeriodicTask for Timers {
    fn due(&self) -> Option<Instant> {
        let mut state = lock(&self.state);
        state.planned = state.leases.first_key_value().map(|((due, _), _)| *due);
        state.planned
    }

    fn signal(self: Arc<Self>, _: Signal) {
        let now = Instant::now();
        while let Some(lease) = self.pop(now) {
            // A waker, or a value in the lease, may panic when it is called or dropped. The other leases are still
            // checked in time.
            drop(catch_unwind(AssertUnwindSafe(|| lease.check(now, &self))));
        }
    }
}

/// Lets the scheduler's task end.
impl Drop for Timers {
    fn drop(&mut self) {
        self.scheduler.look_again();
    }
}

debug!(Timers);
