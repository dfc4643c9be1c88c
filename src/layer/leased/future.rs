//! The response future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower::Service;

use super::slot::Slotted;
use super::{Config, DynProvide, Hold, Leasing};
use crate::{Error, Reject};

pin_project! {
    /// The future of [`LeaseService`](super::LeaseService).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, H, R>
    where
        S: Service<Req>,
    {
        config: Arc<Config<Req, DynProvide<Req>, H, R>>,
        #[pin]
        state: State<S, Req>,
    }
}

/// The state while the lease is acquired.
struct Asking<S, Req> {
    leasing: Leasing,
    /// The ready service and the request. `None` after the call.
    call: Option<(S, Req)>,
}

/// Completes when a lease is lost.
type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    #[project = StateProjection]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Asking {
            asking: Asking<S, Req>,
        },
        Calling {
            #[pin]
            future: S::Future,
            // `None` if the request passed without a lease.
            lease: Option<Slotted>,
            // `Some` if the loss of the lease drops the inner future.
            lost: Option<Lost>,
        },
        Done,
    }
}

impl<S, Req, H, R> ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
{
    pub(super) fn passing(future: S::Future, config: Arc<Config<Req, DynProvide<Req>, H, R>>) -> Self {
        Self { config, state: State::Calling { future, lease: None, lost: None } }
    }

    pub(super) fn asking(
        leasing: Leasing,
        inner: S,
        request: Req,
        config: Arc<Config<Req, DynProvide<Req>, H, R>>,
    ) -> Self {
        Self { config, state: State::Asking { asking: Asking { leasing, call: Some((inner, request)) } } }
    }
}

impl<S, Req, H, R> Future for ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
    H: Hold<S::Response>,
    R: Reject<H::Response, S::Error>,
{
    type Output = Result<H::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let config = &**this.config;
        loop {
            match this.state.as_mut().project() {
                StateProjection::Asking { asking } => {
                    let lease = match ready!(asking.leasing.as_mut().poll(context)) {
                        Ok(lease) => lease,
                        Err(error) => return Poll::Ready(config.reject.reject(error.into())),
                    };
                    let Some((mut inner, mut request)) = asking.call.take() else { return Poll::Pending };
                    let mut lost: Option<Lost> = None;
                    let lease = lease.map(|lease| {
                        let handle = lease.handle();
                        lost = config.cancel_when_lost.then(|| Box::pin(lease.lost()) as Lost);
                        let lease = Slotted::new(lease);
                        let slot = lease.slot();
                        config.on_lease.iter().for_each(|told| told.on_slot(&handle, &slot, &mut request));
                        lease
                    });
                    let future = inner.call(request);
                    this.state.set(State::Calling { future, lease, lost });
                }
                StateProjection::Calling { future, lease, lost } => {
                    if lost.as_mut().is_some_and(|lost| lost.as_mut().poll(context).is_ready()) {
                        *lost = None;
                        // If the handler has taken the lease, the layer no longer watches it.
                        if !lease.as_ref().is_some_and(Slotted::is_taken) {
                            // Drops the inner future before the caller gets the refusal.
                            this.state.set(State::Done);
                            return Poll::Ready(config.reject.reject(Error::lost().into()));
                        }
                    }
                    let outcome = ready!(future.poll(context));
                    let lease = lease.take().and_then(Slotted::into_lease);
                    this.state.set(State::Done);
                    return Poll::Ready(match outcome {
                        Ok(response) => Ok(config.hold.hold(response, lease)),
                        Err(error) => Err(config.reject.inner_error(error)),
                    });
                }
                StateProjection::Done => return Poll::Pending,
            }
        }
    }
}

impl<S, Req, H, R> fmt::Debug for ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
