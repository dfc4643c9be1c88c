//! The lease of a request as an extension.

use http::Request;

use crate::LeaseHandle;
use crate::lease::layer::OnLease;

/// Puts a [`LeaseHandle`] among the request's extensions, for the handler to read its fencing token and to hear when
/// it is lost; and to [take](LeaseHandle::take) the permit of a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), or the
/// lock of a [`MutexLayer`](crate::MutexLayer) or [`RwLockLayer`](crate::RwLockLayer), along.
///
/// What passes without a lease has none there: requests without a key, and those that are let through while the
/// store is away. So ask axum for an `Option<Extension<LeaseHandle>>` where that may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct InsertLease;

impl<B> OnLease<Request<B>> for InsertLease {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Request<B>) {
        request.extensions_mut().insert(lease.clone());
    }
}
