//! A run: how it gets the lead across processes, and how its outcome is published.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::answer::{Asker, Entry, Found};
use super::builder::Unpublished;
use super::core::{Call, Core, Landed, Work};
use super::table::Baton;
use super::verdict::{Judged, Pass, Verdict};
use super::{early, local_cache};
use crate::error::Subject;
use crate::lease::{Ask, Got, Wait, micros};
use crate::store::timer::{sleep, until};
use crate::telemetry::{Event, Outcome, tell};
use crate::{Error, Key, Lease, clock};

/// How a run begins.
enum Boarding<T, E> {
    /// The store has a verdict already: a fresh one, or a stale one that another process refreshes. It was asked for at
    /// this time. With a lease, the caller may refresh it early.
    Landed(Verdict<T, E>, Found, Instant, Option<Lease>),
    /// The run leads across processes, by a lease. There may be an old verdict, which is served until this time
    /// meanwhile.
    Lead(Lease, Option<(Verdict<T, E>, Option<Instant>)>),
    /// The run leads in its process only.
    Alone(Outcome),
}

/// The channel to the caller that passed the work.
type Own<R, T, E> = oneshot::Sender<Result<Landed<R, T, E>, Error>>;

/// Sends an answer to all callers that wait, and serves it to later callers until it expires.
fn serve<R, T: Clone, E>(
    baton: &Baton<Verdict<T, E>>,
    answer: T,
    until: Option<Instant>,
    own: Option<Own<R, T, E>>,
) {
    baton.serve(Verdict::Answer(answer.clone()), until);
    let _ = own.map(|own| own.send(Ok(Landed::Shared(Ok(answer)))));
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Core<T, E> {
    /// Drives a run from beginning to end. If it is dropped early, dropping the baton makes the next waiter in this
    /// process lead, and dropping the lease wakes a follower in another process.
    pub(super) async fn drive<W: Work<T, E>>(
        self: Arc<Self>,
        baton: Baton<Verdict<T, E>>,
        call: Call<W>,
        own: Own<W::Own, T, E>,
    ) {
        let local = self.local_cache.as_ref().map(|cache| {
            let epoch = cache.epoch();
            if epoch.hears_nothing() {
                self.leases.admission.store.subscribe();
            }
            (cache, epoch)
        });
        let key = baton.key().clone();
        // The store has counted from some time after `sent`. Counted from the arrival of a reply or message, which may be
        // late, the answer would be served after its time.
        let keep = |answer: Option<&T>, bytes, fresh: Duration, sent: Instant| {
            if let (Some((cache, epoch)), Some(answer)) = (local, answer)
                && let Some(until) = sent.checked_add(fresh.saturating_sub(self.ahead().unwrap_or_default()))
            {
                cache.insert(key.clone(), answer, bytes, until, epoch);
            }
        };
        let too_late = async {
            until(call.deadline).await;
            // If the caller was dropped, its deadline was too.
            if own.is_closed() {
                pending().await
            }
        };
        let boarding = tokio::select! {
            biased;
            boarding = self.board(baton.key()) => boarding,
            // The work has not begun, so the caller is refused. The next waiter leads.
            () = too_late => {
                let _ = own.send(Err(self.waited_too_long(baton.key())));
                return;
            }
        };
        let (mut own, mut has_old) = (Some(own), false);
        let (lease, counted) = match boarding {
            Ok(Boarding::Lead(lease, old)) => {
                has_old = old.is_some();
                if let Some((Verdict::Answer(answer), until)) = old
                    && call.work.fits(&answer)
                {
                    serve(&baton, answer, until, own.take());
                }
                (Some(lease), Outcome::Admitted)
            }
            Ok(Boarding::Alone(counted)) => (None, counted),
            Ok(Boarding::Landed(Verdict::Answer(answer), found, asked, Some(lease)))
                if call.work.fits(&answer) =>
            {
                // All callers get the answer. The refresh runs in the background.
                serve(&baton, answer, asked.checked_add(found.left()), own.take());
                has_old = true;
                (Some(lease), Outcome::Admitted)
            }
            Ok(Boarding::Landed(verdict, found, asked, early)) => {
                early.into_iter().for_each(Lease::decline);
                keep(verdict.answer(), found.length(), found.fresh(), asked);
                baton.land(Ok(&verdict));
                let Some(mut own) = own else { return };
                tokio::select! {
                    // Here and below: a caller that was dropped needs no outcome.
                    landed = self.landed(baton.key().clone(), verdict, call) => drop(own.send(landed)),
                    () = own.closed() => {}
                }
                return;
            }
            Err(error) => {
                baton.land(Err(&error));
                let _ = own.map(|own| own.send(Err(error)));
                return;
            }
        };
        self.decisions.count(counted);
        let mut work = pin!(call.work.run(lease.as_ref().map(Lease::handle)));
        let longest = self.max_run();
        let lost = async {
            match &lease {
                Some(lease) if self.settings.cancel_when_lost => lease.lost().await,
                _ => pending().await,
            }
        };
        let flown = tokio::select! {
            biased;
            flown = &mut work => flown,
            () = lost => {
                let _ = own.map(|own| own.send(Err(Error::lost())));
                return;
            }
            () = sleep(longest) => {
                tell(
                    &self.name,
                    Event::FlightGivenUp,
                    format_args!("a run exceeded max_run ({longest:?}); the next caller runs"),
                );
                drop(lease);
                drop(baton);
                // From here on the run belongs to its caller only, and ends when that caller is dropped.
                if let Some(mut own) = own {
                    tokio::select! {
                        flown = work => drop(own.send(Ok(Landed::Own(flown.own)))),
                        () = own.closed() => {}
                    }
                }
                return;
            }
        };
        baton.done();
        let _ = own.map(|own| own.send(Ok(Landed::Own(flown.own))));
        let mut judged = self.format.judge(flown.shared, &self.settings.times);
        if has_old && judged.fresh.is_zero() {
            // The entry replaces the old answer and expires at once.
            judged.fresh = Duration::from_millis(1);
        }
        let Some(lease) = lease else { return baton.land(Ok(&judged.verdict)) };
        let entry = self.entry(&judged);
        let shared_here = match &entry {
            Some(_) => &judged.verdict,
            None if self.settings.unpublished == Unpublished::InMemory => &judged.verdict,
            None => &Verdict::Pass(Pass::Caller),
        };
        baton.land(Ok(shared_here));
        // A failed run does not replace the last good answer.
        if has_old && judged.has_failed {
            return;
        }
        let length = entry.as_ref().map(|entry| entry.bytes.len());
        let entry = entry.unwrap_or_else(|| {
            let pass = match self.settings.unpublished {
                Unpublished::InMemory => Pass::Process,
                Unpublished::ToNobody => Pass::Caller,
            };
            Entry::of(pass.bytes(), judged.fresh.min(self.settings.times.pass), Duration::ZERO)
        });
        // An old answer is replaced in any case.
        let fits = self.fits_budget(baton.key(), &judged.verdict, &entry) || has_old;
        let entry = if fits { entry } else { Entry::of(entry.bytes, Duration::ZERO, Duration::ZERO) };
        // Of an answer on its way to a slow server, one copy is enough.
        let kept = local.is_some().then_some(judged.verdict);
        let sent = clock::now();
        match (self.publish(lease, entry).await, length) {
            (Some(true), Some(length)) => {
                keep(kept.as_ref().and_then(Verdict::answer), length, judged.fresh, sent);
            }
            (Some(false), _) => self.stored.give_back(baton.key()),
            // It counts until it would expire.
            _ => {}
        }
    }

    /// Returns how long a run has the lead.
    fn max_run(&self) -> Duration {
        let ttl = self.leases.options().ttl;
        self.settings.max_run.unwrap_or_else(|| (10 * ttl).min(Duration::from_secs(300)))
    }

    /// Gets the lead across processes, or the leader's verdict.
    async fn board(&self, key: &Key) -> Result<Boarding<T, E>, Error> {
        let takes_stale = !self.settings.times.stale.is_zero();
        let asker = Asker { since: 0, takes_stale, ahead: self.ahead().map_or(0, micros) };
        // A verdict that cannot be read does not prevent leading.
        let mut unread: Option<Found> = None;
        loop {
            let (wait, bypass) = (Some(Wait::FOR_EVER), unread.is_some());
            let gives_up = self.settings.runs_alone;
            let ask = Ask { bypass, gives_up, ..Ask::new(asker, Subject::Flight, String::new(), 0, wait) };
            let asked = clock::now();
            match self.leases.acquire_or_find(key.clone(), ask).await {
                Ok(Got::Done(found)) => match self.read(&found) {
                    Some(Verdict::Pass(Pass::Process)) => return Ok(Boarding::Alone(Outcome::Admitted)),
                    Some(verdict) => return Ok(Boarding::Landed(verdict, found, asked, None)),
                    None => unread = Some(found),
                },
                Ok(Got::Lease(lease, found)) => {
                    let found = found.filter(|found| unread.as_ref().is_none_or(|unread| !found.is(unread)));
                    let verdict = found.as_ref().and_then(|found| self.read(found));
                    let Some((found, verdict)) = found.zip(verdict) else {
                        return Ok(Boarding::Lead(lease, None));
                    };
                    let (fresh, left) = (found.fresh(), found.left());
                    let Found::Answer { bytes, fresh: 1.., .. } = &found else {
                        // Callers that asked while it was fresh may get it; later callers may not.
                        let old = (!left.is_zero()).then(|| (verdict, asked.checked_add(left)));
                        return Ok(Boarding::Lead(lease, old));
                    };
                    let early = match unread {
                        None => Some(lease),
                        // Another process published an answer meanwhile. Entering it again wakes the waiters, which
                        // then read it. If that fails, one of them runs.
                        Some(_) => {
                            let entry = Entry::of(Arc::clone(bytes), fresh, left.saturating_sub(fresh));
                            let _ = self.settle(lease, entry).await;
                            None
                        }
                    };
                    return Ok(match verdict {
                        Verdict::Pass(Pass::Process) => Boarding::Alone(Outcome::Admitted),
                        verdict => Boarding::Landed(verdict, found, asked, early),
                    });
                }
                Err(error) if error.is_away() && self.settings.runs_alone => {
                    return Ok(Boarding::Alone(Outcome::FailedOpen));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Draws how long before the end of an answer's ttl this process refreshes it. `None`: no early refresh.
    fn ahead(&self) -> Option<Duration> {
        Some(early::ahead(self.settings.refresh_early?, self.leases.admission.hold_time()?))
    }

    /// Decodes what was found. `None` if another codec wrote it or it cannot be decoded.
    fn read(&self, found: &Found) -> Option<Verdict<T, E>> {
        let (event, why) = match found {
            Found::Foreign => (Event::AnswerForeign, "another codec or version wrote it".to_owned()),
            Found::Answer { bytes, .. } => match self.format.decode(bytes) {
                Ok(verdict) => return Some(verdict),
                Err(error) => (Event::AnswerGarbled, format!("it could not be decoded: {error}")),
            },
        };
        tell(&self.name, event, format_args!("an answer was not read: {why}"));
        None
    }

    /// Returns the entry to publish. `None` if it is too large or cannot be encoded.
    fn entry(&self, judged: &Judged<T, E>) -> Option<Entry> {
        let largest = self.settings.largest;
        match self.format.encode(&judged.verdict) {
            // The first byte is the kind of the verdict and does not count.
            Ok(bytes) if bytes.len() - 1 <= largest => {
                return Some(Entry::of(bytes, judged.fresh, judged.stale));
            }
            Ok(bytes) => {
                let why = format_args!("it has {} bytes, largest_answer is {largest} bytes", bytes.len() - 1);
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
        tell(&self.name, event, format_args!("an answer was not published: {why}"));
    }

    /// Returns whether an entry may be stored within `max_stored`. The note that a key is passed is a few bytes and
    /// is always stored.
    fn fits_budget(&self, key: &Key, verdict: &Verdict<T, E>, entry: &Entry) -> bool {
        let bytes = local_cache::weight(entry.bytes.len() as u64, key);
        let is_for_those_who_wait = entry.stale.is_zero();
        if is_for_those_who_wait
            || matches!(verdict, Verdict::Pass(_))
            || self.stored.take(key, bytes, entry.kept())
        {
            return true;
        }
        self.over_budget.tell("answers were not stored: this process has reached max_stored");
        false
    }

    /// Enters an answer and releases the lease. Returns whether the lease was still held.
    async fn settle(&self, lease: Lease, entry: Entry) -> Result<bool, Error> {
        let held = matches!(self.leases.admission.complete(&lease.state, entry, false).await?, Ok((true, _)));
        if held {
            lease.settled();
        } else {
            lease.state.counts.lost();
        }
        Ok(held)
    }

    /// Publishes an answer. Returns whether it is stored. `None`: this is not known.
    async fn publish(&self, lease: Lease, entry: Entry) -> Option<bool> {
        match self.settle(lease, entry).await {
            Ok(true) => Some(true),
            Ok(false) => {
                self.not_published(Event::FlightLost, "the leader lost its lease");
                Some(false)
            }
            Err(error) => {
                self.not_published(Event::AnswerNotPublished, &error);
                (!error.is_unavailable() || error.is_not_sent()).then_some(false)
            }
        }
    }
}
