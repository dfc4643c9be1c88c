//! [`UntilBodyEnd`] and its limits.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use http_body::Body;

use super::LeasedBody;
use super::timed_lease::{Limits, TimedLease};
use super::timers::Timers;
use crate::lease::layer::Hold;
use crate::setters::in_range;
use crate::sync::{Stripes, my_stripe};
use crate::{Error, Lease};

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

/// What happens to a body whose lease ends first. Set it with [`UntilBodyEnd::on_lease_end`].
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
    /// The body continues without the lease. Other requests may get the permit or the lock meanwhile.
    #[default]
    Detach,
    /// The body ends with an [`Error`]: [`is_body_timeout`](Error::is_body_timeout) at a limit,
    /// [`is_lost`](Error::is_lost) if the lease was lost. Servers then close the connection or reset the stream, so
    /// that the client sees an incomplete response.
    ///
    /// The lease is released at the limit in any case. The task that last polled the body is woken, and the next
    /// poll returns the error. A server whose client does not read may not poll the body until the client reads
    /// again.
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

impl Default for UntilBodyEnd {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            timers: Timers::stripes(),
        }
    }
}

impl<B: Body> Hold<Response<B>> for UntilBodyEnd {
    type Response = Response<LeasedBody<B>>;

    fn hold(&self, response: Response<B>, lease: Option<Lease>) -> Self::Response {
        let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        response.map(|body| {
            let lease = lease.filter(|_| !is_upgrade && !body.is_end_stream());
            let lease =
                lease.map(|lease| TimedLease::new(lease, self.limits, &self.timers[my_stripe()]));
            LeasedBody::new(body, lease)
        })
    }
}
