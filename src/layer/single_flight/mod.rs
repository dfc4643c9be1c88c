//! [`SingleFlightLayer`]: one request is handled, all others of its key get the same response, in all processes.
//!
//! ```
//! use std::convert::Infallible;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{SingleFlight, SingleFlightLayer, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let prices = SingleFlight::<u64>::new(&store, "prices")?;
//!
//! let price = ServiceBuilder::new()
//!     .layer(SingleFlightLayer::new(prices, |item: &String| item.clone()))
//!     .service(service_fn(async |item: String| Ok::<_, Infallible>(item.len() as u64))); // dear, perhaps
//!
//! let (one, other) = tokio::join!(price.clone().oneshot("tea".into()), price.oneshot("tea".into()));
//! assert_eq!((one?, other?), (3, 3));
//! # Ok(()) }
//! ```
//!
//! # What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; only requests that it names a key for take part, `None`
//! lets a request pass on its own. **All requests of one key get one response: whatever makes a difference belongs into
//! the key**, above all who asks. For HTTP, `http::single_flight` takes part with GET and HEAD alone, and with nothing that
//! carries credentials.
//!
//! For how long an answer lives, when errors are shared and what becomes of answers that are too large are settings of the [`SingleFlight`]: see [`single_flight`](crate::single_flight).
//!
//! # What is shared
//!
//! The response itself, if it can be cloned and the flight has a codec for it: [`Whole`]. For HTTP,
//! `http::single_flight` shares status, header fields and the body up to a size.
//!
//! # In which task
//!
//! A request that takes part is handled in a task of its own, since others wait for it: the inner service, its future,
//! and the request must be `Send` and `'static`. With the feature `tracing` that task is in the span of the caller whose
//! request it is. Values of `tokio::task_local!` do not reach it: put what the service needs into the request.
//!
//! # Answers kept in the process
//!
//! With [`local_cache`](crate::single_flight::SingleFlightBuilder::local_cache) a request whose answer this process has is
//! answered at once, without a call of the store and without a task.
//!
//! # When the store is away
//!
//! Handled, shared within the process alone, unless the flight is
//! [not to](crate::single_flight::SingleFlightBuilder::alone_when_away).
//!
//! # Readiness
//!
//! `poll_ready` is the inner service's; the instance that was polled ready is the one that is called, if it is its
//! turn. A follower drops it without a call.

mod capture;
mod future;
mod service;

use std::fmt;

use tower_layer::Layer;

pub use self::capture::{Capture, Captured, Whole};
pub use self::future::ResponseFuture;
pub use self::service::Flying;

use crate::{AsError, SingleFlight};

/// A [`Layer`] that handles one request of a key at a time, and gives its response to all others; see the
/// [module](self) for the whole story.
pub struct SingleFlightLayer<K, A, F, C = Whole, N = (), R = AsError> {
    config: Config<K, A, F, C, N, R>,
}

/// All that a service needs to know; shared by its clones.
pub(crate) struct Config<K, A, F, C, N, R> {
    key: K,
    flight: SingleFlight<A, F>,
    capture: C,
    on_lease: N,
    reject: R,
}

impl<K, A, F> SingleFlightLayer<K, A, F> {
    /// Handles requests as flights of a namespace, each by its key.
    #[must_use]
    pub fn new(flight: SingleFlight<A, F>, key: K) -> Self {
        Self { config: Config { key, flight, capture: Whole, on_lease: (), reject: AsError } }
    }
}

impl<K, A, F, C, N, R> SingleFlightLayer<K, A, F, C, N, R> {
    #[cfg(feature = "http")]
    pub(crate) fn map_key(self, map: impl FnOnce(K) -> K) -> Self {
        let Ok(layer) = self.try_map_key(|key| Ok::<_, std::convert::Infallible>(map(key)));
        layer
    }

    #[cfg(feature = "http")]
    pub(crate) fn try_map_key<E>(self, map: impl FnOnce(K) -> Result<K, E>) -> Result<Self, E> {
        let Config { key, flight, capture, on_lease, reject } = self.config;
        Ok(Self { config: Config { key: map(key)?, flight, capture, on_lease, reject } })
    }

    /// How responses become answers, and the other way round. For HTTP there is `http::Responses`.
    #[must_use]
    pub fn capture<C2>(self, capture: C2) -> SingleFlightLayer<K, A, F, C2, N, R> {
        let Config { key, flight, capture: _, on_lease, reject } = self.config;
        SingleFlightLayer { config: Config { key, flight, capture, on_lease, reject } }
    }

    /// Shows requests that are about to be handled what watches their lease, by a closure of
    /// `(&LeaseHandle, &mut Req)`. For HTTP there is `http::InsertLease`.
    #[must_use]
    pub fn on_lease<N2>(self, on_lease: N2) -> SingleFlightLayer<K, A, F, C, N2, R> {
        let Config { key, flight, capture, on_lease: _, reject } = self.config;
        SingleFlightLayer { config: Config { key, flight, capture, on_lease, reject } }
    }

    /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
    /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is `http::refuse()`,
    /// for gRPC `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> SingleFlightLayer<K, A, F, C, N, R2> {
        let Config { key, flight, capture, on_lease, reject: _ } = self.config;
        SingleFlightLayer { config: Config { key, flight, capture, on_lease, reject } }
    }
}

impl<S, K, A, F, C, N, R> Layer<S> for SingleFlightLayer<K, A, F, C, N, R>
where
    K: Clone,
    C: Clone,
    N: Clone,
    R: Clone,
{
    type Service = Flying<S, K, A, F, C, N, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Flying::new(inner, self.config.clone())
    }
}

impl<K: Clone, A, F, C: Clone, N: Clone, R: Clone> Clone for SingleFlightLayer<K, A, F, C, N, R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<K: Clone, A, F, C: Clone, N: Clone, R: Clone> Clone for Config<K, A, F, C, N, R> {
    fn clone(&self) -> Self {
        let Self { key, flight, capture, on_lease, reject } = self;
        Self {
            key: key.clone(),
            flight: flight.clone(),
            capture: capture.clone(),
            on_lease: on_lease.clone(),
            reject: reject.clone(),
        }
    }
}

impl<K, A, F, C, N, R> fmt::Debug for Config<K, A, F, C, N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("flight", &self.flight).finish_non_exhaustive()
    }
}

impl<K, A, F, C, N, R> fmt::Debug for SingleFlightLayer<K, A, F, C, N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightLayer").field("config", &self.config).finish()
    }
}
