//! The lease of a request, which its handler may take.

use std::sync::Arc;

use crate::lease::state::{LeaseState, Slot};
use crate::{Lease, LeaseHandle};

/// The lease of a request while the inner service runs, unless the handler has taken it.
#[derive(Debug)]
pub enum Slotted {
    /// Nobody can take it.
    Kept(Lease),
    /// Its handles can, out of the state of the lease.
    Open(TakesBack),
}

/// Takes the lease out of its state when it is dropped.
#[derive(Debug)]
pub struct TakesBack(Option<Arc<LeaseState>>);

impl Slotted {
    /// Also returns the handle by which the handler can take the lease.
    pub(super) fn new(lease: Lease) -> (Self, LeaseHandle) {
        let state = Arc::clone(&lease.state);
        let handle = LeaseHandle {
            state: Arc::clone(&state),
            slot: Slot::Here,
        };
        state.put(lease);
        (Self::Open(TakesBack(Some(state))), handle)
    }

    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Open(TakesBack(Some(state))) if !state.can_be_taken())
    }

    pub(super) fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Kept(lease) => Some(lease),
            Self::Open(mut back) => back.0.take()?.take(),
        }
    }
}

impl Drop for TakesBack {
    fn drop(&mut self) {
        drop(self.0.take().and_then(|state| state.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mutex, Store};

    /// Also the memory of the lease, which is kept in its own state.
    #[tokio::test]
    async fn a_lease_that_nobody_takes_is_released() {
        let mutex = Mutex::new(&Store::in_memory(), "m").unwrap();
        for is_taken in [false, true] {
            let lease = Lease::from(mutex.try_lock("k").await.unwrap());
            let state = Arc::downgrade(&lease.state);
            let (slotted, handle) = Slotted::new(lease);
            let taken = is_taken.then(|| handle.take()).flatten();
            assert_eq!((taken.is_some(), slotted.is_taken()), (is_taken, is_taken));
            drop(slotted);
            assert_eq!(
                (handle.is_held(), handle.take().is_some()),
                (is_taken, false)
            );
            drop((taken, handle));
            assert!(
                state.upgrade().is_none() && mutex.try_lock("k").await.is_ok(),
                "{is_taken}"
            );
        }
    }
}
