//! A response future may be dropped at any time: what was not let through is given back.

use tokio_test::{assert_pending, task};
use tower::{Service as _, ServiceExt as _};

use super::subjects::{Refusing, State, Subject, for_all_subjects, on_subjects};
use crate::probe::Probe;
use crate::stores::{SOON, Stores};
use support::eventually;

on_subjects!([ConcurrencyLimit Mutex RwLock SingleFlight]: before_the_first_poll);
on_subjects!(refusing: after_each_number_of_polls);

async fn before_the_first_poll<T: Subject>(stores: Stores) {
    let probe = Probe::default();
    let mut service = T::around(&T::layer(&stores.open()), probe.clone());
    drop(service.ready().await.unwrap().call("ann:1".into()));
    assert_eq!(probe.calls(), 0);
    T::becomes(&stores, "ann", State::Free).await;
}

async fn after_each_number_of_polls<T: Refusing>(stores: Stores) {
    const YIELDS: usize = 3;
    let layer = T::layer(&stores.open());
    for polls in 0.. {
        let (key, probe) = (format!("dropped after {polls}"), Probe::yielding(YIELDS));
        let mut service = T::around(&layer, probe.clone());
        let mut call = task::spawn(service.ready().await.unwrap().call(format!("{key}:1")));
        let mut done = false;
        for poll in 0..polls {
            if poll > 0 {
                eventually(&format!("poll {poll} of {polls}"), SOON, async || {
                    call.is_woken()
                })
                .await;
            }
            done = call.poll().is_ready();
        }
        let state = match (probe.calls(), probe.running()) {
            (0, _) => State::Free,
            (_, 0) => T::ANSWERED,
            _ => T::CALLED,
        };
        drop(call);
        assert_eq!(probe.running(), 0);
        T::becomes(&stores, &key, state).await;
        if done {
            assert!(probe.calls() == 1 && polls > YIELDS, "{polls} polls");
            break;
        }
    }
}

#[test]
fn without_a_runtime_a_drop_does_not_panic() {
    fn check<T: Subject>() {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
        };
        let (one, stores) = (runtime(), Stores::in_memory());
        let mut service = T::around(&T::layer(&stores.open()), Probe::hanging());
        one.block_on(async { assert!(service.ready().await.is_ok()) });
        let mut call = task::spawn(service.call("ann:1".into()));
        one.block_on(async { assert_pending!(call.poll()) });
        drop(one);
        drop(call);
        runtime().block_on(T::becomes(&stores, "ann", T::CALLED));
    }
    for_all_subjects!(check);
}
