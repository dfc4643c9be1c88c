//! Requests that are handled to their end, even if the client leaves: [`DedupeLayer::go_on`].

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;
use futures_util::future::BoxFuture;
use tower::Service;
use tower_layer::Layer;

use crate::dedupe::claim::Claim;
use crate::error::Error;
use crate::key::Key;
use crate::layers::dedupe::{DedupeLayer, RequestClaims};
use crate::layers::key::{Extracted, KeyExtractor as _};
use crate::layers::lease::Acquiring;
use crate::layers::lease::future::{Finish, Lifecycle, Next};
use crate::layers::refusal::{AsError, Reject, refused};
use crate::layers::{Layered, Middleware, take_ready};
use crate::lease::handle::LeaseHandle;
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

impl<S, Req, R> Middleware<S, Req> for GoOnLayer<Req, S::Response, S::Error, R>
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
    type Future = BoxFuture<'static, Result<S::Response, R::Error>>;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, request: Req) -> Self::Future {
        let (mut inner, this) = (take_ready(inner), Arc::clone(self));
        let acquiring = match this.layer.key.extract(&request) {
            Extracted::Ready(Ok(None)) => Acquiring::Ready(Ok(None)),
            key => RequestClaims::acquire(&this.layer, key, &request),
        };
        Box::pin(async move {
            let mut acquired = match acquiring {
                Acquiring::Ready(acquired) => acquired,
                Acquiring::Pending(acquiring) => acquiring.await,
            };
            let mut request = request;
            loop {
                match RequestClaims::next(&this.layer, acquired, request) {
                    Next::Call(None, request) => {
                        return inner.call(request).await.map_err(R::inner_error);
                    }
                    Next::Call(Some((claimed, watched)), request) => {
                        return match this.handle(inner, request, claimed, watched).await {
                            Ok(outcome) => outcome.map_err(R::inner_error),
                            Err(refusal) => refused(&this.layer.reject, refusal),
                        };
                    }
                    Next::Acquire(acquiring, same) => (acquired, request) = (acquiring.await, same),
                    Next::Answer(response) => return Ok(response),
                    Next::Refuse(error) => return refused(&this.layer.reject, error),
                }
            }
        })
    }
}

impl<Req, Res, E, R> GoOnLayer<Req, Res, E, R> {
    /// Handles a claimed request, and confirms or releases the claim.
    async fn handle<S>(
        &self,
        mut inner: S,
        request: Req,
        claimed: (Claim, Key),
        watched: Option<LeaseHandle>,
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
        claimed.0.state.belongs_to(&work);
        let handling = async move {
            let outcome = {
                let handling = pin!(inner.call(request));
                Watch::new(watched).run(handling).await?
            };
            Ok(
                match RequestClaims::finish(&layer, Some(claimed), outcome) {
                    Finish::Now(outcome) => outcome,
                    Finish::Later(mut finishing) => {
                        poll_fn(|context| {
                            RequestClaims::<Req, Res, E>::poll_finish(&mut finishing, context)
                        })
                        .await
                    }
                },
            )
        };
        self.detach.run(work, handling).await?
    }
}

debug!(GoOnLayer<Req, Res, E, R>, layer);
