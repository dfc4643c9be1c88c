#![doc = include_str!("page.md")]

mod acquire;
mod adjust;
mod ahead;
mod bucket;
mod bucket_state;
mod calls;
mod cancel;
mod change;
mod decision;
mod fleet;
pub(crate) mod holds;
#[cfg(feature = "http")]
pub(crate) mod http;
pub(crate) mod learn;
pub(crate) mod limiter;
pub(crate) mod local;
pub(crate) mod operations;
pub(crate) mod peek;
pub(crate) mod quota;
mod reservation;
mod returning;
mod settings;
pub(crate) mod several;
mod state;
pub(crate) mod upstream;
mod windows;

#[cfg(test)]
mod agreement;
#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;

pub use self::bucket::TokenBucket;
pub use self::bucket_state::{Balance, BucketState};
pub use self::decision::Decision;
pub use self::fleet::{FleetQuotas, FleetTable};
pub use self::holds::{Captured, Hold, HoldAll, OnEnd, Usage};
pub(crate) use crate::layers::budget; // moved
pub use crate::layers::budget::{AtResponse, BudgetHold, BudgetLayer, Estimate, Meter};
pub use crate::layers::key::Cost;
pub use crate::layers::rate_limit::RateLimitLayer;
pub use crate::layers::rate_limit::ban::Ban;
pub use crate::layers::rate_limit::hooks::{Block, BlockOnResponse};
pub use crate::layers::rate_limit::keys::KeyExtractors;
pub use crate::layers::rate_limit::quotas::{ChooseQuotas, ChosenQuotas, IntoQuotas, QuotaTable};
// moved
pub(crate) mod layer {
    pub(crate) use crate::layers::rate_limit::keys::KeyExtractors;
    pub(crate) use crate::layers::rate_limit::quotas::ChosenQuotas;
}
pub use self::learn::{LearnFromResponse, Learned};
pub use self::reservation::Reservation;
pub use self::several::{Costs, TokenBuckets};

pub(crate) use self::several::{Keys, Several};
pub(crate) use self::state::Bucket;
