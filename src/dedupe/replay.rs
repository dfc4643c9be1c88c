//! Claims with stored outcomes, for responses that are replayed.

use std::sync::Arc;
use std::time::Duration;

use crate::dedupe::builder::options;
use crate::dedupe::claim::{Claim, Place};
use crate::dedupe::claims::{Claims, unasked};
use crate::error::Error;
use crate::error::reasons::Subject;
use crate::key::Key;
use crate::lease::handle::{Lease, LeaseState};
use crate::lease::options::LeaseOptions;
use crate::lease::waiter::{AcquireRequest, Acquired, Patience};
use crate::single_flight::answer::{Asker, Entry, Flight, Found};
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::detached::Work;
use crate::telemetry::Event;
use crate::telemetry::counters::Decisions;
use crate::telemetry::emit::tell;

/// Claims with stored outcomes.
pub(crate) struct Replays {
    claims: Arc<Claims<Flight>>,
    remember_for: Duration,
}

/// The result of a claim.
pub(crate) enum Replay {
    New(ReplayClaim),
    /// The stored outcome of an earlier run.
    Known(Arc<[u8]>),
    /// The outcome of an earlier run is stored in another format.
    Foreign,
}

/// A claim on a key. When it is dropped, it is released.
pub(crate) struct ReplayClaim {
    lease: Lease,
    replays: Arc<Replays>,
}

impl Replays {
    /// `format` names the format of the stored outcomes.
    pub(crate) fn open(
        store: &Store,
        name: &str,
        format: &str,
        ttl: Duration,
        remember_for: Duration,
    ) -> Result<Self, Error> {
        let options = LeaseOptions { ttl, ..options() };
        options.check()?;
        let claims = Claims::new(
            store,
            &Namespace::new(store, name)?,
            name,
            format.into(),
            options,
        );
        Ok(Self {
            claims,
            remember_for,
        })
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.claims.common.decisions
    }

    pub(crate) fn name(&self) -> &str {
        &self.claims.common.name
    }

    /// Claims a key. If another caller holds the claim, waits for up to `max_wait`, or returns an error. Does not count
    /// a decision.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        key: Key,
        max_wait: Option<Duration>,
    ) -> Result<Replay, Error> {
        let wait = max_wait.map(|max_wait| Patience {
            max_wait: Some(max_wait),
            ..Patience::FOR_EVER
        });
        let ask = AcquireRequest::new(
            Asker::default(),
            Subject::Flight,
            Default::default(),
            0,
            wait,
        );
        match self.claims.leases.acquire(key, ask).await? {
            Acquired::Done(Found::Answer { bytes, .. }) => Ok(Replay::Known(bytes)),
            // Drops the claim: a handled request is not handled again.
            Acquired::Lease(_, Some(Found::Foreign)) | Acquired::Done(Found::Foreign) => {
                let text =
                    "a stored response was not used: another version wrote it in another format";
                tell(self.name(), Event::AnswerForeign, text);
                Ok(Replay::Foreign)
            }
            Acquired::Lease(lease, _) => Ok(Replay::New(ReplayClaim {
                lease,
                replays: Arc::clone(self),
            })),
        }
    }
}

impl Claims<Flight> {
    /// Stores the outcome of a claim. Returns whether the claim was still held. `again`: this was sent before, and the
    /// reply is unknown.
    pub(super) async fn confirm(
        &self,
        state: &LeaseState,
        entry: &Entry,
        again: bool,
    ) -> Result<bool, Error> {
        let entered = self
            .leases
            .namespace
            .complete(state, entry.clone(), again)
            .await?;
        entered.map(|(was_held, _)| was_held).map_err(|_| unasked())
    }
}

impl ReplayClaim {
    /// Keeps the claim until some work ends.
    pub(crate) fn belongs_to(&self, work: &Work) {
        self.lease.state.belongs_to(work);
    }

    /// Releases the claim in the background, so that the key can be claimed again.
    pub(crate) fn give_back(self) {
        self.lease.give_back();
    }

    /// Stores the outcome, like [`Claim::confirm`]. If there is no memory left for it, stores `without` instead.
    /// Returns whether the claim was still held.
    pub(crate) async fn keep(self, bytes: Arc<[u8]>, without: Arc<[u8]>) -> Result<bool, Error> {
        let entry = Entry::of(bytes, self.replays.remember_for, Duration::ZERO);
        let place = Place::Replay(Arc::clone(&self.replays.claims), entry, without);
        Claim::new(self.lease, place).confirm().await
    }
}
