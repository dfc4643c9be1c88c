//! The service.

use std::sync::Arc;
use std::task::{Context, Poll};

use derive_where::derive_where;
use tower::Service;

use super::future::{Granted, ResponseFuture};
use super::layer::Config;
use crate::layer::{give_up_ready, take_ready};
use crate::telemetry::Outcome;
use crate::{AsError, Extracted, KeyExtractor as _, Refusal, Reject};

/// A [`Service`] that limits the rate of requests; see the [module](crate::token_bucket).
///
/// The type can be named, so a struct can hold it:
///
/// ```
/// use std::convert::Infallible;
/// use std::pin::Pin;
/// use tower::{Layer, Service, ServiceExt, util::BoxCloneSyncService};
/// use tower_distributed::token_bucket::RateLimit;
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
///
/// type Sender = BoxCloneSyncService<String, (), Infallible>;
///
/// struct Mailer {
///     send: RateLimit<Sender, String, ()>,
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(5))?;
/// let limit = RateLimitLayer::new(bucket, |address: &String| address.clone());
/// let send = tower::service_fn(async |_: String| Ok(()));
/// let mut mailer = Mailer { send: limit.layer(Sender::new(send)) };
/// mailer.send.ready().await?.call("ann@example.com".into()).await?;
/// # Ok(()) }
/// ```
#[derive_where(Clone; S)]
pub struct RateLimit<S, Req, Res, R = AsError> {
    inner: S,
    config: Arc<Config<Req, Res, R>>,
}

impl<S, Req, Res, R> RateLimit<S, Req, Res, R> {
    pub(super) fn new(inner: S, config: Arc<Config<Req, Res, R>>) -> Self {
        Self { inner, config }
    }

    /// Returns a reference to the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Req, Res, R> Service<Req> for RateLimit<S, Req, Res, R>
where
    S: Service<Req, Response = Res> + Clone,
    R: Reject<Res, S::Error>,
{
    type Response = Res;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.config.reject.inner_error(error))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let config = Arc::clone(&self.config);
        let cost = config.cost(&request);
        if cost == 0 {
            return ResponseFuture::calling(self.inner.call(request), None, None, config);
        }
        let extracted = match config.key.extract(&request) {
            Extracted::Ready(Ok(None)) => {
                return ResponseFuture::calling(self.inner.call(request), None, None, config);
            }
            Extracted::Ready(Err(error)) => {
                if config.settings.passes_without_key(&error) {
                    return ResponseFuture::calling(self.inner.call(request), None, None, config);
                }
                give_up_ready(&mut self.inner);
                return ResponseFuture::refused(error.into(), config);
            }
            extracted => extracted,
        };
        let key = match (extracted, config.look_up_quotas(&request)) {
            (Extracted::Ready(Ok(Some(key))), None) => key,
            (key, looked_up) => {
                let quotas = if looked_up.is_none() { config.quotas(&request) } else { None };
                let asked = Box::pin(async move {
                    let Some(key) = key.await? else { return Ok(None) };
                    let quotas = match looked_up {
                        Some(looked_up) => looked_up.await,
                        None => quotas,
                    };
                    Ok(Some((key, quotas)))
                });
                let inner = take_ready(&mut self.inner);
                return ResponseFuture::looking_up(asked, cost, inner, request, config);
            }
        };
        let (quotas, settings) = (config.quotas(&request), &config.settings);
        if let Some(decided) = settings.limiter.at_once(quotas.as_ref(), &key, cost) {
            let outcome = decided.as_ref().map_or_else(Outcome::of_error, Outcome::of);
            let decision = decided.map_err(Refusal::from).and_then(|decision| {
                if decision.is_admitted() {
                    config.hooks.admitted(&decision, &mut request);
                    return Ok(decision);
                }
                config.refused(&request, &key, &decision);
                Err(decision.into())
            });
            settings.limiter.decisions().count(settings.counted(outcome, decision.is_ok()));
            return match decision {
                Err(refusal) if !settings.shadow => {
                    give_up_ready(&mut self.inner);
                    ResponseFuture::refused(refusal.of(key), config)
                }
                decision => {
                    let granted = decision.ok().map(|decision| Granted { decision, by_share: false });
                    ResponseFuture::calling(self.inner.call(request), Some(key), granted, config)
                }
            };
        }
        let asking = settings.acquire(quotas.as_ref(), key, cost);
        let inner = take_ready(&mut self.inner);
        ResponseFuture::asking(asking, inner, request, config)
    }
}

debug!(RateLimit<S: std::fmt::Debug, Req, Res, R>, inner, config.settings);
