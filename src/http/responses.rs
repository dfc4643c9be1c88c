//! HTTP responses as the answers of single flights.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VARY,
};
use http::{HeaderMap, HeaderName, Method, Request, Response, response};
use http_body::Body;

use super::answer::Varied;
use super::shareable::items;
use super::{Answer, FlightBody, is_shareable};
use crate::single_flight_layer::{Capture, Captured};

#[cfg(test)]
mod tests;

/// Shares responses with their bodies.
///
/// Only [what may be shared](Self::share_when) is read, and up to [a length](Self::largest_body): the caller whose
/// request it was gets the response once its body is there as a whole. All else is passed on unread, as the stream
/// that it is. Of a body that turns out too large the caller whose request it was gets what has been read, and then
/// the rest as it comes; of one that fails, what has been read, and then the error. Neither is shared, nor is a body
/// of another length than its `Content-Length`. Nor are the service's errors, as opposed to its responses.
///
/// What others get is the status, the header fields and the body. They do not get trailers, the response's extensions
/// (the caller whose request it was does), nor what concerns one connection only: `Connection` and what it names,
/// `Keep-Alive`, `TE`, `Trailer`, `Transfer-Encoding`, `Upgrade` and the proxy's fields. `Content-Length` stays as it
/// is, which is what HEAD is about.
///
/// Where the response has a `Vary`, it answers those who have sent the same in the fields that it names, byte by byte.
/// Whose request differs in them meets others like it. What a response depends on and does not name there
/// (`Origin`, `Accept-Language`, `X-Forwarded-Proto`), all get as the first has asked for it.
///
/// ```
/// use http::StatusCode;
/// use tower_distributed::http::{Responses, is_shareable};
///
/// let responses = Responses::default()
///     .largest_body(64 * 1024)
///     .share_when(|parts| is_shareable(parts) || parts.status == StatusCode::SERVICE_UNAVAILABLE);
/// ```
#[derive(Clone)]
pub struct Responses {
    largest_body: usize,
    share_when: Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>,
}

impl Responses {
    /// Bodies of up to so many bytes are shared: 1 MiB unless told otherwise. What processes share, header fields and
    /// all, has [a limit of its own](crate::single_flight::SingleFlightBuilder::largest_answer).
    #[must_use]
    pub fn largest_body(self, bytes: usize) -> Self {
        Self { largest_body: bytes, ..self }
    }

    /// Which responses are shared: those that [are shareable](is_shareable) unless told otherwise.
    ///
    /// The closure has the last word. One that forgets `Set-Cookie` gives one client's session to another, and one
    /// that lets an endless stream be read keeps back its beginning.
    #[must_use]
    pub fn share_when(self, share: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { share_when: Arc::new(share), ..self }
    }

    /// Reads a body to its end, unless it is too large or fails.
    async fn read<B>(&self, body: B) -> Result<(Bytes, Option<HeaderMap>), FlightBody<B>>
    where
        B: Body<Data = Bytes>,
    {
        if body.is_end_stream() {
            return Ok((Bytes::new(), None));
        }
        let mut body = Box::pin(body);
        let (mut read, mut length, mut trailers) = (Vec::new(), 0_usize, None);
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) if data.is_empty() => {}
                Ok(Ok(data)) => {
                    length = length.saturating_add(data.len());
                    read.push(data);
                    if length > self.largest_body {
                        return Err(FlightBody::begun(read, body));
                    }
                }
                Ok(Err(frame)) => trailers = frame.into_trailers().ok().or(trailers),
                Err(error) => return Err(FlightBody::failed(read, error)),
            }
        }
        let whole = match &mut read[..] {
            [one] => std::mem::take(one),
            several => several.concat().into(),
        };
        Ok((whole, trailers))
    }
}

impl Responses {
    /// Whether a response is to be shared, by its head.
    pub(super) fn shares(&self, parts: &response::Parts) -> bool {
        (self.share_when)(parts)
    }
}

impl Default for Responses {
    fn default() -> Self {
        Self { largest_body: 1024 * 1024, share_when: Arc::new(is_shareable) }
    }
}

impl<ReqB, B, E> Capture<Request<ReqB>, Response<B>, E> for Responses
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send + 'static,
{
    type Answer = Answer;
    type Failure = Infallible;
    type Response = Response<FlightBody<B>>;
    type Context = (Method, HeaderMap);

    fn context(&self, request: &Request<ReqB>) -> Self::Context {
        (request.method().clone(), request.headers().clone())
    }

    async fn capture(
        &self,
        (method, asked): Self::Context,
        response: Response<B>,
    ) -> Captured<Self::Response, Answer> {
        let (parts, body) = response.into_parts();
        let unshared = |parts, body| Captured { own: Response::from_parts(parts, body), shared: None };
        if body.size_hint().lower() > self.largest_body as u64 || !(self.share_when)(&parts) {
            return unshared(parts, FlightBody::untouched(body));
        }
        let (body, trailers) = match self.read(body).await {
            Ok(whole) => whole,
            Err(begun) => return unshared(parts, begun),
        };
        let own = FlightBody::whole(body.clone(), trailers);
        if method != Method::HEAD && !has_length(&parts.headers, body.len()) {
            return unshared(parts, own);
        }
        let answer = Answer {
            status: parts.status,
            headers: end_to_end(&parts.headers),
            vary: varied(&parts.headers, &asked),
            body,
        };
        Captured { own: Response::from_parts(parts, own), shared: Some(answer) }
    }

    fn restore(&self, answer: Answer) -> Self::Response {
        let mut response = Response::new(FlightBody::whole(answer.body, None));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }

    fn pass(&self, response: Response<B>) -> Self::Response {
        response.map(FlightBody::untouched)
    }

    fn variant(&self, request: &Request<ReqB>, answer: &Answer) -> Option<Vec<u8>> {
        let own = |name| request.headers().get_all(name).iter();
        if answer.vary.iter().all(|(name, values)| own(name).eq(values)) {
            return None;
        }
        // As HTTP writes it, and as unambiguous: neither names nor values have line feeds, nor names colons.
        let mut variant = Vec::new();
        let mut write = |parts: &[&[u8]]| parts.iter().for_each(|part| variant.extend_from_slice(part));
        for (name, _) in &answer.vary {
            let bytes = name.as_str().as_bytes();
            if own(name).next().is_none() {
                write(&[bytes, b"\n"]);
            }
            for value in own(name) {
                write(&[bytes, b":", value.as_bytes(), b"\n"]);
            }
        }
        Some(variant)
    }

    fn failure<'a>(&self, _: &'a E) -> Option<&'a Infallible> {
        None
    }

    fn fail(&self, failure: Infallible) -> E {
        match failure {}
    }
}

fn has_length(headers: &HeaderMap, length: usize) -> bool {
    let told = |value: &http::HeaderValue| value.to_str().ok()?.parse().ok();
    headers.get(CONTENT_LENGTH).is_none_or(|value| told(value) == Some(length))
}

/// The fields that a response's `Vary` names, in one order however it does, as a request has them.
fn varied(headers: &HeaderMap, asked: &HeaderMap) -> Vec<Varied> {
    // What is no name, no request has.
    let mut names: Vec<_> =
        items(headers, &VARY).filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    let with_values = |name| {
        let values = asked.get_all(&name).iter().cloned().collect();
        (name, values)
    };
    names.into_iter().map(with_values).collect()
}

/// Without the fields that concern one connection only (RFC 9110, 7.6.1).
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const HOP_BY_HOP: [HeaderName; 10] = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        HeaderName::from_static("proxy-authentication-info"),
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    let mut kept = headers.clone();
    for name in items(headers, &CONNECTION).filter_map(|name| HeaderName::from_bytes(name).ok()) {
        kept.remove(name);
    }
    for name in HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").field("largest_body", &self.largest_body).finish_non_exhaustive()
    }
}
