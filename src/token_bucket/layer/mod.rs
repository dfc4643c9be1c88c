//! The rate limit layer. See the public module `token_bucket`.

mod admission;
mod ban;
mod future;
mod hooks;
mod layer;
mod limiter;
mod quotas;
mod service;

pub use self::admission::Admission;
pub use self::ban::Ban;
pub use self::future::ResponseFuture;
pub use self::hooks::{BlockOnResponse, Cost, OnAdmit, OnResponse};
pub use self::layer::RateLimitLayer;
pub use self::limiter::KeyExtractors;
pub use self::quotas::{ChooseQuotas, ChosenQuotas, QuotaTable};
