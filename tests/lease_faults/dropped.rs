//! Every future may be dropped at any time, and leaves no permit, lock, intent or place in a queue behind.

use std::time::Duration;

use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::kinds::{Family, LONG, SOON, Taken, open};
use crate::polls::{Calls, Moment, Place, drop_after, free};
use support::eventually;
use support::keys::keys_without_ttl;
use support::redis_server::RedisServer;

const IN_PROCESS: Place<'_> = Place { servers: &[], queues: false };

macro_rules! on_both_stores {
    ($($test:ident),* $(,)?) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::IN_PROCESS, &super::Store::in_memory()).await;
                }
            )*
        }

        mod redis {
            $(
                #[tokio::test]
                async fn $test() {
                    let servers = [super::RedisServer::start().await];
                    let store = super::open(&servers[0].url());
                    super::$test(super::Place { servers: &servers, queues: true }, &store).await;
                    assert_eq!(super::keys_without_ttl(&servers[0]), [""; 0]);
                }
            )*
        }
    };
}

on_both_stores!(permits, waits_for_none, mutexes, locks, extensions, intents);

async fn permits(place: Place<'_>, store: &Store) {
    let permits = &WaitGroup::builder(3).ttl(LONG).build(store, "permits").unwrap();
    let family = Family::Permits(permits.clone());
    let calls = Calls(place, &family);
    let held = async |key: &str, n| Some(Taken::Permit(permits.add_n(key, n).await.unwrap()));
    let own = str::to_owned;
    calls.each("add", async |key| (None, permits.add(own(key)))).await;
    calls.each("add, waiting", async |key| (held(key, 3).await, permits.add(own(key)))).await;
    calls.each("add_n", async |key| (None, permits.add_n(own(key), 2))).await;
    calls.each("add_n, waiting", async |key| (held(key, 2).await, permits.add_n(own(key), 3))).await;
    calls.each("try_add", async |key| (None, permits.try_add(own(key)))).await;
    calls.each("try_add_n, refused", async |key| (held(key, 2).await, permits.try_add_n(own(key), 2))).await;
    calls.each("count", async |key| (held(key, 2).await, permits.count(own(key)))).await;
    calls.each("done", async |key| (None, permits.add(key).await.unwrap().done())).await;
}

async fn waits_for_none(place: Place<'_>, store: &Store) {
    let permits = &WaitGroup::builder(2).ttl(LONG).build(store, "permits").unwrap();
    let family = Family::Permits(permits.clone());
    let calls = Calls(place, &family);
    let own = str::to_owned;
    calls.each("wait", async |key| (None, permits.wait(own(key)))).await;
    calls
        .each("wait, waiting", async |key| {
            let holder = permits.add(key).await.unwrap();
            (Some(Taken::Permit(holder)), permits.wait(own(key)))
        })
        .await;
}

async fn mutexes(place: Place<'_>, store: &Store) {
    let mutex = Mutex::builder().ttl(LONG).build(store, "mutex").unwrap();
    each_of_a_mutex(Place { queues: false, ..place }, &mutex).await;
    let mutex = Mutex::builder().ttl(LONG).strict_fifo().build(store, "queued").unwrap();
    each_of_a_mutex(place, &mutex).await;
    let mutex = Mutex::builder().ttl(LONG).tries(1000).retry_delay(|_| Duration::from_millis(1));
    let mutex = mutex.build(store, "trying").unwrap();
    each_of_a_mutex(Place { queues: false, ..place }, &mutex).await;
}

#[tokio::test]
async fn a_quorum_in_process() {
    a_quorum(IN_PROCESS, (0..3).map(|_| Store::in_memory()).collect()).await;
}

#[tokio::test]
async fn a_quorum_on_redis() {
    let servers = join_all((0..3).map(|_| RedisServer::start())).await;
    let stores = servers.iter().map(|server| open(&server.url())).collect();
    a_quorum(Place { servers: &servers, queues: false }, stores).await;
}

async fn a_quorum(place: Place<'_>, stores: Vec<Store>) {
    for fail_fast in [false, true] {
        let builder = Mutex::builder().ttl(LONG).tries(1000).retry_delay(|_| Duration::from_millis(1));
        let name = if fail_fast { "fast" } else { "quorum" };
        let mutex = builder.fail_fast(fail_fast).build_quorum(stores.clone(), name).unwrap();
        each_of_a_mutex(place, &mutex).await;
    }
}

async fn each_of_a_mutex(place: Place<'_>, mutex: &Mutex) {
    let family = Family::Mutex(mutex.clone());
    let calls = Calls(place, &family);
    let guard = async |key: &str| mutex.lock(key).await.unwrap();
    let held = async |key: &str| Some(Taken::Mutex(guard(key).await));
    let own = str::to_owned;
    calls.each("lock", async |key| (None, mutex.lock(own(key)))).await;
    calls.each("lock, waiting", async |key| (held(key).await, mutex.lock(own(key)))).await;
    calls.each("try_lock", async |key| (None, mutex.try_lock(own(key)))).await;
    calls.each("try_lock, refused", async |key| (held(key).await, mutex.try_lock(own(key)))).await;
    calls.each("is_locked", async |key| (held(key).await, mutex.is_locked(own(key)))).await;
    calls.each("unlock", async |key| (None, guard(key).await.unlock())).await;
    calls
        .each("extend", async |key| {
            let guard = guard(key).await;
            (None, async move { guard.extend().await })
        })
        .await;
}

async fn locks(place: Place<'_>, store: &Store) {
    let lock = &RwLock::builder().ttl(LONG).build(store, "rw").unwrap();
    let others = &lock.with_group("others").unwrap();
    let family = Family::Writers(lock.clone());
    let calls = Calls(place, &family);
    let written = async |key: &str| Some(Taken::Writer(lock.write(key).await.unwrap()));
    let own = str::to_owned;
    calls.each("read", async |key| (None, lock.read(own(key)))).await;
    calls.each("read, waiting", async |key| (written(key).await, lock.read(own(key)))).await;
    calls.each("write", async |key| (None, lock.write(own(key)))).await;
    calls.each("write, waiting", async |key| (written(key).await, lock.write(own(key)))).await;
    calls
        .each("write, after readers", async |key| {
            (Some(Taken::Reader(lock.read(key).await.unwrap())), lock.write(own(key)))
        })
        .await;
    calls
        .each("read, after another group", async |key| {
            (Some(Taken::Reader(others.read(key).await.unwrap())), lock.read(own(key)))
        })
        .await;
    calls.each("try_read", async |key| (None, lock.try_read(own(key)))).await;
    calls.each("try_read, refused", async |key| (written(key).await, lock.try_read(own(key)))).await;
    calls.each("try_write", async |key| (None, lock.try_write(own(key)))).await;
    calls.each("try_write, refused", async |key| (written(key).await, lock.try_write(own(key)))).await;
    let guard = async |key: &str| lock.read(key).await.unwrap();
    calls.each("release a reader", async |key| (None, guard(key).await.release())).await;
    let guard = async |key: &str| lock.write(key).await.unwrap();
    calls.each("release a writer", async |key| (None, guard(key).await.release())).await;
}

/// What goes is the extension, not the lease.
async fn extensions(place: Place<'_>, store: &Store) {
    for family in Family::each(store, LONG) {
        for polls in 0.. {
            let key = format!("extension {polls}");
            let held = family.take(&key).await.unwrap();
            let done = drop_after(place, &key, polls, Moment::Polled, None, held.extend()).await;
            assert!(held.is_held());
            assert!(held.release().await.unwrap());
            free(place, &family, &key).await;
            if done {
                break;
            }
        }
    }
}

/// A writer that waits keeps readers out; one that went away does not, though nobody has released anything.
async fn intents(place: Place<'_>, store: &Store) {
    let lock = RwLock::builder().ttl(LONG).build(store, "rw").unwrap();
    for polls in 0..4 {
        let key = format!("intent {polls}");
        let reader = lock.read(&key).await.unwrap();
        let mut writer = task::spawn(lock.write(&key));
        for _ in 0..polls {
            assert_pending!(writer.poll());
            // Until nothing more happens to it.
            eventually("it to be woken or to wait", SOON, async || writer.is_woken() || place.waits(&key))
                .await;
        }
        drop(writer);
        eventually("readers to be let in", SOON, async || match lock.try_read(&key).await {
            Ok(second) => second.release().await.unwrap(),
            Err(error) => !error.is_refused(),
        })
        .await;
        assert!(reader.release().await.unwrap());
        free(place, &Family::Writers(lock.clone()), &key).await;
    }
}
