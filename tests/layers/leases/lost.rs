//! Leases that are lost while their requests are at work: taken away in Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use http::Response;
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tokio_test::{assert_pending, task};
use tonic::Code;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::response::{LeaseEnd, LeasedBody, UntilBodyEnd};
use tower_distributed::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, DedupeLayer, Error, LeaseHandle, RefusalKind,
    RwLock, RwLockLayer, Store, WaitGroup,
};
use tower_test::mock;

use crate::contract::told::{reduced, told};
use crate::families::by_name;
use crate::leases::bodies::{Frames, Slow, data, reads, slow};
use crate::probe::Probe;
use crate::stores::started;
use support::redis_server::RedisServer;

/// Renewed each second.
const TTL: Duration = Duration::from_secs(3);

fn permits(store: &Store) -> WaitGroup {
    WaitGroup::builder(1)
        .ttl(TTL)
        .build(store, "permits")
        .unwrap()
}

fn locks(store: &Store) -> RwLock {
    RwLock::builder().ttl(TTL).build(store, "locks").unwrap()
}

fn claims(store: &Store) -> Dedupe {
    let filter = BloomFilter::new(store, "items", 1000, 1e-9).unwrap();
    Dedupe::builder()
        .remember_forever()
        .ttl(TTL)
        .build(&filter)
        .unwrap()
}

/// Takes away all that is held.
fn take_away(redis: &RedisServer) {
    let keys = |like| redis.query::<Vec<String>>(&["KEYS", like]).unwrap();
    let keys = [keys("*holders"), keys("*:claim")].concat();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(redis.query(&["DEL", &keys[0]]), Ok(1));
}

#[tokio::test]
async fn a_request_is_cancelled_when_its_lease_is_lost_where_that_is_set() {
    let (redis, store) = started().await;
    let probe = Probe::hanging();
    let lock = BoxCloneService::new(RwLockLayer::new(locks(&store), by_name).layer(probe.clone()));
    let limit = ConcurrencyLimitLayer::new(permits(&store), by_name).cancel_when_lost(true);
    let limit = BoxCloneService::new(limit.layer(probe.clone()));
    let claim = DedupeLayer::new(claims(&store), by_name).cancel_when_lost(true);
    let claim = BoxCloneService::new(claim.layer(probe.clone()));
    // An outage that outlasts the lease ends it as well: nobody is to believe in a lock that others may have by now.
    for (service, lose) in [
        (lock.clone(), take_away as fn(&RedisServer)),
        (limit, take_away),
        (claim, take_away),
        (lock, RedisServer::kill9),
    ] {
        let mut call = task::spawn(service.oneshot("ann"));
        probe.runs(1, &mut call).await;
        lose(&redis);
        let lost = told(call.await.unwrap_err());
        lost.is(reduced(RefusalKind::LeaseLost, None, Code::Aborted));
        assert_eq!(probe.running(), 0, "dropped before anybody heard of it");
    }
}

/// The inner service is handed what tells it.
type Told = (&'static str, Option<LeaseHandle>);

fn tell(lease: &LeaseHandle, request: &mut Told) {
    request.1 = Some(lease.clone());
}

fn by_told(request: &Told) -> &'static str {
    request.0
}

#[tokio::test]
async fn a_request_goes_on_when_its_lease_is_lost_where_that_is_set() {
    let (redis, store) = started().await;
    let (inner, mut handle) = mock::pair::<Told, &'static str>();
    let limit = ConcurrencyLimitLayer::new(permits(&store), by_told).on_lease(tell);
    let lock = RwLockLayer::new(locks(&store), by_told)
        .on_lease(tell)
        .cancel_when_lost(false);
    let claim = DedupeLayer::new(claims(&store), by_told)
        .on_lease(tell)
        .cancel_when_lost(false);
    let limit = BoxCloneService::new(limit.layer(inner.clone()));
    let lock = BoxCloneService::new(lock.layer(inner.clone()));
    for service in [limit, lock, BoxCloneService::new(claim.layer(inner))] {
        let call = tokio::spawn(service.oneshot(("ann", None)));
        let ((_, lease), answer) = handle.next_request().await.unwrap();
        let lease = lease.unwrap();
        assert!(lease.is_held());
        take_away(&redis);
        lease.lost().await;
        assert!(!lease.is_held() && !call.is_finished());
        answer.send_response("done all the same");
        assert_eq!(call.await.unwrap().unwrap(), "done all the same");
    }
}

/// The body of a response under a lock, and what watches the lock.
async fn streams(
    store: &Store,
    hold: UntilBodyEnd,
) -> (UnboundedSender<Frames>, LeasedBody<Slow>, LeaseHandle) {
    let (sender, body) = slow();
    let (handed, lease) = oneshot::channel();
    let answer = Arc::new(Mutex::new(Some((handed, body))));
    let service = service_fn(move |request: Told| {
        let (handed, body) = answer.lock().unwrap().take().unwrap();
        handed.send(request.1.unwrap()).unwrap();
        std::future::ready(Ok::<_, BoxError>(Response::new(body)))
    });
    let layer = RwLockLayer::new(locks(store), by_told)
        .on_lease(tell)
        .hold(hold);
    let response = layer.layer(service).oneshot(("ann", None)).await.unwrap();
    (sender, response.into_body(), lease.await.unwrap())
}

/// A body goes on, or is aborted where that is set.
#[tokio::test]
async fn a_lock_that_is_lost_under_a_body() {
    let (redis, store) = started().await;
    let (sender, mut body, lease) = streams(&store, UntilBodyEnd::default()).await;
    take_away(&redis);
    lease.lost().await;
    sender.unbounded_send(data("all the same")).unwrap();
    assert!(reads(&mut body, "all the same").await);
    drop(sender);
    assert!(body.frame().await.is_none());

    let aborts = UntilBodyEnd::default().on_lease_end(LeaseEnd::Abort);
    let (sender, mut body, lease) = streams(&store, aborts.clone()).await;
    take_away(&redis);
    lease.lost().await;
    sender.unbounded_send(data("too late")).unwrap();
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(error.downcast_ref::<Error>().unwrap().is_lost(), "{error}");
    assert!(body.frame().await.is_none());

    // Also one that is polled already, and yields nothing.
    let (_sender, mut body, _lease) = streams(&store, aborts).await;
    let mut next = task::spawn(body.frame());
    assert_pending!(next.poll());
    take_away(&redis);
    let error = next.await.unwrap().unwrap_err();
    assert!(error.downcast_ref::<Error>().unwrap().is_lost(), "{error}");
}
