//! The quotas of several limits.

use crate::primitive::quota::Quotas;
use crate::primitive::token_bucket::TokenBucket;

/// The quotas of several limits, in the order of the limits.
#[derive(Debug)]
pub(crate) struct Terms {
    each: Box<[Quotas]>,
    /// The same quotas, with the names of a decision that contains only one limit.
    alone: Box<[Quotas]>,
    /// All quotas, joined as the quotas of one limit.
    all: Quotas,
}

impl Terms {
    pub(crate) fn new(buckets: &[TokenBucket]) -> Self {
        let named = |bucket: &TokenBucket| Quotas::joined([(bucket.name(), bucket.quotas())].into_iter());
        Self {
            each: buckets.iter().map(|bucket| bucket.quotas().clone()).collect(),
            alone: buckets.iter().map(named).collect(),
            all: Quotas::joined(buckets.iter().map(|bucket| (bucket.name(), bucket.quotas()))),
        }
    }

    pub(crate) fn each(&self) -> &[Quotas] {
        &self.each
    }

    pub(crate) fn all(&self) -> &Quotas {
        &self.all
    }

    /// The quotas of one limit, with the names of a decision.
    pub(super) fn alone(&self, limit: usize) -> &Quotas {
        &self.alone[limit]
    }
}
