//! What happens to a call that failed: whether it is sent again. Of the calls that a node refuses because their slot is being
//! moved, it is known why, while they are sent again and again.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::errors::Redirect;
use crate::error::{Cause, Error, Outage};
use crate::store::operation::Repeat;
use crate::sync::lock;

/// The failure of an attempt to run a script.
pub(super) struct Failed {
    pub(super) outage: Outage,
    /// When the call was sent; `None`: there was no connection.
    pub(super) sent: Option<Instant>,
    /// Whether anything was probably written.
    pub(super) written: bool,
    /// Whether the server answered other calls meanwhile. Then it is slow, but not down.
    pub(super) answers: bool,
    pub(super) redirect: Option<Redirect>,
}

impl Failed {
    /// Whether the call is sent again: because it cannot have run, or because its operation may run twice. No other
    /// place sends an operation again.
    pub(super) fn is_repeated(&self, repeat: Repeat, was_idle: bool) -> bool {
        match self.outage.cause {
            Cause::Disconnected => repeat == Repeat::Safe && (was_idle || !self.written),
            Cause::MovedMidway => repeat == Repeat::Safe,
            Cause::Moving => true,
            _ => false,
        }
    }
}

/// The slot of each such call, and why it was refused last. Almost always empty.
#[derive(Debug, Default)]
pub(in crate::store) struct Refused(Arc<Mutex<Vec<(u16, Outage)>>>);

/// Such a call. It ends when this value is dropped.
pub(super) struct Refusal {
    calls: Arc<Mutex<Vec<(u16, Outage)>>>,
    slot: u16,
}

impl Refused {
    /// Notes that a call was refused. `before`: its earlier refusal.
    pub(super) fn note(
        &self,
        slot: Option<u16>,
        why: &Outage,
        before: Option<Refusal>,
    ) -> Option<Refusal> {
        drop(before);
        let slot = slot?;
        lock(&self.0).push((slot, why.clone()));
        Some(Refusal {
            calls: Arc::clone(&self.0),
            slot,
        })
    }

    /// Why a call for a slot is refused at the moment.
    pub(in crate::store) fn why(&self, slot: u16) -> Option<Error> {
        let calls = lock(&self.0);
        calls
            .iter()
            .find(|(refused, _)| *refused == slot)
            .map(|(_, why)| why.clone().into())
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls);
        if let Some(position) = calls.iter().position(|(slot, _)| *slot == self.slot) {
            calls.swap_remove(position);
        }
    }
}

#[cfg(test)]
mod tests;
