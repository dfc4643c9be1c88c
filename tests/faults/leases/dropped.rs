//! Every future may be dropped at any time, and leaves no permit, lock, intent or place in a queue behind.

use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::leases::kinds::{Family, IN_TIME, LONG, SOON, Taken, open};
use support::eventually;
use support::redis_server::RedisServer;

/// For n = 0, 1, 2, …: begins a call and drops it after n polls, at once or when it is woken, until it completes within them.
/// What the call may have to wait for is released once it waits. Each time nothing is left of it, and others get the key.
async fn each<F: Future>(family: &Family, what: &str, begin: impl AsyncFn(&str) -> (Option<Taken>, F)) {
    for is_woken in [false, true] {
        for polls in 0.. {
            let key = format!("{what} {is_woken} {polls}");
            let (holder, call) = begin(&key).await;
            let done = drop_after(polls, is_woken, holder, call).await;
            free(family, &key).await;
            if done {
                break;
            }
        }
    }
}

/// Whether it was done within so many polls.
async fn drop_after<F: Future>(polls: usize, is_woken: bool, mut holder: Option<Taken>, call: F) -> bool {
    let mut call = task::spawn(call);
    for poll in 1..=polls {
        if call.poll().is_ready() {
            return true;
        }
        if poll < polls || is_woken {
            if !call.is_woken() {
                release(holder.take()).await;
            }
            eventually("it to be woken", SOON, async || call.is_woken()).await;
        }
    }
    drop(call);
    release(holder).await;
    false
}

async fn release(holder: Option<Taken>) {
    if let Some(holder) = holder {
        assert!(holder.release().await.unwrap());
    }
}

/// Waits until nobody holds a key or waits for it: less long than a place lives in which nobody waits.
async fn free(family: &Family, key: &str) {
    eventually(&format!("{key:?} to be free"), IN_TIME, async || {
        match (family, family.try_take(key).await) {
            (Family::Permits(permits), Ok(taken)) => {
                permits.count(key).await.unwrap() == 1 && taken.release().await.unwrap()
            }
            (_, Ok(taken)) => taken.release().await.unwrap(),
            (_, Err(error)) => {
                assert!(error.is_refused(), "{error}");
                false
            }
        }
    })
    .await;
}

#[tokio::test]
async fn permits() {
    let permits = &WaitGroup::builder(3).ttl(LONG).build(&Store::in_memory(), "permits").unwrap();
    let family = &Family::Permits(permits.clone());
    let held = async |key: &str, n| Some(Taken::Permit(permits.add_n(key, n).await.unwrap()));
    let own = str::to_owned;
    each(family, "add", async |key| (None, permits.add(own(key)))).await;
    each(family, "add, waiting", async |key| (held(key, 3).await, permits.add(own(key)))).await;
    each(family, "add_n", async |key| (None, permits.add_n(own(key), 2))).await;
    each(family, "add_n, waiting", async |key| (held(key, 2).await, permits.add_n(own(key), 3))).await;
    each(family, "try_add", async |key| (None, permits.try_add(own(key)))).await;
    each(family, "try_add_n, refused", async |key| (held(key, 2).await, permits.try_add_n(own(key), 2)))
        .await;
    each(family, "count", async |key| (held(key, 2).await, permits.count(own(key)))).await;
    each(family, "done", async |key| (None, permits.add(key).await.unwrap().done())).await;
    each(family, "wait", async |key| (None, permits.wait(own(key)))).await;
    each(family, "wait, waiting", async |key| (held(key, 1).await, permits.wait(own(key)))).await;
}

#[tokio::test]
async fn mutexes() {
    let stores = &[(); 3].map(|()| Store::in_memory());
    let usual = || Mutex::builder().ttl(LONG);
    let trying = || usual().tries(1000).retry_delay(|_| Duration::from_millis(1));
    for mutex in [
        usual().build(&stores[0], "mutex"),
        usual().strict_fifo().build(&stores[0], "queued"),
        trying().build(&stores[0], "trying"),
        trying().build_quorum(stores.clone(), "quorum"),
        trying().fail_fast(true).build_quorum(stores.clone(), "fast"),
    ] {
        each_of_a_mutex(&mutex.unwrap()).await;
    }
}

async fn each_of_a_mutex(mutex: &Mutex) {
    let family = &Family::Mutex(mutex.clone());
    let guard = async |key: &str| mutex.lock(key).await.unwrap();
    let held = async |key: &str| Some(Taken::Mutex(guard(key).await));
    let own = str::to_owned;
    each(family, "lock", async |key| (None, mutex.lock(own(key)))).await;
    each(family, "lock, waiting", async |key| (held(key).await, mutex.lock(own(key)))).await;
    each(family, "try_lock", async |key| (None, mutex.try_lock(own(key)))).await;
    each(family, "try_lock, refused", async |key| (held(key).await, mutex.try_lock(own(key)))).await;
    each(family, "is_locked", async |key| (held(key).await, mutex.is_locked(own(key)))).await;
    each(family, "unlock", async |key| (None, guard(key).await.unlock())).await;
    each(family, "extend", async |key| {
        let guard = guard(key).await;
        (None, async move { guard.extend().await })
    })
    .await;
}

#[tokio::test]
async fn locks() {
    let lock = &RwLock::builder().ttl(LONG).build(&Store::in_memory(), "rw").unwrap();
    let others = &lock.with_group("others").unwrap();
    let family = &Family::Writers(lock.clone());
    let written = async |key: &str| Some(Taken::Writer(lock.write(key).await.unwrap()));
    let own = str::to_owned;
    each(family, "read", async |key| (None, lock.read(own(key)))).await;
    each(family, "read, waiting", async |key| (written(key).await, lock.read(own(key)))).await;
    each(family, "write", async |key| (None, lock.write(own(key)))).await;
    each(family, "write, waiting", async |key| (written(key).await, lock.write(own(key)))).await;
    each(family, "write, after readers", async |key| {
        (Some(Taken::Reader(lock.read(key).await.unwrap())), lock.write(own(key)))
    })
    .await;
    each(family, "read, after another group", async |key| {
        (Some(Taken::Reader(others.read(key).await.unwrap())), lock.read(own(key)))
    })
    .await;
    each(family, "try_read", async |key| (None, lock.try_read(own(key)))).await;
    each(family, "try_read, refused", async |key| (written(key).await, lock.try_read(own(key)))).await;
    each(family, "try_write", async |key| (None, lock.try_write(own(key)))).await;
    each(family, "try_write, refused", async |key| (written(key).await, lock.try_write(own(key)))).await;
    let guard = async |key: &str| lock.read(key).await.unwrap();
    each(family, "release a reader", async |key| (None, guard(key).await.release())).await;
    let guard = async |key: &str| lock.write(key).await.unwrap();
    each(family, "release a writer", async |key| (None, guard(key).await.release())).await;
}

/// What goes is the extension, not the lease.
#[tokio::test]
async fn extensions() {
    let server = RedisServer::start().await;
    let stores = [Store::in_memory(), open(&server.url())];
    for family in stores.iter().flat_map(|store| Family::each(store, LONG)) {
        for polls in 0.. {
            let key = format!("extension {polls}");
            let held = family.take(&key).await.unwrap();
            let done = drop_after(polls, false, None, held.extend()).await;
            assert!(held.is_held() && held.release().await.unwrap());
            free(&family, &key).await;
            if done {
                break;
            }
        }
    }
}

/// A writer that waits keeps readers out; one that went away does not, though nobody has released anything.
#[tokio::test]
async fn intents() {
    let lock = RwLock::builder().ttl(LONG).build(&Store::in_memory(), "rw").unwrap();
    for polls in 0..4 {
        let reader = lock.read("k").await.unwrap();
        let mut writer = task::spawn(lock.write("k"));
        (0..polls).for_each(|_| assert_pending!(writer.poll()));
        drop(writer);
        let is_let_in = async || match lock.try_read("k").await {
            Ok(second) => second.release().await.unwrap(),
            Err(error) => !error.is_refused(),
        };
        eventually("readers to be let in", SOON, is_let_in).await;
        assert!(reader.release().await.unwrap());
        free(&Family::Writers(lock.clone()), "k").await;
    }
}
