//! Leases in memory depend on no runtime either.

use std::time::{Duration, Instant};

use tower_distributed::{Mutex, RwLock, Store};

use crate::scene::{MACHINE, RECOVERY, current_thread, multi_thread};
use support::eventually;

const TTL: Duration = Duration::from_millis(600);

/// One lock was taken on a runtime that nobody drives any more once it was renewed, the other on one that runs.
#[test]
fn a_lock_in_memory_is_held_whatever_runtime_stands_still() {
    let _turn = MACHINE.blocking_read();
    let mutex = Mutex::builder().ttl(TTL).build(&Store::in_memory(), "locks").unwrap();
    let (idle, lively) = (current_thread(), multi_thread());
    let first = idle.block_on(mutex.lock("first")).unwrap();
    let second = lively.block_on(mutex.lock("second")).unwrap();
    let granted = first.until();
    idle.block_on(eventually("a renewal", RECOVERY, async || first.until() > granted));
    let began = Instant::now();
    while began.elapsed() < 3 * TTL {
        for key in ["first", "second"] {
            let other = lively.block_on(async {
                tokio::time::sleep(TTL / 20).await;
                mutex.try_lock(key).await
            });
            assert!(other.unwrap_err().is_refused(), "two holders of {key} after {:?}", began.elapsed());
        }
    }
    assert!(first.is_held() && second.is_held());
}

/// A reader keeps nothing of its lock, a writer its fence.
#[tokio::test(start_paused = true)]
async fn a_reader_writer_lock_is_forgotten() {
    let store = Store::builder().max_keys(1).in_memory().unwrap();
    let lock = RwLock::new(&store, "locks").unwrap();
    for key in 0..3 {
        let reader = lock.try_read(key).await.unwrap();
        assert!(lock.try_read(key + 1).await.unwrap_err().is_overloaded());
        assert!(reader.release().await.unwrap());
    }
    let writer = lock.try_write("written").await.unwrap();
    assert!(writer.release().await.unwrap());
    assert!(lock.try_read("read").await.unwrap_err().is_overloaded(), "the fence is forgotten");
    tokio::time::advance(Duration::from_secs(9 * 86_400)).await;
    drop(lock.try_read("read").await.unwrap());
}
