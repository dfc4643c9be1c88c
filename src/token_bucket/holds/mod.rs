//! Authorize and capture: a cost that is known only at the end.

mod all;
mod calls;
mod hold;
mod operation;
mod renewals;
mod set;
mod state;
mod usage;

#[cfg(test)]
mod tests;

pub use self::all::HoldAll;
pub use self::hold::{Captured, Hold};
pub(super) use self::operation::{HoldReply, HoldStep, Outcome, Verb};
pub(super) use self::renewals::Renewals;
pub(crate) use self::set::HoldSet;
pub(crate) use self::state::Holds;
pub use self::usage::Usage;

use crate::token_bucket::quota::Quotas;

/// What happens to a [`Hold`] that ends without a word, for example because its process crashed: after its
/// [ttl](crate::TokenBucket::with_hold_ttl) without a renewal. A hold that is dropped before its usage is known ends the
/// same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnEnd {
    /// Its amount is charged, at the time of its end.
    Capture,
    /// Nothing is charged.
    Release,
}

/// The settings of holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldOptions {
    /// µs
    pub(super) ttl: i64,
    pub(super) on_end: Option<OnEnd>,
}

impl Default for HoldOptions {
    fn default() -> Self {
        Self {
            ttl: 30_000_000,
            on_end: None,
        }
    }
}

impl HoldOptions {
    /// What happens to a hold that ends by itself. A crash must not eat a credit that never comes back.
    pub(super) fn on_end(&self, quotas: &Quotas) -> OnEnd {
        self.on_end.unwrap_or_else(|| {
            match quotas
                .limits()
                .iter()
                .any(|limit| limit.tokens.never_refill())
            {
                true => OnEnd::Release,
                false => OnEnd::Capture,
            }
        })
    }
}
