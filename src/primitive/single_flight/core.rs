//! A namespace of flights in this process: how callers take part.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::answer::Flight;
use super::builder::{Followers, Unpublished};
use super::driver::Forget;
use super::table::{Baton, Caller, Heard, Part, Table};
use super::verdict::{Format, Verdict};
use crate::error::{Busy, Cause, Subject, Why};
use crate::primitive::lease::{Admission, Ask, LeaseOptions, Leases, Wait};
use crate::primitive::mutex::holder::Exclusive;
use crate::store::timer::sleep_until;
use crate::store::{Client, Namespace};
use crate::telemetry::{self, Decisions, Outcome, in_current_span};
use crate::{Error, Key, LeaseHandle, Store};

pub(crate) struct Core<T, E> {
    pub(super) name: Arc<str>,
    decisions: Decisions,
    pub(super) settings: Settings,
    pub(super) format: Format<T, E>,
    pub(super) leases: Leases<Flight>,
    forget: Client<Forget>,
    /// For those who do not share.
    turns: Leases<Exclusive>,
    table: Arc<Table<Verdict<T, E>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) followers: Followers,
    pub(super) unpublished: Unpublished,
    pub(super) longest_wait: Duration,
    /// `None`: as the time to live says.
    pub(super) max_run: Option<Duration>,
    pub(super) largest: usize,
    pub(super) stale: Duration,
    pub(super) go_on: bool,
    pub(super) cancel_when_lost: bool,
    /// `None`: where the others share.
    pub(super) alone_when_away: Option<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            followers: Followers::Share,
            unpublished: Unpublished::InMemory,
            longest_wait: Duration::from_secs(30),
            max_run: None,
            largest: 1 << 20,
            stale: Duration::ZERO,
            go_on: false,
            cancel_when_lost: false,
            alone_when_away: None,
        }
    }
}

impl Settings {
    /// Whether to run while the store is away: sharing is an optimisation, turns are not.
    pub(super) fn is_alone_when_away(&self) -> bool {
        self.alone_when_away.unwrap_or(self.followers == Followers::Share)
    }
}

/// What a caller brings along.
pub(super) struct Work<P, W> {
    /// Whether a stale answer is good enough.
    pub(super) fits: P,
    pub(super) work: W,
}

/// What came of a run: for the caller whose it was, and for all others.
pub(crate) struct Flown<R, T, E> {
    pub(crate) own: R,
    pub(crate) shared: Option<Result<T, E>>,
}

/// What a caller gets.
pub(crate) enum Landed<R, T, E> {
    /// What came of its own run.
    Own(R),
    /// What came of another's.
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
        Ok(Self {
            name: name.into(),
            decisions: Decisions::new("single_flight", name),
            table: Table::new(settings.go_on),
            settings,
            format,
            forget: admission.namespace.client(),
            leases: Leases::new(admission, options.clone(), counts.clone()),
            turns: Leases::shared(store, name, || Namespace::open(store, name), options, counts),
        })
    }

    pub(super) async fn forget(&self, key: Key) -> Result<(), Error> {
        self.forget.run(key, Forget).await
    }

    /// Runs, or gets what came of another's run. A run is counted when it begins, whether or not anybody waits for it.
    pub(super) async fn fly<R, P, W, F>(
        self: &Arc<Self>,
        key: Key,
        Work { fits, work }: Work<P, W>,
    ) -> Result<Landed<R, T, E>, Error>
    where
        R: Send + 'static,
        P: FnOnce(&T) -> bool + Send + 'static,
        W: FnOnce(Option<LeaseHandle>) -> F + Send + 'static,
        F: Future<Output = Flown<R, T, E>> + Send + 'static,
    {
        let decisions = self.decisions.clone();
        let counted = move |lease: Option<LeaseHandle>| {
            decisions.count(if lease.is_some() { Outcome::Admitted } else { Outcome::FailedOpen });
            work(lease)
        };
        let landed = self.run(key, Work { fits, work: counted }).await;
        match &landed {
            Ok(Landed::Shared(_)) => self.decisions.count(Outcome::Shared),
            // What was run and lost is counted.
            Err(error) if !error.is_lost() => self.decisions.count(Outcome::of_error(error)),
            _ => {}
        }
        landed
    }

    async fn run<R, P, W, F>(self: &Arc<Self>, key: Key, work: Work<P, W>) -> Result<Landed<R, T, E>, Error>
    where
        R: Send + 'static,
        P: FnOnce(&T) -> bool + Send + 'static,
        W: FnOnce(Option<LeaseHandle>) -> F + Send + 'static,
        F: Future<Output = Flown<R, T, E>> + Send + 'static,
    {
        if self.settings.followers != Followers::Share {
            return self.run_alone(key, work.work).await;
        }
        // What is too long to be told is for ever.
        let deadline = Instant::now().checked_add(self.settings.longest_wait);
        let (baton, caller) = match self.table.join(&key) {
            Part::Served(stale) => return Ok(Landed::Shared(stale.into_result())),
            Part::Lead(baton, caller) => (baton, caller),
            Part::Wait(mut heard, caller) => {
                let heard = tokio::select! {
                    biased;
                    heard = &mut heard => heard,
                    () = at(deadline) => return Err(self.waited_too_long(&key)),
                };
                match heard {
                    Ok(Heard::Landed(landed)) => {
                        return landed.map(|verdict| Landed::Shared(verdict.into_result()));
                    }
                    Ok(Heard::Lead(baton)) => (baton, caller),
                    Err(_) => return Err(gone()),
                }
            }
        };
        self.lead(baton, caller, work, deadline).await
    }

    /// Runs in a task of its own.
    async fn lead<R, P, W, F>(
        self: &Arc<Self>,
        baton: Baton<Verdict<T, E>>,
        caller: Caller<Verdict<T, E>>,
        work: Work<P, W>,
        deadline: Option<Instant>,
    ) -> Result<Landed<R, T, E>, Error>
    where
        R: Send + 'static,
        P: FnOnce(&T) -> bool + Send + 'static,
        W: FnOnce(Option<LeaseHandle>) -> F + Send + 'static,
        F: Future<Output = Flown<R, T, E>> + Send + 'static,
    {
        let (own, mut landed) = oneshot::channel();
        let runs = Arc::new(AtomicBool::new(false));
        let (run, key) = (baton.run(), baton.key().clone());
        let flight = Arc::clone(self).drive(baton, work, own, Arc::clone(&runs));
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::invalid("a flight runs in a task of its own: run it within a tokio runtime"));
        };
        let task = runtime.spawn(in_current_span(flight));
        caller.runs(run, task.abort_handle());
        let outcome = tokio::select! {
            biased;
            outcome = &mut landed => outcome,
            // Whose work runs does not follow any more. And the work of who is refused is not to run: the next leads.
            () = at(deadline) => match runs.swap(true, Ordering::AcqRel) {
                true => landed.await,
                false => {
                    let error = self.waited_too_long(&key);
                    task.abort();
                    return Err(error);
                }
            },
        };
        match outcome {
            Ok(outcome) => outcome,
            Err(_) => Err(why_gone(task).await),
        }
    }

    /// Why it came to nothing: a store that is away is not told as somebody's slow work.
    fn waited_too_long(&self, key: &Key) -> Error {
        let busy = Busy { subject: Subject::Flight, why: Why::WaitedTooLong, retry_after: None };
        self.leases.outage(key).unwrap_or_else(|| busy.into())
    }

    /// Runs where nobody else does, in the caller's own task.
    async fn run_alone<R, W, F>(&self, key: Key, work: W) -> Result<Landed<R, T, E>, Error>
    where
        W: FnOnce(Option<LeaseHandle>) -> F,
        F: Future<Output = Flown<R, T, E>>,
    {
        let wait = Wait { longest: Some(self.settings.longest_wait), ..Wait::FOR_EVER };
        let wait = (self.settings.followers == Followers::TakeTurns).then_some(wait);
        let ask = Ask::new(Subject::Flight, String::new(), 0, wait);
        let lease = match self.turns.acquire(key, ask).await {
            Ok(lease) => Some(lease),
            Err(error) if error.is_away() && self.settings.is_alone_when_away() => None,
            Err(error) => return Err(error),
        };
        let work = work(lease.as_ref().map(crate::Lease::handle));
        let flown = match &lease {
            Some(lease) if self.settings.cancel_when_lost => tokio::select! {
                biased;
                flown = work => flown,
                () = lease.lost() => return Err(Error::lost()),
            },
            _ => work.await,
        };
        Ok(Landed::Own(flown.own))
    }
}

/// Ends at a deadline, if there is one.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn gone() -> Error {
    Error::unavailable(Cause::Disconnected, "the runtime that ran the flight is gone")
}

/// Why a task said nothing. A panic goes on here.
async fn why_gone(task: JoinHandle<()>) -> Error {
    match task.await {
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        _ => gone(),
    }
}
