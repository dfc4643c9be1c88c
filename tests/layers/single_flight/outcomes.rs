//! What becomes of the others when the inner service fails.

use futures::future::join_all;
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::SingleFlightLayer;

use crate::flights::{Failed, Text, becomes_free, build, builder, by_name, layer, moody};
use crate::probe::Probe;
use crate::stores::{HOUR, Stores, on_each_store};

on_each_store!(
    an_error_is_its_callers_own,
    an_error_is_shared_where_the_flight_says_so
);

async fn an_error_is_its_callers_own(stores: Stores) {
    let probe = Probe::yielding(2);
    let services = [(); 2].map(|()| layer(&stores).layer(moody(&probe)));
    let calls = (0..5).map(|number| {
        services[number % 2]
            .clone()
            .oneshot(format!("ann:{number}!"))
    });
    for (number, outcome) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(outcome.unwrap_err().to_string(), format!("ann:{number}!"));
    }
    assert_eq!(probe.calls(), 5);
    becomes_free(&stores, "ann").await;
}

async fn an_error_is_shared_where_the_flight_says_so(stores: Stores) {
    let probe = Probe::yielding(2);
    let services = [(); 2].map(|()| {
        let flight = build(builder().share_errors(Text).error_ttl(HOUR), &stores.open());
        SingleFlightLayer::new(flight, by_name).layer(moody(&probe))
    });
    let calls = (0..5).map(|number| {
        services[number % 2]
            .clone()
            .oneshot(format!("ann:{number}!"))
    });
    let told = join_all(calls).await.into_iter();
    let mut told: Vec<_> = told
        .map(|outcome| {
            outcome
                .unwrap_err()
                .downcast_ref::<Failed>()
                .unwrap()
                .0
                .clone()
        })
        .collect();
    told.dedup();
    assert_eq!((told.len(), probe.calls()), (1, 1), "{told:?}");
}
