//! The layer and its settings.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::hooks::{Admitted, Answered, Both, Observed, OneToken, Refused, SameQuotas};
use super::service::RateLimit;
use crate::telemetry::Outcome;
use crate::{AsError, Key, Quotas, Store, TokenBucket};

/// What to do with requests while the store gives no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFailure {
    /// Refuse them, as [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable): nothing goes unlimited.
    #[default]
    FailClosed,
    /// Let them all through, without a decision: what [`on_admit`](RateLimitLayer::on_admit) would do is not done.
    FailOpen,
    /// Limit in this process alone, which gets its share: the rate and the burst (at least 1) divided by the
    /// number of processes. What costs more than that burst is refused as under `FailClosed`.
    LocalShare {
        /// How many processes share the limit.
        replicas: NonZeroU32,
    },
}

/// A [`Layer`] that limits how many requests of a key reach the inner service; see the [module](super) for
/// the whole story.
#[derive(Clone, Debug)]
pub struct RateLimitLayer<K, C = OneToken, Q = SameQuotas, H = (), R = AsError> {
    config: Config<K, C, Q, H, R>,
}

/// All that a service needs to know; shared by its clones.
#[derive(Clone, Debug)]
pub(super) struct Config<K, C, Q, H, R> {
    pub(super) bucket: TokenBucket,
    pub(super) key: K,
    pub(super) cost: C,
    pub(super) quotas: Q,
    pub(super) hooks: H,
    pub(super) reject: R,
    pub(super) on_store_failure: Away,
    /// Whether nothing is refused.
    pub(super) shadow: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Away {
    FailClosed,
    FailOpen,
    LocalShare { replicas: NonZeroU32, local: TokenBucket },
}

impl<K> RateLimitLayer<K> {
    /// Limits requests by the buckets of a namespace, each by its key.
    ///
    /// Requests that cannot be admitted now are refused; [`wait_up_to`](Self::wait_up_to) lets them wait.
    #[must_use]
    pub fn new(bucket: TokenBucket, key: K) -> Self {
        let bucket = bucket.with_longest_wait(Duration::ZERO).cache_refusals(true);
        Self {
            config: Config {
                bucket,
                key,
                cost: OneToken,
                quotas: SameQuotas,
                hooks: (),
                reject: AsError,
                on_store_failure: Away::FailClosed,
                shadow: false,
            },
        }
    }
}

impl<K, C, Q, H, R> RateLimitLayer<K, C, Q, H, R> {
    /// How many tokens a request costs, by a closure from `&Req` to `u32`. Default: one. What costs nothing
    /// passes without asking.
    #[must_use]
    pub fn cost<C2>(self, cost: C2) -> RateLimitLayer<K, C2, Q, H, R> {
        let Config { bucket, key, cost: _, quotas, hooks, reject, on_store_failure, shadow } = self.config;
        RateLimitLayer {
            config: Config { bucket, key, cost, quotas, hooks, reject, on_store_failure, shadow },
        }
    }

    /// Under which quotas a request comes, by a closure from `&Req` to `Option<Quotas>`; `None`: the
    /// bucket's.
    ///
    /// Make the [`Quotas`] beforehand and hand out clones: only clones leave for the store together.
    #[must_use]
    pub fn quotas<Q2>(self, quotas: Q2) -> RateLimitLayer<K, C, Q2, H, R> {
        let Config { bucket, key, cost, quotas: _, hooks, reject, on_store_failure, shadow } = self.config;
        RateLimitLayer {
            config: Config { bucket, key, cost, quotas, hooks, reject, on_store_failure, shadow },
        }
    }

    /// Lets requests wait for their tokens, first come, first served, up to this long. Refusals are then no longer
    /// [cached](Self::cache_refusals), unless that is switched on afterwards.
    #[must_use]
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        let bucket = self.config.bucket.with_longest_wait(longest);
        self.config.bucket = bucket.cache_refusals(longest.is_zero());
        self
    }

    /// Whether requests are refused without asking the store where it would refuse them, by what it told last; see
    /// [`TokenBucket::cache_refusals`]. Default: `true`; with [`wait_up_to`](Self::wait_up_to), `false`.
    #[must_use]
    pub fn cache_refusals(mut self, cache: bool) -> Self {
        self.config.bucket = self.config.bucket.cache_refusals(cache);
        self
    }

    /// Charges the tokens of hot keys ahead and admits requests by them without asking the store; see
    /// [`TokenBucket::prefetch`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](crate::Error::is_invalid) where `hold` is not 1 ms to 1 s.
    pub fn prefetch(mut self, hold: Duration) -> Result<Self, crate::Error> {
        self.config.bucket = self.config.bucket.prefetch(hold)?;
        Ok(self)
    }

    /// What to do while the store gives no answer. Default: [`StoreFailure::FailClosed`].
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        self.config.on_store_failure = match on_store_failure {
            StoreFailure::FailClosed => Away::FailClosed,
            StoreFailure::FailOpen => Away::FailOpen,
            StoreFailure::LocalShare { replicas } => {
                Away::LocalShare { replicas, local: self.config.bucket.in_store(&Store::in_memory()) }
            }
        };
        self
    }

    /// Shows admitted requests the decision, by a closure of `(&Decision, &mut Req)`: to count, or to put it
    /// where the inner service finds it. For HTTP there is `http::InsertDecision`.
    #[must_use]
    pub fn on_admit<F>(self, on_admit: F) -> RateLimitLayer<K, C, Q, Both<H, Admitted<F>>, R> {
        self.map_hooks(|hooks| Both(hooks, Admitted(on_admit)))
    }

    /// Shows requests that are refused, with their keys and the decision, by a closure of `(&Req, &Key, &Decision)`: to log
    /// them, or to count them by what they ask for. Refusals without a decision, as in an outage, are not shown.
    #[must_use]
    pub fn on_refused<F>(self, on_refused: F) -> RateLimitLayer<K, C, Q, Both<H, Refused<F>>, R> {
        self.map_hooks(|hooks| Both(hooks, Refused(on_refused)))
    }

    /// Lets all requests through, at once, as if there were no limit, and counts those that would have been refused or would
    /// have waited as `shadowed`: to see what a limit would do before it does. Requests that fit are charged;
    /// [`on_refused`](Self::on_refused) is called, [`on_admit`](Self::on_admit) and [`on_response`](Self::on_response) for
    /// those that fit alone.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.config.shadow = true;
        self
    }

    /// Shows the responses to admitted requests the decision, by a closure of `(&Decision, &mut Res)`. For
    /// HTTP there is `http::RateLimitFields`.
    #[must_use]
    pub fn on_response<F>(self, on_response: F) -> RateLimitLayer<K, C, Q, Both<H, Answered<F>>, R> {
        self.map_hooks(|hooks| Both(hooks, Answered(on_response)))
    }

    /// Reads in the inner service's responses for how long their key is to be blocked, by a closure from
    /// `&Res` to `Option<Duration>`: one process hears the upstream's 429, all stop. For HTTP there is
    /// `http::RetryAfter`.
    #[must_use]
    pub fn observe<F>(self, observe: F) -> RateLimitLayer<K, C, Q, Both<H, Observed<F>>, R> {
        self.map_hooks(|hooks| Both(hooks, Observed(observe)))
    }

    /// Makes refusals responses, by a closure from [`Refusal`](crate::Refusal) to the response, or another
    /// [`Reject`](crate::Reject). The service's error is then the inner service's. For HTTP there is
    /// `http::refuse()`, for gRPC `grpc::refuse()`.
    #[must_use]
    pub fn reject_with<R2>(self, reject: R2) -> RateLimitLayer<K, C, Q, H, R2> {
        let Config { bucket, key, cost, quotas, hooks, reject: _, on_store_failure, shadow } = self.config;
        RateLimitLayer {
            config: Config { bucket, key, cost, quotas, hooks, reject, on_store_failure, shadow },
        }
    }

    fn map_hooks<H2>(self, map: impl FnOnce(H) -> H2) -> RateLimitLayer<K, C, Q, H2, R> {
        let Config { bucket, key, cost, quotas, hooks, reject, on_store_failure, shadow } = self.config;
        let hooks = map(hooks);
        RateLimitLayer {
            config: Config { bucket, key, cost, quotas, hooks, reject, on_store_failure, shadow },
        }
    }
}

impl<K, C, Q, H, R> Config<K, C, Q, H, R> {
    /// The bucket for a request.
    pub(super) fn bucket(&self, quotas: Option<&Quotas>) -> TokenBucket {
        let bucket = match quotas {
            Some(quotas) => self.bucket.with_quotas(quotas),
            None => self.bucket.clone(),
        };
        if self.shadow { bucket.with_longest_wait(Duration::ZERO) } else { bucket }
    }

    /// As what a request is counted.
    pub(super) fn counted(&self, outcome: Outcome, may_pass: bool) -> Outcome {
        if self.shadow && !may_pass { Outcome::Shadowed } else { outcome }
    }

    /// Sees to it that a key is blocked, in a task of its own.
    pub(super) fn block(&self, key: Key, duration: Duration) {
        if let Away::LocalShare { local, .. } = &self.on_store_failure {
            local.block_detached(key.clone(), duration);
        }
        self.bucket.block_detached(key, duration);
    }
}

impl<S, K, C, Q, H, R> Layer<S> for RateLimitLayer<K, C, Q, H, R>
where
    K: Clone,
    C: Clone,
    Q: Clone,
    H: Clone,
    R: Clone,
{
    type Service = RateLimit<S, K, C, Q, H, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.config.clone()))
    }
}
