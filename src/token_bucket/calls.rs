//! The connections of a namespace of buckets to its store, one for each kind of step.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::bucket::adjust::{Adjust, Peek, Reset};
use crate::bucket::ahead::Prefetch;
use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::charge::Charge;
use crate::bucket::decision::Decision;
use crate::bucket::give_back::{GiveBack, Returning};
use crate::error::Error;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::replicas::Replicas;
use crate::telemetry::Outcome;
use crate::telemetry::counters::Decisions;
use crate::token_bucket::renewals::Renewals;
use crate::token_bucket::upstream::UpstreamEvents;

#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) name: String,
    pub(crate) decisions: Decisions,
    pub(crate) charge: Client<Charge>,
    pub(crate) give_back: Client<GiveBack>,
    pub(crate) adjust: Client<Adjust>,
    pub(crate) prefetch: Client<Prefetch>,
    pub(crate) peek: Client<Peek>,
    pub(crate) reset: Client<Reset>,
    pub(crate) holds: Arc<Renewals>,
    pub(crate) returning: Returning,
    pub(crate) store: Store,
    pub(crate) namespace: Namespace<Bucket>,
    /// How many processes share the quotas, in a local share.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) upstream: UpstreamEvents,
}

impl Clients {
    pub(crate) fn new(store: &Store, name: &str, namespace: &Namespace<Bucket>) -> Self {
        Self {
            name: name.to_owned(),
            decisions: Decisions::new("token_bucket", name),
            charge: namespace.client(),
            give_back: namespace.client(),
            adjust: namespace.client(),
            prefetch: namespace.client(),
            peek: namespace.client(),
            reset: namespace.client(),
            holds: Renewals::new(store, namespace),
            returning: Returning::default(),
            store: store.clone(),
            namespace: namespace.clone(),
            replicas: None,
            upstream: UpstreamEvents::new(name),
        }
    }
}

pub(crate) fn counted(
    decisions: &Decisions,
    decided: Result<Decision, Error>,
) -> Result<Decision, Error> {
    decisions.settle(decided.map(|decision| {
        let outcome = Outcome::of(&decision);
        (decision, outcome)
    }))
}

/// Converts to whole µs, rounded up, at most [`MAX_SPAN`].
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000))
        .unwrap_or(MAX_SPAN)
        .min(MAX_SPAN)
}
