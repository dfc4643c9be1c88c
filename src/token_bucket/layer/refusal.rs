//! Decisions as refusals.

use crate::Refusal;
use crate::token_bucket::Decision;

impl Refusal {
    /// Returns the decision of the token bucket, if one refused the request.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.get_ref().decision()
    }
}

impl From<Decision> for Refusal {
    fn from(decision: Decision) -> Self {
        decision.refused().into()
    }
}
