//! What a process hands on to a waiter of its own may have run out by the time that the waiter hears of it.

use std::time::Duration;

use tokio_test::{assert_pending, assert_ready, task};
use tower_distributed::{Mutex, Store};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn what_ran_out_on_its_way_is_asked_for_anew() {
    let mutex = Mutex::builder().ttl(TTL).watchdog(false).build(&Store::in_memory(), "locks").unwrap();
    let holder = mutex.lock("k").await.unwrap();
    let (mut second, mut third) = (task::spawn(mutex.lock("k")), task::spawn(mutex.lock("k")));
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    assert!(holder.unlock().await.unwrap());
    let second = assert_ready!(second.poll()).unwrap();
    // It is a full lease by now, which is handed on within the process.
    second.extend().await.unwrap();
    let until = second.until();
    assert!(second.unlock().await.unwrap());
    tokio::time::advance(2 * TTL).await;
    let third = third.await.unwrap();
    assert!(third.is_held() && third.until() > until, "it was given what was over");
    assert!(third.unlock().await.unwrap());
}
