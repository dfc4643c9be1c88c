#![doc = include_str!("page.md")]

mod acquire;
mod adjust;
mod ahead;
mod bucket;
mod bucket_state;
mod budget;
mod calls;
mod cancel;
mod change;
mod decision;
mod fleet;
mod holds;
#[cfg(feature = "http")]
pub(crate) mod http;
pub(crate) mod layer;
pub(crate) mod learn;
mod limiter;
pub(crate) mod local;
pub(crate) mod operations;
pub(crate) mod peek;
pub(crate) mod quota;
mod reservation;
mod returning;
mod settings;
mod several;
mod state;
mod upstream;
mod windows;

#[cfg(test)]
mod agreement;
#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;

pub use self::bucket::TokenBucket;
pub use self::bucket_state::{Balance, BucketState};
pub use self::budget::{AtResponse, BudgetHold, BudgetLayer, Estimate, Meter};
pub use self::decision::Decision;
pub use self::fleet::{FleetQuotas, FleetTable};
pub use self::holds::{Captured, Hold, HoldAll, OnEnd, Usage};
pub use self::layer::*;
pub use self::learn::{LearnFromResponse, Learned};
pub use self::reservation::Reservation;
pub use self::several::{Costs, TokenBuckets};

pub(crate) use self::several::{Keys, Several};
pub(crate) use self::state::Bucket;
