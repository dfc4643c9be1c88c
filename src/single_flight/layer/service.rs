//! How the layer handles requests.

use std::sync::Arc;

use tower::Service;

use super::future::ResponseFuture;
use super::{Capture, Captured, SingleFlightLayer};
use crate::middleware::{Middleware, give_up_ready, refused, take_ready};
use crate::single_flight::{FlightOutcome, Share, Work};
use crate::{Extracted, Key, KeyExtractor as _, LeaseHandle, Reject};

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

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, request: Req) -> Self::Future {
        let layer = Arc::clone(self);
        let key = match layer.key.extract(&request) {
            Extracted::Ready(Ok(Some(key))) => key,
            Extracted::Ready(Ok(None)) => {
                return ResponseFuture::passing(inner.call(request), layer);
            }
            looked_up => {
                let mut call = Box::new((take_ready(inner), request));
                return ResponseFuture::flying(Box::pin(async move {
                    match layer.flight.0.decisions.extracted(looked_up.await) {
                        Ok(Some(key)) => layer.fly(key, call).await,
                        Ok(None) => layer.handle_alone(call.0.call(call.1)).await,
                        Err(error) => refused(&layer.reject, error),
                    }
                }));
            }
        };
        let fits = |answer: &A| layer.capture.variant(&request, answer).is_none();
        if let Some(answer) = layer.flight.0.cached(&key, fits) {
            give_up_ready(inner);
            return ResponseFuture::served(layer.capture.restore(answer));
        }
        ResponseFuture::flying(Box::pin(
            layer.fly(key, Box::new((take_ready(inner), request))),
        ))
    }
}

/// A request, and the service that was polled ready for it. Boxed, since it is moved to its run and back.
struct Handling<S, Req, L> {
    layer: Arc<L>,
    call: Box<(S, Req)>,
}

impl<S, Req, A, F, C, R> Work<A, F> for Handling<S, Req, SingleFlightLayer<Req, A, F, C, R>>
where
    S: Service<Req> + Send + 'static,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    A: Clone + Send + Sync + 'static,
    F: Send + Sync + 'static,
    C: Capture<Req, S::Response, S::Error, Answer = A, Failure = F>,
    R: Send + Sync + 'static,
{
    type Own = Result<C::Response, S::Error>;

    fn fits(&self, stale: &A) -> bool {
        self.layer.capture.variant(&self.call.1, stale).is_none()
    }

    fn run(
        self,
        lease: Option<LeaseHandle>,
    ) -> impl Future<Output = Captured<Self::Own, Result<A, F>>> + Send + 'static {
        let (layer, (mut inner, mut request)) = (self.layer, *self.call);
        if let Some(lease) = &lease {
            layer
                .on_lease
                .iter()
                .for_each(|on_lease| on_lease.on_lease(lease, &mut request));
        }
        let context = layer.capture.context(&request);
        let outcome = inner.call(request);
        async move {
            let SingleFlightLayer {
                flight, capture, ..
            } = &*layer;
            match outcome.await {
                Ok(response) => {
                    let Captured { own, shared } = capture.capture(context, response).await;
                    Captured {
                        own: Ok(own),
                        shared: shared.map(Ok),
                    }
                }
                Err(error) => {
                    let failure = capture.failure(&error);
                    let shared = failure.map_or(Share::Nobody, |failure| {
                        flight.0.format.share_error(failure)
                    });
                    Captured {
                        own: Err(error),
                        shared: shared.map(Err),
                    }
                }
            }
        }
    }
}

impl<Req, A, F, C, R> SingleFlightLayer<Req, A, F, C, R>
where
    A: Clone + Send + Sync + 'static,
    F: Send + Sync + 'static,
{
    /// Handles a request that takes part in a flight.
    async fn fly<S>(self: Arc<Self>, key: Key, call: Box<(S, Req)>) -> Result<C::Response, R::Error>
    where
        S: Service<Req> + Send + 'static,
        S::Future: Send + 'static,
        S::Response: Send + 'static,
        S::Error: Send + 'static,
        Req: Send + 'static,
        C: Capture<Req, S::Response, S::Error, Answer = A, Failure = F>,
        R: Reject<C::Response, S::Error> + Send + Sync + 'static,
    {
        let mut work = Handling {
            layer: Arc::clone(&self),
            call,
        };
        let mut of_variant = None;
        loop {
            let (answer, unused) = match self
                .flight
                .0
                .fly(of_variant.as_ref().unwrap_or(&key), work)
                .await
            {
                Ok(FlightOutcome::Own(own)) => return own.map_err(R::inner_error),
                Ok(FlightOutcome::Shared(Ok(answer), unused)) => (answer, unused),
                Ok(FlightOutcome::Shared(Err(failure), _)) => {
                    return Err(R::inner_error(self.capture.fail(failure)));
                }
                Err(refusal) => return refused(&self.reject, refusal),
            };
            // An answer that is served while the work runs was checked against its request before.
            let variant =
                unused.and_then(|work| Some((self.capture.variant(&work.call.1, &answer)?, work)));
            let Some((variant, unused)) = variant else {
                return Ok(self.capture.restore(answer));
            };
            if of_variant.is_some() {
                // The answer of the variant does not fit either: the request is handled alone. In a box, since it is rare.
                let (mut inner, request) = *unused.call;
                return Box::pin(self.handle_alone(inner.call(request))).await;
            }
            (work, of_variant) = (
                unused,
                Some([key.as_bytes(), b"\0", &variant].concat().into()),
            );
        }
    }

    /// Awaits a response that is not shared.
    async fn handle_alone<Res, E>(
        &self,
        response: impl Future<Output = Result<Res, E>>,
    ) -> Result<C::Response, R::Error>
    where
        C: Capture<Req, Res, E>,
        R: Reject<C::Response, E>,
    {
        match response.await {
            Ok(response) => Ok(self.capture.pass(response)),
            Err(error) => Err(R::inner_error(error)),
        }
    }
}
