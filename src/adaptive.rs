//! Limits that adapt to what the inner service can do.

#[cfg(test)]
mod agreement;
#[cfg_attr(
    not(feature = "http"),
    allow(dead_code, reason = "only requests of HTTP are uploaded")
)]
pub(crate) mod client_time;
#[cfg(test)]
mod constant_errors;
#[cfg(feature = "http")]
pub(crate) mod http;
mod layer;
pub(crate) mod look;
pub(crate) mod step;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::adaptive::step::Rules;
use crate::error::Error;
use crate::lease::options::micros;
use crate::macros::{in_range, setters};

/// How the limit of a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer) adapts. See
/// [`adaptive`](crate::ConcurrencyLimitLayer::adaptive) and the [module](crate::wait_group#adaptive-limits).
///
/// The type parameter is what [classifies](Classify) the outcome of a request.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::wait_group::Adaptive;
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let backend = WaitGroup::new(&Store::in_memory(), "backend", 20)?; // the start value
/// let adaptive = Adaptive::gradient().min(4).max(500).timeout(Duration::from_secs(2));
/// let limit = web::concurrency_limit(backend.clone(), extract::path()).adaptive(adaptive)?;
/// let app: Router = Router::new().route("/search", get(async || "found")).layer(limit);
///
/// let wrong = web::concurrency_limit(backend, extract::path()).adaptive(Adaptive::aimd().min(30));
/// # let _: &Result<tower_distributed::ConcurrencyLimitLayer<http::Request<axum::body::Body>, _, _, _>, _> = &wrong;
/// assert!(wrong.unwrap_err().to_string().contains("the start value must be 30 to 1000, is 20"));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
#[must_use = "it does nothing until it is passed to a layer"]
pub struct Adaptive<C = HttpSignals> {
    follows: bool,
    min: u32,
    max: u32,
    start: Option<u32>,
    window: Duration,
    timeout: Duration,
    /// Whether `classify` is [`HttpSignals`], as it is by default.
    is_http: bool,
    classify: C,
}

debug!(Adaptive<C>, follows, min, max, start, window, timeout);

/// What the outcome of a request says about the inner service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The request was handled. Its latency counts.
    Success,
    /// The inner service has too much to do. This lowers the limit.
    Overload,
    /// Nothing: the request failed for another reason.
    Ignore,
}

/// Classifies the outcome of a request. Implemented by closures from `&Result<Res, E>` to [`Signal`], and by
/// [`HttpSignals`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify a `Result<{Res}, {E}>`",
    note = "`HttpSignals`, the default, classifies an `http::Response`",
    note = "for others, pass a closure with a typed argument to `classify`: `|outcome: &Result<Response, Error>| Signal::Success`"
)]
pub trait Classify<Res, E> {
    /// Returns what the outcome says.
    fn classify(&self, outcome: &Result<Res, E>) -> Signal;
}

impl<Res, E, F: Fn(&Result<Res, E>) -> Signal> Classify<Res, E> for F {
    fn classify(&self, outcome: &Result<Res, E>) -> Signal {
        self(outcome)
    }
}

/// Classifies HTTP and gRPC responses. The default of [`Adaptive`].
///
/// | outcome | signal |
/// |---|---|
/// | an error of the inner service, such as a time-out | [`Overload`](Signal::Overload) |
/// | 503, 504; gRPC `UNAVAILABLE` in the head | `Overload` |
/// | 1xx, 4xx, other 5xx; other errors of gRPC in the head | [`Ignore`](Signal::Ignore) |
/// | 2xx, 3xx | [`Success`](Signal::Success) |
///
/// A client can cause each 4xx by itself, also 408 by a slow upload, 429 by too many requests, and gRPC's `DEADLINE_EXCEEDED`
/// and `RESOURCE_EXHAUSTED`. So these are no overload. If the service behind the layer says with them that it has too much to
/// do, pass a [closure](Adaptive::classify). A layer inside that ends slow requests must not answer 408.
///
/// The refusals of a layer further inside may be 503 too. Put such layers outside of the adaptive layer.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_distributed::wait_group::{Adaptive, Classify, HttpSignals, Signal};
///
/// // For a service that answers 429 to all if it has too much to do.
/// let adaptive = Adaptive::aimd().classify(|outcome: &Result<Response<()>, std::io::Error>| match outcome {
///     Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => Signal::Overload,
///     outcome => HttpSignals.classify(outcome),
/// });
/// # drop(adaptive);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpSignals;

impl Adaptive {
    fn new(follows: bool) -> Self {
        let (window, timeout) = (Duration::from_millis(100), Duration::from_secs(5));
        Self {
            follows,
            min: 1,
            max: 1000,
            start: None,
            window,
            timeout,
            is_http: true,
            classify: HttpSignals,
        }
    }

    /// Raises the limit by 1 in each window, and lowers it by a tenth in a window with overload: additive increase,
    /// multiplicative decrease. Failures that do not depend on the load are no overload: see *Overload* of the
    /// [module](crate::wait_group#adaptive-limits).
    ///
    /// For services that refuse what is too much for them, or time out. A latency that grows does not lower the limit
    /// before the [`timeout`](Self::timeout).
    pub fn aimd() -> Self {
        Self::new(false)
    }

    /// Moves the limit by the ratio of the latency without a queue to the latency, so that the queue in the inner service
    /// stays short. Overload lowers it as well, by a tenth in each window.
    ///
    /// About every 100 windows under load, half of the permits in flight are handed out for two windows or more, to measure the
    /// latency without a queue.
    pub fn gradient() -> Self {
        Self::new(true)
    }
}

setters! { Adaptive<C>:
    /// Sets the lowest limit, at least 1. Default: 1.
    fn min(min: u32) => min = min;

    /// Sets the highest limit, at most 1 000 000. Default: 1000.
    fn max(max: u32) => max = max;

    /// Sets the limit of a key of which nothing is known, or that has had no samples for a while. Default: the limit of the
    /// [`WaitGroup`](crate::WaitGroup).
    fn start(start: u32) => start = Some(start);

    /// Sets after what time the limit moves, 10 ms to 10 s. Default: 100 ms.
    ///
    /// It is also how often a process tells what it saw. The window of a key lasts longer if the latency is above half of
    /// it, up to ten times as long, and until it has 10 samples, or as many as the limit.
    fn window(window: Duration) => window = window;

    /// Sets the latency from which on a request counts as overload, 1 ms to 1 h. Default: 5 s.
    ///
    /// The time of a client is not in it. A service whose requests usually take long needs a longer one. A request whose future
    /// is dropped counts if it took as long. A shorter one does not count, nor does one whose upload is not over: its client
    /// went away.
    fn timeout(timeout: Duration) => timeout = timeout;
}

impl<C> Adaptive<C> {
    /// Sets what the outcome of a request says, with a closure from `&Result<Res, E>` to [`Signal`], which must be [`Clone`].
    /// Default: [`HttpSignals`], for HTTP and gRPC.
    ///
    /// ```
    /// use std::io;
    /// use tower_distributed::wait_group::{Adaptive, Signal};
    ///
    /// let adaptive = Adaptive::aimd().classify(|outcome: &Result<String, io::Error>| match outcome {
    ///     Ok(_) => Signal::Success,
    ///     Err(error) if error.kind() == io::ErrorKind::TimedOut => Signal::Overload,
    ///     Err(_) => Signal::Ignore,
    /// });
    /// # drop(adaptive);
    /// ```
    pub fn classify<C2>(self, classify: C2) -> Adaptive<C2> {
        let Self {
            follows,
            min,
            max,
            start,
            window,
            timeout,
            is_http: _,
            classify: _,
        } = self;
        Adaptive {
            follows,
            min,
            max,
            start,
            window,
            timeout,
            is_http: false,
            classify,
        }
    }

    /// Returns the rules, if all settings are in range. `limit`: that of the WaitGroup.
    fn rules(&self, limit: u32) -> Result<Rules, Error> {
        const MOST: u32 = 1_000_000;
        let &Self {
            follows,
            min,
            max,
            window,
            timeout,
            ..
        } = self;
        let start = self.start.unwrap_or(limit);
        in_range("the lowest limit", 1..=MOST, "1 to 1000000", min)?;
        in_range(
            "the highest limit",
            min..=MOST,
            format_args!("{min} (the lowest) to 1000000"),
            max,
        )?;
        in_range(
            "the start value",
            min..=max,
            format_args!("{min} to {max}"),
            start,
        )?;
        let windows = Duration::from_millis(10)..=Duration::from_secs(10);
        in_range("the window", windows, "10 ms to 10 s", window)?;
        let timeouts = Duration::from_millis(1)..=Duration::from_secs(3600);
        in_range("the timeout", timeouts, "1 ms to 1 h", timeout)?;
        let window = micros(window);
        Ok(Rules {
            follows,
            min: min.into(),
            max: max.into(),
            start: start.into(),
            window,
        })
    }
}
