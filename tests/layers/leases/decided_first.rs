//! The inner service is called under a lease, and never without; a lease lasts as long as the call.

use std::time::{Duration, Instant};

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{Refusal, RefusalKind, Store};
use tower_test::{assert_request_eq, mock};

use crate::leases::layers::{Other, becomes_free, by_name, is_free, on_each_layer};
use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use crate::support::proxy::FaultProxy;
use crate::support::redis_server::RedisServer;
use crate::support::{eventually, spend_budget};

on_each_store!(
    the_lease_lasts_as_long_as_the_call,
    refused_requests_do_not_arrive,
    while_a_request_waits_nothing_arrives,
    who_waits_too_long_is_refused,
    errors_of_calls_are_passed_on,
    a_task_whose_budget_is_spent_is_served_too,
);

type Mock = mock::Mock<&'static str, &'static str>;

async fn the_lease_lasts_as_long_as_the_call(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let (inner, mut handle): (Mock, _) = mock::pair();
        let mut service = layer.layer(inner);
        let call = tokio::spawn(service.ready().await.unwrap().call("ann"));
        let (request, answer) = handle.next_request().await.unwrap();
        assert_eq!(request, "ann");
        assert!(!is_free(&stores, "ann").await);
        answer.send_response("hello");
        assert_eq!(call.await.unwrap().unwrap(), "hello");
        becomes_free(&stores, "ann").await;
    });
}

async fn a_task_whose_budget_is_spent_is_served_too(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::default();
        let mut service = layer.layer(probe.clone());
        let call = tokio::spawn(async move {
            let call = service.ready().await.unwrap().call("ann");
            spend_budget().await;
            call.await
        });
        assert_eq!(call.await.unwrap().unwrap(), "ann");
        assert_eq!(probe.calls(), 1);
        becomes_free(&stores, "ann").await;
    });
}

async fn refused_requests_do_not_arrive(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let (inner, mut handle): (Mock, _) = mock::pair();
        let mut service = layer.layer(inner);
        let error = service.ready().await.unwrap().call("ann").await.unwrap_err();
        assert!(error.is::<Refusal>(), "{error}");
        assert_pending!(handle.poll_request());
    });
    other.leaves().await;
}

async fn while_a_request_waits_nothing_arrives(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let mut waiting = Vec::new();
    on_each_layer!(stores, by_name, |layer| {
        let (inner, mut handle): (Mock, _) = mock::pair();
        let mut service = layer.max_wait(HOUR).layer(inner);
        let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
        assert_pending!(call.poll());
        assert_pending!(handle.poll_request());
        waiting.push((tokio::spawn(call.into_inner().map_boxed()), handle));
    });
    // Whatever they have done by now, nothing has arrived.
    assert!(!is_free(&stores, "ann").await);
    for (_, handle) in &mut waiting {
        assert!(futures::poll!(Box::pin(handle.next_request())).is_pending());
    }
    other.leaves().await;
    for (call, mut handle) in waiting {
        assert_request_eq!(handle, "ann").send_response("hello");
        assert_eq!(call.await.unwrap().unwrap(), "hello");
    }
    becomes_free(&stores, "ann").await;
}

/// A future as one of a type that all have.
trait MapBoxed: Future + Send + Sized + 'static {
    fn map_boxed(self) -> futures::future::BoxFuture<'static, Self::Output> {
        Box::pin(self)
    }
}

impl<F: Future + Send + 'static> MapBoxed for F {}

async fn who_waits_too_long_is_refused(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let longest = Duration::from_millis(50);
    on_each_layer!(stores, by_name, |layer| {
        let (inner, mut handle): (Mock, _) = mock::pair();
        let mut service = layer.max_wait(longest).layer(inner);
        let began = Instant::now();
        let error = service.ready().await.unwrap().call("ann").await.unwrap_err();
        assert!(began.elapsed() >= longest);
        assert_eq!(error.downcast_ref::<Refusal>().unwrap().kind(), RefusalKind::WaitedTooLong);
        assert_pending!(handle.poll_request());
    });
    other.leaves().await;
    becomes_free(&stores, "ann").await;
}

async fn errors_of_calls_are_passed_on(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let (inner, mut handle): (Mock, _) = mock::pair();
        let mut service = layer.layer(inner);
        let failed = tokio::spawn(service.ready().await.unwrap().call("ann"));
        assert_request_eq!(handle, "ann").send_error("out of order");
        let error = failed.await.unwrap().unwrap_err();
        assert!(!error.is::<Refusal>() && error.to_string() == "out of order", "{error}");
        becomes_free(&stores, "ann").await;
    });
}

#[tokio::test]
async fn while_redis_is_silent_nothing_arrives() {
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    struct Proxied(Store);
    impl Proxied {
        fn open(&self) -> Store {
            self.0.clone()
        }
    }
    let store = Store::builder().timeout(Duration::from_secs(60)).redis(&proxy.url()).unwrap();
    on_each_layer!(Proxied(store.clone()), by_name, |layer| {
        let (inner, mut handle): (Mock, _) = mock::pair();
        let mut service = layer.layer(inner);
        let warm_up = tokio::spawn(service.ready().await.unwrap().call("warm-up"));
        assert_request_eq!(handle, "warm-up").send_response("hello");
        warm_up.await.unwrap().unwrap();

        proxy.stall();
        let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
        assert_pending!(call.poll());
        assert_pending!(handle.poll_request());
        proxy.heal();
        eventually("the lease", SOON, async || call.is_woken()).await;
        assert_pending!(handle.poll_request());
        let call = tokio::spawn(call.into_inner());
        assert_request_eq!(handle, "ann").send_response("hello");
        assert_eq!(call.await.unwrap().unwrap(), "hello");
    });
}
