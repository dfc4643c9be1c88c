//! Leases that are lost while their requests are at work: taken away in Redis.

use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::util::BoxCloneService;
use tower::{BoxError, Layer as _, ServiceExt as _};
use tower_distributed::{
    ConcurrencyLimitLayer, LeaseHandle, Refusal, RefusalKind, RwLock, RwLockLayer, Store, WaitGroup,
};
use tower_test::mock;

use crate::layers::by_name;
use crate::probe::Probe;
use crate::stores::SOON;
use crate::support::eventually;
use crate::support::redis_server::RedisServer;

/// Renewed three times a second.
const TTL: Duration = Duration::from_secs(1);

type Service = BoxCloneService<&'static str, &'static str, BoxError>;

fn permits(store: &Store) -> WaitGroup {
    WaitGroup::builder(1).ttl(TTL).build(store, "permits").unwrap()
}

fn locks(store: &Store) -> RwLock {
    RwLock::builder().ttl(TTL).build(store, "locks").unwrap()
}

/// Takes away all that is held.
fn take_away(redis: &RedisServer) {
    let keys: Vec<String> = redis.query(&["KEYS", "*holders"]).unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(redis.query(&["DEL", &keys[0]]), Ok(1));
}

async fn is_cancelled(redis: &RedisServer, service: Service, probe: &Probe) {
    let mut call = task::spawn(service.oneshot("ann"));
    eventually("it to run", SOON, async || {
        assert_pending!(call.poll());
        probe.running() == 1
    })
    .await;
    take_away(redis);
    let error = call.await.unwrap_err();
    assert_eq!(error.downcast_ref::<Refusal>().unwrap().kind(), RefusalKind::LeaseLost);
    assert_eq!(probe.running(), 0, "dropped before anybody heard of it");
}

#[tokio::test]
async fn a_request_is_cancelled_when_its_lock_is_lost() {
    let redis = RedisServer::start().await;
    let store = Store::redis(&redis.url()).unwrap();
    let probe = Probe::hanging();
    let layer = RwLockLayer::new(locks(&store), by_name);
    is_cancelled(&redis, BoxCloneService::new(layer.layer(probe.clone())), &probe).await;
}

#[tokio::test]
async fn a_request_is_cancelled_when_its_permit_is_lost_where_that_is_set() {
    let redis = RedisServer::start().await;
    let store = Store::redis(&redis.url()).unwrap();
    let probe = Probe::hanging();
    let layer = ConcurrencyLimitLayer::new(permits(&store), by_name).cancel_when_lost(true);
    is_cancelled(&redis, BoxCloneService::new(layer.layer(probe.clone())), &probe).await;
}

/// The inner service is handed what tells it.
type Told = (&'static str, Option<LeaseHandle>);

fn tell(lease: &LeaseHandle, request: &mut Told) {
    request.1 = Some(lease.clone());
}

fn by_told(request: &Told) -> &'static str {
    request.0
}

async fn goes_on(
    redis: &RedisServer,
    service: BoxCloneService<Told, &'static str, BoxError>,
    mut handle: mock::Handle<Told, &'static str>,
) {
    let call = tokio::spawn(service.oneshot(("ann", None)));
    let ((_, lease), answer) = handle.next_request().await.unwrap();
    let lease = lease.unwrap();
    assert!(lease.is_held());
    take_away(redis);
    lease.lost().await;
    assert!(!lease.is_held() && !call.is_finished());
    answer.send_response("done all the same");
    assert_eq!(call.await.unwrap().unwrap(), "done all the same");
}

#[tokio::test]
async fn a_request_goes_on_when_its_permit_is_lost() {
    let redis = RedisServer::start().await;
    let store = Store::redis(&redis.url()).unwrap();
    let (inner, handle) = mock::pair();
    let layer = ConcurrencyLimitLayer::new(permits(&store), by_told).on_lease(tell);
    goes_on(&redis, BoxCloneService::new(layer.layer(inner)), handle).await;
}

#[tokio::test]
async fn a_request_goes_on_when_its_lock_is_lost_where_that_is_set() {
    let redis = RedisServer::start().await;
    let store = Store::redis(&redis.url()).unwrap();
    let (inner, handle) = mock::pair();
    let layer = RwLockLayer::new(locks(&store), by_told).on_lease(tell).cancel_when_lost(false);
    goes_on(&redis, BoxCloneService::new(layer.layer(inner)), handle).await;
}

/// An outage that outlasts the lease ends it as well: nobody is to believe in a lock that others may have by now.
#[tokio::test]
async fn a_lock_is_lost_when_its_time_runs_out() {
    let redis = RedisServer::start().await;
    let store = Store::redis(&redis.url()).unwrap();
    let probe = Probe::hanging();
    let service = RwLockLayer::new(locks(&store), by_name).layer(probe.clone());
    let mut call = task::spawn(service.oneshot("ann"));
    eventually("it to run", SOON, async || {
        assert_pending!(call.poll());
        probe.running() == 1
    })
    .await;
    redis.kill9();
    let error = call.await.unwrap_err();
    assert_eq!(error.downcast_ref::<Refusal>().unwrap().kind(), RefusalKind::LeaseLost);
    assert_eq!(probe.running(), 0);
}
