//! A namespace of flights in this process: how callers join, lead and follow.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Subject, Why};
use crate::key::Key;
use crate::lease::handle::LeaseHandle;
use crate::lease::namespace::{LeaseNamespace, Leases};
use crate::lease::options::LeaseOptions;
use crate::single_flight::answer::{Asker, Flight, Found};
use crate::single_flight::cache::{LocalCache, Stored};
use crate::single_flight::outcome::{Format, Pass, Share, SharedOutcome};
use crate::single_flight::stored;
use crate::single_flight::task::{Parallel, Run, gone};
use crate::single_flight::waiters::{Caller, LeaderGuard, Role, Table, Wakeup};
use crate::store::Store;
use crate::store::background::Background;
use crate::store::client::Namespace;
use crate::store::detach::Detach;
use crate::store::timer::until;
use crate::telemetry::counters::{Decisions, Throttled};
use crate::telemetry::{self, Event, Outcome, in_current_span};

pub(crate) struct Core<T, E> {
    pub(super) name: Arc<str>,
    pub(crate) decisions: Decisions,
    pub(super) settings: Settings,
    pub(crate) format: Format<T, E>,
    pub(super) leases: Leases<Flight>,
    parallel: Arc<Parallel>,
    /// The publications of this process that are being sent to a server; in memory there are none.
    pub(super) publications: Arc<Parallel>,
    pub(super) stored: Stored,
    pub(super) over_budget: Throttled,
    pub(super) local_cache: Option<Arc<LocalCache<T>>>,
    pub(super) background: Background,
    pub(super) detach: Detach,
    table: Arc<Table<SharedOutcome<T, E>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The callers that run if an answer cannot be published.
    pub(super) unpublished: Pass,
    pub(super) max_wait: Duration,
    /// `None`: derived from the lease's ttl.
    pub(super) max_run: Option<Duration>,
    pub(super) largest: usize,
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
    /// The bound on stored bytes, by the [weight](weight) of answers. The largest answer always fits.
    fn most_stored(&self) -> u64 {
        self.max_stored
            .unwrap_or_else(|| (64 << 20).max(self.least_stored()))
    }

    pub(super) fn least_stored(&self) -> u64 {
        self.largest as u64 + 1024
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            unpublished: Pass::Process,
            max_wait: Duration::from_secs(30),
            max_run: None,
            largest: 1 << 20,
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

/// The result of [`Capture::capture`](crate::single_flight::Capture::capture).
#[derive(Debug)]
pub struct Captured<Res, A> {
    /// The response for the caller of the request.
    pub own: Res,
    /// The answer for other callers.
    pub shared: Share<A>,
}

/// The work of a caller.
pub(crate) trait Work<T, E>: Send + 'static {
    type Own: Send + 'static;

    /// Returns whether the caller accepts this stale answer.
    fn fits(&self, stale: &T) -> bool;

    /// Runs the work, under a lease if the run leads across processes.
    fn run(
        self,
        lease: Option<LeaseHandle>,
    ) -> impl Future<Output = Captured<Self::Own, Result<T, E>>> + Send + 'static;
}

/// The call of a caller.
pub(super) struct Call<W> {
    pub(super) work: W,
    /// When the caller stops waiting.
    pub(super) deadline: Option<Instant>,
}

/// The outcome that a caller gets.
pub(crate) enum FlightOutcome<R, T, E, W> {
    /// The outcome of its own run.
    Own(R),
    /// The outcome of another caller's run. Also the caller's own work, unless it runs in the background.
    Shared(Result<T, E>, Option<W>),
}

pub(crate) type OutcomeOf<W, T, E> = FlightOutcome<<W as Work<T, E>>::Own, T, E, W>;

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
        let namespace = LeaseNamespace::new(store, &namespace, codec);
        let table = Table::new(name, settings.go_on);
        store.notifier().listen(&table);
        let largest = settings.largest;
        let notifier = store.notifier();
        let local_cache = settings
            .local_cache
            .map(|bytes| LocalCache::new(name, bytes, largest, notifier));
        Ok(Self {
            name: name.into(),
            decisions: Decisions::new("single_flight", name),
            table,
            parallel: Parallel::new(settings.max_parallel),
            publications: Parallel::new((!store.is_in_memory()).then_some(1)),
            stored: Stored::new(settings.most_stored()),
            over_budget: Throttled::new(name, Event::AnswerOverBudget),
            local_cache: local_cache.transpose()?,
            background: store.background_for_a_task(),
            // A run has a separate time limit.
            detach: Detach::new(store, "flight", name, Duration::MAX),
            settings,
            format,
            leases: Leases::new(namespace, options, counts),
        })
    }

    pub(super) async fn forget(&self, key: Key) -> Result<(), Error> {
        let LeaseNamespace { store, states, .. } = &*self.leases.namespace;
        // Otherwise this call would overtake a publication that waits in a queue.
        drop(self.publications.enter(&key).await);
        stored::forget(store, states, (&self.name, key)).await
    }

    /// Returns a valid answer from the local cache, if there is one, and counts it.
    pub(crate) fn cached(&self, key: &Key, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        let answer = self.local_cache.as_ref()?.get(key).filter(fits)?;
        self.decisions.count(Outcome::Shared);
        Some(answer)
    }

    /// Runs the work, or returns the outcome of another run. A run is counted when it begins, with or without
    /// waiters.
    pub(crate) async fn fly<W: Work<T, E>>(
        self: &Arc<Self>,
        key: &Key,
        work: W,
    ) -> Result<OutcomeOf<W, T, E>, Error> {
        if let Some(answer) = self.cached(key, |_| true) {
            return Ok(FlightOutcome::Shared(Ok(answer), Some(work)));
        }
        // A deadline beyond the range of `Instant` is no deadline.
        let deadline = Instant::now().checked_add(self.settings.max_wait);
        let outcome = self.join(key, Call { work, deadline }).await;
        match &outcome {
            Ok(FlightOutcome::Shared(..)) => self.decisions.count(Outcome::Shared),
            // A run whose lease was lost was counted when it began.
            Err(error) if !error.is_lost() => self.decisions.count(Outcome::of_error(error)),
            _ => {}
        }
        outcome
    }

    async fn join<W: Work<T, E>>(
        self: &Arc<Self>,
        key: &Key,
        call: Call<W>,
    ) -> Result<OutcomeOf<W, T, E>, Error> {
        // All callers that share an outcome follow in one place, which keeps the future of a call small.
        let shared = 'shared: {
            // With `refresh_early`, every caller queries the store as a leader, which may refresh the answer.
            if self.settings.refresh_early.is_none()
                && let Some(outcome) = self.fresh(key)
            {
                break 'shared outcome;
            }
            let (guard, caller) = match self.table.join(key) {
                Role::Served(stale) => break 'shared stale,
                Role::Leader(guard, caller) => (guard, caller),
                Role::Follower(mut wakeup, caller) => {
                    let wakeup = tokio::select! {
                        biased;
                        wakeup = &mut wakeup => wakeup,
                        () = until(call.deadline) => return Err(self.waited_too_long(key)),
                    };
                    match wakeup {
                        Ok(Wakeup::Outcome(outcome)) => {
                            // The caller is not part of the next run.
                            drop(caller);
                            break 'shared outcome?;
                        }
                        Ok(Wakeup::Lead(guard)) => (guard, caller),
                        Err(_) => return Err(gone()),
                    }
                }
            };
            return self.run(guard, caller, call).await;
        };
        self.follow(key, shared, call).await
    }

    /// Returns a fresh outcome from an in-memory store, unless one caller of the process must run.
    fn fresh(&self, key: &Key) -> Option<SharedOutcome<T, E>> {
        let Some(Found::Answer { bytes, .. }) = self.leases.namespace.find(key, &Asker::default())
        else {
            return None;
        };
        let outcome = self.format.decode(&bytes).ok()?;
        (!matches!(outcome, SharedOutcome::Pass(Pass::Process))).then_some(outcome)
    }

    /// Returns the outcome for a caller that does not lead.
    pub(super) fn follow<W: Work<T, E>>(
        &self,
        key: &Key,
        outcome: SharedOutcome<T, E>,
        call: Call<W>,
    ) -> impl Future<Output = Result<OutcomeOf<W, T, E>, Error>> {
        match outcome.into_result() {
            Some(shared) => Either::Left(ready(Ok(FlightOutcome::Shared(shared, Some(call.work))))),
            // Boxed, because most callers share an outcome.
            None => Either::Right(Box::pin(async {
                self.pass(key, call).await.map(FlightOutcome::Own)
            })),
        }
    }

    /// Begins a run as the leader, and polls it until it has an outcome for the caller.
    async fn run<W: Work<T, E>>(
        self: &Arc<Self>,
        guard: LeaderGuard<SharedOutcome<T, E>>,
        caller: Caller<SharedOutcome<T, E>>,
        call: Call<W>,
    ) -> Result<OutcomeOf<W, T, E>, Error> {
        let (sender, outcome) = oneshot::channel();
        let number = guard.run();
        // Boxed, so that it can become a task.
        let run = Run::new(Box::pin(in_current_span(
            Arc::clone(self).lead(guard, call, sender),
        )))?;
        let _goes_on = GoesOn(&run);
        // Dropped before `_goes_on`, so that the last caller aborts the run.
        let caller = caller;
        caller.runs(number, &run);
        run.outcome(outcome, || self.table.watch(&self.background))
            .await?
    }

    /// Returns the error for a passed deadline: the outage if the store is unavailable, otherwise that the caller
    /// waited too long.
    pub(super) fn waited_too_long(&self, key: &Key) -> Error {
        let busy = Busy {
            subject: Subject::Flight,
            why: Why::WaitedTooLong,
            retry_after: None,
        };
        self.leases.outage(key).unwrap_or_else(|| busy.into())
    }

    /// Runs the work for this caller only, in the caller's task.
    async fn pass<W: Work<T, E>>(&self, key: &Key, call: Call<W>) -> Result<W::Own, Error> {
        let _slot = tokio::select! {
            biased;
            slot = self.parallel.enter(key) => slot,
            () = until(call.deadline) => return Err(self.waited_too_long(key)),
        };
        self.decisions.count(Outcome::Admitted);
        // Boxed, so that the futures of callers that lead or follow are small.
        Ok(Box::pin(call.work.run(None)).await.own)
    }
}

/// Turns a run into a task when its caller is dropped, unless the run was aborted.
struct GoesOn<'a>(&'a Run);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.spawn();
    }
}

/// Draws how long before the end of its ttl an answer is refreshed: from an exponential distribution whose mean is the
/// duration of a run times beta. If runs take similar times, a beta of 1 minimises the number of callers that find an
/// expired answer.
///
/// Each caller draws at random. A refresh is more likely the nearer the end is and the longer a run takes, so that one
/// caller refreshes early and the others do not find an expired answer (Vattani, Chierichetti and Lowenstein, "Optimal
/// Probabilistic Cache Stampede Prevention", 2015).
pub(super) fn ahead(beta: f64, run: Duration) -> Duration {
    // The fraction is never 0, so its logarithm is finite.
    run.mul_f64(beta * -clock::fraction().ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_what_a_run_takes() {
        let run = Duration::from_millis(10);
        for beta in [0.5, 1.0, 3.0] {
            let sum = (0..20_000).map(|_| ahead(beta, run)).sum::<Duration>();
            let ratio = sum.as_secs_f64() / 20_000.0 / run.as_secs_f64() / beta;
            assert!((0.9..1.1).contains(&ratio), "{beta}: {ratio}");
        }
        assert_eq!(ahead(1.0, Duration::ZERO), Duration::ZERO);
    }
}
