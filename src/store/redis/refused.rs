//! The calls that a node refuses because their slot is being moved, while they are sent again and again.

use std::sync::{Arc, Mutex};

use crate::Error;
use crate::error::Outage;
use crate::sync::lock;

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
mod tests {
    use super::*;
    use crate::error::Cause;
    use crate::store::redis::failure;

    #[test]
    fn a_slot_is_refused_until_the_last_of_its_calls_ends() {
        let refused = Refused::default();
        let why = |slot| refused.why(slot).map(|error| error.to_string());
        let note =
            |slot, text, before| refused.note(slot, &failure::of(Cause::Moving, text), before);
        assert!(note(None, "no Cluster", None).is_none());
        let (first, other) = (note(Some(7), "first", None), note(Some(8), "other", None));
        let second = note(Some(7), "second", None);
        let first = note(Some(7), "again", first);
        assert!(why(7).is_some() && why(8).is_some_and(|why| why.contains("other")));
        assert_eq!(why(9), None);
        drop(first);
        assert!(why(7).is_some());
        drop((second, other));
        assert_eq!((why(7), why(8)), (None, None));
    }
}
