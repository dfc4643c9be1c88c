//! The lease of a request as an extension.

use http::Request;

use crate::LeaseHandle;
use crate::lease::layer::{LeaseSlot, OnLease};

/// Puts a [`LeaseHandle`] among the request's extensions, for the handler to read its fencing token and to hear when
/// it is lost; and of a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), [`MutexLayer`](crate::MutexLayer) or
/// [`RwLockLayer`](crate::RwLockLayer) also a [`LeaseSlot`], for the handler to take the lease along.
///
/// What passes without a lease has none there: requests without a key, and those that are let through while the
/// store is away. So ask axum for an `Option<Extension<LeaseHandle>>` where that may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct InsertLease;

impl<B> OnLease<Request<B>> for InsertLease {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Request<B>) {
        request.extensions_mut().insert(lease.clone());
    }

    fn on_slot(&self, lease: &LeaseHandle, slot: &LeaseSlot, request: &mut Request<B>) {
        self.on_lease(lease, request);
        request.extensions_mut().insert(slot.clone());
    }
}
