//! Responses as the answers of single flights: converts a response with its body into an [`Answer`], and the answer
//! into responses for other callers. Each caller gets the answer for its values of the fields in `Vary`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::header::{AGE, LOCATION, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, response};
use http_body::Body;
use smallvec::SmallVec;

use crate::http::answer::{Answer, Varied};
use crate::http::extract::shared_get::tells_scheme;
use crate::http::message::{Reading, for_others, has_length, items};
use crate::http::replayed_body::FlightBody;
use crate::http::shareable::{Freshness, is_for_all, is_shareable};
use crate::layers::single_flight::Capture;
use crate::single_flight::flight::Captured;
use crate::single_flight::outcome::Share;

#[cfg(test)]
mod tests;

/// Shares HTTP responses with their bodies; the [`Capture`] of `web::single_flight`.
///
/// Only a response that [may be shared](Self::share_when) is read, up to [a length](Self::largest_body). The caller
/// of the request gets it once the body is complete. Every other response is passed on unread, as a stream.
///
/// A body is not shared if
///
/// * it is too large, or there is [no budget](Self::max_buffered) for it: the caller of the request gets the data
///   that were read, and then the rest as it arrives;
/// * it fails: the caller of the request gets the data that were read, and then the error;
/// * its length differs from its `Content-Length`.
///
/// Errors of the service (`Err`, not a response) are not shared.
///
/// | response | callers that wait now | later callers |
/// |---|---|---|
/// | [shareable](is_shareable) | get it | get it, for as long as the flight and the response allow |
/// | the same with `max-age=0` or the like: it has already expired | get it | run: one leads, the others wait |
/// | 5xx, unless [disabled](Self::share_failures) | get it | run: one leads, the others wait |
/// | other 4xx and 5xx, bodies that fail or have no budget, the service's errors | all run at once | run: one leads, the others wait |
/// | private or too large; a redirect to an absolute URI if the request does not state its scheme | all run at once | all run at once, [for some time](crate::single_flight::SingleFlightBuilder::pass_for) |
///
/// A 5xx response that is too large counts as "other 5xx".
///
/// `s-maxage`, `max-age`, `Expires`, `Date` and `Age` shorten the flight's
/// [TTL](crate::single_flight::SingleFlightBuilder::ttl) as in RFC 9111, 4.2; they never lengthen it. A response
/// with `must-revalidate`, `proxy-revalidate` or `s-maxage` is not served stale. The responses of other callers
/// have an `Age`.
///
/// Other callers get the status, the header fields, the body and the trailers. They do not get the response's
/// extensions, nor the fields that apply to one connection or one exchange only:
///
/// * `Connection` and the fields that it names, `Keep-Alive`, `TE`, `Trailer`, `Transfer-Encoding`, `Upgrade` and the
///   proxy's fields;
/// * `RateLimit`, `X-RateLimit-…` and all other fields with `ratelimit` or `rate-limit` in their names, and
///   `Retry-After`: they describe the limit of one client;
/// * `Age`, which is computed for each response, `Server-Timing`, `Traceresponse`, `X-Request-Id`, `X-Correlation-Id`
///   and `Idempotency-Replayed`.
///
/// The caller of the request gets all of these. `Content-Length` is kept, because responses to HEAD need it.
///
/// A response with `Vary` is shared with requests whose values of the named fields are equal, byte by byte.
/// Requests with other values share among themselves. If a response depends on a field that `Vary` does not name
/// (such as `Origin`, `Accept-Language` or `X-Forwarded-Proto`), all callers get the response for the first
/// request's value.
///
/// ```
/// use http::StatusCode;
/// use tower_distributed::response::{Responses, is_shareable};
///
/// let responses = Responses::default()
///     .largest_body(64 * 1024)
///     .share_when(|parts| is_shareable(parts) || parts.status == StatusCode::NOT_FOUND)
///     .share_failures(false); // after a 5xx, each waiting caller runs
/// ```
#[derive(Clone)]
pub struct Responses {
    largest_body: usize,
    reading: Reading,
    share_when: Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>,
    share_failures: bool,
}

impl Responses {
    /// Sets the maximum size of a shared body in bytes. Default: 1 MiB.
    ///
    /// All callers of a key in a process share one copy of the body, which is freed when the last of them has read
    /// it. Each key has its own copy. The encoded answer that processes share, including the header fields, has a
    /// [separate limit](crate::single_flight::SingleFlightBuilder::largest_answer).
    #[must_use]
    pub fn largest_body(self, bytes: usize) -> Self {
        Self {
            largest_body: bytes,
            ..self
        }
    }

    /// Bounds the bytes of bodies that this value and its clones read from the service at one time. Default:
    /// 256 MiB.
    ///
    /// A body beyond the bound is passed on as it arrives and not shared. A body counts until it has been read
    /// completely, even if callers still use it.
    ///
    /// ```
    /// use tower_distributed::response::Responses;
    ///
    /// let responses = Responses::default().largest_body(8 << 20).max_buffered(64 << 20);
    /// ```
    #[must_use]
    pub fn max_buffered(self, bytes: usize) -> Self {
        Self {
            reading: Reading::new(bytes),
            ..self
        }
    }

    /// Sets a closure that decides by the head of a response whether it is shared. Default: [`is_shareable`].
    ///
    /// The closure replaces all checks of `is_shareable`. If it accepts a response with `Set-Cookie`, other clients
    /// get that client's session. If it accepts an endless stream, the client gets no data until the limit of
    /// [`largest_body`](Self::largest_body) is reached.
    #[must_use]
    pub fn share_when(
        self,
        share: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            share_when: Arc::new(share),
            ..self
        }
    }

    /// Sets whether callers that wait also get 5xx responses, in all processes, unless the header fields make them
    /// private. Default: `true`. With `false`, all callers that wait run at once.
    #[must_use]
    pub fn share_failures(self, share: bool) -> Self {
        Self {
            share_failures: share,
            ..self
        }
    }

    /// Returns the maximum length of a body that is read.
    fn largest(&self) -> usize {
        self.largest_body.min(self.reading.most)
    }

    /// Returns which callers get a response, by its head.
    fn choose(
        &self,
        parts: &response::Parts,
        tells_scheme: bool,
        freshness: &Freshness,
    ) -> Share<()> {
        let status = parts.status;
        let headers = &parts.headers;
        let failed = status.is_client_error() || status.is_server_error();
        match (self.share_when)(parts) {
            true if status.is_redirection()
                && !tells_scheme
                && is_absolute(headers.get(LOCATION)) =>
            {
                Share::Private
            }
            true => Share::Stored {
                answer: (),
                at_most: freshness.left,
                stale: freshness.stale,
            },
            false if status.is_server_error() && self.share_failures && is_for_all(headers) => {
                Share::Waiting(())
            }
            false if failed => Share::Nobody,
            false => Share::Private,
        }
    }

    /// Reads a body to its end. If it is too large, fails, or exceeds the budget, returns the rest of the body, and the
    /// callers that get the response: those of `too_large`, or none.
    async fn read<B: Body<Data = Bytes>>(
        &self,
        body: B,
        too_large: Share<Answer>,
    ) -> Result<(Bytes, Option<HeaderMap>), (FlightBody<B>, Share<Answer>)> {
        if body.is_end_stream() {
            return Ok((Bytes::new(), None));
        }
        let mut body = Box::pin(body);
        let mut read = SmallVec::<[_; 1]>::new();
        let mut trailers = None;
        let mut taken = self.reading.begin();
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) if data.is_empty() => {}
                Ok(Ok(data)) => {
                    let fits = taken.add(data.len());
                    read.push(data);
                    let is_too_large = taken.bytes() > self.largest();
                    if is_too_large || !fits {
                        // Other responses of the key are probably too large as well.
                        let shared = if is_too_large {
                            too_large
                        } else {
                            Share::Nobody
                        };
                        return Err((FlightBody::begun(read, body), shared));
                    }
                }
                Ok(Err(frame)) => trailers = frame.into_trailers().ok().or(trailers),
                Err(error) => return Err((FlightBody::failed(read, error), Share::Nobody)),
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
    /// Returns whether a response is shared, by its head.
    pub(crate) fn shares(&self, parts: &response::Parts) -> bool {
        (self.share_when)(parts)
    }

    /// Returns the count of bytes, and their bound.
    pub(crate) fn reading(&self) -> &Reading {
        &self.reading
    }
}

impl Default for Responses {
    fn default() -> Self {
        Self {
            largest_body: 1 << 20,
            reading: Reading::new(256 << 20),
            share_when: Arc::new(is_shareable),
            share_failures: true,
        }
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
    /// Whether the request is a HEAD, its header fields, and whether it states its scheme.
    type Context = (bool, Asked, bool);

    fn context(&self, request: &Request<ReqB>) -> Self::Context {
        (
            request.method() == Method::HEAD,
            Asked::of(request.headers()),
            tells_scheme(request),
        )
    }

    async fn capture(
        &self,
        (is_head, asked, tells_scheme): Self::Context,
        response: Response<B>,
    ) -> Captured<Self::Response, Answer> {
        let (parts, body) = response.into_parts();
        let unshared = |parts, body, shared| Captured {
            own: Response::from_parts(parts, body),
            shared,
        };
        let began = Instant::now();
        let now = SystemTime::now();
        let freshness = Freshness::of(&parts.headers, now);
        let chosen = self.choose(&parts, tells_scheme, &freshness);
        let too_large = if parts.status.is_server_error() {
            Share::Nobody
        } else {
            Share::Private
        };
        let read = match chosen {
            Share::Private => Err((FlightBody::untouched(body), Share::Private)),
            Share::Nobody => Err((FlightBody::untouched(body), Share::Nobody)),
            _ if body.size_hint().lower() > self.largest() as u64 => {
                Err((FlightBody::untouched(body), too_large))
            }
            Share::Stored { .. } | Share::Waiting(()) => self.read(body, too_large).await,
        };
        let (body, trailers) = match read {
            Ok(whole) => whole,
            Err((body, shared)) => return unshared(parts, body, shared),
        };
        let own = FlightBody::whole(body.clone(), trailers.clone());
        if !is_head && !has_length(&parts.headers, body.len()) {
            return unshared(parts, own, Share::Nobody);
        }
        let made = now.checked_sub(freshness.age).map_or(0, unix_seconds);
        let answer = Answer {
            status: parts.status,
            headers: for_others(parts.headers.clone()),
            trailers: for_others(trailers.clone().unwrap_or_default()),
            vary: varied(&parts.headers, &asked),
            made,
            is_head,
            body,
        };
        Captured {
            own: Response::from_parts(parts, own),
            shared: chosen.map(|()| answer).aged(began.elapsed()),
        }
    }

    fn restore(&self, answer: Answer) -> Self::Response {
        let age = unix_seconds(SystemTime::now()).saturating_sub(answer.made);
        let mut response = answer.into_response();
        response.headers_mut().insert(AGE, HeaderValue::from(age));
        response
    }

    fn pass(&self, response: Response<B>) -> Self::Response {
        response.map(FlightBody::untouched)
    }

    fn variant(&self, request: &Request<ReqB>, answer: &Answer) -> Option<Vec<u8>> {
        let own = |name| request.headers().get_all(name).iter();
        if answer
            .vary
            .iter()
            .all(|(name, values)| own(name).eq(values))
        {
            return None;
        }
        // The line format of HTTP is unambiguous: names and values contain no line feeds, and names no colons.
        let mut variant = Vec::new();
        let mut write = |parts: &[&[u8]]| {
            parts
                .iter()
                .for_each(|part| variant.extend_from_slice(part))
        };
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

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Returns whether a URI has a scheme or a host.
fn is_absolute(location: Option<&HeaderValue>) -> bool {
    location.is_some_and(|location| {
        let location = location.as_bytes();
        let end = location
            .iter()
            .position(|byte| b"/?#".contains(byte))
            .unwrap_or(location.len());
        location.starts_with(b"//") || location[..end].contains(&b':')
    })
}

/// Returns the fields that a response's `Vary` names, with the request's values. The order does not depend on
/// `Vary`.
fn varied(headers: &HeaderMap, asked: &Asked) -> Vec<Varied> {
    // No request has a field whose name is invalid.
    let mut names: Vec<_> = items(headers, &VARY)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect();
    names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    let with_values = |name| {
        let values = asked.values(&name);
        (name, values)
    };
    names.into_iter().map(with_values).collect()
}

debug!(Responses, largest_body);

/// The header fields of a request, in case its response names some of them in `Vary`. They are stored as HTTP lines:
/// names and values contain no line feeds, and names no colons.
///
/// Most responses have no `Vary`, so this must be cheap to create. Cloning the header map is not.
pub struct Asked(Vec<u8>);

impl Asked {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut lines = Vec::with_capacity(512);
        for (name, value) in headers {
            lines.extend_from_slice(name.as_str().as_bytes());
            lines.push(b':');
            lines.extend_from_slice(value.as_bytes());
            lines.push(b'\n');
        }
        Self(lines)
    }

    /// Returns the values of a field.
    fn values(&self, name: &HeaderName) -> Vec<HeaderValue> {
        let value = |line: &[u8]| {
            let value = line
                .strip_prefix(name.as_str().as_bytes())?
                .strip_prefix(b":")?;
            let mut value = HeaderValue::from_bytes(value).ok()?;
            // It may be sensitive, and is not sent anywhere.
            value.set_sensitive(true);
            Some(value)
        };
        self.0
            .split(|byte| *byte == b'\n')
            .filter_map(value)
            .collect()
    }
}

debug!(Asked);
