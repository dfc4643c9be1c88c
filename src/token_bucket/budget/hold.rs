//! What a request holds of its budgets.

use crate::token_bucket::Decision;
use crate::token_bucket::holds::{Hold, HoldSet, Usage};

/// What a request of a [`BudgetLayer`](super::BudgetLayer) holds of one limit, or of several. Its [usage](Self::usage) is
/// captured when it is dropped.
#[derive(Debug)]
#[must_use = "a hold that is dropped ends at once"]
pub struct BudgetHold(Held);

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a hold of one limit, which is the usual one, needs no memory of its own"
)]
enum Held {
    One(Hold),
    All(Box<(HoldSet, Usage)>),
}

impl BudgetHold {
    pub(super) fn of_one(hold: Hold) -> Self {
        Self(Held::One(hold))
    }

    /// `usage`: of the limits that are metered.
    pub(super) fn of_all(holds: HoldSet, usage: Usage) -> Self {
        Self(Held::All(Box::new((holds, usage))))
    }

    /// Returns the usage so far, to count in. If none is counted, the hold ends as [`OnEnd`](crate::token_bucket::OnEnd) says.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        match &self.0 {
            Held::One(hold) => hold.usage(),
            Held::All(all) => &all.1,
        }
    }

    /// Returns the decision that admitted the request. Its [cost](Decision::cost) is the estimate.
    #[must_use]
    pub fn decision(&self) -> Decision {
        match &self.0 {
            Held::One(hold) => hold.decision(),
            Held::All(all) => all.0.decision().clone(),
        }
    }

    /// Waits until the tokens are not held any more, as [`Hold::lost`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time.
    pub async fn lost(&self) {
        match &self.0 {
            Held::One(hold) => hold.lost().await,
            Held::All(all) => all.0.lost().await,
        }
    }
}
