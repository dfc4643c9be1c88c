//! Tokens reserved ahead of time.

use std::time::Duration;

use super::TokenBucket;
use super::cancel::{Cancel, Rule};
use super::decision::Decision;
use crate::{Error, Key, clock};

/// Reserved tokens. Act after [`delay`](Self::delay), or [`cancel`](Self::cancel).
///
/// If a reservation is dropped, its tokens stay charged.
///
/// ```
/// # use tower_distributed::{Quota, Store, TokenBucket};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(20).burst(1))?;
/// let now = bucket.reserve("smtp").await?;
/// assert!(now.delay().is_zero());
///
/// let mut later = bucket.reserve("smtp").await?;
/// assert!(later.decision().is_admitted());
/// tokio::time::sleep(later.delay() / 2).await; // up to 25 ms
/// later.cancel().await?; // the mail is not sent after all
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the tokens are charged: wait for the delay and act, or cancel"]
pub struct Reservation {
    pub(super) bucket: TokenBucket,
    pub(super) key: Key,
    decision: Decision,
    /// By [`clock::micros`].
    made: i64,
    cancelled: bool,
}

impl Reservation {
    pub(super) fn new(bucket: TokenBucket, key: Key, decision: Decision) -> Self {
        Self {
            bucket,
            key,
            decision,
            made: clock::micros(),
            cancelled: false,
        }
    }

    /// Returns how long to wait before acting, from the moment of the reservation.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.decision.delay()
    }

    /// Returns the decision, with the state of the bucket after it.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Gives the tokens back, as Go's `CancelAt` does: tokens on which later reservations depend stay charged.
    ///
    /// Nothing is given back after the time to act, by a second call, or if the clock of the server was set back since, also
    /// by a failover to a server whose clock is behind. A set-back by less than 1 ms and an eighth of the time since the
    /// reservation is not noticed: then as many tokens too many may come back as refill in the time that it was set back.
    ///
    /// # Cancel safety
    ///
    /// The cancellation is sent once. If the future is dropped, or the store is unavailable, the tokens may or may
    /// not have been given back. A second call does nothing.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded).
    pub async fn cancel(&mut self) -> Result<(), Error> {
        match self.take_cancel(self.age()) {
            Some(cancel) => self.bucket.cancel(&self.key, cancel).await.map(drop),
            None => Ok(()),
        }
    }

    /// The request acts, so its tokens stay charged.
    pub(super) fn acts(&mut self) -> Decision {
        self.cancelled = true;
        self.decision.clone()
    }

    /// How long ago it was made, at least, µs. This is 0 in memory, where no clock is set back.
    pub(super) fn age(&self) -> i64 {
        let is_in_memory = self.bucket.clients.namespace.cells().is_some();
        if is_in_memory {
            0
        } else {
            clock::micros() - self.made
        }
    }

    /// What cancels the reservation, which is at least so old.
    pub(super) fn take_cancel(&mut self, age: i64) -> Option<Cancel> {
        // Prefetched tokens act at once, and are given back as a batch.
        if std::mem::replace(&mut self.cancelled, true) || self.decision.is_local {
            return None;
        }
        let decision = &self.decision;
        Some(Cancel::new(
            &decision.state,
            decision.cost.into(),
            Rule::acts_at(decision, age),
        ))
    }
}
