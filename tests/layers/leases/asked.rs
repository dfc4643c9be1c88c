//! What the layers ask: key, weight, limit and access, by closures over any type of request.

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::rw_lock::Access;
use tower_distributed::{ConcurrencyLimitLayer, LeaseHandle, Refusal, RefusalKind, RwLockLayer};

use crate::families::{locks, on_each_layer, permits};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, away, on_each_store};
use support::eventually;

on_each_store!(
    each_key_is_limited_by_itself,
    weights_are_the_closures,
    limits_are_the_closures,
    whether_it_reads_is_the_closures,
    what_has_its_lease_is_shown_it,
);

#[derive(Debug)]
struct Job {
    tenant: Option<&'static str>,
    size: u32,
    fence: Option<u64>,
}

fn job(tenant: &'static str, size: u32) -> Job {
    Job { tenant: Some(tenant), size, fence: None }
}

fn tenant(job: &Job) -> Option<&'static str> {
    job.tenant
}

/// How a call that is not to be held back is refused.
macro_rules! refusal {
    ($service:expr, $job:expr) => {{
        let outcome = $service.ready().await.unwrap().call($job).await;
        outcome.err().map(|error| error.downcast_ref::<Refusal>().unwrap().kind())
    }};
}

/// A call that has reached a service that hangs, as the one of this number.
macro_rules! running {
    ($service:expr, $probe:expr, $number:expr, $job:expr) => {{
        let mut call = task::spawn($service.ready().await.unwrap().call($job));
        eventually("the call to arrive", SOON, async || {
            assert_pending!(call.poll());
            $probe.running() == $number
        })
        .await;
        call
    }};
}

async fn each_key_is_limited_by_itself(stores: Stores) {
    on_each_layer!(stores, tenant, |layer| {
        let probe = Probe::hanging();
        let mut service = layer.layer(probe.clone());
        let mut held = Vec::new();
        for tenant in ["ann", "bob", "", "{}", "a\0b"] {
            held.push(running!(service, probe, held.len() + 1, job(tenant, 1)));
        }
        for tenant in ["ann", "bob", "", "{}", "a\0b"] {
            assert!(refusal!(service, job(tenant, 1)).is_some(), "{tenant:?}");
        }
    });
}

#[tokio::test]
async fn without_a_key_requests_pass_untouched() {
    struct Away;
    impl Away {
        fn open(&self) -> tower_distributed::Store {
            away()
        }
    }
    on_each_layer!(Away, tenant, |layer| {
        let layer = layer.on_lease(|_: &LeaseHandle, _: &mut Job| panic!("there is no lease"));
        let mut service = layer.layer(Probe::default());
        for size in 0..9 {
            let job = Job { tenant: None, size, fence: None };
            assert_eq!(service.ready().await.unwrap().call(job).await.unwrap().size, size);
        }
        assert_eq!(refusal!(service, job("ann", 1)), Some(RefusalKind::StoreUnavailable));
    });
}

#[tokio::test]
async fn what_weighs_nothing_asks_nobody() {
    let layer = ConcurrencyLimitLayer::new(permits(&away(), 1), tenant).weight(|job: &Job| job.size);
    let layer = layer.on_lease(|_: &LeaseHandle, _: &mut Job| panic!("there is no lease"));
    let mut service = layer.layer(Probe::default());
    assert_eq!(service.ready().await.unwrap().call(job("ann", 0)).await.unwrap().size, 0);
}

async fn weights_are_the_closures(stores: Stores) {
    let group = permits(&stores.open(), 5);
    let probe = Probe::hanging();
    let layer = ConcurrencyLimitLayer::new(group.clone(), tenant).weight(|job: &Job| job.size);
    let mut service = layer.layer(probe.clone());
    let three = running!(service, probe, 1, job("ann", 3));
    assert_eq!(group.count("ann").await.unwrap(), 3);
    assert_eq!(refusal!(service, job("ann", 3)), Some(RefusalKind::NoPermit));
    assert_eq!(refusal!(service, job("ann", 6)), Some(RefusalKind::ExceedsLimit));
    let _two = running!(service, probe, 2, job("ann", 2));
    let _nothing = running!(service, probe, 3, job("ann", 0));
    assert_eq!(group.count("ann").await.unwrap(), 5);
    drop(three);
    eventually("three to be free", SOON, async || group.count("ann").await.unwrap() == 2).await;
    let _three = running!(service, probe, 3, job("ann", 3));
}

async fn limits_are_the_closures(stores: Stores) {
    let choose = |job: &Job| match job.tenant {
        Some("premium") => Some(2),
        Some("closed") => Some(0),
        _ => None,
    };
    let probe = Probe::hanging();
    let layer = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), tenant).limit(choose);
    let mut service = layer.layer(probe.clone());
    let _basic = running!(service, probe, 1, job("basic", 1));
    assert_eq!(refusal!(service, job("basic", 1)), Some(RefusalKind::NoPermit));
    let _first = running!(service, probe, 2, job("premium", 1));
    let _second = running!(service, probe, 3, job("premium", 1));
    assert_eq!(refusal!(service, job("premium", 1)), Some(RefusalKind::NoPermit));
    assert_eq!(refusal!(service, job("closed", 1)), Some(RefusalKind::NoPermit));
}

async fn whether_it_reads_is_the_closures(stores: Stores) {
    let access = |job: &Job| if job.size == 0 { Access::Read } else { Access::Write };
    let probe = Probe::hanging();
    let mut service = RwLockLayer::new(locks(&stores.open()), tenant).access(access).layer(probe.clone());
    let readers = [running!(service, probe, 1, job("ann", 0)), running!(service, probe, 2, job("ann", 0))];
    assert_eq!(refusal!(service, job("ann", 1)), Some(RefusalKind::Locked));
    let _writer = running!(service, probe, 3, job("bob", 1));
    assert_eq!(refusal!(service, job("bob", 0)), Some(RefusalKind::Locked));
    drop(readers);
    let lock = locks(&stores.open());
    eventually("the readers to be gone", SOON, async || lock.try_write("ann").await.is_ok()).await;
}

async fn what_has_its_lease_is_shown_it(stores: Stores) {
    let mut fences = Vec::new();
    on_each_layer!(stores, tenant, |layer| {
        let show = |lease: &LeaseHandle, job: &mut Job| {
            assert!(lease.is_held() && lease.key().as_bytes() == b"ann" && !lease.token().is_empty());
            job.fence = lease.fence();
        };
        let mut service = layer.on_lease(show).max_wait(SOON).layer(Probe::default());
        for _ in 0..2 {
            fences.push(service.ready().await.unwrap().call(job("ann", 1)).await.unwrap().fence);
        }
    });
    let [None, None, Some(write), Some(rewrite), Some(lock), Some(relock)] = fences[..] else {
        panic!("{fences:?}")
    };
    assert!(rewrite > write && relock > lock, "{fences:?}");
}
