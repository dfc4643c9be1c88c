//! Request bodies whose waiting time is measured.

#[cfg(any(feature = "axum", feature = "tonic"))]
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::{Method, Request};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::adaptive::client_time::{Client, ClientTime, Upload};
use crate::layers::concurrency_limit::ConcurrencyLimitLayer;

pin_project! {
    /// The body of a request behind a limit that [adapts](ConcurrencyLimitLayer::adaptive): it measures how long the
    /// handler waits for the client. See [`watch_body`](ConcurrencyLimitLayer::watch_body).
    #[derive(Debug)]
    pub struct WatchedBody<B> {
        #[pin]
        body: B,
        watch: Watch,
    }
}

/// Records the end of the body when it is dropped.
#[derive(Debug)]
struct Watch(Arc<ClientTime>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.ends(Upload::Over, Instant::now());
    }
}

impl<B: Body> Body for WatchedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let (time, mut body, now) = (&this.watch.0, this.body, Instant::now());
        time.asks(context.waker(), now);
        let waker = Waker::from(Arc::clone(time));
        let frame = std::task::ready!(body.as_mut().poll_frame(&mut Context::from_waker(&waker)));
        match &frame {
            Some(Err(_)) => time.ends(Upload::Failed, now),
            Some(Ok(_)) if !body.is_end_stream() => time.has_come(now),
            _ => time.ends(Upload::Over, now),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body + 'static, H, R, A> ConcurrencyLimitLayer<Request<B>, H, R, A> {
    /// Sets how a [`WatchedBody`] is converted into a body of the type `B`. With it, a limit that
    /// [adapts](Self::adaptive) can separate the time of the service from that of a client that uploads slowly.
    ///
    /// `web::concurrency_limit` and `grpc::concurrency_limit` set it for the bodies of axum and tonic, with the
    /// features `axum` and `tonic`. If it is not set for the type of the body, a request has a latency only if it has
    /// no body. Its status counts in any case.
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use tower_distributed::wait_group::Adaptive;
    /// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let backend = WaitGroup::new(&Store::in_memory(), "backend", 20)?;
    /// let limit = ConcurrencyLimitLayer::new(backend, |_: &Request<Body>| "all")
    ///     .watch_body(Body::new)
    ///     .adaptive(Adaptive::gradient())?;
    /// # let _ = limit;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn watch_body(
        mut self,
        wrap: impl Fn(WatchedBody<B>) -> B + Send + Sync + 'static,
    ) -> Self {
        self.provide.from.watch = Some(Arc::new(move |request| watched(request, Some(&wrap))));
        self
    }

    /// Calls [`watch_body`](Self::watch_body) if `B` is `K`.
    #[cfg(any(feature = "axum", feature = "tonic"))]
    pub(crate) fn watch_body_of_type<K: 'static>(self, wrap: fn(WatchedBody<K>) -> K) -> Self {
        let mut wrap = Some(wrap);
        let any: &mut dyn Any = &mut wrap;
        match any
            .downcast_mut::<Option<fn(WatchedBody<B>) -> B>>()
            .and_then(Option::take)
        {
            Some(wrap) => self.watch_body(wrap),
            None => self,
        }
    }

    /// Requests with bodies of an unknown type have no latency.
    pub(crate) fn watch_no_body(mut self) -> Self {
        let unknown: Option<&fn(WatchedBody<B>) -> B> = None;
        self.provide.from.watch = Some(Arc::new(move |request| watched(request, unknown)));
        self
    }
}

/// Watches the body of a request, if its type is known. Returns the part of the latency that is due to the client.
fn watched<B: Body>(
    request: Request<B>,
    wrap: Option<&impl Fn(WatchedBody<B>) -> B>,
) -> (Request<B>, Client) {
    // The latency of these methods is not comparable with that of the others. CONNECT opens a bidirectional stream.
    if [
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ]
    .contains(request.method())
    {
        return (request, Client::Unknown);
    }
    if request.body().is_end_stream() {
        return (request, Client::Nothing);
    }
    let Some(wrap) = wrap else {
        return (request, Client::Unknown);
    };
    let time = Arc::new(ClientTime::default());
    let watch = Watch(Arc::clone(&time));
    (
        request.map(|body| wrap(WatchedBody { body, watch })),
        Client::Upload(time),
    )
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;
    use crate::adaptive::client_time::ServiceTime;

    #[test]
    fn requests_without_a_body_of_their_own_need_no_watch() {
        type Wrap = fn(WatchedBody<Full<&'static [u8]>>) -> Full<&'static [u8]>;
        let others =
            [Method::HEAD, Method::OPTIONS, Method::CONNECT].map(|method| (method, "", false));
        let usual = [
            (Method::GET, "", true),
            (Method::POST, "", true),
            (Method::POST, "all", false),
        ];
        for (method, body, is_known) in usual.into_iter().chain(others) {
            let request = Request::builder()
                .method(&method)
                .body(Full::new(body.as_bytes()))
                .unwrap();
            let (_, client) = watched(request, None::<&Wrap>);
            assert_eq!(
                matches!(client, Client::Nothing),
                is_known,
                "{method} {body:?}"
            );
            assert_eq!(
                matches!(client, Client::Unknown),
                !is_known,
                "{method} {body:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_body_is_over_when_it_is_read_or_dropped() {
        let now = Instant::now();
        for reads in [false, true] {
            let time = Arc::new(ClientTime::default());
            let client = Client::Upload(Arc::clone(&time));
            let body = WatchedBody {
                body: Full::new(&b"all"[..]),
                watch: Watch(time),
            };
            assert_eq!(
                (body.is_end_stream(), body.size_hint().exact()),
                (false, Some(3))
            );
            assert_eq!(client.of_response(now, now), ServiceTime::Unknown);
            if reads {
                assert_eq!(body.collect().await.unwrap().to_bytes(), "all");
            } else {
                drop(body);
            }
            assert!(matches!(
                client.of_response(now, now),
                ServiceTime::Known(_)
            ));
        }
    }
}
