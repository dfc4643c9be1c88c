//! Waiters that queue up before their process can be pushed to.

use std::time::{Duration, Instant};

use futures::future;
use tower_distributed::Mutex;

use crate::fleet::{Fleet, in_time, store};
use support::slow_proxy::SlowProxy;

/// How late the answer comes to the first who asks; that to the second comes after as much again.
const LATE: Duration = Duration::from_millis(400);
/// A waiter asks every 2 s whether it has lost its place: what is noticed sooner was noticed for a reason.
const SOON: Duration = Duration::from_millis(1500);

/// The first waiter of a process makes it subscribe. Here the lock is granted to it before that, and the second
/// learns that it waits only after that: when it seems that nothing can be missed.
#[tokio::test]
async fn a_grant_before_the_subscription_holds_up_nobody() {
    let fleet = Fleet::start().await;
    let holder = Mutex::new(&fleet.store(), "locks").unwrap().lock("k").await.unwrap();
    let proxy = SlowProxy::start(fleet.port(), Duration::ZERO).await;
    let mutex = Mutex::builder().strict_fifo().build(&store(&proxy.url()), "locks").unwrap();
    // Its renewals go on all the time, so that nothing is looked at because something else begins.
    let _other = mutex.lock("other").await.unwrap();

    let lock = async || {
        let guard = mutex.lock("k").await.unwrap();
        assert!(guard.unlock().await.unwrap());
        Instant::now()
    };
    proxy.delay_replies(LATE);
    let (first, second) = (lock(), async {
        fleet.lined_up("locks", "k", 1).await;
        proxy.delay_replies(2 * LATE);
        lock().await
    });
    let release = async {
        fleet.lined_up("locks", "k", 2).await;
        proxy.delay_replies(Duration::ZERO);
        assert_eq!(fleet.channels().await, 0, "it has subscribed too early for this test");
        assert!(holder.unlock().await.unwrap());
    };
    let (first, second, ()) = in_time("both", future::join3(first, second, release)).await;
    let waited = second.saturating_duration_since(first);
    assert!(waited < SOON, "the second got its turn {waited:?} after the first");
}
