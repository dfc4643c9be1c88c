//! Limits that adapt to the capacity of the inner service.

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

/// The settings of a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer) whose limit adapts. See
/// [`adaptive`](crate::ConcurrencyLimitLayer::adaptive) and the [module](crate::wait_group#adaptive-limits).
///
/// The type parameter is the [classifier](Classify) of the outcome of a request.
///
/// # Overload
///
/// An error, a timeout, a [status](HttpSignals), or what your [closure](Self::classify) returns can be overload. A
/// share of 1 % never is, because in a large fleet some requests always fail. No other fixed share separates overload
/// from a fault: a bad instance or a bug fails the same share of requests at any load, and a lower limit would only
/// lower the throughput. So an experiment decides, as in PCC (M. Dong et al., "PCC: Re-architecting Congestion Control
/// for Consistent High Performance", NSDI 2015). TCP Westwood and BBR do not take each loss for congestion either.
///
/// * The experiment starts when the share rises above the known share by more than four standard deviations. It
///   measures the share in one window, lets the queue drain in the next one, and measures again with half of the
///   permits in flight.
/// * If the share is not lower then, it is the usual share of the service: from then on, only failures above it are
///   overload.
/// * If the share is lower, the limit falls by a tenth; by a half, if half of the load has at least three quarters of
///   the successes.
/// * The two windows that measure have 100 requests, or are ten times as long: chance decides by fewer requests.
/// * The experiment is repeated after 100 windows at the earliest, and after three reductions in a row. A usual share
///   above 10 % is measured again every 100 windows.
/// * The usual share is at most a half. It follows a share that falls, and never rises without an experiment. From
///   three quarters on, every failure is overload.
///
/// # Latency
///
/// Latency is the time from the permit to the response, without the body and without the time of the client.
///
/// * Not counted: the time in which the handler waits for the body of the request, and in which the response waits for
///   its client.
/// * No sample: a request that its client drops during its upload, an upload that breaks, and 4xx.
/// * No latency: a response that begins before the request has ended (a stream in both directions), an upgrade, and
///   HEAD, OPTIONS, TRACE and CONNECT. With a closure for requests of your own, the whole time is that of the service.
/// * A latency counts as at most four times the mean of the last window, so a few expensive requests are no queue.
/// * Requests with slow uploads and slow readers hold their permits, so they count as in flight: the limit may grow by
///   them, up to its highest value, but does not fall.
///
/// # State
///
/// * A process reports what it measured of a key in the background, at most once in a [window](Self::window) of the
///   server's clock. The reply has the limit for its next requests. The first request of a key waits for a call that
///   reads the limit, as does the next one after 10 s without a reply.
/// * The limit is stored beside the permits, and forgotten 1 h after the last report. If the store loses it earlier, a
///   process that had samples in the last 10 s restores its last limit. In an outage the last known limit holds. State
///   that is forged or unreadable is replaced.
/// * If the limit changes, held permits stay valid, and each process sends the last limit that it received with its
///   calls: [the waiters follow](crate::wait_group#whose-limit-counts).
/// * A process keeps 4096 keys. A new key replaces one that was not used for a minute, of eight that are looked at. For
///   further keys the limit is read for each request, and nothing is reported.
/// * A report is sent once. If the client of a [pool for a Cluster](crate::Store#repeated-calls) repeats it, its
///   samples count twice, which moves the limit by one window's step at most.
///
/// # Example
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

/// The effect of the outcome of a request on the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The request was handled. Its latency counts.
    Success,
    /// The inner service is overloaded. This lowers the limit.
    Overload,
    /// The request failed for another reason. It has no effect on the limit.
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
    /// Returns the signal of the outcome.
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
/// | an error of the inner service, such as a timeout | [`Overload`](Signal::Overload) |
/// | 503, 504; gRPC `UNAVAILABLE` in the head | `Overload` |
/// | 1xx, 4xx, other 5xx; other errors of gRPC in the head | [`Ignore`](Signal::Ignore) |
/// | 2xx, 3xx | [`Success`](Signal::Success) |
///
/// A client can cause each 4xx by itself, including 408 by a slow upload, 429 by too many requests, and gRPC's
/// `DEADLINE_EXCEEDED` and `RESOURCE_EXHAUSTED`. Therefore these are not `Overload`. If the service behind the layer
/// uses them to signal overload, pass a [closure](Adaptive::classify). A layer inside that ends slow requests must not
/// respond with 408.
///
/// The refusals of a layer further inside may be 503 too. Put such layers outside of the adaptive layer.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_distributed::wait_group::{Adaptive, Classify, HttpSignals, Signal};
///
/// // For a service that responds with 429 to all clients if it is overloaded.
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
    /// multiplicative decrease. Failures that do not depend on the load are no [overload](Self#overload).
    ///
    /// This is `AIMDLimit` of Netflix's [concurrency-limits](https://github.com/Netflix/concurrency-limits), but for a
    /// fleet: a local limiter in each process allows a queue for each process.
    ///
    /// For services that reject excess requests, or time out. A growing latency does not lower the limit before it
    /// reaches the [`timeout`](Self::timeout).
    pub fn aimd() -> Self {
        Self::new(false)
    }

    /// Multiplies the limit by the ratio of the latency without a queue to the current latency, so that the queue in
    /// the inner service stays short. Overload lowers it as well, by a tenth in each window.
    ///
    /// This is `Gradient2Limit` of Netflix's [concurrency-limits](https://github.com/Netflix/concurrency-limits), but
    /// for a fleet, and it measures the latency without a queue, so that the limit does not grow for ever under lasting
    /// load. About every 100 windows under load, half of the permits in flight are handed out for two windows or more,
    /// to measure the latency without a queue.
    pub fn gradient() -> Self {
        Self::new(true)
    }
}

setters! { Adaptive<C>:
    /// Sets the lowest limit, at least 1. Default: 1.
    fn min(min: u32) => min = min;

    /// Sets the highest limit, at most 1 000 000. Default: 1000.
    fn max(max: u32) => max = max;

    /// Sets the limit of a new key, or of a key that has had no samples for a while. Default: the limit of the
    /// [`WaitGroup`](crate::WaitGroup).
    fn start(start: u32) => start = Some(start);

    /// Sets the interval at which the limit changes, 10 ms to 10 s. Default: 100 ms.
    ///
    /// It is also the interval at which a process reports its measurements. The window of a key lasts longer if the
    /// latency is above half of it, up to ten times as long, and until it has 10 samples, or as many as the limit.
    fn window(window: Duration) => window = window;

    /// Sets the latency from which on a request counts as overload, 1 ms to 1 h. Default: 5 s.
    ///
    /// It does not include the time that the client takes. Set a longer one for a service with slow requests. A request
    /// whose future is dropped counts if it took that long. A shorter one does not count, nor does one whose upload is
    /// incomplete: its client has disconnected.
    fn timeout(timeout: Duration) => timeout = timeout;
}

impl<C> Adaptive<C> {
    /// Sets the classifier of the outcome of a request: a closure from `&Result<Res, E>` to [`Signal`], which must be
    /// [`Clone`]. Default: [`HttpSignals`], for HTTP and gRPC.
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

    /// Returns the rules, if all settings are in range. `limit`: the limit of the WaitGroup.
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
