//! The layer of single flights. See the public module `single_flight`.

mod capture;
mod future;
mod service;

use std::convert::Infallible;
use std::sync::Arc;

use derive_where::derive_where;
use tower_layer::Layer;

pub use self::capture::{Capture, Captured, WholeAnswer, WholeResponse};

use crate::lease::layer::{OnLease, OnLeases};
use crate::middleware::Layered;
use crate::middleware::key::DynKey;
use crate::{AsError, KeyExtractor, SingleFlight};

/// A [`Layer`] that handles one request of a key at a time and gives its response to all others. See the
/// [module](crate::single_flight) for the guarantees.
///
/// Type parameters: the request, the answer and the error of the flight, the [`Capture`] that
/// [converts responses](Self::capture), and the [`Reject`](crate::Reject) that
/// [converts refusals](Self::reject_with).
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_distributed::response::{Answer, AnswerCodec, Responses, refuse};
/// use tower_distributed::{SingleFlight, SingleFlightLayer, Store, extract, web};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by the layer that authenticates, outside of this one
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let flight: SingleFlight<Answer> = SingleFlight::builder(AnswerCodec).build(&Store::in_memory(), "dashboards")?;
/// // The user is a part of the key, so private responses may be shared.
/// let key = (extract::extension(|user: &User| user.0), extract::path_and_query());
/// let layer = SingleFlightLayer::new(flight, key)
///     .capture(Responses::default().share_when(|parts| parts.status.is_success()))
///     .on_lease(web::InsertLease)
///     .reject_with(refuse());
/// let app: Router = Router::new().route("/dashboard", get(async || "all of it")).layer(layer);
/// # Ok(()) }
/// ```
#[derive_where(Clone; C, R)]
pub struct SingleFlightLayer<Req, A, F = Infallible, C = WholeResponse, R = AsError> {
    key: DynKey<Req>,
    flight: SingleFlight<A, F>,
    capture: C,
    on_lease: OnLeases<Req>,
    reject: R,
}

impl<Req, A, F> SingleFlightLayer<Req, A, F> {
    /// Creates a layer that handles requests in the flights of `flight`, by the key of each request.
    #[must_use]
    pub fn new(
        flight: SingleFlight<A, F>,
        key: impl KeyExtractor<Req> + Send + Sync + 'static,
    ) -> Self {
        let (key, on_lease) = (Arc::new(key), Vec::new());
        Self {
            key,
            flight,
            capture: WholeResponse,
            on_lease,
            reject: AsError,
        }
    }
}

impl<Req, A, F, C, R> SingleFlightLayer<Req, A, F, C, R> {
    /// Sets how responses are converted into answers, and back. Default: [`WholeResponse`]. For HTTP use
    /// `response::Responses`.
    #[must_use]
    pub fn capture<C2>(self, capture: C2) -> SingleFlightLayer<Req, A, F, C2, R> {
        let Self {
            key,
            flight,
            capture: _,
            on_lease,
            reject,
        } = self;
        SingleFlightLayer {
            key,
            flight,
            capture,
            on_lease,
            reject,
        }
    }

    /// Adds a closure of `(&LeaseHandle, &mut Req)` that is called before the inner service, for requests that are
    /// handled under a lease, with the [`LeaseHandle`](crate::LeaseHandle). For HTTP use `web::InsertLease`.
    #[must_use]
    pub fn on_lease(mut self, on_lease: impl OnLease<Req> + Send + Sync + 'static) -> Self {
        self.on_lease.push(Arc::new(on_lease));
        self
    }

    /// Converts refusals into responses, by a closure from [`Refusal`](crate::Refusal) to the response or another
    /// [`Reject`](crate::Reject). With such a closure the service's error type is the inner service's. Default: a
    /// refusal is a boxed error. For HTTP use `response::refuse()`, for gRPC `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> SingleFlightLayer<Req, A, F, C, R2> {
        let Self {
            key,
            flight,
            capture,
            on_lease,
            reject: _,
        } = self;
        SingleFlightLayer {
            key,
            flight,
            capture,
            on_lease,
            reject,
        }
    }
}

impl<S, Req, A, F, C: Clone, R: Clone> Layer<S> for SingleFlightLayer<Req, A, F, C, R> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(inner, self.clone())
    }
}

debug!(SingleFlightLayer<Req, A, F, C, R>, flight);
