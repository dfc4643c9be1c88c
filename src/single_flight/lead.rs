//! The run of a leader: how it acquires the lead across processes, and runs.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::Subject;
use crate::key::Key;
use crate::lease::handle::Lease;
use crate::lease::options::micros;
use crate::lease::waiter::{AcquireRequest, Acquired, Patience};
use crate::single_flight::answer::{Asker, Entry, Found};
use crate::single_flight::cache::Epoch;
use crate::single_flight::flight::{self, Call, Captured, Core, FlightOutcome, OutcomeOf, Work};
use crate::single_flight::outcome::{Pass, SharedOutcome};
use crate::single_flight::publish::{end, was_held};
use crate::single_flight::waiters::{LeaderGuard, send_all};
use crate::store::detached;
use crate::store::timer::{sleep, until};
use crate::telemetry::emit::tell;
use crate::telemetry::{Event, Outcome};

/// How a run starts.
struct Start<T, E> {
    /// The lead across processes. `None`: the run leads in its process only, or there is nothing to run.
    lease: Option<Lease>,
    /// The outcome in the store. With a lease, it is stale or is refreshed early.
    stored: Option<Stored<T, E>>,
    /// How the run is counted.
    counted: Outcome,
}

/// An outcome in the store, and when the store was read.
struct Stored<T, E> {
    outcome: SharedOutcome<T, E>,
    found: Found,
    asked: Instant,
}

impl<T, E> Start<T, E> {
    fn alone(counted: Outcome) -> Self {
        Self {
            lease: None,
            stored: None,
            counted,
        }
    }

    /// Starts without an outcome in the store.
    fn leads(lease: Lease) -> Self {
        Self {
            lease: Some(lease),
            ..Self::alone(Outcome::Admitted)
        }
    }

    /// Starts with an outcome that was read.
    fn with(lease: Option<Lease>, stored: Stored<T, E>) -> Self {
        if let (SharedOutcome::Pass(Pass::Process), None) = (&stored.outcome, &lease) {
            return Self::alone(Outcome::Admitted);
        }
        // Callers that called while the answer was fresh may get it stale; later callers may not.
        let is_over = lease.is_some() && stored.found.left().is_zero();
        Self {
            lease,
            stored: (!is_over).then_some(stored),
            counted: Outcome::Admitted,
        }
    }
}

/// The state of a leader during its run. The fields are dropped in their order.
struct Leading<T, E, O> {
    lease: Option<Lease>,
    caller: Caller<O>,
    /// Outlives the lease and the run. `None`: the run ends with its caller.
    detached: Option<detached::Work>,
    guard: LeaderGuard<SharedOutcome<T, E>>,
    /// Whether there is an old outcome, which the run replaces.
    has_old: bool,
    /// The state of the local cache before the store was read.
    epoch: Option<Epoch>,
}

/// The channel to the caller that passed the work, until it has its outcome.
type Caller<O> = Option<oneshot::Sender<Result<O, Error>>>;

/// Sends the outcome. If the caller was dropped, the outcome is discarded.
fn send<O>(caller: &mut Caller<O>, outcome: Result<O, Error>) {
    let _ = caller.take().map(|caller| caller.send(outcome));
}

/// Sends the outcome when it is ready, unless the caller is dropped first.
async fn send_later<O>(caller: Caller<O>, outcome: impl Future<Output = Result<O, Error>>) {
    let Some(mut caller) = caller else { return };
    tokio::select! {
        outcome = outcome => drop(caller.send(outcome)),
        () = caller.closed() => {}
    }
}

/// Waits until the deadline of a caller. If the caller was dropped, its deadline does not apply.
async fn too_late<O>(deadline: Option<Instant>, caller: &oneshot::Sender<O>) {
    until(deadline).await;
    if caller.is_closed() {
        pending().await
    }
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Core<T, E> {
    /// Runs a flight as its leader. If the run is dropped early, dropping the guard makes the next waiter in this
    /// process lead, and dropping the lease wakes a follower in another process.
    pub(super) async fn lead<W: Work<T, E>>(
        self: Arc<Self>,
        mut guard: LeaderGuard<SharedOutcome<T, E>>,
        call: Call<W>,
        caller: oneshot::Sender<Result<OutcomeOf<W, T, E>, Error>>,
    ) {
        let epoch = self.epoch_of_cache();
        let start = tokio::select! {
            biased;
            start = self.start(guard.key()) => start,
            // The work has not started, so the caller is refused. The next waiter leads.
            () = too_late(call.deadline, &caller) => {
                return drop(caller.send(Err(self.waited_too_long(guard.key()))));
            }
        };
        let mut caller = Some(caller);
        let start = match start {
            Ok(start) => start,
            Err(error) => {
                guard.finish(Err(&error));
                return send(&mut caller, Err(error));
            }
        };
        // A run that ends with its caller is not detached.
        let mut detached = self.settings.go_on.then(|| self.detach.begin());
        let lease = start.lease;
        let has_old = start.stored.is_some();
        if let Some(old) = start.stored {
            match old.outcome {
                // All callers get the stale answer. The run continues in the background.
                SharedOutcome::Answer(answer) if lease.is_some() && call.work.fits(&answer) => {
                    let until = old.asked.checked_add(old.found.left());
                    guard.serve(SharedOutcome::Answer(answer.clone()), until);
                    send(&mut caller, Ok(FlightOutcome::Shared(Ok(answer), None)));
                    detached.get_or_insert_with(|| self.detach.begin());
                }
                _ if lease.is_some() && old.found.fresh().is_zero() => {}
                outcome => {
                    lease.into_iter().for_each(Lease::decline);
                    let cached = (old.found.length(), old.found.fresh(), old.asked);
                    self.keep(epoch, guard.key(), &outcome, cached);
                    let key = guard.key().clone();
                    guard.found(&outcome);
                    // Boxed, so that other runs need no space for this.
                    return Box::pin(send_later(caller, self.follow(&key, outcome, call))).await;
                }
            }
        }
        self.decisions.count(start.counted);
        let leading = Leading {
            lease,
            caller,
            detached,
            guard,
            has_old,
            epoch,
        };
        self.run_as_leader(leading, call.work).await;
    }

    /// Runs the work of a leader, unless it loses its lease or exceeds its time.
    async fn run_as_leader<W: Work<T, E>>(
        self: Arc<Self>,
        mut leading: Leading<T, E, OutcomeOf<W, T, E>>,
        work: W,
    ) {
        let lease = leading.lease.as_ref();
        let run = work.run(lease.map(Lease::handle));
        let mut run = pin!(match &leading.detached {
            None => Either::Left(run),
            Some(detached) => {
                lease
                    .iter()
                    .for_each(|lease| lease.state.belongs_to(detached));
                Either::Right(detached.run(run))
            }
        });
        let longest = self.max_run();
        let lost = async {
            match &leading.lease {
                Some(lease) if self.settings.cancel_when_lost => Box::pin(lease.lost()).await,
                _ => pending().await,
            }
        };
        let captured = tokio::select! {
            biased;
            captured = &mut run => captured,
            () = lost => return send(&mut leading.caller, Err(Error::lost())),
            // Boxed when the wait begins, as in `until`.
            () = async { Box::pin(sleep(longest)).await } => {
                tell(
                    &self.name,
                    Event::FlightGivenUp,
                    format_args!("a run exceeded max_run ({longest:?}); the next caller runs"),
                );
                drop(leading.lease);
                drop(leading.guard);
                // From here on, the run belongs to its caller only, and ends when that caller is dropped.
                let own = async { Ok(FlightOutcome::Own(run.await.own)) };
                return send_later(leading.caller, own).await;
            }
        };
        self.share(leading, captured);
    }

    /// Sends the outcome of a run to its caller, to the waiting callers of this process, and to the store.
    fn share<O, W>(
        self: Arc<Self>,
        Leading {
            mut guard,
            detached: _detached,
            mut caller,
            lease,
            has_old,
            epoch,
        }: Leading<T, E, FlightOutcome<O, T, E, W>>,
        Captured { own, shared }: Captured<O, Result<T, E>>,
    ) {
        guard.work_done();
        let own = Ok(FlightOutcome::Own(own));
        let mut publication = self.format.publication(shared);
        if has_old && publication.fresh.is_zero() {
            // The entry replaces the old answer and expires immediately.
            publication.fresh = Duration::from_millis(1);
        }
        let Some(lease) = lease else {
            send(&mut caller, own);
            return guard.finish(Ok(&publication.outcome));
        };
        let entry = self.entry(&publication);
        let passes = entry.is_none() && matches!(self.settings.unpublished, Pass::Caller);
        let waiters = guard.end();
        let outcome = (!waiters.is_empty()).then(|| match passes {
            true => SharedOutcome::Pass(Pass::Caller),
            false => publication.outcome.clone(),
        });
        // A failed run does not replace the last good answer.
        if !(has_old && publication.has_failed) {
            self.publish(lease, publication, entry, has_old, epoch);
        }
        // The caller may call `forget` for its answer next: the publication is already registered by then, see
        // `publications`.
        send(&mut caller, own);
        if let Some(outcome) = outcome {
            send_all(waiters, Ok(&outcome));
        }
    }

    /// Returns how long a run has the lead.
    fn max_run(&self) -> Duration {
        let ttl = self.leases.options().ttl;
        self.settings
            .max_run
            .unwrap_or_else(|| (10 * ttl).min(Duration::from_secs(300)))
    }

    /// Acquires the lead across processes, or returns the leader's outcome.
    async fn start(&self, key: &Key) -> Result<Start<T, E>, Error> {
        let asker = Asker {
            since: 0,
            takes_stale: !self.format.stale.is_zero(),
            ahead: self.ahead().map_or(0, micros),
        };
        // In memory, a first attempt without a place in the queue is cheap.
        let mut waits = !self.leases.namespace.store.is_in_memory();
        // An outcome that cannot be read does not prevent leading.
        let mut unread: Option<Found> = None;
        loop {
            let wait = waits.then_some(Patience::FOR_EVER);
            let ask = AcquireRequest {
                bypass: unread.is_some(),
                gives_up: self.settings.runs_alone,
                ..AcquireRequest::new(asker, Subject::Flight, Default::default(), 0, wait)
            };
            let asked = clock::recent();
            let (found, lease) = match self.leases.acquire(key.clone(), ask).await {
                Ok(Acquired::Done(found)) => (Some(found), None),
                Ok(Acquired::Lease(lease, found)) => (found, Some(lease)),
                Err(error) if error.is_refused() && !waits => {
                    waits = true;
                    continue;
                }
                Err(error) if error.is_away() && self.settings.runs_alone => {
                    return Ok(Start::alone(Outcome::FailedOpen));
                }
                Err(error) => return Err(error),
            };
            let found = found.filter(|found| {
                lease.is_none() || unread.as_ref().is_none_or(|unread| !found.is(unread))
            });
            let outcome = found.as_ref().and_then(|found| self.read(found));
            let (found, outcome, mut lease) = match (found, outcome, lease) {
                (Some(found), Some(outcome), lease) => (found, outcome, lease),
                (_, _, Some(lease)) => return Ok(Start::leads(lease)),
                (found, _, None) => {
                    unread = found;
                    continue;
                }
            };
            // Another process published an answer in the meantime.
            if let Found::Answer {
                bytes, fresh: 1.., ..
            } = &found
                && unread.is_some()
                && let Some(lease) = lease.take()
            {
                // Boxed, because it is rare.
                Box::pin(self.enter_again(lease, &found, bytes)).await;
            }
            let stored = Stored {
                outcome,
                found,
                asked,
            };
            return Ok(Start::with(lease, stored));
        }
    }

    /// Returns the state of the local cache. Subscribes to its messages if none arrive.
    fn epoch_of_cache(&self) -> Option<Epoch> {
        let epoch = self.local_cache.as_ref()?.epoch();
        if epoch.hears_nothing() {
            self.leases.namespace.store.subscribe();
        }
        Some(epoch)
    }

    /// Stores the answer of another process again. This wakes the waiters, which then read it. If it fails, one of them
    /// runs.
    async fn enter_again(&self, lease: Lease, found: &Found, bytes: &Arc<[u8]>) {
        let fresh = found.fresh();
        let left = found.left();
        let entry = Entry::of(Arc::clone(bytes), fresh, left.saturating_sub(fresh));
        let entered = self
            .leases
            .namespace
            .complete(&lease.state, entry, false)
            .await;
        end(lease, &entered.map(was_held));
    }

    /// Draws how long before the end of an answer's ttl this process refreshes it. `None`: no early refresh.
    pub(super) fn ahead(&self) -> Option<Duration> {
        Some(flight::ahead(
            self.settings.refresh_early?,
            self.leases.namespace.hold_time.average()?,
        ))
    }

    /// Decodes a stored answer. `None` if another codec wrote it or it cannot be decoded.
    fn read(&self, found: &Found) -> Option<SharedOutcome<T, E>> {
        let (event, why) = match found {
            Found::Foreign => (
                Event::AnswerForeign,
                "another codec or version wrote it".to_owned(),
            ),
            Found::Answer { bytes, .. } => match self.format.decode(bytes) {
                Ok(outcome) => return Some(outcome),
                Err(error) => (
                    Event::AnswerGarbled,
                    format!("it could not be decoded: {error}"),
                ),
            },
        };
        tell(
            &self.name,
            event,
            format_args!("an answer was not read: {why}"),
        );
        None
    }
}
