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
        let lease = lease.within(request.extensions().get());
        request.extensions_mut().insert(lease);
    }
}

#[cfg(all(test, feature = "concurrency-limit", feature = "dedupe"))]
mod tests {
    use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

    use super::*;
    use crate::{ConcurrencyLimitLayer, Dedupe, DedupeLayer, Store, WaitGroup};

    /// The handler sees its claim, and takes the permit of the layer around it.
    #[tokio::test]
    async fn a_claim_does_not_hide_a_permit_that_can_be_taken() {
        let store = Store::in_memory();
        let group = WaitGroup::new(&store, "jobs", 1).unwrap();
        let once = Dedupe::exact(&store, "seen")
            .remember_for(std::time::Duration::from_secs(60))
            .build()
            .unwrap();
        let handler = service_fn(async |request: Request<()>| {
            let handle = request.extensions().get::<LeaseHandle>().unwrap();
            assert_ne!(handle.key(), &"all".into());
            Ok::<_, BoxError>((handle.take(), handle.take().is_none()))
        });
        let handler = DedupeLayer::new(once, |_: &Request<()>| "7")
            .on_lease(InsertLease)
            .layer(handler);
        let limit = ConcurrencyLimitLayer::new(group.clone(), |_: &Request<()>| "all")
            .on_lease(InsertLease);
        let (lease, is_once) = limit
            .layer(handler)
            .oneshot(Request::new(()))
            .await
            .unwrap();
        assert_eq!((lease.unwrap().key(), is_once), (&"all".into(), true));
    }
}
