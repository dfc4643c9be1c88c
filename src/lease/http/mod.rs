//! Response bodies that hold a lease.

mod hold;
mod timed_lease;
mod timers;

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::BoxError;

pub use self::hold::{LeaseEnd, UntilBodyEnd};
use self::timed_lease::TimedLease;

pin_project! {
    /// A body that holds a lease until it ends; see [`UntilBodyEnd`].
    ///
    /// Its error is a [`BoxError`] that contains the error of the inner body, or an [`Error`](crate::Error) if the
    /// body was [aborted](LeaseEnd::Abort).
    pub struct LeasedBody<B> {
        // `None` once the body was aborted.
        #[pin]
        body: Option<B>,
        lease: Option<TimedLease>,
    }
}

impl<B> LeasedBody<B> {
    fn new(body: B, lease: Option<TimedLease>) -> Self {
        Self { body: Some(body), lease }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for LeasedBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        if let Some(lease) = this.lease
            && let Poll::Ready(error) = lease.poll_abort(context)
        {
            *this.lease = None;
            this.body.set(None);
            return Poll::Ready(Some(Err(error.into())));
        }
        let Some(mut body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        let frame = ready!(body.as_mut().poll_frame(context));
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            *this.lease = None;
        } else if let Some(lease) = this.lease {
            lease.progressed();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Creates the body of a refusal, which holds no lease.
impl<B: From<String>> From<String> for LeasedBody<B> {
    fn from(text: String) -> Self {
        Self::new(text.into(), None)
    }
}

/// Creates the body of a refusal, which holds no lease.
impl<B: Default> Default for LeasedBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

debug!(LeasedBody<B>, lease);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::stream;
    use http::Response;
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;
    use crate::lease::layer::Hold as _;
    use crate::{Mutex, Store};

    async fn held<B: Body>(mutex: &Mutex, status: u16, body: B) -> LeasedBody<B> {
        let lease = mutex.try_lock("k").await.unwrap().into();
        let response = Response::builder().status(status).body(body).unwrap();
        UntilBodyEnd::default().hold(response, Some(lease)).into_body()
    }

    /// An empty body, and one of an upgrade, hold nothing. Others hold the lease to their last frame.
    #[tokio::test]
    async fn a_body_holds_its_lease_to_its_end() {
        let mutex = Mutex::new(&Store::in_memory(), "m").unwrap();
        for (status, text, holds) in [(200, "all", true), (200, "", false), (101, "all", false)] {
            let mut body = held(&mutex, status, Full::<&[u8]>::new(text.as_bytes())).await;
            assert_eq!(mutex.try_lock("k").await.is_err(), holds, "{status} {text:?}");
            assert_eq!(
                (body.is_end_stream(), body.size_hint().exact()),
                (text.is_empty(), Some(text.len() as u64))
            );
            assert_eq!(body.frame().await.is_some(), !text.is_empty());
            assert!(mutex.try_lock("k").await.is_ok() && body.is_end_stream());
        }
    }

    /// If the body does not know its end, or fails, the lease is held until that is read.
    #[tokio::test]
    async fn a_stream_holds_its_lease_until_its_end_is_read() {
        let mutex = Mutex::new(&Store::in_memory(), "m").unwrap();
        for fails in [false, true] {
            let end = fails.then_some(Err("the end"));
            let frames = [Ok(Frame::data(&b"a"[..])), Ok(Frame::data(&b"b"[..]))].into_iter().chain(end);
            let mut body = held(&mutex, 200, StreamBody::new(stream::iter(frames))).await;
            for _ in 0..2 {
                assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
                assert!(mutex.try_lock("k").await.is_err() && !body.is_end_stream());
            }
            assert_eq!(body.frame().await.map(|frame| frame.is_err()), fails.then_some(true));
            assert!(mutex.try_lock("k").await.is_ok(), "{fails}");
        }
    }

    #[test]
    fn settings_are_kept() {
        let hold = UntilBodyEnd::default().max_hold(Duration::from_secs(5)).unwrap().no_idle_timeout();
        let shown = format!("{:?}", hold.on_lease_end(LeaseEnd::Abort));
        assert!(shown.contains("idle_timeout: None, max_hold: Some(5s), on_lease_end: Abort"), "{shown}");
    }

    #[test]
    fn a_limit_of_no_time_is_refused() {
        let hold = UntilBodyEnd::default;
        for span in [Duration::ZERO, Duration::from_nanos(1)] {
            let is_good = [hold().idle_timeout(span).is_ok(), hold().max_hold(span).is_ok()];
            assert_eq!(is_good, [!span.is_zero(); 2]);
        }
    }
}
