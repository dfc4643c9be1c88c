//! The layer of single flights, see the public module [`single_flight`](crate::single_flight): how responses become
//! answers, and how a request takes part in a flight.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use derive_where::derive_where;
use tower::Service;
use tower_layer::Layer;

use crate::error::Error;
use crate::key::Key;
use crate::layers::key::{DynKey, Extracted, KeyExtractor};
use crate::layers::lease::{OnLease, OnLeases};
use crate::layers::refusal::{AsError, Reject, refused};
use crate::layers::{Answer, Finish, Layered, NextState, Policy, Stages, State, take_ready};
use crate::lease::handle::LeaseHandle;
use crate::single_flight::SingleFlight;
use crate::single_flight::flight::{Captured, FlightOutcome, Work};
use crate::single_flight::outcome::Share;

/// A [`Layer`] that handles one request of a key at a time and returns its response to all other requests of the key.
/// See the [module](crate::single_flight) for the guarantees.
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
/// struct User(u64); // inserted by an outer layer that authenticates
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
        Self {
            key: Arc::new(key),
            flight,
            capture: WholeResponse,
            on_lease: Vec::new(),
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

/// Converts a service's responses into answers that can be shared, and answers into responses.
///
/// [`WholeResponse`] is for services whose response is the answer. For HTTP use `response::Responses`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot share a response `{Res}` to a `{Req}`",
    label = "the response cannot be shared as it is",
    note = "for HTTP use `web::single_flight(flight, extract::shared_get())`, which shares the response with its body",
    note = "for other services the response must be `Clone`, and it must be the answer type of the `SingleFlight`"
)]
pub trait Capture<Req, Res, E>: Clone + Send + Sync + 'static {
    /// The answer that is shared.
    type Answer: Send + 'static;
    /// The type of shared errors.
    type Failure: Send + 'static;
    /// The response of the layer's service.
    type Response: Send + 'static;
    /// The part of a request that is kept while the inner service handles it.
    type Context: Send + 'static;

    /// Returns the context of a request, before the inner service handles it.
    fn context(&self, request: &Req) -> Self::Context;

    /// Converts a response of the inner service into the caller's response and an answer.
    fn capture(
        &self,
        context: Self::Context,
        response: Res,
    ) -> impl Future<Output = Captured<Self::Response, Self::Answer>> + Send;

    /// Converts an answer into a response for another caller.
    fn restore(&self, answer: Self::Answer) -> Self::Response;

    /// Converts a response that is not shared.
    fn pass(&self, response: Res) -> Self::Response;

    /// Returns `None` if the answer is valid for the request. Otherwise returns bytes that are appended to the key, so
    /// that the request shares a flight with requests of the same variant only. For HTTP, these are the values of the
    /// fields that `Vary` names.
    fn variant(&self, request: &Req, answer: &Self::Answer) -> Option<Vec<u8>> {
        let _ = (request, answer);
        None
    }

    /// Returns the part of an error that can be shared. `None`: the error is not shared.
    fn failure<'a>(&self, error: &'a E) -> Option<&'a Self::Failure>;

    /// Converts a shared error into the error of another caller.
    fn fail(&self, failure: Self::Failure) -> E;
}

/// Shares responses and errors unchanged: the response is the answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeResponse;

/// Responses that can be shared as they are: `Clone + Send + 'static`. Do not implement it.
#[diagnostic::on_unimplemented(
    message = "a response `{Self}` cannot be shared as it is",
    label = "the response is not `Clone`",
    note = "for HTTP use `web::single_flight(flight, extract::shared_get())` with the codec `response::AnswerCodec`"
)]
pub trait WholeAnswer: Clone + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<Res: Clone + Send + 'static> WholeAnswer for Res {}

impl<Req, Res, E> Capture<Req, Res, E> for WholeResponse
where
    Res: WholeAnswer,
    E: Send + 'static,
{
    type Answer = Res;
    type Failure = E;
    type Response = Res;
    type Context = ();

    fn context(&self, _: &Req) {}

    fn capture(&self, (): (), response: Res) -> impl Future<Output = Captured<Res, Res>> + Send {
        ready(Captured {
            own: response.clone(),
            shared: Share::stored(response),
        })
    }

    fn restore(&self, answer: Res) -> Res {
        answer
    }

    fn pass(&self, response: Res) -> Res {
        response
    }

    fn failure<'a>(&self, error: &'a E) -> Option<&'a E> {
        Some(error)
    }

    fn fail(&self, failure: E) -> E {
        failure
    }
}

impl<Req, A, F, C, R> Stages for SingleFlightLayer<Req, A, F, C, R> {
    type Waiting = Infallible;
    /// For a request that does not take part in a flight. A flight runs in a task of its own.
    type Held = Arc<Self>;
}

impl<S, Req, A, F, C, R> Policy<S, Req> for SingleFlightLayer<Req, A, F, C, R>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    A: Clone + Send + Sync + 'static,
    F: Send + Sync + 'static,
    C: Capture<Req, S::Response, S::Error, Answer = A, Failure = F>,
    R: Reject<S::Response, S::Error> + Send + Sync + 'static,
    R::Error: 'static,
{
    type Response = C::Response;
    type Error = R::Error;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn begin(self: &Arc<Self>, inner: &mut S, request: Req) -> NextState<Self, S, Req> {
        let layer = Arc::clone(self);
        let key = match self.key.extract(&request) {
            Extracted::Ready(Ok(Some(key))) => key,
            Extracted::Ready(Ok(None)) => return State::calling(inner, request, layer),
            looked_up => {
                let call = Box::new((take_ready(inner), request));
                return State::Running {
                    running: Box::pin(layer.look_up(looked_up, call)),
                };
            }
        };
        let fits = |answer: &A| self.capture.variant(&request, answer).is_none();
        if let Some(answer) = self.flight.0.cached(&key, fits) {
            return State::answered(Ok(self.capture.restore(answer)));
        }
        let call = Box::new((take_ready(inner), request));
        State::Running {
            running: Box::pin(layer.fly(key, call)),
        }
    }

    fn poll_waiting(
        self: &Arc<Self>,
        never: &mut Infallible,
        _: &mut Option<(S, Req)>,
        _: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Req>> {
        match *never {}
    }

    fn finish(
        layer: Arc<Self>,
        outcome: Result<S::Response, S::Error>,
    ) -> Finish<Answer<Self, S, Req>> {
        Finish::Now(layer.pass(outcome))
    }
}

/// A request, and the service that was polled ready for it. Boxed, because it is moved into its run and back.
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
        R: Reject<S::Response, S::Error> + Send + Sync + 'static,
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
                Err(error) => return self.refuse::<S::Response, S::Error>(error),
            };
            // A stale answer that is served while the work runs was already checked against its request.
            let variant =
                unused.and_then(|work| Some((self.capture.variant(&work.call.1, &answer)?, work)));
            let Some((variant, unused)) = variant else {
                return Ok(self.capture.restore(answer));
            };
            if of_variant.is_some() {
                // The answer of the variant is not valid either: the request is handled alone. Boxed, because it is
                // rare.
                let (mut inner, request) = *unused.call;
                return self.pass(Box::pin(inner.call(request)).await);
            }
            (work, of_variant) = (
                unused,
                Some([key.as_bytes(), b"\0", &variant].concat().into()),
            );
        }
    }

    /// Looks up the key of a request, and handles it.
    async fn look_up<S>(
        self: Arc<Self>,
        key: Extracted,
        mut call: Box<(S, Req)>,
    ) -> Result<C::Response, R::Error>
    where
        S: Service<Req> + Send + 'static,
        S::Future: Send + 'static,
        S::Response: Send + 'static,
        S::Error: Send + 'static,
        Req: Send + 'static,
        C: Capture<Req, S::Response, S::Error, Answer = A, Failure = F>,
        R: Reject<S::Response, S::Error> + Send + Sync + 'static,
    {
        match self.flight.0.decisions.extracted(key.await) {
            Ok(Some(key)) => self.fly(key, call).await,
            Ok(None) => self.pass(call.0.call(call.1).await),
            Err(error) => self.refuse::<S::Response, S::Error>(error),
        }
    }

    /// Converts an outcome that is not shared.
    fn pass<Res, E>(&self, outcome: Result<Res, E>) -> Result<C::Response, R::Error>
    where
        C: Capture<Req, Res, E>,
        R: Reject<Res, E>,
    {
        match outcome {
            Ok(response) => Ok(self.capture.pass(response)),
            Err(error) => Err(R::inner_error(error)),
        }
    }

    fn refuse<Res, E>(&self, error: Error) -> Result<C::Response, R::Error>
    where
        C: Capture<Req, Res, E>,
        R: Reject<Res, E>,
    {
        refused(&self.reject, error).map(|response| self.capture.pass(response))
    }
}
