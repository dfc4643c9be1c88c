//! Tokens taken ahead of time.

use std::time::Duration;

use super::decision::Decision;
use super::operations::Cancel;
use super::{Key, TokenBucket};
use crate::Error;
use crate::store::OperationFuture;

/// Tokens that are reserved: act after [`delay`](Self::delay), or [`cancel`](Self::cancel).
///
/// Dropping a reservation keeps it: the tokens stay charged.
#[derive(Debug)]
#[must_use = "the tokens are charged: wait for the delay and act, or cancel"]
pub struct Reservation {
    bucket: TokenBucket,
    key: Key,
    decision: Decision,
    cancelled: bool,
}

impl Reservation {
    pub(super) fn new(bucket: TokenBucket, key: Key, decision: Decision) -> Self {
        Self { bucket, key, decision, cancelled: false }
    }

    /// How long to wait before acting, from the moment of the reservation.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.decision.delay()
    }

    /// The decision, with the state of the bucket after it.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Gives the tokens back, as far as later reservations have not built upon them, as Go's `CancelAt` does.
    ///
    /// Nothing is given back after the time to act, nor by a second call.
    ///
    /// # Cancel safety
    ///
    /// It is sent once: dropped, or failed with an outage, it may or may not have given the tokens back, and
    /// calling again does nothing.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn cancel(&mut self) -> Result<(), Error> {
        match self.begin_cancel() {
            Some(cancelling) => cancelling.await.map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn cancel_detached(&mut self) {
        if let Some(cancel) = self.take_cancel() {
            self.bucket.cancel_detached(&self.key, cancel);
        }
    }

    pub(super) fn begin_cancel(&mut self) -> Option<OperationFuture<Cancel>> {
        let cancel = self.take_cancel()?;
        Some(self.bucket.cancel(&self.key, cancel))
    }

    fn take_cancel(&mut self) -> Option<Cancel> {
        // What was charged ahead acts at once, and is not given back one by one.
        if std::mem::replace(&mut self.cancelled, true) || self.decision.is_local {
            return None;
        }
        Some(Cancel::new(&self.decision, Some(self.decision.act())))
    }
}
