//! Bodies that make no progress do not hold their leases for ever.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::runtime::Builder;
use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer as _, ServiceExt as _};
use tower_distributed::Error;
use tower_distributed::response::{LeaseEnd, LeasedBody, UntilBodyEnd};

use crate::families::{becomes_free, by_name, is_free, on_each_layer};
use crate::leases::bodies::{answers, data, reads, slow, streamed};
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually_blocking;

on_each_store!(released_while_its_runtime_stands_still);

/// What the clock of a test is moved by: to just before a limit, and past it.
const SECOND: Duration = Duration::from_secs(1);
/// For tests on a running clock, which wait until it is over.
const SHORT: Duration = Duration::from_millis(50);
/// The idle timeout unless set.
const IDLE: Duration = Duration::from_secs(60);

/// Whether it is polled and yields nothing, or nobody polls it. Then it goes on without, or is aborted where that is set:
/// who polls the body is woken, and who polls it later is told then.
#[tokio::test(start_paused = true)]
async fn a_body_without_progress_holds_its_lease_for_a_minute() {
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        for (aborts, is_polled) in [(false, false), (false, true), (true, false), (true, true)] {
            let end = if aborts {
                LeaseEnd::Abort
            } else {
                LeaseEnd::Detach
            };
            let hold = UntilBodyEnd::default().on_lease_end(end);
            let (sender, mut body) = streamed(layer.clone().hold(hold)).await;
            sender.unbounded_send(data("one")).unwrap();
            assert!(reads(&mut body, "one").await);
            let mut next = task::spawn(async {
                if aborts {
                    is_aborted(&mut body, "no progress within idle_timeout").await;
                } else {
                    assert!(
                        reads(&mut body, "two").await && !body.is_end_stream(),
                        "on it goes"
                    );
                }
            });
            if is_polled {
                assert_pending!(next.poll());
            }
            tokio::time::sleep(IDLE - SECOND).await;
            assert!(!next.is_woken() && !is_free(&stores, "ann").await);
            tokio::time::sleep(2 * SECOND).await;
            assert!(is_free(&stores, "ann").await);
            if aborts {
                assert_eq!(next.is_woken(), is_polled);
            }
            if !(is_polled && aborts) {
                sender.unbounded_send(data("two")).unwrap();
            }
            next.await;
        }
    });
}

/// Until the end, or as long as is set; then it goes on without it.
#[tokio::test(start_paused = true)]
async fn a_body_that_makes_progress_keeps_its_lease() {
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        let usual = UntilBodyEnd::default();
        for (hold, minutes) in [(usual.clone(), 10), (usual.max_hold(3 * IDLE).unwrap(), 3)] {
            let (sender, mut body) = streamed(layer.clone().hold(hold)).await;
            for minute in 1..=10 {
                tokio::time::sleep(IDLE - SECOND).await;
                sender.unbounded_send(data("tick")).unwrap();
                assert!(reads(&mut body, "tick").await);
                assert_eq!(
                    is_free(&stores, "ann").await,
                    minute > minutes,
                    "in minute {minute}"
                );
            }
            drop(sender);
            assert!(body.frame().await.is_none());
            assert!(is_free(&stores, "ann").await);
        }
    });
}

#[tokio::test(start_paused = true)]
async fn limits_can_be_switched_off() {
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        let unlimited = UntilBodyEnd::default().no_idle_timeout();
        let endless = unlimited
            .clone()
            .idle_timeout(Duration::MAX)
            .unwrap()
            .max_hold(Duration::MAX)
            .unwrap();
        for hold in [unlimited, endless] {
            let service = layer
                .clone()
                .hold(hold.on_lease_end(LeaseEnd::Abort))
                .layer(answers(slow().1));
            let response = service.oneshot("ann").await.unwrap();
            tokio::time::sleep(HOUR).await;
            assert!(!is_free(&stores, "ann").await);
            drop(response);
            assert!(is_free(&stores, "ann").await);
        }
    });
}

#[tokio::test(start_paused = true)]
async fn max_hold_aborts_a_body_that_makes_progress() {
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        let hold = UntilBodyEnd::default()
            .max_hold(IDLE)
            .unwrap()
            .on_lease_end(LeaseEnd::Abort);
        let (sender, mut body) = streamed(layer.hold(hold)).await;
        for _ in 0..2 {
            sender.unbounded_send(data("tick")).unwrap();
            assert!(reads(&mut body, "tick").await);
            tokio::time::sleep(IDLE / 2 - SECOND).await;
        }
        assert!(!is_free(&stores, "ann").await);
        tokio::time::sleep(3 * SECOND).await;
        assert!(is_free(&stores, "ann").await);
        sender.unbounded_send(data("too late")).unwrap();
        is_aborted(&mut body, "held for longer than max_hold").await;
        assert!(sender.is_closed(), "the inner body is dropped");
    });
}

/// Ends with an error that says so.
async fn is_aborted<B: Body + Unpin>(body: &mut LeasedBody<B>, text: &str)
where
    B::Error: Into<BoxError>,
    B::Data: std::fmt::Debug,
{
    assert!(!body.is_end_stream());
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    assert!(error.downcast_ref::<Error>().unwrap().is_body_timeout());
    assert!(body.frame().await.is_none() && body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
}

#[test]
fn a_limit_of_0_is_refused() {
    for (name, refused) in [
        (
            "idle_timeout",
            UntilBodyEnd::default().idle_timeout(Duration::ZERO),
        ),
        ("max_hold", UntilBodyEnd::default().max_hold(Duration::ZERO)),
    ] {
        let error = refused.unwrap_err();
        assert!(error.is_invalid());
        assert_eq!(
            error.to_string(),
            format!("{name} must be more than 0 s, is 0ns")
        );
    }
}

async fn released_while_its_runtime_stands_still(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let hold = UntilBodyEnd::default().idle_timeout(SHORT).unwrap();
        let service = layer.hold(hold).layer(answers(slow().1));
        let stands_still = std::thread::spawn(|| {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let response = runtime.block_on(service.oneshot("ann")).unwrap();
            (runtime, response)
        });
        let (runtime, response) = stands_still.join().unwrap();
        becomes_free(&stores, "ann").await;
        drop(response);
        runtime.shutdown_background();
    });
}

#[test]
fn released_where_there_is_no_runtime() {
    use futures::executor::block_on;
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        let hold = UntilBodyEnd::default().idle_timeout(SHORT).unwrap();
        let response = block_on(layer.hold(hold).layer(answers(slow().1)).oneshot("ann")).unwrap();
        eventually_blocking("ann to be free", SOON, || block_on(is_free(&stores, "ann")));
        drop(response);
    });
}
