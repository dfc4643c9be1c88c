//! The service.

use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use tokio::runtime::Handle;
use tower::Service;

use super::Shared;
use super::record::{self, Fingerprint, Record};
use crate::layer::single_flight::{Capture, Captured};
use crate::layer::take_ready;
use crate::primitive::dedupe::{Replay, ReplayClaim};
use crate::response::{Answer, FlightBody, Responses, refuse};
use crate::telemetry::{Outcome, in_current_span};
use crate::{Error, Extracted, Key, KeyExtractor as _, Reject as _};

/// The [`Service`] of an [`IdempotencyLayer`](super::IdempotencyLayer).
pub struct IdempotencyService<S, B> {
    inner: S,
    shared: Arc<Shared<B>>,
}

impl<S, B> IdempotencyService<S, B> {
    pub(super) fn new(inner: S, shared: Arc<Shared<B>>) -> Self {
        Self { inner, shared }
    }
}

/// The principal and the key of a request.
struct Asked {
    principal: Key,
    key: Vec<u8>,
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send,
    B: Body<Data: Send, Error: Send> + From<Bytes> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send + 'static,
{
    type Response = Response<FlightBody<R>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let shared = Arc::clone(&self.shared);
        let key = shared.key(&request);
        // The principal may be looked up in a database: only if it matters.
        let principal = match *request.method() {
            Method::POST | Method::PATCH if !matches!(key, Ok(None)) => shared.principal.extract(&request),
            _ => Extracted::NONE,
        };
        let passed = |response: Response<R>| response.map(FlightBody::untouched);
        if let Extracted::Ready(Ok(None)) = principal {
            let response = inner.call(request);
            return Box::pin(async move { Ok(passed(response.await?)) });
        }
        Box::pin(async move {
            let principal = match shared.replays.decisions().extracted(principal.await) {
                Ok(Some(principal)) => principal,
                Ok(None) => return Ok(passed(inner.call(request).await?)),
                Err(error) => return refuse().reject(error.into()),
            };
            match key {
                Ok(Some(key)) => shared.handle(inner, request, Asked { principal, key }).await,
                Ok(None) => Ok(passed(inner.call(request).await?)),
                Err(problem) => Ok(problem.into_response()),
            }
        })
    }
}

impl<B> Shared<B> {
    /// Returns the key of a request. `None`: the request passes.
    fn key(&self, request: &Request<B>) -> Result<Option<Vec<u8>>, Problem> {
        let bad = |detail| Problem { status: StatusCode::BAD_REQUEST, detail };
        match record::idempotency_key(request.headers()).map_err(bad)? {
            Some(key) => Ok(Some(key.to_vec())),
            None if self.is_required => Err(bad("Idempotency-Key is missing")),
            None => Ok(None),
        }
    }

    async fn handle<S, R>(
        self: Arc<Self>,
        inner: S,
        request: Request<B>,
        asked: Asked,
    ) -> Result<Response<FlightBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Error: Send + 'static,
        S::Future: Send,
        B: Body + From<Bytes> + Send + 'static,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send + 'static,
    {
        let (parts, body) = request.into_parts();
        let body = match read(body, self.largest_request).await {
            Ok(body) => body,
            Err(problem) => return Ok(problem.into_response()),
        };
        let fingerprint = record::fingerprint(&parts, &body);
        let decisions = self.replays.decisions();
        let claim = match self.replays.claim(record::key(&asked.principal, &asked.key)).await {
            Ok(Replay::New(claim)) => claim,
            Ok(Replay::Known(bytes)) => {
                let response = self.replay(record::decode(&fingerprint, &bytes));
                let is_replay = response.headers().contains_key(REPLAYED);
                decisions.count(if is_replay { Outcome::Shared } else { Outcome::Refused });
                return Ok(response);
            }
            Err(error) => {
                decisions.count(Outcome::of_error(&error));
                return refuse().reject(error.into());
            }
        };
        decisions.count(Outcome::Admitted);
        let request = Request::from_parts(parts, B::from(body));
        // If the client disconnects, the request is handled to its end, so that a repeated request gets the response.
        let once = in_current_span(self.once(inner, request, claim, fingerprint));
        let Ok(runtime) = Handle::try_current() else { return once.await };
        match runtime.spawn(once).await {
            Ok(response) => response,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => refuse().reject(Error::interrupted().into()),
            },
        }
    }

    /// Handles a request and stores its response.
    async fn once<S, R>(
        self: Arc<Self>,
        mut inner: S,
        request: Request<B>,
        claim: ReplayClaim,
        fingerprint: Fingerprint,
    ) -> Result<Response<FlightBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send + 'static,
    {
        // `true`: an absolute redirect may be stored. Only the principal gets it, and its scheme does not change.
        let context = (request.method().clone(), request.headers().clone(), true);
        let response = inner.call(request).await?;
        let (parts, body) = response.into_parts();
        let is_final = self.responses.shares(&parts);
        let response = Response::from_parts(parts, body);
        if !is_final {
            // Releases the claim.
            drop(claim);
            return Ok(response.map(FlightBody::untouched));
        }
        let Captured { own, shared } = capture(&self.responses, context, response).await;
        // The response is returned after it is stored. If it cannot be stored, `confirm` sends an event.
        let _ = claim.keep(record::encode(&fingerprint, shared.answer().as_ref())).await;
        Ok(own)
    }

    fn replay<R>(&self, record: Record) -> Response<FlightBody<R>>
    where
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send + 'static,
    {
        let problem = |status, detail| Problem { status, detail }.into_response();
        match record {
            Record::Same(Some(answer)) => {
                let mut response = Response::new(FlightBody::whole(answer.body, None));
                *response.status_mut() = answer.status;
                *response.headers_mut() = answer.headers;
                response.headers_mut().insert(REPLAYED, HeaderValue::from_static("?1"));
                response
            }
            Record::Same(None) => problem(
                StatusCode::CONFLICT,
                "the request was handled before, but its response was not stored",
            ),
            Record::Another => {
                problem(StatusCode::UNPROCESSABLE_ENTITY, "this Idempotency-Key was used for another request")
            }
            Record::Garbled => {
                problem(StatusCode::INTERNAL_SERVER_ERROR, "the stored response cannot be read")
            }
        }
    }
}

const REPLAYED: &str = "idempotency-replayed";

/// Captures a response by the rules for the responses of single flights.
async fn capture<R>(
    responses: &Responses,
    context: (Method, http::HeaderMap, bool),
    response: Response<R>,
) -> Captured<Response<FlightBody<R>>, Answer>
where
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send + 'static,
{
    Capture::<Request<()>, _, Error>::capture(responses, context, response).await
}

/// A request that cannot be handled.
struct Problem {
    status: StatusCode,
    /// Inserted in JSON without escaping.
    detail: &'static str,
}

impl Problem {
    fn into_response<R: Body<Data = Bytes>>(self) -> Response<FlightBody<R>> {
        let Self { status, detail } = self;
        let title = status.canonical_reason().unwrap_or_default();
        let text = format!(
            "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{},\"detail\":\"{detail}\"}}",
            status.as_u16()
        );
        let mut response = Response::new(FlightBody::from(text));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

/// Reads a body of up to `largest` bytes.
async fn read<B: Body>(body: B, largest: usize) -> Result<Bytes, Problem> {
    let too_large =
        Problem { status: StatusCode::PAYLOAD_TOO_LARGE, detail: "the request body is too large" };
    if body.size_hint().lower() > largest as u64 {
        return Err(too_large);
    }
    let mut body = pin!(body);
    let mut whole = BytesMut::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let broken =
            Problem { status: StatusCode::BAD_REQUEST, detail: "the request body could not be read" };
        let Ok(mut data) = frame.map_err(|_| broken)?.into_data() else { continue };
        if whole.len() + data.remaining() > largest {
            return Err(too_large);
        }
        whole.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    Ok(whole.freeze())
}

impl<S: Clone, B> Clone for IdempotencyService<S, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, B> fmt::Debug for IdempotencyService<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("shared", &self.shared)
            .finish()
    }
}
