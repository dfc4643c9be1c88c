//! Runs that become tasks, and bounds per key.

use std::panic::AssertUnwindSafe;

use tokio_test::{assert_pending, task};

use super::*;

#[tokio::test]
async fn a_panic_of_a_task_that_is_being_spawned_is_resumed() {
    let run = Run::new(Box::pin(async {})).unwrap();
    *lock(&run.state) = State::Polled { spawns: true };
    let mut gone = task::spawn(AssertUnwindSafe(run.why_gone()).catch_unwind());
    assert_pending!(gone.poll());
    *lock(&run.state) = State::Spawned(tokio::spawn(async { panic!("out of order") }));
    assert!(gone.await.is_err());
}

#[test]
fn waiters_that_are_dropped_leave_nothing() {
    let parallel = Parallel::new(Some(1));
    let enter = || parallel.enter(&Key::from("k"));
    let keys = || lock(&parallel.keys).len();
    let running = enter().now_or_never().unwrap();
    let mut waiters = [Box::pin(enter()), Box::pin(enter())];
    for waiter in &mut waiters {
        assert!(waiter.now_or_never().is_none(), "two run at once");
    }
    // The first has the permit, and is not polled.
    drop(running);
    assert_eq!(keys(), 1);
    drop(waiters);
    assert_eq!(keys(), 0);
    assert!(enter().now_or_never().is_some());
    assert_eq!(keys(), 0);
}
