//! Waiters that queue up before their process can be pushed to.

use std::time::Duration;

use futures::future;
use tower_distributed::Mutex;

use crate::fleet::{Fleet, in_time, store};
use support::slow_proxy::SlowProxy;

/// How late the answer comes to the first who asks; that to the second comes after as much again.
const LATE: Duration = Duration::from_millis(400);

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
    // That the second asks at once is tested in virtual time: `a_waiter_sends_its_heartbeat_in_time`.
    in_time("both", future::join3(first, second, release)).await;
}
