//! Limits that adapt: what one process sees moves the limit of all, and an outage does not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tower::{BoxError, Layer as _, Service, ServiceExt as _, service_fn};
use tower_distributed::operator::{Entry, Kind};
use tower_distributed::wait_group::{Adaptive, Signal};
use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};

use crate::fleet::elsewhere;
use crate::operators::shown;
use crate::stores::{Place, SOON};
use support::eventually;
use support::redis_server::RedisServer;

const WINDOW: Duration = Duration::from_millis(10);

/// Requests that are sent together.
#[derive(Default)]
struct Crowd {
    running: AtomicUsize,
    /// The most that ran at once.
    most: AtomicUsize,
}

/// A process: its WaitGroup with a start value of 20, and a service with an adaptive limit of 2 to 40. Each request takes a
/// millisecond, and says that the service is overloaded while `is_overloaded`.
fn process(
    store: &Store,
    name: &str,
    is_overloaded: &Arc<AtomicBool>,
) -> (
    WaitGroup,
    impl Service<Arc<Crowd>, Response = (), Error = BoxError, Future: Send> + Clone + use<>,
) {
    let group = WaitGroup::new(store, name, 20).unwrap();
    let is_overloaded = Arc::clone(is_overloaded);
    let classify = move |_: &Result<(), io::Error>| match is_overloaded.load(Ordering::Relaxed) {
        true => Signal::Overload,
        false => Signal::Success,
    };
    let adaptive = Adaptive::aimd()
        .min(2)
        .max(40)
        .window(WINDOW)
        .classify(classify);
    let layer = ConcurrencyLimitLayer::new(group.clone(), |_: &Arc<Crowd>| "k")
        .adaptive(adaptive)
        .unwrap();
    let service = layer.layer(service_fn(async |crowd: Arc<Crowd>| {
        let running = crowd.running.fetch_add(1, Ordering::Relaxed) + 1;
        crowd.most.fetch_max(running, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1)).await;
        crowd.running.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }));
    (group, service)
}

/// So many requests. Returns how many ran at once.
async fn requests<S: Service<Arc<Crowd>, Response = (), Error = BoxError> + Clone>(
    service: &S,
    count: usize,
) -> usize {
    let crowd = Arc::new(Crowd::default());
    join_all((0..count).map(|_| service.clone().oneshot(Arc::clone(&crowd)))).await;
    crowd.most.load(Ordering::Relaxed)
}

async fn limit(group: &WaitGroup) -> u32 {
    group
        .inspect_limit("k")
        .await
        .unwrap()
        .map_or(20, |state| state.limit)
}

pub(crate) async fn all_processes_have_the_limit_that_one_has_lowered(place: &Place, name: &str) {
    let (bad, good) = (Arc::new(AtomicBool::new(true)), Arc::default());
    let (group, here) = process(place, name, &bad);
    let (_, there) = process(&elsewhere(place), name, &good);
    assert!(
        (1..=20).contains(&requests(&there, 40).await),
        "the start value"
    );
    eventually("the lowest limit", SOON, async || {
        requests(&here, 20).await;
        limit(&group).await == 2
    })
    .await;
    // An operator sees the limit.
    let (operator, held) = (place.operator(), group.add("k").await.unwrap());
    let page = operator
        .scan_namespace(name)
        .unwrap()
        .next()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(page, [Entry::new(Kind::WaitGroup, name, "k").unwrap()]);
    let permits = shown!(operator, &page[0], Permits);
    assert!(
        permits.leases.in_use >= 1 && (2..20).contains(&permits.limit.limit),
        "{permits:?}"
    );
    assert!(held.done().await.unwrap());
    bad.store(false, Ordering::Relaxed);
    // The other process hears of it by its next report.
    eventually("the other process", SOON, async || {
        requests(&there, 20).await <= 8
    })
    .await;
    // One that starts now asks before its first request.
    let (group, started) = process(&elsewhere(place), name, &good);
    let most = limit(&group).await + 8;
    assert!(requests(&started, 40).await <= most as usize);
}

/// The last known limit holds in an outage. A server that has forgotten the limit goes on with it.
#[tokio::test]
async fn an_outage_changes_no_limit() {
    let server = RedisServer::start().await;
    let store = Store::builder()
        .timeout(Duration::from_secs(2))
        .redis(&server.url())
        .unwrap();
    let is_overloaded = Arc::new(AtomicBool::new(true));
    let (group, service) = process(&store, "api", &is_overloaded);
    eventually("the lowest limit", SOON, async || {
        requests(&service, 20).await;
        limit(&group).await == 2
    })
    .await;
    is_overloaded.store(false, Ordering::Relaxed);
    server.cli(&["FLUSHALL"]);
    eventually("a report", SOON, async || {
        requests(&service, 1).await;
        group.inspect_limit("k").await.unwrap().is_some()
    })
    .await;
    assert!(
        limit(&group).await < 10,
        "not the start value: {}",
        limit(&group).await
    );
    server.pause();
    assert_eq!(requests(&service, 5).await, 0);
    server.resume();
    eventually("the server", SOON, async || {
        requests(&service, 1).await == 1
    })
    .await;
    assert!(limit(&group).await < 10);
}
