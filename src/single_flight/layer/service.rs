//! How the layer handles requests.

use std::sync::{Arc, Mutex};

use tower::Service;

use super::future::ResponseFuture;
use super::{Capture, Captured, SingleFlightLayer};
use crate::middleware::{Middleware, give_up_ready, take_ready};
use crate::single_flight::{Flown, Landed, Share};
use crate::sync::lock;
use crate::{Error, Extracted, Key, KeyExtractor as _, LeaseHandle, Reject};

impl<S, Req, A, F, C, R> Middleware<S, Req> for SingleFlightLayer<Req, A, F, C, R>
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
    type Future = ResponseFuture<S::Future, Self, C::Response, R::Error>;

    fn inner_error(&self, error: S::Error) -> R::Error {
        self.reject.inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, request: Req) -> Self::Future {
        let layer = Arc::clone(self);
        let key = match layer.key.extract(&request) {
            Extracted::Ready(Ok(Some(key))) => key,
            Extracted::Ready(Ok(None)) => return ResponseFuture::passing(inner.call(request), layer),
            looked_up => {
                let mut inner = take_ready(inner);
                return ResponseFuture::flying(Box::pin(async move {
                    match layer.flight.decisions().extracted(looked_up.await) {
                        Ok(Some(key)) => fly(layer, key, inner, request).await,
                        Ok(None) => match inner.call(request).await {
                            Ok(response) => Ok(layer.capture.pass(response)),
                            Err(error) => Err(layer.reject.inner_error(error)),
                        },
                        Err(error) => layer.reject.reject(error.into()),
                    }
                }));
            }
        };
        let fits = |answer: &A| layer.capture.variant(&request, answer).is_none();
        if let Some(answer) = layer.flight.cached(&key, fits) {
            give_up_ready(inner);
            return ResponseFuture::served(layer.capture.restore(answer));
        }
        ResponseFuture::flying(Box::pin(fly(layer, key, take_ready(inner), request)))
    }
}

/// A request and the service that was polled ready for it. `None` once the work has begun.
type Slot<S, Req> = Arc<Mutex<Option<(S, Req)>>>;

/// Handles a request that takes part in a flight.
async fn fly<S, Req, A, F, C, R>(
    layer: Arc<SingleFlightLayer<Req, A, F, C, R>>,
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
            let (slot, layer) = (Arc::clone(&slot), Arc::clone(&layer));
            move |answer: &A| variant(&slot, &layer.capture, answer).is_none()
        };
        let work = {
            let (slot, layer) = (Arc::clone(&slot), Arc::clone(&layer));
            move |lease: Option<LeaseHandle>| async move {
                let taken = lock(&slot).take();
                let Some((mut inner, mut request)) = taken else {
                    return Flown { own: None, shared: Share::Nobody };
                };
                if let Some(lease) = &lease {
                    layer.on_lease.iter().for_each(|told| told.on_lease(lease, &mut request));
                }
                let context = layer.capture.context(&request);
                let outcome = inner.call(request).await;
                let SingleFlightLayer { flight, capture, .. } = &*layer;
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
        let shared = match layer.flight.fly(flight_key.clone(), fits, work).await {
            Ok(Landed::Own(Some(own))) => return own.map_err(|error| layer.reject.inner_error(error)),
            Ok(Landed::Shared(Ok(answer))) => answer,
            Ok(Landed::Shared(Err(failure))) => {
                return Err(layer.reject.inner_error(layer.capture.fail(failure)));
            }
            Err(refusal) => return layer.reject.reject(refusal.into()),
            // Unreachable: only the run that this call began takes the request, and only once.
            Ok(Landed::Own(None)) => return layer.reject.reject(Error::interrupted().into()),
        };
        match variant(&slot, &layer.capture, &shared) {
            None => return Ok(layer.capture.restore(shared)),
            Some(variant) if flight_key == key => {
                flight_key = [key.as_bytes(), b"\0", &variant].concat().into();
            }
            // The answer of the variant does not fit either: the request is handled alone.
            Some(_) => {
                let Some((mut inner, request)) = lock(&slot).take() else { continue };
                let outcome = inner.call(request).await;
                let outcome = outcome.map(|response| layer.capture.pass(response));
                return outcome.map_err(|error| layer.reject.inner_error(error));
            }
        }
    }
}
