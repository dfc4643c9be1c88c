//! The service of the layer.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body;
use tower::Service;

use crate::dedupe::replay::{Replay, ReplayClaim, Replays};
use crate::error::Error;
use crate::error::reasons::Upload as Refused;
use crate::http::answer::Answer;
use crate::http::message::Taken;
use crate::http::responses::Asked;
use crate::idempotency::fingerprint::Fingerprint;
use crate::idempotency::record::Record;
use crate::idempotency::upload::{Upload, restore};
use crate::idempotency::{Shared, record};
use crate::key::Key;
use crate::layers::key::{Extracted, KeyExtractor as _};
use crate::layers::refusal::{Reject, refused};
use crate::layers::single_flight::Capture;
use crate::layers::{Answer as LayerAnswer, Finish, NextState, Policy, Stages, State, take_ready};
use crate::response::FlightBody;
use crate::single_flight::flight::Captured;
use crate::telemetry::emit::tell;
use crate::telemetry::{Event, Outcome};

/// The result of a request.
enum Answered<T, E> {
    /// The inner service has handled it.
    Handled(Result<T, E>),
    Replayed(Box<Answer>),
}

impl<B, R> Stages for Shared<B, R> {
    type Waiting = Infallible;
    type Held = ();
}

impl<S, B, R, B2> Policy<S, Request<B>> for Shared<B, R>
where
    S: Service<Request<B>, Response = Response<B2>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send,
    B: Body<Data: Send, Error: Send> + From<Bytes> + Send + 'static,
    R: Reject<Response<B2>, S::Error> + Send + Sync + 'static,
    B2: Body<Data = Bytes> + Send + 'static,
    B2::Error: Send + 'static,
{
    type Response = Response<FlightBody<B2>>;
    type Error = R::Error;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn begin(
        self: &Arc<Self>,
        inner: &mut S,
        request: Request<B>,
    ) -> NextState<Self, S, Request<B>> {
        let key = self.key_field.key(request.headers(), self.is_required);
        let key = key.map(|key| key.map(<[u8]>::to_vec));
        // The principal may be looked up in a database, so it is extracted only if it is needed.
        let is_answered = self.methods.contains(request.method()) && !matches!(key, Ok(None));
        let principal = if is_answered {
            self.principal.extract(&request)
        } else {
            Extracted::NONE
        };
        if matches!(principal, Extracted::Ready(Ok(None))) {
            return State::calling(inner, request, ());
        }
        let running = Arc::clone(self).run(take_ready(inner), request, principal, key);
        State::Running {
            running: Box::pin(running),
        }
    }

    fn poll_waiting(
        self: &Arc<Self>,
        never: &mut Infallible,
        _: &mut Option<(S, Request<B>)>,
        _: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Request<B>>> {
        match *never {}
    }

    fn finish(
        (): (),
        outcome: Result<Response<B2>, S::Error>,
    ) -> Finish<LayerAnswer<Self, S, Request<B>>> {
        Finish::Now(untouched(outcome).map_err(R::inner_error))
    }
}

/// The response of a request that was passed on.
fn untouched<B: Body<Data = Bytes>, E>(
    outcome: Result<Response<B>, E>,
) -> Result<Response<FlightBody<B>>, E> {
    outcome.map(|response| response.map(FlightBody::untouched))
}

impl<B, R> Shared<B, R> {
    /// Waits for the principal of a request, and handles it.
    async fn run<S, B2>(
        self: Arc<Self>,
        mut inner: S,
        request: Request<B>,
        principal: Extracted,
        key: Result<Option<Vec<u8>>, Error>,
    ) -> Result<Response<FlightBody<B2>>, R::Error>
    where
        S: Service<Request<B>, Response = Response<B2>> + Send + 'static,
        S::Error: Send + 'static,
        S::Future: Send,
        B: Body + From<Bytes> + Send + 'static,
        R: Reject<Response<B2>, S::Error> + Send + Sync + 'static,
        B2: Body<Data = Bytes> + Send + 'static,
        B2::Error: Send + 'static,
    {
        let decisions = self.replays.decisions();
        let key = match (decisions.extracted(principal.await), key) {
            (Err(error), _) => return untouched(refused(&self.reject, error)),
            (Ok(Some(_)), Err(error)) => {
                decisions.count(Outcome::of_error(&error));
                return untouched(refused(&self.reject, error));
            }
            (Ok(Some(principal)), Ok(Some(key))) => record::key(&principal, &key),
            (Ok(None), _) | (Ok(Some(_)), Ok(None)) => {
                return untouched(inner.call(request).await).map_err(R::inner_error);
            }
        };
        match Arc::clone(&self).handle(inner, request, key).await {
            Ok(Answered::Handled(response)) => response.map_err(R::inner_error),
            Ok(Answered::Replayed(answer)) => {
                decisions.count(Outcome::Shared);
                Ok(replayed(*answer))
            }
            Err(error) => {
                decisions.count(Outcome::of_error(&error));
                untouched(refused(&self.reject, error))
            }
        }
    }
}

impl<B, R> Shared<B, R> {
    async fn handle<S, B2>(
        self: Arc<Self>,
        mut inner: S,
        request: Request<B>,
        key: Key,
    ) -> Result<Answered<Response<FlightBody<B2>>, S::Error>, Error>
    where
        S: Service<Request<B>, Response = Response<B2>> + Send + 'static,
        S::Error: Send + 'static,
        S::Future: Send,
        B: Body + From<Bytes> + Send + 'static,
        R: Send + Sync + 'static,
        B2: Body<Data = Bytes> + Send + 'static,
        B2::Error: Send + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let Upload {
            whole,
            trailers,
            taken,
        } = self.upload.read(body).await?;
        let fingerprint = self.compare.fingerprint(&parts, &whole);
        let max_wait = self.max_wait;
        let claimed = self.replays.claim(key.clone(), max_wait).await;
        let local = |local: Arc<Replays>, _| async move { local.claim(key, max_wait).await };
        let claimed = self.away.settle(claimed, local).await;
        let (replay, outcome) = claimed?;
        let claim = match replay {
            Some(Replay::Known(bytes)) => {
                return self
                    .known(record::decode(&fingerprint, &bytes))
                    .map(Answered::Replayed);
            }
            Some(Replay::Foreign) => return Err(Error::duplicate_as(UNREADABLE)),
            Some(Replay::New(claim)) => Some(claim),
            None => None,
        };
        self.replays.decisions().count(outcome);
        let body = restore(whole, trailers, &mut parts.extensions);
        let request = Request::from_parts(parts, body);
        let Some(claim) = claim else {
            let outcome = inner.call(request).await;
            return Ok(Answered::Handled(untouched(outcome)));
        };
        // If the client disconnects, the request is handled to its end, so that a repeated request gets the response.
        let work = self.detach.begin();
        claim.belongs_to(&work);
        let detach = self.detach.clone();
        detach
            .run(work, self.once(inner, request, taken, claim, fingerprint))
            .await
            .map(Answered::Handled)
    }

    /// Handles a request and stores its response.
    async fn once<S, B2>(
        self: Arc<Self>,
        mut inner: S,
        request: Request<B>,
        taken: Taken,
        claim: ReplayClaim,
        fingerprint: Fingerprint,
    ) -> Result<Response<FlightBody<B2>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<B2>>,
        B2: Body<Data = Bytes> + Send + 'static,
        B2::Error: Send + 'static,
    {
        // `true`: an absolute redirect may be stored. Only the same principal gets it, and the scheme of its requests
        // does not change.
        let context = (
            request.method() == Method::HEAD,
            Asked::of(request.headers()),
            true,
        );
        let response = inner.call(request).await?;
        drop(taken);
        let (parts, body) = response.into_parts();
        let is_final = self.responses.shares(&parts);
        let is_stream = self.streams.has(&parts);
        let response = Response::from_parts(parts, body);
        if !is_final || is_stream {
            if is_final && self.streams.confirms {
                let record = record::encode(&fingerprint, None);
                let _ = claim.keep(Arc::clone(&record), record).await;
            } else {
                claim.give_back();
            }
            return Ok(response.map(FlightBody::untouched));
        }
        let claim = HandledClaim {
            claim: Some(claim),
            without_response: record::encode(&fingerprint, None),
        };
        // Uses the rules for responses of single flights.
        let Captured { own, shared } =
            Capture::<Request<()>, _, Error>::capture(&self.responses, context, response).await;
        // Counts the answer and its encoded copy.
        let mut stored = self.responses.reading().begin();
        let answer = shared
            .answer()
            .filter(|answer| stored.add(2 * answer.body.len()));
        // The response is returned after it is stored. If it cannot be stored, `confirm` sends an event.
        claim
            .keep(record::encode(&fingerprint, answer.as_ref()))
            .await;
        Ok(own)
    }

    /// Returns the response for a record.
    fn known(&self, record: Record) -> Result<Box<Answer>, Error> {
        match record {
            Record::Same(Some(answer)) => Ok(answer),
            Record::Same(None) => Err(Error::duplicate_as(NOT_STORED)),
            Record::Another(part) => Err(Error::upload(Refused::KeyReused(part))),
            Record::Incomparable => Err(Error::duplicate_as(INCOMPARABLE)),
            Record::Garbled => {
                tell(
                    self.replays.name(),
                    Event::AnswerGarbled,
                    "a stored response could not be decoded",
                );
                Err(Error::duplicate_as(UNREADABLE))
            }
        }
    }
}

/// The claim of a request that was handled. If its response is not read to the end, the request is recorded as handled,
/// without a response.
struct HandledClaim {
    claim: Option<ReplayClaim>,
    without_response: Arc<[u8]>,
}

impl HandledClaim {
    async fn keep(mut self, record: Arc<[u8]>) {
        if let Some(claim) = self.claim.take() {
            let _ = claim.keep(record, Arc::clone(&self.without_response)).await;
        }
    }
}

impl Drop for HandledClaim {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            // After the first poll, it completes in the background.
            let without = || Arc::clone(&self.without_response);
            let _ = claim.keep(without(), without()).now_or_never();
        }
    }
}

const NOT_STORED: &str = "the request was handled before, but its response was not stored";
const INCOMPARABLE: &str =
    "the request was handled before, by a service that compares requests in another way";
const UNREADABLE: &str = "the request was handled before, but its stored response cannot be read";

fn replayed<B: Body<Data = Bytes>>(answer: Answer) -> Response<FlightBody<B>> {
    let mut response = answer.into_response();
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("?1"));
    response
}

const REPLAYED: &str = "idempotency-replayed";
