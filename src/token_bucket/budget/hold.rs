//! What a request holds of its budgets.

use crate::token_bucket::Decision;
use crate::token_bucket::holds::{Hold, HoldSet, Usage};
#[cfg(feature = "http")]
use crate::token_bucket::quota::Limit;
#[cfg(feature = "http")]
use crate::token_bucket::upstream::UpstreamEvents;

/// What a request of a [`BudgetLayer`](super::BudgetLayer) holds of one limit, or of several. Its [usage](Self::usage) is
/// captured when it is dropped.
#[derive(Debug)]
#[must_use = "a hold that is dropped ends at once"]
pub struct BudgetHold {
    held: Held,
    /// Whether it captures at least the estimate, unless its usage is complete.
    broken_costs_estimate: bool,
}

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
        Self {
            held: Held::One(hold),
            broken_costs_estimate: false,
        }
    }

    /// `usage`: of the limits that are metered.
    pub(super) fn of_all(holds: HoldSet, usage: Usage) -> Self {
        Self {
            held: Held::All(Box::new((holds, usage))),
            broken_costs_estimate: false,
        }
    }

    pub(super) fn broken_costs_estimate(self, costs_estimate: bool) -> Self {
        let mut this = self;
        this.broken_costs_estimate = costs_estimate;
        this
    }

    /// Returns the usage so far, to count in. If none is counted, the hold ends as [`OnEnd`](crate::token_bucket::OnEnd) says.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        match &self.held {
            Held::One(hold) => hold.usage(),
            Held::All(all) => &all.1,
        }
    }

    /// Returns the decision that admitted the request. Its [cost](Decision::cost) is the estimate.
    #[must_use]
    pub fn decision(&self) -> Decision {
        match &self.held {
            Held::One(hold) => hold.decision(),
            Held::All(all) => all.0.decision().clone(),
        }
    }

    /// The largest usage that is believed by default: the burst, and what comes back within a day. Of several quotas the
    /// smallest.
    #[cfg(feature = "http")]
    pub(crate) fn believed(&self) -> u32 {
        let quotas = match &self.held {
            Held::One(hold) => &hold.state().quotas,
            Held::All(all) => &all.0.decision().state.quotas,
        };
        let in_a_day = |limit: &Limit| (86_400e6 / limit.interval()) as i64;
        let most = quotas
            .limits()
            .iter()
            .map(|limit| limit.burst.saturating_add(in_a_day(limit)))
            .min();
        most.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// `None`: no limit is asked.
    #[cfg(feature = "http")]
    pub(crate) fn upstream(&self) -> Option<&UpstreamEvents> {
        match &self.held {
            Held::One(hold) => Some(hold.upstream()),
            Held::All(all) => all.0.upstream(),
        }
    }

    /// Waits until the tokens are not held any more, as [`Hold::lost`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time.
    pub async fn lost(&self) {
        match &self.held {
            Held::One(hold) => hold.lost().await,
            Held::All(all) => all.0.lost().await,
        }
    }
}

impl Drop for BudgetHold {
    fn drop(&mut self) {
        if !self.broken_costs_estimate || self.usage().is_complete() {
            return;
        }
        match &mut self.held {
            Held::One(hold) => hold.capture_at_least_held(),
            Held::All(all) => all.0.capture_at_least_held(),
        }
    }
}
