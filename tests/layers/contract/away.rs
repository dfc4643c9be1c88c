//! While the store is away, requests are refused, and the cause is told; or they pass, and nothing was decided.

use std::error::Error as _;
use std::time::Duration;

use tower::ServiceExt as _;
use tower_distributed::{LeaseHandle, Refusal, RefusalKind, SingleFlightLayer, StoreFailure};

use super::subjects::*;
use crate::flights::{build, builder, by_name};
use crate::probe::Probe;
use crate::stores::away;

/// Refused, six times: more than enough for the breaker to open. What has no key passes.
async fn refuses<T: Subject>(layer: T::Layer) {
    let probe = Probe::default();
    let service = T::around(&layer, probe.clone());
    for _ in 0..6 {
        let error = service.clone().oneshot("ann:1".into()).await.unwrap_err();
        let refusal = error.downcast_ref::<Refusal>().unwrap();
        let told = (refusal.kind(), refusal.retry_after());
        assert_eq!(
            told,
            (RefusalKind::StoreUnavailable, Some(Duration::from_secs(1)))
        );
        assert!(refusal.get_ref().is_unavailable() && !refusal.get_ref().is_refused());
        assert!(
            refusal.decision().is_none() && refusal.source().is_some(),
            "{refusal:?}"
        );
    }
    assert_eq!(probe.calls(), 0);
    assert_eq!(service.oneshot("passes".into()).await.unwrap(), "passes");
}

async fn passes<T: Subject>(layer: T::Layer) {
    let service = T::around(&layer, Probe::default());
    for name in ["ann:1", "passes"].repeat(6) {
        assert_eq!(service.clone().oneshot(name.into()).await.unwrap(), name);
    }
}

/// This is the default.
#[tokio::test]
async fn a_layer_that_fails_closed_refuses() {
    refuses::<RateLimit>(RateLimit::layer(&away())).await;
    refuses::<SeveralLimits>(SeveralLimits::layer(&away())).await;
    refuses::<Budget>(Budget::layer(&away())).await;
    refuses::<ConcurrencyLimit>(ConcurrencyLimit::layer(&away())).await;
    refuses::<Mutex>(Mutex::layer(&away())).await;
    refuses::<RwLock>(RwLock::layer(&away())).await;
    refuses::<Dedupe>(Dedupe::layer(&away())).await;
    let flight = build(
        builder().on_store_failure(StoreFailure::FailClosed),
        &away(),
    );
    refuses::<SingleFlight>(SingleFlightLayer::new(flight, by_name)).await;
}

#[tokio::test]
async fn a_layer_that_fails_open_admits() {
    let open = StoreFailure::FailOpen;
    let decided = |_: &_, _: &mut String| panic!("nothing was decided");
    let leased = |_: &LeaseHandle, _: &mut String| panic!("there is no lease");
    let layer = RateLimit::layer(&away()).on_store_failure(open);
    passes::<RateLimit>(layer.on_admit(decided).on_response(decided)).await;
    passes::<SeveralLimits>(
        SeveralLimits::layer(&away())
            .on_store_failure(open)
            .on_admit(decided),
    )
    .await;
    passes::<Budget>(Budget::layer(&away()).on_store_failure(open)).await;
    passes::<ConcurrencyLimit>(
        ConcurrencyLimit::layer(&away())
            .on_store_failure(open)
            .on_lease(leased),
    )
    .await;
    passes::<Mutex>(
        Mutex::layer(&away())
            .on_store_failure(open)
            .on_lease(leased),
    )
    .await;
    passes::<Dedupe>(
        Dedupe::layer(&away())
            .on_store_failure(open)
            .on_lease(leased),
    )
    .await;
    // By default it is open.
    passes::<SingleFlight>(SingleFlight::layer(&away()).on_lease(leased)).await;
}
