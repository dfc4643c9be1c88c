//! Those who are refused because too many wait, and because the family is closed.

use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{ConcurrencyLimitLayer, Refusal, RefusalKind, RwLock, RwLockLayer, WaitGroup};

use crate::families::{Other, by_name, locks, permits};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, on_each_store};

on_each_store!(too_many_that_wait_are_refused_at_once, closed_families_take_no_more);

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
