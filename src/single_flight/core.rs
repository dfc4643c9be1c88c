//! A namespace of flights in this process: how callers join, lead and follow.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::answer::{Asker, Flight, Found};
use super::builder::Unpublished;
use super::kept;
use super::local_cache::LocalCache;
use super::parallel::Parallel;
use super::run::{Run, gone};
use super::stored::Stored;
use super::table::{Baton, Caller, Heard, Part, Table};
use super::verdict::{Format, Pass, Share, Times, Verdict};
use crate::error::{Busy, Subject, Why};
use crate::lease::{Admission, LeaseOptions, Leases};
use crate::store::background::Background;
use crate::store::timer::until;
use crate::store::{Listener, Namespace};
use crate::telemetry::{self, Decisions, Event, Often, Outcome, in_current_span};
use crate::{Error, Key, LeaseHandle, Store};

pub(crate) struct Core<T, E> {
    pub(super) name: Arc<str>,
    pub(super) decisions: Decisions,
    pub(super) settings: Settings,
    pub(super) format: Format<T, E>,
    pub(super) leases: Leases<Flight>,
    parallel: Parallel,
    pub(super) stored: Stored,
    pub(super) over_budget: Often,
    pub(super) local_cache: Option<Arc<LocalCache<T>>>,
    background: Background,
    table: Arc<Table<Verdict<T, E>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(super) unpublished: Unpublished,
    pub(super) max_wait: Duration,
    /// `None`: derived from the lease's ttl.
    pub(super) max_run: Option<Duration>,
    pub(super) largest: usize,
    pub(super) times: Times,
    /// The size of the local cache in bytes.
    pub(super) local_cache: Option<u64>,
    /// The bound on the bytes of unexpired answers that this process has stored.
    pub(super) max_stored: Option<u64>,
    pub(super) refresh_early: Option<f64>,
    /// How many callers of a key run at once when the result is not shared.
    pub(super) max_parallel: Option<u32>,
    pub(super) go_on: bool,
    pub(super) cancel_when_lost: bool,
    pub(super) runs_alone: bool,
}

impl Settings {
    /// The bound on stored bytes, by the [weight](local_cache::weight) of answers. The largest answer always fits.
    fn most_stored(&self) -> u64 {
        self.max_stored.unwrap_or_else(|| (64 << 20).max(self.least_stored()))
    }

    pub(super) fn least_stored(&self) -> u64 {
        self.largest as u64 + 1024
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            unpublished: Unpublished::InMemory,
            max_wait: Duration::from_secs(30),
            max_run: None,
            largest: 1 << 20,
            times: Times { stale: Duration::ZERO, pass: Duration::from_secs(10) },
            local_cache: None,
            max_stored: None,
            refresh_early: None,
            max_parallel: None,
            go_on: false,
            cancel_when_lost: false,
            runs_alone: true,
        }
    }
}

/// The work of a caller.
pub(super) trait Work<T, E>: Send + 'static {
    type Own: Send + 'static;
    type Run: Future<Output = Flown<Self::Own, T, E>> + Send + 'static;

    /// Returns whether the caller accepts a given stale answer.
    fn fits(&self, stale: &T) -> bool;

    fn run(self, lease: Option<LeaseHandle>) -> Self::Run;
}

impl<R, T, E, P, W, F> Work<T, E> for (P, W)
where
    R: Send + 'static,
    P: Fn(&T) -> bool + Send + 'static,
    W: FnOnce(Option<LeaseHandle>) -> F + Send + 'static,
    F: Future<Output = Flown<R, T, E>> + Send + 'static,
{
    type Own = R;
    type Run = F;

    fn fits(&self, stale: &T) -> bool {
        (self.0)(stale)
    }

    fn run(self, lease: Option<LeaseHandle>) -> F {
        (self.1)(lease)
    }
}

/// The call of a caller.
pub(super) struct Call<W> {
    pub(super) work: W,
    /// When the caller stops waiting.
    pub(super) deadline: Option<Instant>,
}

/// The outcome of a run: for the caller that passed the work, and for all others.
pub(crate) struct Flown<R, T, E> {
    pub(crate) own: R,
    pub(crate) shared: Share<Result<T, E>>,
}

/// The outcome that a caller gets.
pub(crate) enum Landed<R, T, E> {
    /// The outcome of its own run.
    Own(R),
    /// The outcome of another caller's run.
    Shared(Result<T, E>),
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Core<T, E> {
    pub(super) fn new(
        store: &Store,
        name: &str,
        codec: Arc<str>,
        settings: Settings,
        options: LeaseOptions,
        format: Format<T, E>,
    ) -> Result<Self, Error> {
        let namespace = Namespace::new(store, name)?;
        let counts = telemetry::Leases::new("flight", name);
        let admission = Admission::new(store, &namespace, codec);
        let table = Table::new(name, settings.go_on);
        let listener: Weak<dyn Listener> = Arc::<Table<Verdict<T, E>>>::downgrade(&table);
        store.notifier().listen(listener);
        let (largest, notifier) = (settings.largest, store.notifier());
        let local_cache = settings.local_cache.map(|bytes| LocalCache::new(name, bytes, largest, notifier));
        Ok(Self {
            name: name.into(),
            decisions: Decisions::new("single_flight", name),
            table,
            parallel: Parallel::new(settings.max_parallel),
            stored: Stored::new(settings.most_stored()),
            over_budget: Often::new(name, Event::AnswerOverBudget),
            local_cache: local_cache.transpose()?,
            background: store.background_or_thread(),
            settings,
            format,
            leases: Leases::new(admission, options, counts),
        })
    }

    pub(super) async fn forget(&self, key: Key) -> Result<(), Error> {
        let Admission { store, namespace, .. } = &*self.leases.admission;
        kept::forget(store, namespace, (&self.name, key)).await
    }

    /// Returns an answer from the local cache, if there is one that fits, and counts it.
    pub(super) fn cached(&self, key: &Key, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        let answer = self.local_cache.as_ref()?.get(key).filter(fits)?;
        self.decisions.count(Outcome::Shared);
        Some(answer)
    }

    /// Runs the work, or returns the outcome of another run. A run is counted when it begins, with or without
    /// waiters.
    pub(super) async fn fly<W: Work<T, E>>(
        self: &Arc<Self>,
        key: Key,
        call: Call<W>,
    ) -> Result<Landed<W::Own, T, E>, Error> {
        if let Some(answer) = self.cached(&key, |_| true) {
            return Ok(Landed::Shared(Ok(answer)));
        }
        let landed = self.run(key, call).await;
        match &landed {
            Ok(Landed::Shared(_)) => self.decisions.count(Outcome::Shared),
            // A run whose lease was lost was counted when it began.
            Err(error) if !error.is_lost() => self.decisions.count(Outcome::of_error(error)),
            _ => {}
        }
        landed
    }

    async fn run<W: Work<T, E>>(
        self: &Arc<Self>,
        key: Key,
        call: Call<W>,
    ) -> Result<Landed<W::Own, T, E>, Error> {
        // With `refresh_early` every caller goes through the driver, which may refresh the answer.
        if self.settings.refresh_early.is_none()
            && let Some(verdict) = self.fresh(&key)
        {
            return self.landed(key, verdict, call).await;
        }
        let (baton, caller) = match self.table.join(&key) {
            Part::Served(stale) => return self.landed(key, stale, call).await,
            Part::Lead(baton, caller) => (baton, caller),
            Part::Wait(mut heard, caller) => {
                let heard = tokio::select! {
                    biased;
                    heard = &mut heard => heard,
                    () = until(call.deadline) => return Err(self.waited_too_long(&key)),
                };
                match heard {
                    Ok(Heard::Landed(verdict)) => {
                        // The caller is not part of the next run.
                        drop(caller);
                        return self.landed(key, verdict?, call).await;
                    }
                    Ok(Heard::Lead(baton)) => (baton, caller),
                    Err(_) => return Err(gone()),
                }
            }
        };
        self.lead(baton, caller, call).await
    }

    /// Returns a fresh verdict from an in-memory store, unless one caller of the process must run.
    fn fresh(&self, key: &Key) -> Option<Verdict<T, E>> {
        let Some(Found::Answer { bytes, .. }) = self.leases.admission.find(key, &Asker::default()) else {
            return None;
        };
        let verdict = self.format.decode(&bytes).ok()?;
        (!matches!(verdict, Verdict::Pass(Pass::Process))).then_some(verdict)
    }

    /// Returns the outcome for a caller that did not lead.
    pub(super) async fn landed<W: Work<T, E>>(
        &self,
        key: Key,
        verdict: Verdict<T, E>,
        call: Call<W>,
    ) -> Result<Landed<W::Own, T, E>, Error> {
        match verdict.into_result() {
            Some(shared) => Ok(Landed::Shared(shared)),
            None => self.pass(key, call).await.map(Landed::Own),
        }
    }

    /// Leads: polls the run until it has an outcome for the caller.
    async fn lead<W: Work<T, E>>(
        self: &Arc<Self>,
        baton: Baton<Verdict<T, E>>,
        caller: Caller<Verdict<T, E>>,
        call: Call<W>,
    ) -> Result<Landed<W::Own, T, E>, Error> {
        let (own, landed) = oneshot::channel();
        let number = baton.run();
        // Boxed, so that it can become a task.
        let run = Run::new(Box::pin(in_current_span(Arc::clone(self).drive(baton, call, own))))?;
        let _goes_on = GoesOn(&run);
        // Dropped before `_goes_on`: the last caller aborts the run.
        let caller = caller;
        caller.runs(number, &run);
        run.outcome(landed, || self.table.watch(&self.background)).await?
    }

    /// Returns the error for a passed deadline: the outage if the store is unavailable, else that it waited too
    /// long.
    pub(super) fn waited_too_long(&self, key: &Key) -> Error {
        let busy = Busy { subject: Subject::Flight, why: Why::WaitedTooLong, retry_after: None };
        self.leases.outage(key).unwrap_or_else(|| busy.into())
    }

    /// Runs the work for this caller only, in the caller's task.
    async fn pass<W: Work<T, E>>(&self, key: Key, call: Call<W>) -> Result<W::Own, Error> {
        let _slot = tokio::select! {
            biased;
            slot = self.parallel.enter(&key) => slot,
            () = until(call.deadline) => return Err(self.waited_too_long(&key)),
        };
        self.decisions.count(Outcome::Admitted);
        Ok(call.work.run(None).await.own)
    }
}

/// Makes a run a task when its caller leaves, unless it was aborted.
struct GoesOn<'a>(&'a Run);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.spawn();
    }
}
