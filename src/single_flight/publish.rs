//! The publication of a leader's outcome: to the store, and to the local cache of this process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::lease::handle::Lease;
use crate::lease::namespace::Completed;
use crate::single_flight::answer::{Entry, Flight, Found};
use crate::single_flight::cache::{self, Epoch};
use crate::single_flight::flight::Core;
use crate::single_flight::outcome::{Publication, SharedOutcome};
use crate::single_flight::task::Slot;
use crate::telemetry::emit::tell;
use crate::telemetry::{Event, answered_in_current_span};

impl<T: Clone + Send + Sync + 'static, E: Send + Sync + 'static> Core<T, E> {
    /// Publishes an outcome. `entry` is `None` if it is too large or cannot be encoded. It is sent with the next batch.
    /// If an earlier publication of this key is pending, a task waits for that first.
    pub(super) fn publish(
        self: Arc<Self>,
        lease: Lease,
        Publication { outcome, fresh, .. }: Publication<T, E>,
        entry: Option<Entry>,
        has_old: bool,
        epoch: Option<Epoch>,
    ) {
        let owed = self.leases.namespace.store.publication();
        let length = entry.as_ref().map(|entry| entry.bytes.len());
        let mut entry = entry.unwrap_or_else(|| {
            Entry::of(
                self.settings.unpublished.bytes(),
                fresh.min(self.format.pass),
                Duration::ZERO,
            )
        });
        // An old answer is always replaced.
        if !self.fits_budget(lease.key(), &outcome, &entry) && !has_old {
            entry = Entry::of(entry.bytes, Duration::ZERO, Duration::ZERO);
        }
        // If the server is slow, one copy of an unsent answer is enough.
        let outcome = epoch.is_some().then(|| (outcome, clock::recent()));
        let background = self.background.clone();
        let mut turn = self.publications.enter(lease.key()).boxed();
        let namespace = Arc::clone(&self.leases.namespace);
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
                    // If the reply is unknown, the answer counts until it would expire.
                    _ => {}
                }
                end(lease, &was_held);
                drop(owed);
            });
        let send =
            move |turn| namespace.send_completion(&state, entry, |entered| then((turn, entered)));
        match (&mut turn).now_or_never() {
            Some(turn) => send(turn),
            None => background.spawn(async { send(turn.await) }),
        }
    }

    /// Returns whether an answer is stored. `None`: unknown.
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

    /// Caches an answer that is fresh from the time `sent` on, if the local cache has received all forget messages
    /// since `epoch`.
    ///
    /// The store counts the TTL from a time after `sent`. If this process counted from the arrival of a reply or
    /// message, which may be late, it would serve the answer after its TTL.
    pub(super) fn keep(
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

    /// Returns the entry to publish. `None` if it is too large or cannot be encoded.
    pub(super) fn entry(&self, publication: &Publication<T, E>) -> Option<Entry> {
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

    /// Returns whether an entry may be stored within `max_stored`. The record that a key is passed takes a few bytes
    /// and is always stored.
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

/// Returns whether the lease was held when its outcome was stored.
pub(super) fn was_held(entered: Result<(bool, u64), Found>) -> bool {
    matches!(entered, Ok((true, _)))
}

/// Ends a lease whose outcome was stored. If the reply is unknown, the lease is released.
pub(super) fn end(lease: Lease, was_held: &Result<bool, Error>) {
    match was_held {
        Ok(true) => lease.settled(),
        Ok(false) => lease.state.count_loss(),
        Err(_) => {}
    }
}
