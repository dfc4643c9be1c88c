//! The response future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tower::Service;

use super::slot::Slotted;
use super::{Config, DynProvide, Hold, Leased, Leasing};
use crate::primitive::lease::Watch;
use crate::{Extracted, Reject};

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
    asked: Asked,
    /// The ready service and the request. `None` after the call.
    call: Option<(S, Req)>,
}

/// How far an acquire is.
enum Asked {
    /// `None` once the key is taken.
    Not(Option<Extracted>),
    Pending(BoxFuture<'static, Leased>),
}

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
            // Drops the inner future when the lease is lost, if the settings say so.
            watch: Watch,
        },
        Done,
    }
}

impl<S, Req, H, R> ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
{
    pub(super) fn passing(future: S::Future, config: Arc<Config<Req, DynProvide<Req>, H, R>>) -> Self {
        Self { config, state: State::Calling { future, lease: None, watch: Watch::none() } }
    }

    pub(super) fn asking(
        key: Extracted,
        inner: S,
        request: Req,
        config: Arc<Config<Req, DynProvide<Req>, H, R>>,
    ) -> Self {
        Self {
            config,
            state: State::Asking {
                asking: Asking { asked: Asked::Not(Some(key)), call: Some((inner, request)) },
            },
        }
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
                    let Asking { asked, call: Some((_, request)) } = asking else { return Poll::Pending };
                    let leased = match asked {
                        Asked::Pending(leasing) => ready!(leasing.as_mut().poll(context)),
                        Asked::Not(key) => {
                            let Some(key) = key.take() else { return Poll::Pending };
                            match config.provide.lease(key, request) {
                                Leasing::Ready(leased) => leased,
                                Leasing::Pending(leasing) => {
                                    *asked = Asked::Pending(leasing);
                                    continue;
                                }
                            }
                        }
                    };
                    let lease = match leased {
                        Ok(lease) => lease,
                        Err(error) => {
                            // Drops the ready inner service, and keeps a later poll from acquiring again.
                            this.state.set(State::Done);
                            return Poll::Ready(config.reject.reject(error.into()));
                        }
                    };
                    let Some((mut inner, mut request)) = asking.call.take() else { return Poll::Pending };
                    let mut watch = Watch::none();
                    let lease = lease.map(|lease| {
                        let handle = lease.handle();
                        let lease = Slotted::new(lease);
                        let slot = lease.slot();
                        config.on_lease.iter().for_each(|told| told.on_slot(&handle, &slot, &mut request));
                        watch = Watch::new(handle, config.cancel_when_lost);
                        lease
                    });
                    let future = inner.call(request);
                    this.state.set(State::Calling { future, lease, watch });
                }
                StateProjection::Calling { future, lease, watch } => {
                    let outcome = match ready!(watch.poll(future, context)) {
                        Ok(outcome) => outcome,
                        // The handler has taken the lease, so the layer no longer watches it.
                        Err(_) if lease.as_ref().is_some_and(Slotted::is_taken) => {
                            *watch = Watch::none();
                            continue;
                        }
                        Err(lost) => {
                            // Drops the inner future before the caller gets the refusal.
                            this.state.set(State::Done);
                            return Poll::Ready(config.reject.reject(lost.into()));
                        }
                    };
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
