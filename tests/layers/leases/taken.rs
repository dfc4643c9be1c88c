//! Handlers that take their lease along.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::LeaseHandle;

use crate::families::{becomes_free, is_free, on_each_layer};
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    taken_once_and_held_until_the_taker_drops_it,
    released_early,
    gone_with_the_response,
    gone_with_the_future,
);

/// A request that gets what its layer hands to it.
#[derive(Default)]
struct Job(Option<LeaseHandle>);

fn by_ann(_: &Job) -> &'static str {
    "ann"
}

fn hand(lease: &LeaseHandle, job: &mut Job) {
    assert!(lease.is_held());
    job.0 = Some(lease.clone());
}

/// Also where the handler fails.
async fn taken_once_and_held_until_the_taker_drops_it(stores: Stores) {
    on_each_layer!(stores, by_ann, |layer| {
        for fails in [false, true] {
            let kept = Mutex::new(None);
            let takes = service_fn(|job: Job| {
                let handle = job.0.unwrap();
                *kept.lock().unwrap() = handle.clone().take();
                assert!(handle.take().is_none());
                async move {
                    if fails {
                        Err(BoxError::from("out of order"))
                    } else {
                        Ok(())
                    }
                }
            });
            let call = layer
                .clone()
                .on_lease(hand)
                .layer(takes)
                .oneshot(Job::default())
                .await;
            assert_eq!(
                call.err().map(|error| error.to_string()),
                fails.then(|| "out of order".to_owned())
            );
            let lease = kept.lock().unwrap().take().unwrap();
            assert!(lease.is_held() && !is_free(&stores, "ann").await);
            drop(lease);
            becomes_free(&stores, "ann").await;
        }
    });
}

/// Even where the layer cancels what has lost its lease: this one was released.
async fn released_early(stores: Stores) {
    on_each_layer!(stores, by_ann, |layer| {
        let service = layer
            .on_lease(hand)
            .cancel_when_lost(true)
            .layer(service_fn(async |job: Job| {
                let lease = job.0.unwrap().take().unwrap();
                let lost = lease.lost();
                assert!(lease.release().await.unwrap());
                lost.await;
                tokio::task::yield_now().await;
                Ok::<_, BoxError>("done")
            }));
        assert_eq!(service.oneshot(Job::default()).await.unwrap(), "done");
        assert!(is_free(&stores, "ann").await);
    });
}

/// Takes the lease when it is dropped, and tells whether it was there.
struct Late(LeaseHandle, Arc<Mutex<Option<bool>>>);

impl Drop for Late {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(self.0.take().is_some());
    }
}

/// Also for what the handler holds until its future is dropped, which has answered by then.
async fn gone_with_the_response(stores: Stores) {
    on_each_layer!(stores, by_ann, |layer| {
        let taken = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&taken);
        let keeps = service_fn(move |job: Job| {
            let handle = job.0.unwrap();
            let late = Late(handle.clone(), Arc::clone(&seen));
            poll_fn(move |_| {
                let _held = &late;
                Poll::Ready(Ok::<_, BoxError>(handle.clone()))
            })
        });
        let handle = layer
            .on_lease(hand)
            .layer(keeps)
            .oneshot(Job::default())
            .await
            .unwrap();
        assert_eq!(*taken.lock().unwrap(), Some(false));
        becomes_free(&stores, "ann").await;
        assert!(handle.take().is_none());
    });
}

async fn gone_with_the_future(stores: Stores) {
    on_each_layer!(stores, by_ann, |layer| {
        let kept = Mutex::new(None);
        let hangs = service_fn(|job: Job| {
            *kept.lock().unwrap() = job.0;
            std::future::pending::<Result<(), BoxError>>()
        });
        let mut service = layer.on_lease(hand).layer(hangs);
        let mut call = task::spawn(service.ready().await.unwrap().call(Job::default()));
        eventually("the handler to run", SOON, async || {
            assert_pending!(call.poll());
            kept.lock().unwrap().is_some()
        })
        .await;
        assert!(!is_free(&stores, "ann").await);
        drop(call);
        assert!(kept.lock().unwrap().take().unwrap().take().is_none());
        becomes_free(&stores, "ann").await;
    });
}
