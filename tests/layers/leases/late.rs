//! What comes too late: a poll after a panic, and a handler that takes the lease after it has answered.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer as _, Service as _, service_fn};
use tower_distributed::lease::OnLease;
use tower_distributed::{ConcurrencyLimitLayer, LeaseHandle, Store, WaitGroup};

fn group() -> WaitGroup {
    WaitGroup::new(&Store::in_memory(), "exports", 1).unwrap()
}

#[test]
fn a_request_whose_weight_panicked_is_not_admitted_by_another_poll() {
    let limit = ConcurrencyLimitLayer::new(group(), |_: &u32| "all").weight(|_: &u32| panic!("no weight"));
    let mut service = limit.layer(service_fn(async |number: u32| Ok::<_, BoxError>(number)));
    let mut response = task::spawn(service.call(7));
    assert!(catch_unwind(AssertUnwindSafe(|| response.poll())).is_err());
    assert_pending!(response.poll());
}

struct Give;

impl OnLease<Arc<Mutex<Option<LeaseHandle>>>> for Give {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Arc<Mutex<Option<LeaseHandle>>>) {
        *request.lock().unwrap() = Some(lease.clone());
    }
}

/// Takes the lease when it is dropped.
struct Takes(Arc<Mutex<Option<LeaseHandle>>>, Arc<Mutex<Option<bool>>>);

impl Drop for Takes {
    fn drop(&mut self) {
        let lease = self.0.lock().unwrap().take();
        *self.1.lock().unwrap() = lease.map(|lease| lease.take().is_some());
    }
}

#[tokio::test]
async fn a_handler_cannot_take_the_lease_once_it_has_answered() {
    let taken = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&taken);
    let handler = service_fn(move |request: Arc<Mutex<Option<LeaseHandle>>>| {
        // A future that is not done with what it holds until it is dropped.
        let takes = Takes(request, Arc::clone(&seen));
        poll_fn(move |_| {
            let _held = &takes;
            Poll::Ready(Ok::<_, BoxError>(()))
        })
    });
    let limit =
        ConcurrencyLimitLayer::new(group(), |_: &Arc<Mutex<Option<LeaseHandle>>>| "all").on_lease(Give);
    limit.layer(handler).call(Arc::default()).await.unwrap();
    assert_eq!(*taken.lock().unwrap(), Some(false));
}
