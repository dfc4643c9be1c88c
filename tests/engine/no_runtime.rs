//! Callers without a tokio runtime: `futures::executor::block_on` on a plain thread.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use tower_distributed::{Mutex, Quota, Store, TokenBucket};

use crate::scene::{
    Outage, RECOVERY, is_free, is_served, long_locks, recovers, start_server, timed, wide_bucket,
};
use support::redis_server::RedisServer;
use support::{eventually_blocking, within};

const LIMIT: Duration = Duration::from_secs(40);

fn scene() -> (RedisServer, Store) {
    let server = start_server();
    let store = Store::redis(&server.url()).unwrap();
    (server, store)
}

#[test]
fn a_bucket_needs_no_runtime() {
    timed(LIMIT, scene, |(server, store)| {
        let bucket = TokenBucket::new(&store, "plain", Quota::per_hour(1).burst(10)).unwrap();
        for left in (0..10).rev() {
            assert_eq!(block_on(bucket.allow("k")).unwrap().remaining(), left);
        }
        assert!(!block_on(bucket.allow("k")).unwrap().is_admitted());
        let mut reservation = block_on(bucket.reserve("k")).unwrap();
        block_on(reservation.cancel()).unwrap();
        block_on(bucket.reset("k")).unwrap();
        assert_eq!(block_on(bucket.peek("k")).unwrap().remaining(), 10);
        drop(server);
    });
}

#[test]
fn a_wait_for_tokens_needs_no_runtime() {
    timed(LIMIT, scene, |(server, store)| {
        let bucket = TokenBucket::new(&store, "plain", Quota::per_second(10).burst(1)).unwrap();
        let began = Instant::now();
        for _ in 0..3 {
            assert!(block_on(bucket.wait("k")).unwrap().is_admitted());
        }
        assert!(began.elapsed() >= Duration::from_millis(180), "{:?}", began.elapsed());
        drop(server);
    });
}

#[test]
fn threads_without_a_runtime_share_a_bucket() {
    timed(LIMIT, scene, |(server, store)| {
        let bucket = TokenBucket::new(&store, "plain", Quota::per_hour(1).burst(100)).unwrap();
        let admitted: usize = std::thread::scope(|scope| {
            let caller = || (0..40).filter(|_| is_served(&block_on(bucket.allow("k")))).count();
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(caller)).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!(admitted, 100);
        drop(server);
    });
}

fn calls_without_a_runtime_recover(outage: Outage) {
    timed(LIMIT, scene, move |(server, store)| {
        let bucket = wide_bucket(&store);
        recovers(&server, outage, || block_on(bucket.allow("k")));
    });
}

#[test]
fn calls_without_a_runtime_recover_from_a_crash() {
    calls_without_a_runtime_recover(Outage::Killed);
}

#[test]
fn calls_without_a_runtime_recover_from_a_stall() {
    calls_without_a_runtime_recover(Outage::Stopped);
}

#[test]
fn a_lock_needs_no_runtime() {
    timed(LIMIT, scene, |(server, store)| {
        let mutex = long_locks(&store);
        let guard = block_on(mutex.lock("k")).unwrap();
        assert!(block_on(mutex.try_lock("k")).unwrap_err().is_refused());
        block_on(guard.extend()).unwrap();
        assert!(block_on(guard.unlock()).unwrap());
        assert!(is_free(&server, "k"));

        let guard = block_on(mutex.try_lock("k")).unwrap();
        drop(guard);
        eventually_blocking("the dropped lock to be free", RECOVERY, || is_free(&server, "k"));
    });
}

/// Each of several threads waits for its turn, which is pushed to the process.
#[test]
fn locks_are_handed_from_thread_to_thread_without_a_runtime() {
    timed(LIMIT, scene, |(server, store)| {
        let other = long_locks(&Store::redis(&server.url()).unwrap());
        let mutex = long_locks(&store);
        let mut turns = 0;
        let counter = std::sync::Mutex::new(&mut turns);
        std::thread::scope(|scope| {
            for mutex in [&mutex, &other, &mutex, &other] {
                let counter = &counter;
                scope.spawn(move || {
                    for _ in 0..5 {
                        let guard = block_on(mutex.lock("k")).unwrap();
                        **counter.try_lock().expect("two holders at a time") += 1;
                        block_on(guard.unlock()).unwrap();
                    }
                });
            }
        });
        assert_eq!(turns, 20);
    });
}

#[test]
fn a_lock_is_renewed_without_a_runtime() {
    timed(LIMIT, scene, |(server, store)| {
        let ttl = Duration::from_millis(1200);
        let mutex = Mutex::builder().ttl(ttl).build(&store, "locks").unwrap();
        let guard = block_on(mutex.lock("k")).unwrap();
        let first = guard.until();
        eventually_blocking("the lock to be renewed twice", RECOVERY, || guard.until() > first + ttl);
        assert!(guard.is_held() && !is_free(&server, "k"));
    });
}

#[test]
fn a_store_in_memory_needs_no_runtime() {
    within(LIMIT, "the test", || {
        let store = Store::in_memory();
        assert!(is_served(&block_on(wide_bucket(&store).allow("k"))));
        let mutex = long_locks(&store);
        let guard = block_on(mutex.lock("k")).unwrap();
        assert!(block_on(mutex.try_lock("k")).unwrap_err().is_refused());
        drop(guard);
        eventually_blocking("the dropped lock to be free", RECOVERY, || {
            block_on(mutex.try_lock("k")).is_ok()
        });
    });
}
