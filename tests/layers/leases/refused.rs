//! What a refused caller gets: an error, a response, or what a `Reject` makes of it.

use std::convert::Infallible;
use std::error::Error as _;
use std::time::Duration;

use tower::{BoxError, Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::{
    ConcurrencyLimitLayer, Refusal, RefusalKind, Reject, RwLock, RwLockLayer, WaitGroup,
};

use crate::families::{Other, by_name, locks, on_each_layer, permits};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, on_each_store};

on_each_store!(
    a_boxed_refusal_by_default,
    a_response_and_the_service_still_cannot_fail,
    errors_of_the_service_keep_their_type,
    whatever_a_reject_makes_of_it,
    too_many_that_wait_are_refused_at_once,
    closed_families_take_no_more,
);

async fn a_boxed_refusal_by_default(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let mut told = Vec::new();
    on_each_layer!(stores, by_name, |layer| {
        let mut service = layer.layer(Probe::default());
        let error: BoxError = service.ready().await.unwrap().call("ann").await.unwrap_err();
        let refusal = error.downcast_ref::<Refusal>().unwrap();
        assert_eq!(refusal.retry_after(), Some(Duration::from_secs(5)), "an estimate");
        assert!(refusal.decision().is_none() && refusal.source().is_none());
        assert!(refusal.get_ref().is_refused());
        told.push((refusal.kind(), refusal.to_string()));
    });
    let [(RefusalKind::NoPermit, permit), (RefusalKind::Locked, lock), (RefusalKind::Locked, mutex)] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!([&**permit, &**lock, &**mutex], ["no permit is free", "the lock is held", "the lock is held"]);
    other.leaves().await;
}

async fn a_response_and_the_service_still_cannot_fail(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let mut service = layer.reject_with(|_: Refusal| "come back later").layer(Probe::default());
        let mut call =
            async |name| -> Result<&'static str, Infallible> { service.ready().await?.call(name).await };
        let (Ok(free), Ok(held)) = (call("bob").await, call("ann").await);
        assert_eq!([free, held], ["bob", "come back later"]);
    });
    other.leaves().await;
}

/// Not a `std::error::Error`, and still good enough for responses.
#[derive(Debug, PartialEq)]
struct Broken(u8);

async fn errors_of_the_service_keep_their_type(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let layer = layer.reject_with(|_: Refusal| "come back later");
        let mut service = layer.layer(service_fn(async |_: &'static str| Err(Broken(7))));
        assert_eq!(service.ready().await.unwrap().call("bob").await, Err(Broken(7)));
        assert_eq!(service.ready().await.unwrap().call("ann").await, Ok("come back later"));
    });
    other.leaves().await;
}

/// As the default does, but for what it waited for.
#[derive(Clone)]
struct Patient;

impl<E: Into<BoxError>> Reject<&'static str, E> for Patient {
    type Error = BoxError;

    fn reject(&self, refusal: Refusal) -> Result<&'static str, BoxError> {
        match refusal.kind() {
            RefusalKind::WaitedTooLong => Ok("it took too long"),
            _ => Err(refusal.into()),
        }
    }

    fn inner_error(&self, error: E) -> BoxError {
        error.into()
    }
}

async fn whatever_a_reject_makes_of_it(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let layer = layer.reject_with(Patient);
        let mut service = layer.clone().layer(Probe::default());
        assert!(service.ready().await.unwrap().call("ann").await.is_err());
        let mut service = layer.max_wait(Duration::from_millis(20)).layer(Probe::default());
        assert_eq!(service.ready().await.unwrap().call("ann").await.unwrap(), "it took too long");
    });
    other.leaves().await;
}

async fn too_many_that_wait_are_refused_at_once(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let store = stores.open();
    let group = WaitGroup::builder(1).max_waiters(0).build(&store, "permits").unwrap();
    let lock = RwLock::builder().max_waiters(0).build(&store, "locks").unwrap();
    let mut kinds = Vec::new();
    let mut service = ConcurrencyLimitLayer::new(group, by_name).max_wait(SOON).layer(Probe::default());
    kinds.push(service.ready().await.unwrap().call("ann").await.unwrap_err());
    let mut service = RwLockLayer::new(lock, by_name).max_wait(SOON).layer(Probe::default());
    kinds.push(service.ready().await.unwrap().call("ann").await.unwrap_err());
    let kinds: Vec<_> = kinds.iter().map(|error| error.downcast_ref::<Refusal>().unwrap()).collect();
    assert!(kinds.iter().all(|refusal| refusal.get_ref().is_queue_full()));
    assert_eq!([kinds[0].kind(), kinds[1].kind()], [RefusalKind::NoPermit, RefusalKind::Locked]);
    other.leaves().await;
}

async fn closed_families_take_no_more(stores: Stores) {
    let (group, lock) = (permits(&stores.open(), 1), locks(&stores.open()));
    let mut limited = ConcurrencyLimitLayer::new(group.clone(), by_name).layer(Probe::default());
    let mut locked = RwLockLayer::new(lock.clone(), by_name).layer(Probe::default());
    group.close();
    lock.close();
    let errors = [
        limited.ready().await.unwrap().call("ann").await.unwrap_err(),
        locked.ready().await.unwrap().call("ann").await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.downcast_ref::<Refusal>().unwrap().kind(), RefusalKind::Closed);
    }
}
