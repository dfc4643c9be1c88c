//! The lease of a request, which its handler may take.

use std::sync::Arc;

use crate::lease::state::{LeaseState, Slot};
use crate::{Lease, LeaseHandle};

/// The lease of a request while the inner service runs, unless the handler has taken it.
#[derive(Debug)]
pub enum Slotted {
    /// Nobody can take it.
    Kept(Lease),
    /// It is in the state of the lease.
    Slot(Taken),
}

/// Takes the lease out of its state when it is dropped.
#[derive(Debug)]
pub struct Taken(Option<Arc<LeaseState>>);

impl Slotted {
    /// Also returns the handle by which the handler can take the lease.
    pub(super) fn new(lease: Lease) -> (Self, LeaseHandle) {
        let state = Arc::clone(&lease.state);
        let handle = LeaseHandle { state: Arc::clone(&state), slot: Slot::Here };
        state.put(lease);
        (Self::Slot(Taken(Some(state))), handle)
    }

    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Slot(Taken(Some(state))) if !state.has_slot())
    }

    pub(super) fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Kept(lease) => Some(lease),
            Self::Slot(mut taken) => taken.0.take()?.take(),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        drop(self.0.take().and_then(|state| state.take()));
    }
}
