//! What a rate limit says of a request.

use crate::token_bucket::Decision;
use crate::{Key, Refusal};

/// What a rate limit knows of a request: see [`OnResponse`](crate::token_bucket::OnResponse).
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    pub(crate) decision: &'a Decision,
    pub(crate) key: &'a Key,
    /// Whether the requests of the layer cost different numbers of tokens.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) is_weighted: bool,
}

impl Admission<'_> {
    /// The decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.decision
    }

    /// The key of the request.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.key
    }
}

impl Refusal {
    /// Returns the decision of the token bucket, if one refused the request.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.get_ref().decision()
    }

    /// Adds the key of a request that a rate limit refused.
    pub(crate) fn of(mut self, key: Key) -> Self {
        self.key = self.decision().is_some().then_some(key);
        self
    }
}

impl From<Decision> for Refusal {
    fn from(decision: Decision) -> Self {
        decision.refused().into()
    }
}
