//! The shared form of a response, and its encoding.

use bytes::{BufMut as _, Bytes};
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use tower::BoxError;

use crate::http::message::{for_others, has_length};
use crate::http::replayed_body::FlightBody;
use crate::single_flight::outcome::Codec;

#[cfg(test)]
mod tests;

/// The shared form of a response: its status, header fields, body and trailers, without the fields that apply to one
/// connection or one exchange only.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: HeaderMap,
    pub(crate) vary: Vec<Varied>,
    /// When the origin created the response, in seconds since 1970.
    pub(crate) made: u64,
    /// Whether it is the response to a HEAD request, so that `Content-Length` is not the length of `body`.
    pub(crate) is_head: bool,
    pub(crate) body: Bytes,
}

/// A header field that the response's `Vary` names, and its values in the request that was handled, which may be
/// none.
pub(crate) type Varied = (HeaderName, Vec<HeaderValue>);

impl Answer {
    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the header fields.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns the whole body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the trailers.
    #[must_use]
    pub fn trailers(&self) -> &HeaderMap {
        &self.trailers
    }

    pub(crate) fn into_response<B: Body<Data = Bytes>>(self) -> Response<FlightBody<B>> {
        // A server of HTTP/1.1 sends the trailers that this field names.
        let named = self
            .trailers
            .keys()
            .map(HeaderName::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        let trailers = Some(self.trailers).filter(|trailers| !trailers.is_empty());
        let mut response = Response::new(FlightBody::whole(self.body, trailers));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if let (false, Ok(named)) = (named.is_empty(), HeaderValue::try_from(named)) {
            response.headers_mut().insert(TRAILER, named);
        }
        response
    }
}

/// The codec for [`Answer`]s. Its name is `http/3`.
///
/// It does not encrypt or compress: the header fields, the body, and the request's values of the fields that `Vary`
/// names are readable in Redis. To encrypt or compress, write a [`Codec`](crate::single_flight::Codec) that wraps
/// this one.
// Numbers are big-endian; `name` and `value` are a length (u16, u32) and as many bytes.
//
//     answer  = status:u16 made:u64 head:u16
//               fields:u16 { name value }          in order; a field with several values has one entry for each
//               varied:u16 { name values:u16 { value } }
//               trailers:u16 { name value }
//               length:u32 body
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerCodec;

impl Codec<Answer> for AnswerCodec {
    fn name(&self) -> &str {
        "http/3"
    }

    fn encode(&self, answer: &Answer) -> Result<Vec<u8>, BoxError> {
        let mut out = Writer(Vec::with_capacity(
            answer.body.len() + 64 * (1 + answer.headers.len()),
        ));
        out.0.put_u16(answer.status.as_u16());
        out.0.put_u64(answer.made);
        out.0.put_u16(answer.is_head.into());
        out.fields(&answer.headers)?;
        out.count(answer.vary.len())?;
        for (name, values) in &answer.vary {
            out.name(name)?;
            out.count(values.len())?;
            for value in values {
                out.long(value.as_bytes())?;
            }
        }
        out.fields(&answer.trailers)?;
        out.long(&answer.body)?;
        Ok(out.0)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Answer, BoxError> {
        let mut from = Reader(bytes);
        let status = StatusCode::from_u16(from.u16()?)?;
        if status.is_informational() {
            return Err(format!("the status must not be 1xx, is {status}").into());
        }
        let made = u64::from_be_bytes(from.array()?);
        let is_head = from.u16()? != 0;
        let headers = from.fields()?;
        let mut vary = Vec::new();
        for _ in 0..from.u16()? {
            let name = from.name()?;
            let values = (0..from.u16()?)
                .map(|_| from.value())
                .collect::<Result<_, _>>()?;
            vary.push((name, values));
        }
        let trailers = from.fields()?;
        let body = Bytes::copy_from_slice(from.long()?);
        if !from.0.is_empty() {
            return Err(format!("{} bytes are left after the answer", from.0.len()).into());
        }
        if !is_head && !has_length(&headers, body.len()) {
            return Err(format!(
                "Content-Length is not the length of the body, {} bytes",
                body.len()
            )
            .into());
        }
        // `capture` stores no fields of one connection or exchange, but another client of Redis can write some.
        Ok(Answer {
            status,
            headers: for_others(headers),
            trailers: for_others(trailers),
            vary,
            made,
            is_head,
            body,
        })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn count(&mut self, count: usize) -> Result<(), BoxError> {
        let count = u16::try_from(count)
            .map_err(|_| format!("a count or a length must be 65535 at most, is {count}"))?;
        self.0.put_u16(count);
        Ok(())
    }

    fn name(&mut self, name: &HeaderName) -> Result<(), BoxError> {
        self.count(name.as_str().len())?;
        self.0.extend_from_slice(name.as_str().as_bytes());
        Ok(())
    }

    fn fields(&mut self, fields: &HeaderMap) -> Result<(), BoxError> {
        self.count(fields.len())?;
        for (name, value) in fields {
            self.name(name)?;
            self.long(value.as_bytes())?;
        }
        Ok(())
    }

    fn long(&mut self, bytes: &[u8]) -> Result<(), BoxError> {
        let length = u32::try_from(bytes.len()).map_err(|_| {
            format!(
                "a length must be 4294967295 bytes at most, is {}",
                bytes.len()
            )
        })?;
        self.0.put_u32(length);
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// Reads from the front. Checks every length against the bytes that are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], BoxError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| {
            format!(
                "cut short: {length} bytes were expected, {} are left",
                self.0.len()
            )
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BoxError> {
        Ok(self.take(N)?.try_into()?)
    }

    fn u16(&mut self) -> Result<u16, BoxError> {
        self.array().map(u16::from_be_bytes)
    }

    fn long(&mut self) -> Result<&'a [u8], BoxError> {
        let length = u32::from_be_bytes(self.array()?);
        self.take(usize::try_from(length)?)
    }

    fn fields(&mut self) -> Result<HeaderMap, BoxError> {
        let mut fields = HeaderMap::new();
        for _ in 0..self.u16()? {
            fields.try_append(self.name()?, self.value()?)?;
        }
        Ok(fields)
    }

    fn name(&mut self) -> Result<HeaderName, BoxError> {
        let length = self.u16()?;
        Ok(HeaderName::from_lowercase(self.take(length.into())?)?)
    }

    fn value(&mut self) -> Result<HeaderValue, BoxError> {
        Ok(HeaderValue::from_bytes(self.long()?)?)
    }
}
