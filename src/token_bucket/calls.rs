//! The calls of a bucket to its store, and the buckets beside it.

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::TokenBucket;
use super::acquire::{Decide, Waiting};
use super::adjust::Adjust;
use super::ahead::Prefetch;
use super::bucket_state::BucketState;
use super::cancel::Cancel;
use super::decision::Decision;
use super::holds::Renewals;
use super::learn::LearnedQuotas;
use super::local::Local;
use super::operations::{Reserve, Reset};
use super::peek::Peek;
use super::returning::Returning;
use super::state::{Ask, Bucket};
use super::upstream::UpstreamEvents;
use crate::fleet::Replicas;
use crate::store::failure::Sharing;
use crate::store::{Client, Namespace, OperationFuture};
use crate::telemetry::{Decisions, Outcome};
use crate::token_bucket::quota::{MAX_SPAN, Quotas};
use crate::{Error, Key, Quota, Store, clock};

#[derive(Debug)]
pub(crate) struct Clients {
    pub(super) name: String,
    pub(super) decisions: Decisions,
    pub(super) reserve: Client<Reserve>,
    pub(super) cancel: Client<Cancel>,
    pub(super) adjust: Client<Adjust>,
    pub(super) prefetch: Client<Prefetch>,
    pub(super) peek: Client<Peek>,
    pub(super) reset: Client<Reset>,
    pub(super) holds: Arc<Renewals>,
    pub(super) returning: Returning,
    pub(super) store: Store,
    pub(super) namespace: Namespace<Bucket>,
    /// How many processes share the quotas, in a local share.
    pub(super) replicas: Option<Replicas>,
    pub(super) upstream: UpstreamEvents,
}

impl TokenBucket {
    /// The counters of decisions. The caller counts the decisions of [`acquire`](Self::acquire) and of a
    /// [`Limiter`](super::limiter::Limiter).
    pub(crate) fn decisions(&self) -> &Decisions {
        &self.clients.decisions
    }

    pub(super) async fn adjust(&self, key: Key, tokens: i64) -> Result<BucketState, Error> {
        let adjusted = self
            .clients
            .adjust
            .run(key.clone(), self.adjusting(tokens, Duration::ZERO))
            .await;
        if tokens < 0 {
            self.local.forget_refusal(&key, &self.quotas);
        }
        adjusted
    }

    /// Charges a key in the background.
    pub(crate) fn charge_detached(&self, key: Key, tokens: u32) {
        self.clients
            .adjust
            .detach(key, self.adjusting(tokens.into(), Duration::ZERO));
    }

    /// The same buckets with `max_wait` reduced by the time already waited.
    pub(super) fn with_less_wait(&self, waited: Duration) -> Self {
        Self {
            max_wait: (self.max_wait - to_micros(waited)).max(0),
            ..self.clone()
        }
    }

    /// The same buckets, with quotas that are learned from an upstream.
    pub(super) fn learning(&self) -> Self {
        let learned = Some(LearnedQuotas::new(&self.clients.store, self.name()));
        Self {
            learned,
            ..self.clone()
        }
    }

    /// The same buckets with the quotas that were learned for a key meanwhile.
    pub(super) fn under_learned(self, key: &Key) -> Self {
        let quotas = self.learned.as_ref().and_then(|learned| learned.known(key));
        quotas
            .map(|quotas| self.with_quotas(&quotas))
            .unwrap_or(self)
    }

    /// Decides a request, and waits until it may act.
    pub(super) async fn acquire(&self, key: Key, cost: u32) -> Result<Decision, Error> {
        let decision = Decide::begin(self, &self.quotas, &key, cost, self.max_wait).await?;
        if decision.delay().is_zero() {
            return Ok(decision);
        }
        Waiting::new(self, &self.quotas, &key, decision).end().await
    }

    pub(super) fn adjusting(&self, tokens: i64, block: Duration) -> Adjust {
        Adjust {
            quotas: self.quotas.clone(),
            tokens,
            block: to_micros(block),
        }
    }

    /// Tells that so many values of a response of an upstream cannot be read.
    pub(crate) fn upstream_ignored(&self, values: u64) {
        self.clients.upstream.ignored(values);
    }

    /// Blocks a key in the background.
    pub(crate) fn block_detached(&self, key: Key, duration: Duration) {
        self.local.forget(&key);
        self.clients.adjust.detach(key, self.adjusting(0, duration));
    }

    /// Returns the buckets of this name in the memory of this process, which replaces the store while it is unavailable.
    /// Their quotas are divided by the number of processes that share them.
    pub(crate) fn local_share(&self, sharing: Sharing) -> Self {
        let (name, store) = (self.name(), self.clients.store.local_share());
        let replicas = Some(Replicas::of(
            &self.clients.store,
            "token_bucket",
            name,
            sharing,
        ));
        let clients = Clients {
            replicas,
            ..Clients::new(store, name, &Namespace::open(store, name))
        };
        Self {
            clients: Arc::new(clients),
            local: Local::default(),
            learned: None,
            ..self.clone()
        }
    }

    /// Other buckets in the same store. Their name is the name of this namespace plus `ending`.
    pub(crate) fn beside(&self, ending: &str, quota: Quota) -> Result<Self, Error> {
        let (store, name) = (&self.clients.store, format!("{}{ending}", self.name()));
        let clients = Arc::new(Clients::new(store, &name, &Namespace::open(store, &name)));
        Ok(Self::of(clients, quota.try_into()?, 0))
    }

    /// The same buckets as part of several limits: without waiting and prefetching.
    pub(super) fn as_one_of_several(&self) -> Self {
        Self {
            max_wait: 0,
            local: Local {
                ahead: None,
                ..self.local.clone()
            },
            ..self.clone()
        }
    }

    /// Takes a token to count an event. It is not counted as a decision on a request.
    pub(crate) async fn count(&self, key: Key) -> Result<Decision, Error> {
        self.clients
            .reserve
            .run(
                key,
                Reserve {
                    quotas: self.quotas.clone(),
                    ask: Ask { cost: 1, wait: 0 },
                },
            )
            .await
    }

    /// Runs a task on the store's own thread, in the background. For a store in memory, the task is complete on
    /// return.
    pub(crate) fn detached(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.clients.store.background() {
            Some(background) => background.spawn(task),
            None => task.now_or_never().unwrap_or_default(),
        }
    }

    /// Returns this local share with its part of `quotas`.
    pub(super) fn share_of(&self, quotas: &Quotas) -> Self {
        let parts = self
            .clients
            .replicas
            .as_ref()
            .map_or(NonZeroU32::MIN, Replicas::most);
        self.with_quotas(&quotas.share(parts))
    }

    pub(super) async fn decide(&self, key: Key, cost: u32, wait: i64) -> Result<Decision, Error> {
        counted(
            self.decisions(),
            Decide::begin(self, &self.quotas, &key, cost, wait).await,
        )
    }

    pub(super) fn cancel(&self, key: &Key, cancel: Cancel) -> OperationFuture<Cancel> {
        self.clients
            .cancel
            .run(key.clone(), self.returned(key, cancel))
    }

    pub(super) fn cancel_detached(&self, key: &Key, cancel: Cancel) {
        self.clients
            .cancel
            .detach(key.clone(), self.returned(key, cancel));
    }

    /// Takes back an admission, asked for at `sent`, whose request does not act.
    ///
    /// [`Cancel::unused`] must run exactly once. If the client may repeat it, it gives back all tokens if nothing was
    /// charged after them, and otherwise none.
    pub(super) fn take_back(&self, key: &Key, state: &BucketState, cost: i64, sent: i64) {
        let cancel = match self.clients.cancel.may_repeat() {
            true => Cancel::safe_to_repeat(state, cost),
            false => Cancel::unused(state, cost, clock::micros() - sent),
        };
        self.cancel_detached(key, cancel);
    }

    /// Registers a cancellation in the local state.
    pub(super) fn returned(&self, key: &Key, cancel: Cancel) -> Cancel {
        self.local.forget_refusal(key, &self.quotas);
        Cancel {
            _returning: Some(Arc::new(self.clients.returning.begin(key))),
            ..cancel
        }
    }
}

impl Clients {
    pub(super) fn new(store: &Store, name: &str, namespace: &Namespace<Bucket>) -> Self {
        Self {
            name: name.to_owned(),
            decisions: Decisions::new("token_bucket", name),
            reserve: namespace.client(),
            cancel: namespace.client(),
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

pub(super) fn counted(
    decisions: &Decisions,
    decided: Result<Decision, Error>,
) -> Result<Decision, Error> {
    decisions.settle(decided.map(|decision| {
        let outcome = Outcome::of(&decision);
        (decision, outcome)
    }))
}

/// Converts to whole µs, rounded up, at most [`MAX_SPAN`].
pub(super) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000))
        .unwrap_or(MAX_SPAN)
        .min(MAX_SPAN)
}
