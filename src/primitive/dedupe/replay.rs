//! Claims whose outcome is kept with them: what was answered is answered again.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::builder::options;
use super::claim::{not_run, passes};
use crate::error::Subject;
use crate::primitive::lease::{Admission, Ask, Got, Lease, LeaseOptions, Leases};
use crate::primitive::single_flight::answer::{Asker, Entry, Flight, Found};
use crate::store::Namespace;
use crate::store::timer::sleep;
use crate::telemetry::{self, Decisions, Event, tell};
use crate::{Error, Key, Store};

/// Claims whose outcome is kept.
pub(crate) struct Replays {
    name: String,
    leases: Leases<Flight>,
    remember_for: Duration,
    decisions: Decisions,
}

/// What came of a claim.
pub(crate) enum Replay {
    New(ReplayClaim),
    /// What was kept of the run before.
    Known(Arc<[u8]>),
}

/// Dropped, it is given back.
pub(crate) struct ReplayClaim {
    lease: Lease,
    replays: Arc<Replays>,
}

impl Replays {
    /// `format` names how outcomes are written.
    pub(crate) fn open(
        store: &Store,
        name: &str,
        format: &str,
        ttl: Duration,
        remember_for: Duration,
    ) -> Result<Self, Error> {
        let options = LeaseOptions { ttl, ..options() };
        options.check()?;
        let admission = Admission::new(store, &Namespace::new(store, name)?, format.into());
        let leases = Leases::new(admission, options, telemetry::Leases::new("claim", name));
        let decisions = Decisions::new("dedupe", name);
        Ok(Self { name: name.to_owned(), leases, remember_for, decisions })
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// Claims a key; an error where somebody else has. Not counted as a decision yet.
    pub(crate) async fn claim(self: &Arc<Self>, key: Key) -> Result<Replay, Error> {
        let ask = Ask::about(Asker::default(), Subject::Flight, String::new(), 0, None);
        match self.leases.acquire_or_find(key, ask).await? {
            Got::Done(Found::Answer { bytes, .. }) => Ok(Replay::Known(bytes)),
            Got::Lease(_, Some(Found::Foreign)) | Got::Done(Found::Foreign) => Err(Error::invalid(format!(
                "what is kept under {:?} was written in another format: choose another name",
                self.name
            ))),
            Got::Lease(lease, _) => Ok(Replay::New(ReplayClaim { lease, replays: Arc::clone(self) })),
        }
    }
}

impl ReplayClaim {
    /// Keeps what came of it, and gives the claim back. Whether it was held to the end; once polled, it goes on even where the
    /// future is dropped, and after an outage for as long as the claim lasts.
    pub(crate) async fn keep(self, bytes: Arc<[u8]>) -> Result<bool, Error> {
        let (told, outcome) = oneshot::channel();
        let keeping = self.keep_to_the_end(bytes, told);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(keeping)),
            Err(_) => keeping.await,
        }
        outcome.await.unwrap_or_else(|_| Err(not_run()))
    }

    async fn keep_to_the_end(self, bytes: Arc<[u8]>, told: oneshot::Sender<Result<bool, Error>>) {
        let mut kept = self.enter(&bytes).await;
        match &kept {
            Ok(true) => {}
            Ok(false) => {
                self.lease.state.counts.lost();
                tell(&self.replays.name, Event::ClaimLost, "a claim was lost while its item was handled");
            }
            Err(error) => {
                let text = format_args!("that an item was handled could not be noted: {error}");
                tell(&self.replays.name, Event::ClaimNotConfirmed, text);
            }
        }
        // Who has gone away needs nothing.
        let _ = told.send(kept.clone());
        let mut pause = Duration::from_millis(20);
        while kept.as_ref().is_err_and(passes) && Instant::now() < self.lease.until() {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            kept = self.enter(&bytes).await;
        }
        if kept.is_ok() {
            self.lease.settled();
        }
    }

    async fn enter(&self, bytes: &Arc<[u8]>) -> Result<bool, Error> {
        let entry = Entry::of(Arc::clone(bytes), self.replays.remember_for, Duration::ZERO);
        match self.replays.leases.admission.complete(&self.lease.state, entry).await? {
            Ok(was_held) => Ok(was_held),
            Err(_) => Err(super::unasked()),
        }
    }
}
