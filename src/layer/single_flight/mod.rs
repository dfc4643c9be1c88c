//! Requests as single flights. See the public module `single_flight`.

mod capture;
mod future;
mod service;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

pub use self::capture::{Capture, Captured, WholeAnswer, WholeResponse};
pub use self::future::ResponseFuture;
pub use self::service::SingleFlightService;

use super::key::DynKey;
use super::leased::{OnLease, OnLeases};
use crate::{AsError, KeyExtractor, SingleFlight};

/// A [`Layer`] that handles one request of a key at a time, and gives its response to all others; see the
/// [module](crate::single_flight) for the whole story.
///
/// Its parameters are the type of the requests, the answers and errors of the flight, how
/// [responses become answers](Self::capture), and what becomes of [refusals](Self::reject_with).
pub struct SingleFlightLayer<Req, A, F = Infallible, C = WholeResponse, R = AsError> {
    config: Config<Req, A, F, C, R>,
}

/// All that a service needs to know; shared by its clones.
pub(crate) struct Config<Req, A, F, C, R> {
    key: DynKey<Req>,
    flight: SingleFlight<A, F>,
    capture: C,
    on_lease: OnLeases<Req>,
    reject: R,
}

impl<Req, A, F> SingleFlightLayer<Req, A, F> {
    /// Handles requests as flights of a namespace, each by its key.
    #[must_use]
    pub fn new(flight: SingleFlight<A, F>, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        let (key, on_lease) = (Arc::new(key), Vec::new());
        Self { config: Config { key, flight, capture: WholeResponse, on_lease, reject: AsError } }
    }
}

impl<Req, A, F, C, R> SingleFlightLayer<Req, A, F, C, R> {
    /// How responses become answers, and the other way round. For HTTP there is `response::Responses`.
    #[must_use]
    pub fn capture<C2>(self, capture: C2) -> SingleFlightLayer<Req, A, F, C2, R> {
        let Config { key, flight, capture: _, on_lease, reject } = self.config;
        SingleFlightLayer { config: Config { key, flight, capture, on_lease, reject } }
    }

    /// Called with a [`LeaseHandle`](crate::LeaseHandle) before the inner service, by a closure of
    /// `(&LeaseHandle, &mut Req)`, for requests that are handled under a lease. For HTTP there is `web::InsertLease`.
    #[must_use]
    pub fn on_lease(mut self, on_lease: impl OnLease<Req> + Send + Sync + 'static) -> Self {
        self.config.on_lease.push(Arc::new(on_lease));
        self
    }

    /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
    /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is
    /// `response::refuse()`, for gRPC `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> SingleFlightLayer<Req, A, F, C, R2> {
        let Config { key, flight, capture, on_lease, reject: _ } = self.config;
        SingleFlightLayer { config: Config { key, flight, capture, on_lease, reject } }
    }
}

impl<S, Req, A, F, C: Clone, R: Clone> Layer<S> for SingleFlightLayer<Req, A, F, C, R> {
    type Service = SingleFlightService<S, Req, A, F, C, R>;

    fn layer(&self, inner: S) -> Self::Service {
        SingleFlightService::new(inner, self.config.clone())
    }
}

impl<Req, A, F, C: Clone, R: Clone> Clone for SingleFlightLayer<Req, A, F, C, R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<Req, A, F, C: Clone, R: Clone> Clone for Config<Req, A, F, C, R> {
    fn clone(&self) -> Self {
        let Self { key, flight, capture, on_lease, reject } = self;
        Self {
            key: Arc::clone(key),
            flight: flight.clone(),
            capture: capture.clone(),
            on_lease: on_lease.clone(),
            reject: reject.clone(),
        }
    }
}

impl<Req, A, F, C, R> fmt::Debug for Config<Req, A, F, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("flight", &self.flight).finish_non_exhaustive()
    }
}

impl<Req, A, F, C, R> fmt::Debug for SingleFlightLayer<Req, A, F, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightLayer").field("config", &self.config).finish()
    }
}
