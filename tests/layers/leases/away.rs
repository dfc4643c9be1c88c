//! When the store is away: refuse, admit, or do with a share.

use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::util::BoxCloneService;
use tower::{BoxError, Layer as _, ServiceExt as _};
use tower_distributed::{
    ConcurrencyLimitLayer, Mutex, MutexLayer, Refusal, RefusalKind, Store, StoreFailure,
};

use crate::families::{mutexes, permits};
use crate::probe::Probe;
use crate::stores::{SOON, away, gone, shared_by, started};
use support::{eventually, patient};

type Service = BoxCloneService<u32, u32, BoxError>;
type Call = task::Spawn<tower::util::Oneshot<Service, u32>>;

fn everything(_: &u32) -> &'static str {
    "everything"
}

/// Requests are their own weights.
fn limited(limit: u32, store: &Store, on_store_failure: StoreFailure, probe: &Probe) -> Service {
    let layer = ConcurrencyLimitLayer::new(permits(store, limit), everything)
        .weight(|weight: &u32| *weight);
    BoxCloneService::new(
        layer
            .on_store_failure(on_store_failure)
            .layer(probe.clone()),
    )
}

/// Starts a request of a service that hangs; how it is refused, if it does not get there.
async fn start(service: &Service, probe: &Probe, weight: u32) -> Result<Call, RefusalKind> {
    let before = probe.running();
    let mut call = task::spawn(service.clone().oneshot(weight));
    let mut outcome = None;
    eventually("it to run, or to be refused", SOON, async || {
        match call.poll() {
            std::task::Poll::Ready(error) => {
                outcome = Some(error.unwrap_err());
                true
            }
            std::task::Poll::Pending => probe.running() > before,
        }
    })
    .await;
    match outcome {
        Some(error) => Err(error.downcast_ref::<Refusal>().unwrap().kind()),
        None => Ok(call),
    }
}

#[tokio::test]
async fn what_is_done_without_the_store_ends_with_the_outage() {
    let (redis, store) = started().await;
    let probe = Probe::hanging();
    let open = limited(1, &store, StoreFailure::FailOpen, &probe);
    let first = start(&open, &probe, 1).await.unwrap();
    assert_eq!(
        start(&open, &probe, 1).await.err(),
        Some(RefusalKind::NoPermit),
        "while the store is there"
    );
    redis.kill9();
    let second = start(&open, &probe, 1).await.unwrap();
    let store = patient!().prefix("shared").redis(&redis.url()).unwrap();
    let share = limited(100, &store, shared_by(100), &probe);
    let third = start(&share, &probe, 1).await.unwrap();
    assert_eq!(
        start(&share, &probe, 1).await.err(),
        Some(RefusalKind::NoPermit)
    );
    redis.restart().await;
    let mut held = Vec::new();
    eventually("the whole limit", SOON, async || {
        held.extend(start(&share, &probe, 1).await);
        held.len() == 3
    })
    .await;
    assert_eq!(permits(&store, 100).count("everything").await.unwrap(), 3);
    drop((first, second, third));
}

#[tokio::test]
async fn degrade_limits_to_the_share() {
    let (admitted, no_permit) = (None, Some(RefusalKind::NoPermit));
    let (too_heavy, never) = (
        Some(RefusalKind::StoreUnavailable),
        Some(RefusalKind::ExceedsLimit),
    );
    for (limit, on_store_failure, share, outcomes) in [
        // A quarter of eight permits. What weighs more than the share may weigh less than the limit.
        (
            8,
            shared_by(4),
            2,
            &[
                (1, admitted),
                (1, admitted),
                (1, no_permit),
                (3, too_heavy),
                (9, never),
            ][..],
        ),
        // One at least.
        (2, shared_by(1000), 1, &[(1, admitted), (1, no_permit)]),
        // It takes no store to know what never fits.
        (
            2,
            StoreFailure::FailOpen,
            2,
            &[(2, admitted), (2, admitted), (3, never)],
        ),
    ] {
        let probe = Probe::hanging();
        let service = limited(limit, &away(), on_store_failure, &probe);
        let mut held = Vec::new();
        for (weight, refused) in outcomes {
            let outcome = start(&service, &probe, *weight).await;
            assert_eq!(
                outcome.as_ref().err(),
                refused.as_ref(),
                "a weight of {weight}"
            );
            held.extend(outcome);
        }
        drop(held);
        eventually("the share to be free", SOON, async || {
            start(&service, &probe, share).await.is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn degrade_waits_where_the_layer_waits_and_goes_by_its_limit() {
    let probe = Probe::hanging();
    // What is set last counts as well as what is set first.
    let layer =
        ConcurrencyLimitLayer::new(permits(&away(), 1), everything).on_store_failure(shared_by(2));
    let layer = layer.limit(|_: &u32| Some(4)).max_wait(SOON);
    let service = BoxCloneService::new(layer.layer(probe.clone()));
    let (held, _second) = (
        start(&service, &probe, 1).await.unwrap(),
        start(&service, &probe, 1).await.unwrap(),
    );
    let waiting = tokio::spawn(service.clone().oneshot(1));
    let mut next = task::spawn(service.oneshot(1));
    assert_pending!(next.poll());
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    drop(held);
    eventually("its turn", SOON, async || {
        assert_pending!(next.poll());
        probe.calls() == 3
    })
    .await;
}

/// Routes share what they would share in the store: a layer of their own is no memory of their own. The memory of this
/// process replaces all stores of a quorum.
#[tokio::test]
async fn routes_with_one_mutex_exclude_each_other_in_an_outage() {
    let store = gone().await;
    let stores = [1, 2, 3].map(|port| Store::redis(&format!("redis://127.0.0.1:{port}")).unwrap());
    let quorum = Mutex::builder().build_quorum(stores, "quorum").unwrap();
    let mutex = mutexes(&store);
    for mutexes in [
        vec![mutex.clone(), mutex, mutexes(&store)],
        vec![quorum.clone(), quorum],
    ] {
        let probe = Probe::hanging();
        let routes: Vec<_> = mutexes
            .into_iter()
            .map(|mutex| {
                let layer = MutexLayer::new(mutex, everything).on_store_failure(shared_by(2));
                BoxCloneService::new(layer.layer(probe.clone()))
            })
            .collect();
        let held = start(&routes[0], &probe, 1).await.unwrap();
        for other in &routes {
            assert_eq!(
                start(other, &probe, 1).await.err(),
                Some(RefusalKind::Locked)
            );
        }
        assert_eq!(probe.running(), 1);
        drop(held);
        eventually("the lock to be free", SOON, async || {
            start(&routes[1], &probe, 1).await.is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn a_mutex_keeps_its_settings_in_an_outage() {
    let store = gone().await;
    let probe = Probe::hanging();
    let around = |mutex: &Mutex| {
        let layer = MutexLayer::new(mutex.clone(), everything)
            .max_wait(SOON)
            .on_store_failure(shared_by(2));
        BoxCloneService::new(layer.layer(probe.clone()))
    };
    let kind = |error: BoxError| error.downcast_ref::<Refusal>().unwrap().kind();
    let unqueued = Mutex::builder()
        .max_waiters(0)
        .build(&store, "unqueued")
        .unwrap();
    let service = around(&unqueued);
    let held = start(&service, &probe, 1).await.unwrap();
    let refused = service.clone().oneshot(1).await.unwrap_err();
    assert!(
        refused
            .downcast_ref::<Refusal>()
            .unwrap()
            .get_ref()
            .is_queue_full(),
        "{refused}"
    );
    unqueued.close();
    assert_eq!(
        kind(service.oneshot(1).await.unwrap_err()),
        RefusalKind::Closed
    );
    drop(held);
    // The lock is not renewed, and the next one gets it after the ttl.
    let builder = Mutex::builder().ttl(Duration::from_secs(1)).watchdog(false);
    let service = around(&builder.build(&store, "brief").unwrap());
    let first = start(&service, &probe, 1).await.unwrap();
    let calls = probe.calls();
    let next = tokio::spawn(service.oneshot(1));
    assert_eq!(kind(first.await.unwrap_err()), RefusalKind::LeaseLost);
    eventually("the next one to run", SOON, async || {
        probe.calls() == calls + 1
    })
    .await;
    next.abort();
}

#[tokio::test]
async fn routes_with_one_limit_share_it_in_an_outage() {
    let store = gone().await;
    let probe = Probe::hanging();
    let routes = [1, 2].map(|_| limited(10, &store, shared_by(2), &probe));
    let mut held = Vec::new();
    for turn in 0..10 {
        held.extend(start(&routes[turn % 2], &probe, 1).await);
    }
    assert_eq!(held.len(), 5, "the share of this process");
    // The number of processes is that of the layer that knows of most of them.
    let _other = limited(10, &store, shared_by(10), &probe);
    drop(held.drain(1..));
    eventually("the permits to be free", SOON, async || {
        probe.running() == 1
    })
    .await;
    for route in &routes {
        assert_eq!(
            start(route, &probe, 1).await.err(),
            Some(RefusalKind::NoPermit),
            "a share of one"
        );
    }
}
