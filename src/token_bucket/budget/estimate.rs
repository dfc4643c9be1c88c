//! What requests are estimated to use.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::hold::BudgetHold;
use crate::middleware::Cost;
use crate::token_bucket::holds::{HoldSet, Usage};
use crate::token_bucket::limiter::Limiter;
use crate::token_bucket::several::keys_of;
use crate::{Error, Key};

/// What a request uses of one limit of [several](super::BudgetLayer::all_of).
///
/// ```
/// use tower_distributed::token_bucket::Estimate;
///
/// struct Prompt { max_tokens: u32 }
///
/// // Of the limits `requests` and `tokens`.
/// let estimate = |prompt: &Prompt| [Estimate::Fixed(1), Estimate::Metered(prompt.max_tokens)];
/// assert_eq!(estimate(&Prompt { max_tokens: 1200 })[1], Estimate::Metered(1200));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// So many tokens, whatever the [`Usage`] is, such as one request. If it is 0, the limit is not asked.
    Fixed(u32),
    /// About so many tokens. The [`Usage`] of the request is captured. If it is 0, one token is held, because estimates often
    /// come from clients.
    Metered(u32),
}

impl Estimate {
    /// The number of tokens to hold.
    fn tokens(self) -> u32 {
        match self {
            Self::Fixed(tokens) => tokens,
            Self::Metered(tokens) => tokens.max(1),
        }
    }
}

/// Per limit. One limit needs no allocation.
pub(super) type Estimates = SmallVec<[Estimate; 3]>;

/// Estimates what a request uses.
pub(super) type Estimator<Req> = Arc<dyn Fn(&Req) -> Estimates + Send + Sync>;

/// The estimator of one limit.
pub(super) fn metered<Req>(estimate: impl Cost<Req> + Send + Sync + 'static) -> Estimator<Req> {
    Arc::new(move |request| smallvec![Estimate::Metered(estimate.cost(request))])
}

/// Holds the estimates for a key.
pub(super) async fn hold(
    limits: &Limiter,
    key: Key,
    estimates: &[Estimate],
) -> Result<BudgetHold, Error> {
    match limits {
        Limiter::One(bucket) => {
            let tokens = estimates.first().map_or(1, |estimate| estimate.tokens());
            bucket.hold(key, tokens).await.map(BudgetHold::of_one)
        }
        Limiter::All(limits) => {
            let (usage, mut keys) = (Usage::default(), keys_of(&key));
            let usage_of = |estimate: &Estimate| match estimate {
                Estimate::Fixed(tokens) => Usage::of(*tokens),
                Estimate::Metered(_) => usage.clone(),
            };
            let usages: SmallVec<[Usage; 3]> = estimates.iter().map(usage_of).collect();
            for (key, _) in keys
                .iter_mut()
                .zip(estimates)
                .filter(|(_, it)| **it == Estimate::Fixed(0))
            {
                *key = None;
            }
            let tokens: SmallVec<[u32; 3]> =
                estimates.iter().map(|estimate| estimate.tokens()).collect();
            let held = HoldSet::authorize(limits, keys, &tokens, &usages).await?;
            Ok(BudgetHold::of_all(held, usage))
        }
    }
}
