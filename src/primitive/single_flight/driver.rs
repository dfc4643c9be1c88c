//! A run: how it gets the lead in the fleet, and what becomes of what comes of it.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::answer::{Asker, Entry, Flight, Found};
use super::builder::Unpublished;
use super::core::{Core, Flown, Landed, Work};
use super::local_cache;
use super::table::Baton;
use super::verdict::{Judged, Pass, Verdict};
use crate::error::Subject;
use crate::primitive::lease::key_state::KeyState;
use crate::primitive::lease::kind::Kind;
use crate::primitive::lease::{Ask, Got, Wait};
use crate::store::timer::sleep;
use crate::store::{Arguments, Fields, Garbled, Never, Operation, Script, script};
use crate::telemetry::{Event, Outcome, tell};
use crate::{Error, Key, Lease, LeaseHandle};

/// How a run begins.
enum Boarding<T, E> {
    /// There is an answer already.
    Landed(Verdict<T, E>, Found),
    /// It leads: in the fleet by a lease, and there may be an answer that is served for so long meanwhile.
    Lead(Lease, Option<(Verdict<T, E>, Duration)>),
    /// It leads in its process alone.
    Alone(Outcome),
}

/// Whom what comes of a run is told.
type Own<R, T, E> = oneshot::Sender<Result<Landed<R, T, E>, Error>>;

/// Gives an answer to all who are there and, for so long, to who comes.
fn serve<R, T: Clone, E>(baton: &Baton<Verdict<T, E>>, answer: T, left: Duration, own: Option<Own<R, T, E>>) {
    baton.serve(Verdict::Answer(answer.clone()), left);
    let _ = own.map(|own| own.send(Ok(Landed::Shared(Ok(answer)))));
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Core<T, E> {
    /// A run from beginning to end. Whatever becomes of it, the baton sees to those who wait in this process, and the
    /// lease to those elsewhere.
    pub(super) async fn drive<R, P, W, F>(
        self: Arc<Self>,
        baton: Baton<Verdict<T, E>>,
        work: Work<P, W>,
        own: Own<R, T, E>,
        runs: Arc<AtomicBool>,
    ) where
        P: Fn(&T) -> bool,
        W: FnOnce(Option<LeaseHandle>) -> F,
        F: Future<Output = Flown<R, T, E>>,
    {
        let local = self.local_cache.as_ref().map(|cache| {
            let epoch = cache.epoch();
            if epoch.hears_nothing() {
                self.leases.admission.store.subscribe();
            }
            (cache, epoch)
        });
        let key = baton.key().clone();
        let keep = |answer: Option<&T>, bytes, fresh: Duration| {
            if let (Some((cache, epoch)), Some(answer)) = (local, answer) {
                cache.insert(
                    key.clone(),
                    answer,
                    bytes,
                    fresh.saturating_sub(self.ahead().unwrap_or_default()),
                    epoch,
                );
            }
        };
        let (mut own, mut has_old) = (Some(own), false);
        let (lease, counted) = match self.board(baton.key()).await {
            Ok(Boarding::Lead(lease, old)) => {
                has_old = old.is_some();
                if let Some((Verdict::Answer(answer), left)) = old
                    && (work.fits)(&answer)
                {
                    serve(&baton, answer, left, own.take());
                }
                (Some(lease), Outcome::Admitted)
            }
            Ok(Boarding::Alone(counted)) => (None, counted),
            Ok(Boarding::Landed(Verdict::Answer(answer), found))
                if self.is_early(&found) && (work.fits)(&answer) =>
            {
                // All get it, and what comes next is in the background.
                serve(&baton, answer, found.left(), own.take());
                // Where somebody else is at it, nobody needs this run; who has come since it was forgotten leads.
                let Some((lease, still)) = self.lead_early(baton.key(), &found).await else { return };
                has_old = still;
                (Some(lease), Outcome::Admitted)
            }
            Ok(Boarding::Landed(verdict, found)) => {
                keep(verdict.answer(), found.length(), found.fresh());
                baton.land(Ok(&verdict));
                if runs.swap(true, Ordering::AcqRel) {
                    return;
                }
                let Some(mut own) = own else { return };
                tokio::select! {
                    // Here and below: who has gone away needs nothing.
                    landed = self.landed(baton.key().clone(), verdict, work) => drop(own.send(landed)),
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
        if runs.swap(true, Ordering::AcqRel) {
            return;
        }
        self.decisions.count(counted);
        let mut work = pin!((work.work)(lease.as_ref().map(Lease::handle)));
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
                    format_args!("a flight ran for longer than {longest:?}; the next caller runs"),
                );
                drop(lease);
                drop(baton);
                // From here on it is its caller's alone, and ends with it.
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
            // It takes the place of what is there, and is over.
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
        // The last good answer is worth more than that there is none now.
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
        // What is there is replaced in any case.
        let fits = self.fits_budget(baton.key(), &judged.verdict, &entry) || has_old;
        let entry = if fits { entry } else { Entry::of(entry.bytes, Duration::ZERO, Duration::ZERO) };
        match (self.publish(lease, entry).await, length) {
            (true, Some(length)) => keep(judged.verdict.answer(), length, judged.fresh),
            (true, None) => {}
            (false, _) => self.stored.give_back(baton.key()),
        }
    }

    /// How long a run has the lead.
    fn max_run(&self) -> Duration {
        let ttl = self.leases.options().ttl;
        self.settings.max_run.unwrap_or_else(|| (10 * ttl).min(Duration::from_secs(300)))
    }

    /// Gets the lead in the fleet, or the answer of who has it.
    async fn board(&self, key: &Key) -> Result<Boarding<T, E>, Error> {
        let asker = Asker { since: 0, takes_stale: !self.settings.times.stale.is_zero() };
        // What cannot be read is no reason not to lead.
        let mut unread: Option<Found> = None;
        loop {
            let (wait, bypass) = (Some(Wait::FOR_EVER), unread.is_some());
            let gives_up = self.settings.runs_alone;
            let ask = Ask { bypass, gives_up, ..Ask::about(asker, Subject::Flight, String::new(), 0, wait) };
            match self.leases.acquire_or_find(key.clone(), ask).await {
                Ok(Got::Done(found)) => match self.read(&found) {
                    Some(Verdict::Pass(Pass::Process)) => return Ok(Boarding::Alone(Outcome::Admitted)),
                    Some(verdict) => return Ok(Boarding::Landed(verdict, found)),
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
                        // Who asked while it was fresh may have it, but not who comes.
                        let old = (!left.is_zero()).then_some((verdict, left));
                        return Ok(Boarding::Lead(lease, old));
                    };
                    // Somebody was quicker. Entered once more, it sends those who wait to itself; where that fails,
                    // one of them runs.
                    let entry = Entry::of(Arc::clone(bytes), fresh, left.saturating_sub(fresh));
                    let _ = self.settle(lease, entry).await;
                    return Ok(match verdict {
                        Verdict::Pass(Pass::Process) => Boarding::Alone(Outcome::Admitted),
                        verdict => Boarding::Landed(verdict, found),
                    });
                }
                Err(error) if error.is_away() && self.settings.runs_alone => {
                    return Ok(Boarding::Alone(Outcome::FailedOpen));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// How long before the end of an answer's ttl this process is to make it anew, if at all: drawn each time.
    fn ahead(&self) -> Option<Duration> {
        Some(self.settings.refresh_early?.ahead(self.leases.admission.hold_time()?))
    }

    /// Whether an answer that is fresh is to be made anew.
    fn is_early(&self, found: &Found) -> bool {
        let fresh = found.fresh();
        !fresh.is_zero() && self.ahead().is_some_and(|ahead| ahead >= fresh)
    }

    /// Takes the lead though there is an answer, if nobody is at it; and whether that is still the answer.
    async fn lead_early(&self, key: &Key, before: &Found) -> Option<(Lease, bool)> {
        let ask = Ask::about(Asker::default(), Subject::Flight, String::new(), 0, None);
        match self.leases.acquire_or_find(key.clone(), Ask { bypass: true, ..ask }).await {
            Ok(Got::Lease(lease, found)) => match found {
                None => Some((lease, false)),
                Some(found) => found.is(before).then_some((lease, true)),
            },
            // That the store is away changes nothing: there is an answer.
            Ok(Got::Done(_)) | Err(_) => None,
        }
    }

    /// What an answer says, if it is one of ours.
    fn read(&self, found: &Found) -> Option<Verdict<T, E>> {
        match found {
            Found::Foreign => {
                tell(&self.name, Event::AnswerForeign, "an answer of another codec or version was not read");
                None
            }
            Found::Answer { bytes, .. } => match self.format.decode(bytes) {
                Ok(verdict) => Some(verdict),
                Err(error) => {
                    tell(
                        &self.name,
                        Event::AnswerGarbled,
                        format_args!("an answer could not be decoded: {error}"),
                    );
                    None
                }
            },
        }
    }

    /// What is published; `None` where it is too large, or cannot be encoded.
    fn entry(&self, judged: &Judged<T, E>) -> Option<Entry> {
        let largest = self.settings.largest;
        match self.format.encode(&judged.verdict) {
            // Of the bytes, the first says what it is.
            Ok(bytes) if bytes.len() - 1 <= largest => Some(Entry::of(bytes, judged.fresh, judged.stale)),
            Ok(bytes) => {
                let length = bytes.len() - 1;
                tell(
                    &self.name,
                    Event::AnswerTooLarge,
                    format_args!("an answer of {length} bytes was not published: {largest} are allowed"),
                );
                None
            }
            Err(error) => {
                tell(
                    &self.name,
                    Event::AnswerNotEncodable,
                    format_args!("an answer could not be encoded, and was not published: {error}"),
                );
                None
            }
        }
    }

    /// Whether what is entered is to be kept: this process may have stored as much as it is to. That a key is passed is
    /// noted in any case, in a few bytes.
    fn fits_budget(&self, key: &Key, verdict: &Verdict<T, E>, entry: &Entry) -> bool {
        let bytes = local_cache::weight(entry.bytes.len() as u64, key);
        let is_for_those_who_wait = entry.stale.is_zero();
        if is_for_those_who_wait
            || matches!(verdict, Verdict::Pass(_))
            || self.stored.take(key, bytes, entry.kept())
        {
            return true;
        }
        self.over_budget
            .tell("answers were not stored: this process has stored as many bytes of them as it may");
        false
    }

    /// Enters an answer, which gives the lease back; whether it was still held.
    async fn settle(&self, lease: Lease, entry: Entry) -> Result<bool, Error> {
        let held = matches!(self.leases.admission.complete(&lease.state, entry).await?, Ok(true));
        if held {
            lease.settled();
        } else {
            lease.state.counts.lost();
        }
        Ok(held)
    }

    /// Publishes an answer; whether that was done.
    async fn publish(&self, lease: Lease, entry: Entry) -> bool {
        match self.settle(lease, entry).await {
            Ok(true) => return true,
            Ok(false) => {
                tell(
                    &self.name,
                    Event::FlightLost,
                    "the lease of a flight was lost; its answer was not published",
                );
            }
            Err(error) => {
                tell(
                    &self.name,
                    Event::AnswerNotPublished,
                    format_args!("an answer was not published: {error}"),
                );
            }
        }
        false
    }
}

/// Forgets an answer.
#[derive(Debug)]
pub(super) struct Forget {
    /// Whom to tell so, and how.
    pub(super) channel: Arc<str>,
    pub(super) message: Arc<[u8]>,
}

impl Operation for Forget {
    type Cell = KeyState<<Flight as Kind>::Holders>;
    type Reply = ();
    type Undo = Never<Self::Cell>;
    const SCRIPT: Script = script!("single_flight/forget");
    const PARTS: &'static [&'static str] = Flight::PARTS;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.channel));
        call.bytes(Arc::clone(&self.message));
    }

    fn decode(self, _: usize, _: i64, _: Fields<'_>) -> Result<(), Garbled> {
        Ok(())
    }

    fn apply(self, state: &mut Self::Cell, _: i64) {
        state.holders().outcome = Default::default();
    }
}
