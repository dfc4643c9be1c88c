//! The lease of a request, which its handler may take.

use std::sync::{Arc, Mutex};

use crate::sync::lock;
use crate::{Lease, LeaseHandle};

/// The lease of a request while the inner service runs, unless the handler has taken it.
#[derive(Debug)]
pub enum Slotted {
    /// Nobody can take it.
    Kept(Lease),
    Slot(Arc<Mutex<Option<Lease>>>),
}

impl Slotted {
    /// Also returns the handle by which the handler can take the lease.
    pub(super) fn new(lease: Lease) -> (Self, LeaseHandle) {
        let state = Arc::clone(&lease.state);
        let shared = Arc::new(Mutex::new(Some(lease)));
        let handle = LeaseHandle { state, slot: Arc::downgrade(&shared) };
        (Self::Slot(shared), handle)
    }

    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Slot(slot) if lock(slot).is_none())
    }

    pub(super) fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Kept(lease) => Some(lease),
            Self::Slot(slot) => lock(&slot).take(),
        }
    }
}
