//! Reads request bodies, within bounds.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::{Extensions, HeaderMap};
use http_body::Body;

use crate::error::Error;
use crate::error::reasons::Upload as Refused;
use crate::http::message::{Reading, Taken};
#[cfg(feature = "axum")]
use crate::response::FlightBody;
use crate::store::timer::within;

/// The trailers of a request, as an extension of the request, for the handler of [`idempotency`](super::idempotency()).
///
/// The layer reads the body of a request before the request is handled. With the feature `axum`, the axum body that it
/// passes on has the trailers as well; other bodies do not.
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use tower_distributed::web::RequestTrailers;
///
/// async fn upload(trailers: Option<Extension<RequestTrailers>>) -> String {
///     let digest = trailers.as_ref().and_then(|trailers| trailers.0.0.get("content-digest"));
///     format!("{digest:?}")
/// }
/// let app: Router = Router::new().route("/uploads", post(upload));
/// ```
#[derive(Clone, Debug)]
pub struct RequestTrailers(pub HeaderMap);

/// A request body that was read.
pub(super) struct Upload {
    pub(super) whole: Bytes,
    pub(super) trailers: Option<HeaderMap>,
    /// The bytes are counted until this is dropped.
    pub(super) taken: Taken,
}

/// Returns the body of a request, and adds its trailers to the extensions.
pub(super) fn restore<B: From<Bytes> + 'static>(
    whole: Bytes,
    trailers: Option<HeaderMap>,
    extensions: &mut Extensions,
) -> B {
    let Some(trailers) = trailers else {
        return B::from(whole);
    };
    extensions.insert(RequestTrailers(trailers.clone()));
    with_trailers(&whole, trailers).unwrap_or_else(|| B::from(whole))
}

#[cfg(feature = "axum")]
fn with_trailers<B: 'static>(whole: &Bytes, trailers: HeaderMap) -> Option<B> {
    type Whole = FlightBody<axum::body::Body>;
    let mut body = Some(axum::body::Body::new(Whole::whole(
        whole.clone(),
        Some(trailers),
    )));
    (&mut body as &mut dyn std::any::Any)
        .downcast_mut::<Option<B>>()?
        .take()
}

#[cfg(not(feature = "axum"))]
fn with_trailers<B>(_: &Bytes, _: HeaderMap) -> Option<B> {
    None
}

/// The bounds of the request bodies of a layer.
pub(super) struct Limits {
    pub(super) largest: usize,
    pub(super) within: Duration,
    /// The count of the bytes of all bodies.
    pub(super) room: Reading,
}

impl Limits {
    /// Reads a body to its end.
    pub(super) async fn read<B: Body>(&self, body: B) -> Result<Upload, Error> {
        let read = within(self.within, self.read_whole(body)).await;
        read.unwrap_or_else(|| Err(Error::upload(Refused::TooSlow(self.within))))
    }

    async fn read_whole<B: Body>(&self, body: B) -> Result<Upload, Error> {
        let too_large = || Error::upload(Refused::TooLarge(self.largest));
        if body.size_hint().lower() > self.largest as u64 {
            return Err(too_large());
        }
        let (mut body, mut whole, mut taken) = (pin!(body), Vec::new(), self.room.begin());
        let mut trailers = None;
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            let frame =
                frame.map_err(|_| Error::malformed("the request body could not be read"))?;
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(frame) => {
                    trailers = frame.into_trailers().ok().or(trailers);
                    continue;
                }
            };
            let (held, length) = (whole.capacity(), whole.len() + data.remaining());
            if length > self.largest {
                return Err(too_large());
            }
            // Bytes count as they arrive, so that a client cannot reserve memory by `Content-Length` alone.
            if length > held {
                let capacity = length.max(2 * held).min(self.largest);
                if !taken.add(capacity - held) {
                    return Err(Error::upload(Refused::NoRoom(self.room.most)));
                }
                whole.reserve_exact(capacity - whole.len());
            }
            whole.put(data);
        }
        Ok(Upload {
            whole: whole.into(),
            trailers,
            taken,
        })
    }
}
