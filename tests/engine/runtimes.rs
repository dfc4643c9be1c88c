//! A store depends on no runtime of its callers: it recovers, renews, gives back and wakes whatever becomes of one.

use std::any::Any;
use std::time::{Duration, Instant};

use futures::executor;
use futures::poll;
use tokio::runtime::Runtime;
use tower_distributed::operator::Operator;
use tower_distributed::{Mutex, MutexGuard, Quota, Store, TokenBucket};

use crate::scene::{
    SOON, blocking, current_thread, impatient, is_free, is_served, long_locks, multi_thread, open,
    subscribed, wide_bucket,
};
use support::redis_server::RedisServer;
use support::{eventually, eventually_blocking, patient};

/// Renewed every second.
const SHORT: Duration = Duration::from_secs(3);

/// Where calls are made.
enum Caller {
    /// On a runtime that runs all the time.
    Busy(Runtime),
    /// On one that makes progress only during calls.
    Idle(Runtime),
    /// On a new one each time.
    New,
    /// On none.
    None,
}

impl Caller {
    fn each() -> [Self; 4] {
        [
            Self::Busy(multi_thread()),
            Self::Idle(current_thread()),
            Self::New,
            Self::None,
        ]
    }

    fn run<T>(&self, call: impl Future<Output = T>) -> T {
        match self {
            Self::Busy(runtime) | Self::Idle(runtime) => runtime.block_on(call),
            Self::New => current_thread().block_on(call),
            Self::None => executor::block_on(call),
        }
    }
}

/// Defect 1: the breaker of a runtime that stands still was that of all. Two stores are on one URL.
fn all_recover(goes: fn(&RedisServer), comes: fn(&RedisServer)) {
    blocking(move |server| {
        let buckets = &[(); 2].map(|()| wide_bucket(&impatient(&server.url())));
        let callers = &Caller::each();
        let each = || {
            callers
                .iter()
                .flat_map(move |caller| buckets.iter().map(move |bucket| (caller, bucket)))
        };
        let serves =
            |(caller, bucket): (&Caller, &TokenBucket)| is_served(&caller.run(bucket.allow("k")));
        each().for_each(|one| eventually_blocking("the first answer", SOON, || serves(one)));
        goes(&server);
        std::thread::scope(|scope| {
            for (caller, bucket) in each() {
                scope.spawn(move || {
                    // Until the breaker is open, and once more.
                    for _ in 0..4 {
                        let error = caller.run(bucket.allow("k")).unwrap_err();
                        assert!(error.is_unavailable(), "{error}");
                    }
                });
            }
        });
        comes(&server);
        // The first runs all the time, and the one that idles stands still meanwhile.
        each().for_each(|one| {
            eventually_blocking("an answer after the outage", SOON, || serves(one))
        });
        for _ in 0..20 {
            assert!(each().all(serves), "an outage that had ended came back");
        }
    });
}

#[test]
fn each_kind_of_runtime_recovers_from_a_crash() {
    all_recover(RedisServer::kill9, |server| {
        current_thread().block_on(server.restart())
    });
}

#[test]
fn each_kind_of_runtime_recovers_from_a_stall() {
    all_recover(RedisServer::pause, RedisServer::resume);
}

/// As defect 1: renewals ran on a runtime that stands still. Some runtimes have ended since.
#[test]
fn what_is_held_is_renewed_and_given_back() {
    blocking(|server| {
        let background = multi_thread();
        let with_background = patient!().background(background.handle().clone());
        let stores = [
            open(&server.url()),
            with_background.redis(&server.url()).unwrap(),
            Store::in_memory(),
        ];
        let (callers, mut held) = (Caller::each(), Vec::new());
        for (number, store) in stores.iter().enumerate() {
            let mutex = Mutex::builder()
                .ttl(SHORT)
                .build(store, &format!("locks{number}"))
                .unwrap();
            for (key, caller) in (0_u64..).zip(&callers) {
                held.push((mutex.clone(), key, caller.run(mutex.lock(key)).unwrap()));
            }
        }
        let granted: Vec<_> = held.iter().map(|(.., guard)| guard.until()).collect();
        eventually_blocking("all to be renewed, again and again", SOON, || {
            held.iter()
                .zip(&granted)
                .all(|((.., guard), granted)| guard.until() > *granted + SHORT)
        });
        for (mutex, key, guard) in held {
            let taken = || callers[0].run(mutex.try_lock(key));
            assert!(
                guard.is_held() && taken().unwrap_err().is_refused(),
                "two holders of {key}"
            );
            if key % 2 == 0 {
                assert!(callers[key as usize].run(guard.unlock()).unwrap());
            } else {
                callers[1].run(async { drop(guard) });
            }
            eventually_blocking("the lock to be free", SOON, || taken().is_ok());
        }
    });
}

const MANY: usize = 20;

async fn take_many(mutex: &Mutex, row: usize) -> Vec<MutexGuard> {
    let locks = (0..MANY).map(|key| mutex.lock(format!("{row} {key}")));
    futures::future::try_join_all(locks).await.unwrap()
}

/// Takes locks and drops them. Returns what stays.
type Drops = fn(Mutex, usize) -> Box<dyn Any>;

#[test]
fn what_is_dropped_is_given_back() {
    let ways: [(&str, Drops); 6] = [
        ("guards, on a runtime that then idles", |mutex, row| {
            let runtime = current_thread();
            runtime.block_on(async { drop(take_many(&mutex, row).await) });
            Box::new((mutex, runtime))
        }),
        ("guards, outside of a runtime that idles", |mutex, row| {
            let runtime = current_thread();
            drop(runtime.block_on(take_many(&mutex, row)));
            Box::new((mutex, runtime))
        }),
        ("the store, on a runtime that then idles", |mutex, row| {
            let runtime = current_thread();
            drop_in(&runtime, mutex, row);
            Box::new(runtime)
        }),
        ("the store, on a busy runtime", |mutex, row| {
            let runtime = multi_thread();
            drop_in(&runtime, mutex, row);
            Box::new(runtime)
        }),
        (
            "the store, with its runtime and one that waits",
            |mutex, row| {
                let runtime = multi_thread();
                let guards = runtime.block_on(take_many(&mutex, row));
                let (waits, key) = (mutex.clone(), format!("{row} 0"));
                let mut waits = Box::pin(async move { waits.lock(key).await });
                runtime.block_on(async { assert!(poll!(waits.as_mut()).is_pending()) });
                runtime.spawn(waits);
                let holder = runtime.spawn(async move {
                    let _held = (mutex, guards);
                    std::future::pending::<()>().await;
                });
                // The tasks go with the runtime, and the store and its guards with the tasks.
                runtime.shutdown_background();
                Box::new(holder)
            },
        ),
        ("the store, outside of any runtime", |mutex, row| {
            let guards = current_thread().block_on(take_many(&mutex, row));
            drop(mutex);
            drop(guards);
            Box::new(())
        }),
    ];
    blocking(move |server| {
        for (row, (what, drops)) in ways.into_iter().enumerate() {
            let _stays = drops(long_locks(&open(&server.url())), row);
            let are_free = || (0..MANY).all(|key| is_free(&server, &format!("{row} {key}")));
            eventually_blocking(
                &format!("what is held to be free after a drop of {what}"),
                SOON,
                are_free,
            );
        }
    });
}

/// Drops a store before what is held of it.
fn drop_in(runtime: &Runtime, mutex: Mutex, row: usize) {
    runtime.block_on(async {
        let guards = take_many(&mutex, row).await;
        drop(mutex);
        drop(guards);
    });
}

/// A release is pushed to a waiter on another runtime, whatever the runtime does that the store was first used on. Without the
/// pushes, each would take a heartbeat.
#[test]
fn a_waiter_is_woken_though_another_runtime_idles() {
    const HEARTBEAT: Duration = Duration::from_millis(1350);
    blocking(|server| {
        let [mutex, other] = [(); 2].map(|()| long_locks(&open(&server.url())));
        let (idle, busy) = (current_thread(), multi_thread());
        idle.block_on(async {
            let _guard = mutex.lock("first").await.unwrap();
            tokio::select! {
                _ = mutex.lock("first") => panic!("two holders at a time"),
                () = eventually("the subscription", SOON, async || subscribed(&server) == 1) => {}
            }
        });
        let mut quick = 0;
        busy.block_on(eventually(
            "messages to be delivered",
            2 * SOON,
            async || {
                let guard = other.lock("k").await.unwrap();
                let waiting = mutex.clone();
                let waiter = tokio::spawn(async move {
                    waiting.lock("k").await.unwrap().unlock().await.unwrap()
                });
                let lines = || {
                    server
                        .query::<Vec<String>>(&["KEYS", "td:{locks:k}:*waiters"])
                        .unwrap()
                        .len()
                };
                eventually("the waiter to be in line", SOON, async || lines() == 1).await;
                let released = Instant::now();
                assert!(guard.unlock().await.unwrap() && waiter.await.unwrap());
                quick += usize::from(released.elapsed() < HEARTBEAT / 4);
                quick == 20
            },
        ));
        drop(idle);
    });
}

/// A runtime of the user's that works in the background ends while a line asks through it: nobody hangs.
#[test]
fn a_line_hears_that_its_background_runtime_has_ended() {
    blocking(|server| {
        let (runtime, background) = (multi_thread(), multi_thread());
        let store = Store::builder()
            .background(background.handle().clone())
            .redis(&server.url())
            .unwrap();
        let mutex = Mutex::new(&store, "m").unwrap();
        // With another time to live, so that the line asks anew rather than to be handed the lock.
        let other = Mutex::builder().ttl(SHORT).build(&store, "m").unwrap();
        runtime.block_on(async {
            let guard = mutex.lock("k").await.unwrap();
            let mut call = Box::pin(other.lock("k"));
            assert!(poll!(call.as_mut()).is_pending());
            background.shutdown_background();
            drop(guard.unlock().await);
            assert!(call.await.is_err(), "nobody is left who could have asked");
            assert!(mutex.lock("l").await.is_ok(), "other keys suffer");
        });
    });
}

#[test]
fn a_runtime_of_one_thread_is_refused_as_background() {
    let (one, many) = (current_thread(), multi_thread());
    let build = |runtime: &Runtime| {
        Store::builder()
            .background(runtime.handle().clone())
            .redis("redis://a")
    };
    let error = build(&one).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(build(&many).is_ok());
}

#[test]
fn nothing_needs_a_runtime() {
    blocking(|server| {
        for (store, is_on_redis) in [(open(&server.url()), true), (Store::in_memory(), false)] {
            executor::block_on(store.ping()).unwrap();
            let mutex = long_locks(&store);
            let guard = executor::block_on(mutex.lock("k")).unwrap();
            assert!(
                executor::block_on(mutex.try_lock("k"))
                    .unwrap_err()
                    .is_refused()
            );
            executor::block_on(guard.extend()).unwrap();
            assert!(executor::block_on(guard.unlock()).unwrap());
            drop(executor::block_on(mutex.try_lock("k")).unwrap());
            let is_free = || executor::block_on(mutex.try_lock("k")).is_ok();
            eventually_blocking("the dropped lock to be free", SOON, is_free);

            let bucket = TokenBucket::new(&store, "plain", Quota::per_hour(1).burst(10)).unwrap();
            for left in (0..10).rev() {
                assert_eq!(
                    executor::block_on(bucket.allow("k")).unwrap().remaining(),
                    left
                );
            }
            assert!(!executor::block_on(bucket.allow("k")).unwrap().is_admitted());
            if !is_on_redis {
                continue;
            }
            executor::block_on(async { bucket.reserve("k").await.unwrap().cancel().await })
                .unwrap();
            let operator = Operator::new(&store);
            let page = executor::block_on(operator.scan().next()).unwrap().unwrap();
            let entry = page
                .iter()
                .find(|entry| entry.to_string() == "token_bucket plain k")
                .unwrap();
            assert!(
                executor::block_on(operator.inspect(entry))
                    .unwrap()
                    .is_some()
            );
            executor::block_on(bucket.reset("k")).unwrap();
            assert_eq!(
                executor::block_on(bucket.peek("k")).unwrap().remaining(),
                10
            );
            let quick = TokenBucket::new(&store, "quick", Quota::per_second(10).burst(1)).unwrap();
            let began = Instant::now();
            assert!((0..3).all(|_| executor::block_on(quick.wait("k")).unwrap().is_admitted()));
            assert!(
                began.elapsed() >= Duration::from_millis(180),
                "{:?}",
                began.elapsed()
            );
        }
    });
}

/// Each of several threads waits for its turn, which is pushed to the process.
#[test]
fn threads_without_a_runtime_share_locks_and_buckets() {
    blocking(|server| {
        let [one, other] = [(); 2].map(|()| open(&server.url()));
        let turns = std::sync::Mutex::new(0);
        let admitted: usize = std::thread::scope(|scope| {
            let caller = |store: &Store| {
                let bucket =
                    TokenBucket::new(store, "plain", Quota::per_hour(1).burst(12)).unwrap();
                let (mutex, turns) = (long_locks(store), &turns);
                scope.spawn(move || {
                    let turn = |_: &u32| {
                        let guard = executor::block_on(mutex.lock("k")).unwrap();
                        *turns.try_lock().expect("two holders at a time") += 1;
                        executor::block_on(guard.unlock()).unwrap();
                        is_served(&executor::block_on(bucket.allow("k")))
                    };
                    (0..5).filter(turn).count()
                })
            };
            [&one, &other, &one, &other]
                .map(caller)
                .into_iter()
                .map(|caller| caller.join().unwrap())
                .sum()
        });
        assert_eq!((*turns.lock().unwrap(), admitted), (20, 12));
    });
}
