//! Requests under permits. See the public module `wait_group`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::layer::leased::{Away, Config, LeaseService, Leasing, Provide, UntilResponse, settings};
use crate::layer::rate_limit::Cost;
use crate::primitive::lease::Wait;
use crate::{AsError, Extracted, KeyExtractor, Permit, Store, StoreFailure, WaitGroup};

/// The service of a [`ConcurrencyLimitLayer`].
pub type ConcurrencyLimit<S, Req, H = UntilResponse, R = AsError> = LeaseService<S, Req, H, R>;

/// A [`Layer`](tower_layer::Layer) that limits how many requests of a key the inner service handles at once; see the
/// [module](crate::wait_group) for the whole story.
///
/// Its parameters are the type of the requests, [until when](Self::hold) a permit is held, and what becomes of
/// [refusals](Self::reject_with).
pub struct ConcurrencyLimitLayer<Req, H = UntilResponse, R = AsError> {
    config: Config<Req, Permits<Req>, H, R>,
}

/// Which permits requests need.
struct Permits<Req> {
    group: WaitGroup,
    /// `None`: every request weighs 1.
    weight: Option<Arc<dyn Cost<Req> + Send + Sync>>,
    /// `None`: that of the WaitGroup.
    limit: Option<Arc<dyn ChooseLimit<Req> + Send + Sync>>,
    max_wait: Option<Duration>,
    away: Away<LocalShare>,
}

/// In how many shares the limit is split, and the permits of this one.
type LocalShare = (NonZeroU32, WaitGroup);

/// Under which limit a request comes; `None`: that of the WaitGroup. Functions and closures from `&Req` to
/// `Option<u32>` do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose the limit of a `{Req}`",
    note = "pass a closure with a typed argument that returns `Option<u32>`: `|request: &Request| Some(3)`"
)]
pub trait ChooseLimit<Req> {
    /// The limit.
    fn limit(&self, request: &Req) -> Option<u32>;
}

impl<Req, F: Fn(&Req) -> Option<u32>> ChooseLimit<Req> for F {
    fn limit(&self, request: &Req) -> Option<u32> {
        self(request)
    }
}

impl<Req> ConcurrencyLimitLayer<Req> {
    /// Handles requests under permits of a namespace, each by its key.
    #[must_use]
    pub fn new(group: WaitGroup, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        let permits = Permits { group, weight: None, limit: None, max_wait: None, away: Away::FailClosed };
        Self { config: Config::new(Arc::new(key), permits) }.cancel_when_lost(false)
    }
}

impl<Req, H, R> ConcurrencyLimitLayer<Req, H, R> {
    /// How much a request weighs, by a closure from `&Req` to `u32`. Default: 1. What weighs nothing passes without
    /// asking.
    #[must_use]
    pub fn weight(mut self, weight: impl Cost<Req> + Send + Sync + 'static) -> Self {
        self.config.provide.weight = Some(Arc::new(weight));
        self
    }

    /// Under which limit a request comes, by a closure from `&Req` to `Option<u32>`; `None`: that of the WaitGroup.
    #[must_use]
    pub fn limit(mut self, limit: impl ChooseLimit<Req> + Send + Sync + 'static) -> Self {
        self.config.provide.limit = Some(Arc::new(limit));
        self
    }

    /// Lets requests wait for their permits, first come, first served, up to this long. How many may wait is the
    /// WaitGroup's [`max_waiters`](crate::wait_group::WaitGroupBuilder::max_waiters).
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.config.provide.max_wait = Some(max_wait);
        self
    }

    /// What to do while the store gives no answer. Default: [`StoreFailure::FailClosed`].
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let permits = &mut self.config.provide;
        permits.away = match on_store_failure {
            StoreFailure::FailClosed => Away::FailClosed,
            StoreFailure::FailOpen => Away::FailOpen,
            StoreFailure::LocalShare { replicas } => {
                Away::LocalShare((replicas, permits.group.in_store(&Store::in_memory())))
            }
        };
        self
    }
}

settings!(ConcurrencyLimitLayer);

impl<Req> Provide<Req> for Permits<Req> {
    fn lease(&self, key: Extracted, request: &Req) -> Leasing {
        let (group, away) = (self.group.clone(), self.away.clone());
        let weight = self.weight.as_ref().map_or(1, |weight| weight.cost(request));
        let limit = self.limit.as_ref().and_then(|limit| limit.limit(request)).unwrap_or(group.limit());
        let wait = self.max_wait.map(|max_wait| Wait { max_wait: Some(max_wait), ..group.wait });
        Box::pin(async move {
            if weight == 0 {
                return Ok(None);
            }
            let Some(key) = group.decisions.extracted(key.await)? else { return Ok(None) };
            let asked = async {
                let asked = group.with_limit(limit)?.acquire(key.clone(), weight, wait).await;
                let local = |(replicas, local): LocalShare, outage| async move {
                    let share = (limit / replicas).max(1);
                    let asked = local.with_limit(share)?.acquire(key, weight, wait).await;
                    // What is too heavy for a share is refused for the outage.
                    asked.map_err(|refusal| if refusal.is_exceeds_limit() { outage } else { refusal })
                };
                away.settle(asked, local).await
            };
            let permit = group.decisions.settle(asked.await)?;
            Ok(permit.map(Permit::into_lease))
        })
    }
}

impl<Req> Clone for Permits<Req> {
    fn clone(&self) -> Self {
        let Self { group, weight, limit, max_wait, away } = self;
        Self {
            group: group.clone(),
            weight: weight.clone(),
            limit: limit.clone(),
            max_wait: *max_wait,
            away: away.clone(),
        }
    }
}

impl<Req> std::fmt::Debug for Permits<Req> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permits").field("group", &self.group).finish_non_exhaustive()
    }
}
