//! A run: how it gets the lead in the fleet, and what becomes of what comes of it.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::answer::{Entry, Flight, Found};
use super::builder::Unpublished;
use super::core::{Core, Flown, Landed, Work};
use super::table::Baton;
use super::verdict::Verdict;
use crate::error::Subject;
use crate::primitive::lease::key_state::KeyState;
use crate::primitive::lease::kind::Kind;
use crate::primitive::lease::{Ask, Got, Wait};
use crate::store::timer::sleep;
use crate::store::{Fields, Garbled, Never, Operation, Script, script};
use crate::telemetry::{Event, tell};
use crate::{Error, Key, Lease, LeaseHandle};

/// How a run begins.
enum Boarding<T, E> {
    /// There is an answer already.
    Landed(Verdict<T, E>),
    /// It leads: in the fleet by a lease, and there may be a stale answer.
    Lead(Option<Lease>, Option<Verdict<T, E>>),
}

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Core<T, E> {
    /// A run from beginning to end. Whatever becomes of it, the baton sees to those who wait in this process, and the
    /// lease to those elsewhere.
    pub(super) async fn drive<R, P, W, F>(
        self: Arc<Self>,
        baton: Baton<Verdict<T, E>>,
        Work { fits, work }: Work<P, W>,
        own: oneshot::Sender<Result<Landed<R, T, E>, Error>>,
        runs: Arc<AtomicBool>,
    ) where
        P: FnOnce(&T) -> bool,
        W: FnOnce(Option<LeaseHandle>) -> F,
        F: Future<Output = Flown<R, T, E>>,
    {
        let (lease, stale) = match self.board(baton.key()).await {
            Ok(Boarding::Lead(lease, stale)) => (lease, stale),
            Ok(Boarding::Landed(verdict)) => {
                baton.land(Ok(&verdict));
                // Here and below: who has gone away needs nothing.
                let _ = own.send(Ok(Landed::Shared(verdict.into_result())));
                return;
            }
            Err(error) => {
                baton.land(Err(&error));
                let _ = own.send(Err(error));
                return;
            }
        };
        let (mut own, has_stale) = (Some(own), stale.is_some());
        if let Some(stale) = stale
            && stale.answer().is_none_or(fits)
        {
            baton.serve(stale.clone());
            if let Some(own) = own.take() {
                let _ = own.send(Ok(Landed::Shared(stale.into_result())));
            }
        }
        if runs.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut work = pin!(work(lease.as_ref().map(Lease::handle)));
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
        let Some((verdict, life)) = flown.shared.and_then(|shared| self.format.verdict(shared)) else {
            return;
        };
        let Some(lease) = lease else { return baton.land(Ok(&verdict)) };
        if self.settings.unpublished == Unpublished::InMemory {
            baton.land(Ok(&verdict));
        }
        let Some(bytes) = self.encode(&verdict) else { return };
        baton.land(Ok(&verdict));
        // The last good answer is worth more than that there is none now.
        if verdict.answer().is_some() || !has_stale {
            self.publish(lease, self.entry(&verdict, bytes, life)).await;
        }
    }

    /// How long a run has the lead.
    fn max_run(&self) -> Duration {
        let ttl = self.leases.options().ttl;
        self.settings.max_run.unwrap_or_else(|| (10 * ttl).min(Duration::from_secs(300)))
    }

    /// Gets the lead in the fleet, or the answer of who has it.
    async fn board(&self, key: &Key) -> Result<Boarding<T, E>, Error> {
        // What cannot be read is no reason not to lead.
        let mut unread: Option<Found> = None;
        loop {
            let (wait, bypass) = (Some(Wait::FOR_EVER), unread.is_some());
            let gives_up = self.settings.is_alone_when_away();
            let ask = Ask { bypass, gives_up, ..Ask::new(Subject::Flight, String::new(), 0, wait) };
            match self.leases.acquire_or_find(key.clone(), ask).await {
                Ok(Got::Done(found)) => match self.read(&found) {
                    Some(verdict) => return Ok(Boarding::Landed(verdict)),
                    None => unread = Some(found),
                },
                Ok(Got::Lease(lease, found)) => {
                    let found = found.filter(|found| unread.as_ref().is_none_or(|unread| !found.is(unread)));
                    let verdict = found.as_ref().and_then(|found| self.read(found));
                    return Ok(match (found, verdict) {
                        (Some(Found::Answer { fresh: fresh @ 1.., bytes }), Some(verdict)) => {
                            // Somebody was quicker. Entered once more, it sends those who wait to itself; where that
                            // fails, one of them runs.
                            let fresh = Duration::from_micros(fresh.unsigned_abs());
                            let _ = self.settle(lease, self.entry(&verdict, bytes, fresh)).await;
                            Boarding::Landed(verdict)
                        }
                        (_, stale) => Boarding::Lead(Some(lease), stale),
                    });
                }
                Err(error) if error.is_away() && self.settings.is_alone_when_away() => {
                    return Ok(Boarding::Lead(None, None));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What an answer says, if it is one of ours and not too old.
    fn read(&self, found: &Found) -> Option<Verdict<T, E>> {
        match found {
            Found::Foreign => {
                tell(&self.name, Event::AnswerForeign, "an answer of another codec or version was not read");
                None
            }
            Found::Answer { fresh, .. } if *fresh <= 0 && self.settings.stale.is_zero() => None,
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

    fn encode(&self, verdict: &Verdict<T, E>) -> Option<Arc<[u8]>> {
        let largest = self.settings.largest;
        match self.format.encode(verdict) {
            // Of the bytes, the first says whether it is an error.
            Ok(bytes) if bytes.len() - 1 <= largest => Some(bytes),
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

    /// How a verdict is kept: errors are not served when they are stale.
    fn entry(&self, verdict: &Verdict<T, E>, bytes: Arc<[u8]>, fresh: Duration) -> Entry {
        let stale = if verdict.answer().is_some() { self.settings.stale } else { Duration::ZERO };
        Entry { fresh, keep: fresh.saturating_add(stale), bytes }
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

    /// Publishes an answer.
    async fn publish(&self, lease: Lease, entry: Entry) {
        match self.settle(lease, entry).await {
            Ok(true) => {}
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
    }
}

/// Forgets an answer.
#[derive(Debug)]
pub(super) struct Forget;

impl Operation for Forget {
    type Cell = KeyState<<Flight as Kind>::Holders>;
    type Reply = ();
    type Undo = Never<Self::Cell>;
    const SCRIPT: Script = script!("single_flight/forget");
    const PARTS: &'static [&'static str] = Flight::PARTS;

    fn decode(self, _: usize, _: i64, _: Fields<'_>) -> Result<(), Garbled> {
        Ok(())
    }

    fn apply(self, state: &mut Self::Cell, _: i64) {
        state.holders().outcome = Default::default();
    }
}
