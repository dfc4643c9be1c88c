//! The inner service is called under a lease, and never without; a lease lasts as long as the call.

use std::time::{Duration, Instant};

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{Refusal, RefusalKind};
use tower_test::{assert_request_eq, mock};

use crate::families::{Other, becomes_free, by_name, is_free, on_each_layer};
use crate::stores::{HOUR, Stores, on_each_store};

on_each_store!(
    the_lease_lasts_as_long_as_the_call,
    while_a_request_waits_nothing_arrives,
    who_waits_too_long_is_refused,
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
