//! The rate limit layer. See the public module `token_bucket`.

mod ban;
mod chosen;
mod future;
mod hooks;
mod keys;
mod quotas;
mod refusal;
mod service;
mod settings;
mod settle;

pub use self::ban::Ban;
pub use self::chosen::{ChooseQuotas, ChosenQuotas, IntoQuotas};
pub use self::hooks::{Block, BlockOnResponse};
pub use self::keys::KeyExtractors;
pub use self::quotas::QuotaTable;
pub use self::settings::RateLimitLayer;
pub use crate::middleware::Cost;
