//! The run of a leader: how it gets the lead across processes, and how its outcome is published.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Either;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, Subject};
use crate::lease::{Ask, Completed, Got, Lease, Wait, micros};
use crate::single_flight::answer::{Asker, Entry, Flight, Found};
use crate::single_flight::cache::{self, Epoch};
use crate::single_flight::flight::{self, Call, Core, FlightOutcome, OutcomeOf, Work};
use crate::single_flight::layer::Captured;
use crate::single_flight::outcome::{Pass, Publication, SharedOutcome};
use crate::single_flight::task::Slot;
use crate::single_flight::waiters::{LeaderGuard, send_all};
use crate::store::Key;
use crate::store::timer::{sleep, until};
use crate::telemetry::{Event, Outcome, answered_in_current_span, tell};

/// How a run starts.
struct Start<T, E> {
    /// The lead across processes. `None`: the run leads in its process only, or there is nothing to run.
    lease: Option<Lease>,
    /// The outcome in the store. With a lease, it is stale or is refreshed early.
    stored: Option<Stored<T, E>>,
    /// How the run is counted.
    counted: Outcome,
}

/// An outcome in the store, and when the store was asked for it.
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
}

/// The channel to the caller that passed the work, until it has its outcome.
type Caller<O> = Option<oneshot::Sender<Result<O, Error>>>;

/// Sends the outcome. A caller that was dropped needs none.
fn send<O>(caller: &mut Caller<O>, outcome: Result<O, Error>) {
    let _ = caller.take().map(|caller| caller.send(outcome));
}

/// Sends the outcome when it is there, unless the caller is dropped before.
async fn send_later<O>(caller: Caller<O>, outcome: impl Future<Output = Result<O, Error>>) {
    let Some(mut caller) = caller else { return };
    tokio::select! {
        outcome = outcome => drop(caller.send(outcome)),
        () = caller.closed() => {}
    }
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Core<T, E> {
    /// Leads from beginning to end. If the run is dropped early, dropping the guard makes the next waiter in this process
    /// lead, and dropping the lease wakes a follower in another process.
    pub(super) async fn lead<W: Work<T, E>>(
        self: Arc<Self>,
        mut guard: LeaderGuard<SharedOutcome<T, E>>,
        call: Call<W>,
        caller: oneshot::Sender<Result<OutcomeOf<W, T, E>, Error>>,
    ) {
        // Outlives the lease and the run. The run of a caller that stays with it is not detached.
        let mut work = None;
        let epoch = self.local_cache.as_ref().map(|cache| cache.epoch());
        if epoch.is_some_and(Epoch::hears_nothing) {
            self.leases.admission.store.subscribe();
        }
        let too_late = async {
            until(call.deadline).await;
            // If the caller was dropped, its deadline was too.
            if caller.is_closed() {
                pending().await
            }
        };
        let start = tokio::select! {
            biased;
            start = self.start(guard.key()) => start,
            // The work has not begun, so the caller is refused. The next waiter leads.
            () = too_late => return drop(caller.send(Err(self.waited_too_long(guard.key())))),
        };
        let mut caller = Some(caller);
        let Start {
            lease,
            stored,
            counted,
        } = match start {
            Ok(start) => start,
            Err(error) => {
                guard.finish(Err(&error));
                return send(&mut caller, Err(error));
            }
        };
        if self.settings.go_on {
            work = Some(self.detach.begin());
        }
        let has_old = stored.is_some();
        if let Some(Stored {
            outcome,
            found,
            asked,
        }) = stored
        {
            match outcome {
                // All callers get the old answer. The run is in the background.
                SharedOutcome::Answer(answer) if lease.is_some() && call.work.fits(&answer) => {
                    guard.serve(
                        SharedOutcome::Answer(answer.clone()),
                        asked.checked_add(found.left()),
                    );
                    send(&mut caller, Ok(FlightOutcome::Shared(Ok(answer), None)));
                    work.get_or_insert_with(|| self.detach.begin());
                }
                _ if lease.is_some() && found.fresh().is_zero() => {}
                outcome => {
                    lease.into_iter().for_each(Lease::decline);
                    self.keep(
                        epoch,
                        guard.key(),
                        &outcome,
                        (found.length(), found.fresh(), asked),
                    );
                    let key = guard.key().clone();
                    guard.found(&outcome);
                    // In a box: no run needs the room for this.
                    return Box::pin(send_later(caller, self.follow(&key, outcome, call))).await;
                }
            }
        }
        self.decisions.count(counted);
        let run = call.work.run(lease.as_ref().map(Lease::handle));
        let mut run = pin!(match &work {
            None => Either::Left(run),
            Some(work) => {
                lease.iter().for_each(|lease| lease.state.belongs_to(work));
                Either::Right(work.run(run))
            }
        });
        let longest = self.max_run();
        let lost = async {
            match &lease {
                Some(lease) if self.settings.cancel_when_lost => Box::pin(lease.lost()).await,
                _ => pending().await,
            }
        };
        let Captured { own, shared } = tokio::select! {
            biased;
            captured = &mut run => captured,
            () = lost => return send(&mut caller, Err(Error::lost())),
            // In boxes once the wait begins, as in `until`.
            () = async { Box::pin(sleep(longest)).await } => {
                tell(
                    &self.name,
                    Event::FlightGivenUp,
                    format_args!("a run exceeded max_run ({longest:?}); the next caller runs"),
                );
                drop(lease);
                drop(guard);
                // From here on the run belongs to its caller only, and ends when that caller is dropped.
                return send_later(caller, async { Ok(FlightOutcome::Own(run.await.own)) }).await;
            }
        };
        guard.work_done();
        let own = Ok(FlightOutcome::Own(own));
        let mut publication = self.format.publication(shared);
        if has_old && publication.fresh.is_zero() {
            // The entry replaces the old answer and expires at once.
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
        // Who has an answer may forget it: by then its publication is known, see `publications`.
        send(&mut caller, own);
        if let Some(outcome) = outcome {
            send_all(waiters, Ok(&outcome));
        }
    }

    /// Publishes an outcome. `entry` is `None` if it is too large or cannot be encoded. It leaves in the next batch, after
    /// the publication of this key before it, if there is one: then a task waits for that.
    fn publish(
        self: Arc<Self>,
        lease: Lease,
        Publication { outcome, fresh, .. }: Publication<T, E>,
        entry: Option<Entry>,
        has_old: bool,
        epoch: Option<Epoch>,
    ) {
        let owed = self.leases.admission.store.publication();
        let length = entry.as_ref().map(|entry| entry.bytes.len());
        let mut entry = entry.unwrap_or_else(|| {
            Entry::of(
                self.settings.unpublished.bytes(),
                fresh.min(self.format.pass),
                Duration::ZERO,
            )
        });
        // An old answer is replaced in any case.
        if !self.fits_budget(lease.key(), &outcome, &entry) && !has_old {
            entry = Entry::of(entry.bytes, Duration::ZERO, Duration::ZERO);
        }
        // Of an answer on its way to a slow server, one copy is enough.
        let outcome = epoch.is_some().then(|| (outcome, clock::recent()));
        let background = self.background.clone();
        let mut turn = self.publications.enter(lease.key()).boxed();
        let admission = Arc::clone(&self.leases.admission);
        let state = Arc::clone(&lease.state);
        let then =
            answered_in_current_span(move |(turn, entered): (Option<Slot>, Completed<Flight>)| {
                drop(turn);
                let was_held = entered.map(was_held);
                match (self.is_stored(&was_held), length, outcome) {
                    (Some(true), Some(length), Some((outcome, sent))) => {
                        self.keep(epoch, lease.key(), &outcome, (length, fresh, sent));
                    }
                    (Some(false), ..) => self.stored.give_back(lease.key()),
                    // It counts until it would expire.
                    _ => {}
                }
                end(lease, &was_held);
                drop(owed);
            });
        let send =
            move |turn| admission.send_completion(&state, entry, |entered| then((turn, entered)));
        match (&mut turn).now_or_never() {
            Some(turn) => send(turn),
            None => background.spawn(async { send(turn.await) }),
        }
    }

    /// Returns whether an answer is stored. `None`: this is not known.
    fn is_stored(&self, was_held: &Result<bool, Error>) -> Option<bool> {
        match was_held {
            Ok(true) => Some(true),
            Ok(false) => {
                self.not_published(Event::FlightLost, "the leader lost its lease");
                Some(false)
            }
            Err(error) => {
                self.not_published(Event::AnswerNotPublished, error);
                (!error.is_unavailable() || error.is_not_sent()).then_some(false)
            }
        }
    }

    /// Caches an answer that is fresh from the time `sent` on, if the local cache has heard of all answers that were forgotten
    /// since `epoch`.
    ///
    /// The store has counted from some time after `sent`. Counted from the arrival of a reply or message, which may be late,
    /// the answer would be served after its time.
    fn keep(
        &self,
        epoch: Option<Epoch>,
        key: &Key,
        outcome: &SharedOutcome<T, E>,
        (bytes, fresh, sent): (usize, Duration, Instant),
    ) {
        if let (Some(cache), Some(epoch), Some(answer)) =
            (&self.local_cache, epoch, outcome.answer())
            && let Some(until) =
                sent.checked_add(fresh.saturating_sub(self.ahead().unwrap_or_default()))
        {
            cache.insert(key.clone(), answer, bytes, until, epoch);
        }
    }

    /// Returns how long a run has the lead.
    fn max_run(&self) -> Duration {
        let ttl = self.leases.options().ttl;
        self.settings
            .max_run
            .unwrap_or_else(|| (10 * ttl).min(Duration::from_secs(300)))
    }

    /// Gets the lead across processes, or the leader's outcome.
    async fn start(&self, key: &Key) -> Result<Start<T, E>, Error> {
        let takes_stale = !self.format.stale.is_zero();
        let asker = Asker {
            since: 0,
            takes_stale,
            ahead: self.ahead().map_or(0, micros),
        };
        // In memory it costs little to ask first whether the lead is free, without a place in a queue.
        let mut waits = !self.leases.admission.store.is_in_memory();
        // An outcome that cannot be read does not prevent leading.
        let mut unread: Option<Found> = None;
        loop {
            let wait = waits.then_some(Wait::FOR_EVER);
            let bypass = unread.is_some();
            let gives_up = self.settings.runs_alone;
            let ask = Ask {
                bypass,
                gives_up,
                ..Ask::new(asker, Subject::Flight, Default::default(), 0, wait)
            };
            let asked = clock::recent();
            let (found, lease) = match self.leases.acquire_or_find(key.clone(), ask).await {
                Ok(Got::Done(found)) => (Some(found), None),
                Ok(Got::Lease(lease, found)) => (found, Some(lease)),
                Err(error) if error.is_refused() && !waits => {
                    waits = true;
                    continue;
                }
                Err(error) if error.is_away() && self.settings.runs_alone => {
                    return Ok(Start::alone(Outcome::FailedOpen));
                }
                Err(error) => return Err(error),
            };
            let is_new = |found: &Found| {
                lease.is_none() || unread.as_ref().is_none_or(|unread| !found.is(unread))
            };
            let found = found.filter(is_new);
            let outcome = found.as_ref().and_then(|found| self.read(found));
            let (found, outcome, lease) = match (found, outcome, lease) {
                (Some(found), Some(outcome), lease) => (found, outcome, lease),
                (_, _, Some(lease)) => {
                    return Ok(Start {
                        lease: Some(lease),
                        stored: None,
                        counted: Outcome::Admitted,
                    });
                }
                (found, _, None) => {
                    unread = found;
                    continue;
                }
            };
            let lease = match (lease, &found) {
                // Another process published an answer meanwhile. Entering it again wakes the waiters, which then read it. If
                // that fails, one of them runs.
                (
                    Some(lease),
                    Found::Answer {
                        bytes, fresh: 1.., ..
                    },
                ) if unread.is_some() => {
                    let fresh = found.fresh();
                    let left = found.left();
                    let entry = Entry::of(Arc::clone(bytes), fresh, left.saturating_sub(fresh));
                    // Boxed, since it is rare.
                    let entered =
                        Box::pin(self.leases.admission.complete(&lease.state, entry, false)).await;
                    end(lease, &entered.map(was_held));
                    None
                }
                (lease, _) => lease,
            };
            if let (SharedOutcome::Pass(Pass::Process), None) = (&outcome, &lease) {
                return Ok(Start::alone(Outcome::Admitted));
            }
            // Callers that asked while it was fresh may get a stale answer; later callers may not.
            let is_over = lease.is_some() && found.left().is_zero();
            let stored = (!is_over).then_some(Stored {
                outcome,
                found,
                asked,
            });
            return Ok(Start {
                lease,
                stored,
                counted: Outcome::Admitted,
            });
        }
    }

    /// Draws how long before the end of an answer's ttl this process refreshes it. `None`: no early refresh.
    fn ahead(&self) -> Option<Duration> {
        Some(flight::ahead(
            self.settings.refresh_early?,
            self.leases.admission.hold_time.average()?,
        ))
    }

    /// Decodes what was found. `None` if another codec wrote it or it cannot be decoded.
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

    /// Returns the entry to publish. `None` if it is too large or cannot be encoded.
    fn entry(&self, publication: &Publication<T, E>) -> Option<Entry> {
        let largest = self.settings.largest;
        match self.format.encode(&publication.outcome) {
            // The first byte is the kind of the outcome and does not count.
            Ok(bytes) if bytes.len() - 1 <= largest => {
                return Some(Entry::of(bytes, publication.fresh, publication.stale));
            }
            Ok(bytes) => {
                let why = format_args!(
                    "it has {} bytes, largest_answer is {largest} bytes",
                    bytes.len() - 1
                );
                self.not_published(Event::AnswerTooLarge, why);
            }
            Err(error) => {
                let why = format_args!("it could not be encoded: {error}");
                self.not_published(Event::AnswerNotEncodable, why);
            }
        }
        None
    }

    fn not_published(&self, event: Event, why: impl fmt::Display) {
        tell(
            &self.name,
            event,
            format_args!("an answer was not published: {why}"),
        );
    }

    /// Returns whether an entry may be stored within `max_stored`. The note that a key is passed is a few bytes and
    /// is always stored.
    fn fits_budget(&self, key: &Key, outcome: &SharedOutcome<T, E>, entry: &Entry) -> bool {
        let bytes = cache::weight(entry.bytes.len() as u64, key);
        let is_for_those_who_wait = entry.stale.is_zero();
        if is_for_those_who_wait
            || matches!(outcome, SharedOutcome::Pass(_))
            || self.stored.take(key, bytes, entry.kept())
        {
            return true;
        }
        self.over_budget
            .tell("answers were not stored: this process has reached max_stored");
        false
    }
}

/// Returns whether a lease was held when its outcome was entered.
fn was_held(entered: Result<(bool, u64), Found>) -> bool {
    matches!(entered, Ok((true, _)))
}

/// Ends a lease whose outcome was entered. If the answer is not known, it is released.
fn end(lease: Lease, was_held: &Result<bool, Error>) {
    match was_held {
        Ok(true) => lease.settled(),
        Ok(false) => lease.state.count_loss(),
        Err(_) => {}
    }
}
