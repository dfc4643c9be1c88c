//! Leases in memory depend on no runtime either.

use std::time::{Duration, Instant};

use tower_distributed::{Mutex, Store};

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
