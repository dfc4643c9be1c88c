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
    pub(super) fn note(&self, slot: Option<u16>, why: &Outage, before: Option<Refusal>) -> Option<Refusal> {
        drop(before);
        let slot = slot?;
        lock(&self.0).push((slot, why.clone()));
        Some(Refusal { calls: Arc::clone(&self.0), slot })
    }

    /// Why a call for a slot is refused at the moment.
    pub(in crate::store) fn why(&self, slot: u16) -> Option<Error> {
        let calls = lock(&self.0);
        calls.iter().find(|(refused, _)| *refused == slot).map(|(_, why)| why.clone().into())
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
