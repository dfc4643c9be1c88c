//! How the layer handles requests.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body;
use tower::Service;

use super::Shared;
use super::record::{self, Fingerprint, Record};
use crate::dedupe::{Replay, ReplayClaim};
use crate::error::Upload;
use crate::http::reading::Taken;
use crate::middleware::{Middleware, take_ready};
use crate::response::{Answer, FlightBody};
use crate::single_flight::http::asked::Asked;
use crate::single_flight::layer::{Capture, Captured};
use crate::telemetry::{Event, Outcome, tell};
use crate::{Error, Extracted, Key, KeyExtractor as _, Reject};

/// What is done with a request.
enum Answered<T, E> {
    /// The inner service has handled it.
    Handled(Result<T, E>),
    Replayed(Answer),
}

impl<S, B, R, B2> Middleware<S, Request<B>> for Shared<B, R>
where
    S: Service<Request<B>, Response = Response<B2>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send,
    B: Body<Data: Send, Error: Send> + From<Bytes> + Send + 'static,
    R: Reject<Response<FlightBody<B2>>, S::Error> + Send + Sync + 'static,
    B2: Body<Data = Bytes> + Send + 'static,
    B2::Error: Send + 'static,
{
    type Response = Response<FlightBody<B2>>;
    type Error = R::Error;
    type Future = BoxFuture<'static, Result<Self::Response, R::Error>>;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, request: Request<B>) -> Self::Future {
        let (mut inner, shared) = (take_ready(inner), Arc::clone(self));
        let key = record::idempotency_key(request.headers(), shared.is_required);
        let key = key.map(|key| key.map(<[u8]>::to_vec));
        // The principal may be looked up in a database: only if it matters.
        let principal = match *request.method() {
            Method::POST | Method::PATCH if !matches!(key, Ok(None)) => shared.principal.extract(&request),
            _ => Extracted::NONE,
        };
        Box::pin(async move {
            let decisions = shared.replays.decisions();
            let key = match (decisions.extracted(principal.await), key) {
                (Err(error), _) => return shared.reject.reject(error.into()),
                (Ok(Some(_)), Err(error)) => {
                    decisions.count(Outcome::of_error(&error));
                    return shared.reject.reject(error.into());
                }
                (Ok(Some(principal)), Ok(Some(key))) => record::key(&principal, &key),
                (Ok(None), _) | (Ok(Some(_)), Ok(None)) => {
                    let response = inner.call(request).await;
                    let response = response.map(|response| response.map(FlightBody::untouched));
                    return response.map_err(R::inner_error);
                }
            };
            match Arc::clone(&shared).handle(inner, request, key).await {
                Ok(Answered::Handled(response)) => response.map_err(R::inner_error),
                Ok(Answered::Replayed(answer)) => {
                    decisions.count(Outcome::Shared);
                    Ok(replayed(answer))
                }
                Err(error) => {
                    decisions.count(Outcome::of_error(&error));
                    shared.reject.reject(error.into())
                }
            }
        })
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
        let (parts, body) = request.into_parts();
        let (body, taken) = self.upload.read(body).await?;
        let fingerprint = record::fingerprint(&parts, &body);
        let claimed = self.replays.claim(key.clone()).await;
        let claimed = self.away.settle(claimed, |local, _| async move { local.claim(key).await }).await;
        let (replay, outcome) = claimed?;
        let claim = match replay {
            Some(Replay::Known(bytes)) => {
                return self.known(record::decode(&fingerprint, &bytes)).map(Answered::Replayed);
            }
            Some(Replay::Foreign) => return Err(Error::duplicate_as(UNREADABLE)),
            Some(Replay::New(claim)) => Some(claim),
            None => None,
        };
        self.replays.decisions().count(outcome);
        let request = Request::from_parts(parts, B::from(body));
        let Some(claim) = claim else {
            let response = inner.call(request).await;
            return Ok(Answered::Handled(response.map(|response| response.map(FlightBody::untouched))));
        };
        // If the client disconnects, the request is handled to its end, so that a repeated request gets the response.
        let work = self.detach.begin();
        claim.belongs_to(&work);
        let detach = self.detach.clone();
        detach.run(work, self.once(inner, request, taken, claim, fingerprint)).await.map(Answered::Handled)
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
        // `true`: an absolute redirect may be stored. Only the principal gets it, and its scheme does not change.
        let context = (request.method() == Method::HEAD, Asked::of(request.headers()), true);
        let response = inner.call(request).await?;
        drop(taken);
        let (parts, body) = response.into_parts();
        let is_final = self.responses.shares(&parts);
        let response = Response::from_parts(parts, body);
        if !is_final {
            claim.give_back();
            return Ok(response.map(FlightBody::untouched));
        }
        // By the rules for the responses of single flights.
        let Captured { own, shared } =
            Capture::<Request<()>, _, Error>::capture(&self.responses, context, response).await;
        // The answer and its encoded copy.
        let mut stored = self.responses.reading().begin();
        let answer = shared.answer().filter(|answer| stored.add(2 * answer.body.len()));
        // The response is returned after it is stored. If it cannot be stored, `confirm` sends an event.
        let _ = claim.keep(record::encode(&fingerprint, answer.as_ref())).await;
        Ok(own)
    }

    /// Answers a request by its record.
    fn known(&self, record: Record) -> Result<Answer, Error> {
        match record {
            Record::Same(Some(answer)) => Ok(answer),
            Record::Same(None) => Err(Error::duplicate_as(NOT_STORED)),
            Record::Another(part) => Err(Error::upload(Upload::KeyReused(part))),
            Record::Garbled => {
                tell(self.replays.name(), Event::AnswerGarbled, "a stored response could not be decoded");
                Err(Error::duplicate_as(UNREADABLE))
            }
        }
    }
}

const NOT_STORED: &str = "the request was handled before, but its response was not stored";
const UNREADABLE: &str = "the request was handled before, but its stored response cannot be read";

fn replayed<B: Body<Data = Bytes>>(answer: Answer) -> Response<FlightBody<B>> {
    let mut response = answer.into_response();
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("?1"));
    response
}

const REPLAYED: &str = "idempotency-replayed";
