//! Requests that are handled to their end, even if the client leaves: [`DedupeLayer::go_on`].

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use derive_where::derive_where;
use tower::Service;
use tower_layer::Layer;

use crate::error::Error;
use crate::layers::dedupe::{DedupeLayer, Handling, Item, Next};
use crate::layers::key::{Extracted, KeyExtractor as _};
use crate::layers::lease::Acquiring;
use crate::layers::refusal::{AsError, Reject, refused};
use crate::layers::{Answer, Finish, Layered, NextState, Policy, Stages, State, take_ready};
use crate::lease::watch::Watch;
use crate::store::detach::{AFTER_CALLER, Detach};

/// A [`DedupeLayer`] that handles a request to its end, even if the client leaves. [`DedupeLayer::go_on`] returns it.
#[derive_where(Clone)]
pub struct GoOnLayer<Req, Res, E, R = AsError> {
    layer: Arc<DedupeLayer<Req, Res, E, R>>,
    detach: Detach,
}

impl<Req, Res, E, R> DedupeLayer<Req, Res, E, R> {
    /// Handles a request to its end in a separate task, even if the client leaves. Call it last.
    ///
    /// Senders of webhooks give up after some seconds, and send the message again. Without this setting, such a request
    /// is dropped when the client leaves, and its claim is released. The next attempt starts the handler again: a
    /// handler that takes longer than the sender waits never completes. With this setting, the handler completes, and
    /// the next attempt is a duplicate. If the client leaves while its request body is still being received, the body
    /// fails, and the request fails with it.
    ///
    /// A request goes on for [5 min](GoOnLayer::max_detached) at most. [`Store::shutdown`](crate::Store::shutdown)
    /// waits for it. Outside of a tokio runtime, requests do not go on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use axum::{Router, routing::post};
    /// use tower_distributed::{Dedupe, Store, extract, web};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let week = Duration::from_secs(7 * 86_400);
    /// let webhooks = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(week).build()?;
    /// let once = web::dedupe(webhooks, extract::header("webhook-id")?).go_on().max_detached(Duration::from_secs(60));
    /// let app: Router = Router::new().route("/webhook", post(async || "handled")).layer(once);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn go_on(self) -> GoOnLayer<Req, Res, E, R> {
        let (store, name) = self.provide.source.dedupe.place();
        GoOnLayer {
            detach: Detach::new(store, "dedupe", name, AFTER_CALLER),
            layer: Arc::new(self),
        }
    }
}

impl<Req, Res, E, R> GoOnLayer<Req, Res, E, R> {
    /// Sets how long a request is handled after its client has left. Default: 5 min.
    ///
    /// Then its handler is dropped, and its claim is released: a repeated request is handled again. The event
    /// `detached_given_up` reports it.
    #[must_use]
    pub fn max_detached(mut self, limit: Duration) -> Self {
        self.detach = self.detach.within(limit);
        self
    }
}

impl<S, Req, Res, E, R> Layer<S> for GoOnLayer<Req, Res, E, R> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(inner, self.clone())
    }
}

impl<Req, Res, E, R> Stages for GoOnLayer<Req, Res, E, R> {
    type Waiting = Infallible;
    type Held = ();
}

impl<S, Req, R> Policy<S, Req> for GoOnLayer<Req, S::Response, S::Error, R>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    R: Reject<S::Response, S::Error> + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = R::Error;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn begin(self: &Arc<Self>, inner: &mut S, request: Req) -> NextState<Self, S, Req> {
        let acquiring = match self.layer.key.extract(&request) {
            Extracted::Ready(Ok(None)) => return State::calling(inner, request, ()),
            key => self.layer.acquire(key),
        };
        let inner = take_ready(inner);
        let running = Arc::clone(self).run(acquiring, inner, request);
        State::Running {
            running: Box::pin(running),
        }
    }

    fn poll_waiting(
        self: &Arc<Self>,
        never: &mut Infallible,
        _: &mut Option<(S, Req)>,
        _: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Req>> {
        match *never {}
    }

    fn finish((): (), outcome: Result<S::Response, S::Error>) -> Finish<Answer<Self, S, Req>> {
        Finish::Now(outcome.map_err(R::inner_error))
    }
}

impl<Req, Res, E, R> GoOnLayer<Req, Res, E, R> {
    /// Waits for the claim of a request, and handles it.
    async fn run<S>(
        self: Arc<Self>,
        acquiring: Acquiring<Item>,
        mut inner: S,
        mut request: Req,
    ) -> Result<Res, R::Error>
    where
        S: Service<Req, Response = Res, Error = E> + Send + 'static,
        S::Future: Send,
        Req: Send + 'static,
        Res: Send + 'static,
        E: Send + 'static,
        R: Reject<Res, E> + Send + Sync + 'static,
    {
        let layer = &*self.layer;
        let mut acquired = match acquiring {
            Acquiring::Ready(acquired) => acquired,
            Acquiring::Pending(acquiring) => acquiring.await,
        };
        loop {
            match layer.next(acquired, request) {
                Next::Handle(None, request) => {
                    return inner.call(request).await.map_err(R::inner_error);
                }
                Next::Handle(Some(handling), request) => {
                    return match self.handle(inner, request, handling).await {
                        Ok(outcome) => outcome.map_err(R::inner_error),
                        Err(refusal) => refused(&layer.reject, refusal),
                    };
                }
                Next::Acquire(acquiring, same) => {
                    request = same;
                    acquired = acquiring.await;
                }
                Next::Answer(response) => return Ok(response),
                Next::Refuse(error) => return refused(&layer.reject, error),
            }
        }
    }

    /// Handles a claimed request, and confirms or releases the claim.
    async fn handle<S>(
        &self,
        mut inner: S,
        request: Req,
        handling: Handling,
    ) -> Result<Result<Res, E>, Error>
    where
        S: Service<Req, Response = Res, Error = E> + Send + 'static,
        S::Future: Send,
        Req: Send + 'static,
        Res: Send + 'static,
        E: Send + 'static,
        R: Send + Sync + 'static,
    {
        let layer = Arc::clone(&self.layer);
        let work = self.detach.begin();
        handling.claim.state.belongs_to(&work);
        let handled = async move {
            let Handling {
                claim,
                key,
                watched,
            } = handling;
            let outcome = {
                let call = pin!(inner.call(request));
                Watch::new(watched).run(call).await?
            };
            if let Some(settling) = layer.settle(claim, key, &outcome) {
                settling.await;
            }
            Ok(outcome)
        };
        self.detach.run(work, handled).await?
    }
}

debug!(GoOnLayer<Req, Res, E, R>, layer);
