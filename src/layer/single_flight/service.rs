//! The service of the layer.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tower::Service;

use super::future::ResponseFuture;
use super::{Capture, Captured, Config, WholeResponse};
use crate::layer::{give_up_ready, take_ready};
use crate::primitive::single_flight::{Flown, Landed, Share};
use crate::store::lock;
use crate::{AsError, Error, Extracted, Key, KeyExtractor as _, LeaseHandle, Reject};

/// The [`Service`] of a [`SingleFlightLayer`](super::SingleFlightLayer).
pub struct SingleFlightService<S, Req, A, F = Infallible, C = WholeResponse, R = AsError> {
    inner: S,
    config: Arc<Config<Req, A, F, C, R>>,
}

impl<S, Req, A, F, C, R> SingleFlightService<S, Req, A, F, C, R> {
    pub(super) fn new(inner: S, config: Config<Req, A, F, C, R>) -> Self {
        Self { inner, config: Arc::new(config) }
    }

    /// Returns a reference to the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Req, A, F, C, R> Service<Req> for SingleFlightService<S, Req, A, F, C, R>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    A: Clone + Send + Sync + 'static,
    F: Send + Sync + 'static,
    C: Capture<Req, S::Response, S::Error, Answer = A, Failure = F>,
    R: Reject<C::Response, S::Error> + Send + Sync + 'static,
    R::Error: 'static,
{
    type Response = C::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S::Future, Req, A, F, C, R, C::Response, R::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.config.reject.inner_error(error))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let config = Arc::clone(&self.config);
        let key = match config.key.extract(&request) {
            Extracted::Ready(Ok(Some(key))) => key,
            Extracted::Ready(Ok(None)) => return ResponseFuture::passing(self.inner.call(request), config),
            looked_up => {
                let mut inner = take_ready(&mut self.inner);
                return ResponseFuture::flying(Box::pin(async move {
                    match config.flight.decisions().extracted(looked_up.await) {
                        Ok(Some(key)) => fly(config, key, inner, request).await,
                        Ok(None) => match inner.call(request).await {
                            Ok(response) => Ok(config.capture.pass(response)),
                            Err(error) => Err(config.reject.inner_error(error)),
                        },
                        Err(error) => config.reject.reject(error.into()),
                    }
                }));
            }
        };
        let fits = |answer: &A| config.capture.variant(&request, answer).is_none();
        if let Some(answer) = config.flight.cached(&key, fits) {
            give_up_ready(&mut self.inner);
            return ResponseFuture::served(config.capture.restore(answer));
        }
        ResponseFuture::flying(Box::pin(fly(config, key, take_ready(&mut self.inner), request)))
    }
}

/// A request and the service that was polled ready for it. `None` once the work has begun.
type Slot<S, Req> = Arc<Mutex<Option<(S, Req)>>>;

/// Handles a request that takes part in a flight.
async fn fly<S, Req, A, F, C, R>(
    config: Arc<Config<Req, A, F, C, R>>,
    key: Key,
    inner: S,
    request: Req,
) -> Result<C::Response, R::Error>
where
    S: Service<Req> + Send + 'static,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    A: Clone + Send + Sync + 'static,
    F: Send + Sync + 'static,
    C: Capture<Req, S::Response, S::Error, Answer = A, Failure = F>,
    R: Reject<C::Response, S::Error> + Send + Sync + 'static,
{
    let slot: Slot<S, Req> = Arc::new(Mutex::new(Some((inner, request))));
    let variant = |slot: &Slot<S, Req>, capture: &C, answer: &A| match &*lock(slot) {
        Some((_, request)) => capture.variant(request, answer),
        // The run has taken the request. The answer was checked against it before.
        None => None,
    };
    let mut flight_key = key.clone();
    loop {
        let fits = {
            let (slot, config) = (Arc::clone(&slot), Arc::clone(&config));
            move |answer: &A| variant(&slot, &config.capture, answer).is_none()
        };
        let work = {
            let (slot, config) = (Arc::clone(&slot), Arc::clone(&config));
            move |lease: Option<LeaseHandle>| async move {
                let taken = lock(&slot).take();
                let Some((mut inner, mut request)) = taken else {
                    return Flown { own: None, shared: Share::Nobody };
                };
                if let Some(lease) = &lease {
                    config.on_lease.iter().for_each(|told| told.on_lease(lease, &mut request));
                }
                let context = config.capture.context(&request);
                let outcome = inner.call(request).await;
                let Config { flight, capture, .. } = &*config;
                let (own, shared) = match outcome {
                    Ok(response) => {
                        let Captured { own, shared } = capture.capture(context, response).await;
                        (Ok(own), shared.map(Ok))
                    }
                    Err(error) => {
                        let failure = capture.failure(&error);
                        let shared =
                            failure.map_or(Share::Nobody, |failure| flight.format().share_error(failure));
                        (Err(error), shared.map(Err))
                    }
                };
                Flown { own: Some(own), shared }
            }
        };
        let shared = match config.flight.fly(flight_key.clone(), fits, work).await {
            Ok(Landed::Own(Some(own))) => return own.map_err(|error| config.reject.inner_error(error)),
            Ok(Landed::Shared(Ok(answer))) => answer,
            Ok(Landed::Shared(Err(failure))) => {
                return Err(config.reject.inner_error(config.capture.fail(failure)));
            }
            Err(refusal) => return config.reject.reject(refusal.into()),
            // Unreachable: only the run that this call began takes the request, and only once.
            Ok(Landed::Own(None)) => return config.reject.reject(Error::interrupted().into()),
        };
        match variant(&slot, &config.capture, &shared) {
            None => return Ok(config.capture.restore(shared)),
            Some(variant) if flight_key == key => {
                flight_key = [key.as_bytes(), b"\0", &variant].concat().into();
            }
            // The answer of the variant does not fit either: the request is handled alone.
            Some(_) => {
                let Some((mut inner, request)) = lock(&slot).take() else { continue };
                let outcome = inner.call(request).await;
                let outcome = outcome.map(|response| config.capture.pass(response));
                return outcome.map_err(|error| config.reject.inner_error(error));
            }
        }
    }
}

impl<S: Clone, Req, A, F, C, R> Clone for SingleFlightService<S, Req, A, F, C, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<S: fmt::Debug, Req, A, F, C, R> fmt::Debug for SingleFlightService<S, Req, A, F, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightService")
            .field("inner", &self.inner)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
