//! What becomes of the others when the inner service fails, panics, or never ends.

use std::convert::Infallible;
use std::time::Duration;

use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer as _, ServiceExt as _};
use tower_distributed::{RefusalKind, SingleFlightLayer};

use crate::flights::{Text, becomes_free, build, builder, by_name, kind, layer, moody};
use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    an_error_is_its_callers_own,
    an_error_is_its_callers_own_elsewhere_too,
    errors_are_shared_where_the_flight_says_so,
    a_panic_is_its_callers_own,
    while_it_hangs_the_others_can_go_away,
    nobody_follows_for_ever,
);

async fn an_error_is_its_callers_own(stores: Stores) {
    let probe = Probe::yielding(2);
    let service = layer(&stores).layer(moody(&probe));
    let calls = (0..5).map(|number| service.clone().oneshot(format!("ann:{number}!")));
    for (number, outcome) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(outcome.unwrap_err().to_string(), format!("ann:{number}!"));
    }
    assert_eq!(probe.calls(), 5);
    becomes_free(&stores, "ann").await;
}

async fn an_error_is_its_callers_own_elsewhere_too(stores: Stores) {
    let probe = Probe::yielding(2);
    let (here, there) = (layer(&stores).layer(moody(&probe)), layer(&stores).layer(moody(&probe)));
    let calls =
        (0..4).flat_map(|number| [(&here, format!("ann:{number}!")), (&there, format!("ann:{number}"))]);
    let calls = calls
        .map(|(service, request)| async move { (request.clone(), service.clone().oneshot(request).await) });
    let mut own = 0;
    let outcomes = join_all(calls).await;
    let answers: Vec<_> = outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()).collect();
    for (request, outcome) in &outcomes {
        match outcome {
            // A run that fails is its caller's own, and so are those of who waited for it.
            Err(error) => {
                assert!(request.ends_with('!') && error.to_string() == *request, "{request}: {error}")
            }
            Ok(answer) => assert!(answer == request || answers.contains(&answer), "{request}: {answer}"),
        }
        own += usize::from(outcome.as_ref().map_or(true, |answer| answer == request));
    }
    assert_eq!(probe.calls(), own, "{outcomes:?}");
}

async fn errors_are_shared_where_the_flight_says_so(stores: Stores) {
    let probe = Probe::yielding(2);
    let service = || {
        let flight = build(builder().share_errors(Text).error_ttl(HOUR), &stores.open());
        SingleFlightLayer::new(flight, by_name).layer(moody(&probe))
    };
    let (here, there) = (service(), service());
    let calls =
        (0..4).flat_map(|number| [&here, &there].map(|one| one.clone().oneshot(format!("ann:{number}!"))));
    let told: Vec<_> =
        join_all(calls).await.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
    assert!(told.iter().all(|error| *error == told[0]), "{told:?}");
    assert_eq!(probe.calls(), 1);
    // The error outlives the flight, for the life of its own.
    let error: BoxError = there.oneshot("ann:5".into()).await.unwrap_err();
    assert_eq!(error.to_string(), told[0]);
}

async fn a_panic_is_its_callers_own(stores: Stores) {
    let probe = Probe::yielding(2);
    let (here, there) = (layer(&stores).layer(moody(&probe)), layer(&stores).layer(moody(&probe)));
    let mut calls = Vec::new();
    for (service, request) in [(&here, "ann:1?"), (&here, "ann:2?"), (&there, "ann:3?"), (&there, "ann:4?")] {
        calls.push((request, tokio::spawn(service.clone().oneshot(request.to_owned()))));
    }
    for (request, call) in calls {
        let panic = call.await.unwrap_err().into_panic();
        assert_eq!(*panic.downcast_ref::<String>().unwrap(), request);
    }
    assert_eq!((probe.calls(), probe.running()), (4, 0));
    assert_eq!(here.oneshot("ann:5".into()).await.unwrap(), "ann:5");
}

async fn while_it_hangs_the_others_can_go_away(stores: Stores) {
    let probe = Probe::hanging();
    let (here, there) = (
        layer::<Infallible>(&stores).layer(probe.clone()),
        layer::<Infallible>(&stores).layer(probe.clone()),
    );
    let mut leader = task::spawn(here.clone().oneshot("ann:1".into()));
    probe.runs(1, &mut leader).await;
    for service in [&here, &there] {
        let mut followers: Vec<_> =
            (2..5).map(|number| task::spawn(service.clone().oneshot(format!("ann:{number}")))).collect();
        for _ in 0..20 {
            for follower in &mut followers {
                assert_pending!(follower.poll());
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!((probe.calls(), probe.running()), (1, 1));
    assert_pending!(leader.poll());
    drop(leader);
    eventually("it to be dropped", SOON, async || probe.running() == 0).await;
    becomes_free(&stores, "ann").await;
    assert_eq!(probe.calls(), 1);
}

async fn nobody_follows_for_ever(stores: Stores) {
    let probe = Probe::hanging();
    let service = || {
        let flight = build::<Infallible>(builder().max_wait(Duration::from_millis(50)), &stores.open());
        SingleFlightLayer::new(flight, by_name).layer(probe.clone())
    };
    let (here, there) = (service(), service());
    let mut leader = task::spawn(here.clone().oneshot("ann:1".into()));
    probe.runs(1, &mut leader).await;
    for service in [&here, &there, &here] {
        let error = service.clone().oneshot("ann:2".into()).await.unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::WaitedTooLong));
    }
    assert_pending!(leader.poll());
    assert_eq!(
        (probe.calls(), probe.running()),
        (1, 1),
        "whose request is handled waits for as long as it takes"
    );
    drop(leader);
    becomes_free(&stores, "ann").await;
}
