//! Every future may be dropped at any time, and leaves no permit, lock, intent or place in a queue behind.

use std::time::Duration;

use tokio_test::task;
use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::leases::kinds::{Family, LONG, SOON, Taken, open};
use support::eventually;
use support::redis_server::RedisServer;

/// Less long than a place lives in which nobody waits.
const IN_TIME: Duration = Duration::from_secs(6);

/// For n = 0, 1, 2, …: begins a call and drops it after n polls, at once or when it is woken, until it completes within them.
/// What the call may have to wait for is released once it waits. Each time nothing is left of it, and others get the key.
async fn each<F: Future>(
    family: &Family,
    what: &str,
    begin: impl AsyncFn(&str) -> (Option<Taken>, F),
) {
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
async fn drop_after<F: Future>(
    polls: usize,
    is_woken: bool,
    mut holder: Option<Taken>,
    call: F,
) -> bool {
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

/// Waits until nobody holds a key or waits for it.
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

/// A row for each call: its name, what is held before, and the call.
macro_rules! each {
    ($family:expr, $key:ident: $($what:literal, $held:expr, $call:expr;)*) => {$(
        each($family, $what, async |key| {
            let $key = key.to_owned();
            ($held, $call)
        })
        .await;
    )*};
}

#[tokio::test]
async fn permits() {
    let permits = &WaitGroup::builder(3)
        .ttl(LONG)
        .build(&Store::in_memory(), "permits")
        .unwrap();
    let family = &Family::Permits(permits.clone());
    let held = async |key: &str, n| Some(Taken::Permit(permits.add_n(key, n).await.unwrap()));
    each! { family, key:
        "add", None, permits.add(key);
        "add, waiting", held(&key, 3).await, permits.add(key);
        "add_n", None, permits.add_n(key, 2);
        "add_n, waiting", held(&key, 2).await, permits.add_n(key, 3);
        "try_add", None, permits.try_add(key);
        "try_add_n, refused", held(&key, 2).await, permits.try_add_n(key, 2);
        "count", held(&key, 2).await, permits.count(key);
        "done", None, permits.add(key).await.unwrap().done();
        "wait", None, permits.wait(key);
        "wait, waiting", held(&key, 1).await, permits.wait(key);
    }
}

#[tokio::test]
async fn mutexes() {
    let stores = &[(); 3].map(|()| Store::in_memory());
    let usual = || Mutex::builder().ttl(LONG);
    let trying = || {
        usual()
            .tries(1000)
            .retry_delay(|_| Duration::from_millis(1))
    };
    for mutex in [
        usual().build(&stores[0], "mutex"),
        usual().strict_fifo().build(&stores[0], "queued"),
        trying().build(&stores[0], "trying"),
        trying().build_quorum(stores.clone(), "quorum"),
        trying()
            .fail_fast(true)
            .build_quorum(stores.clone(), "fast"),
    ] {
        let mutex = &mutex.unwrap();
        let held = async |key: &str| Some(Taken::Mutex(mutex.lock(key).await.unwrap()));
        each! { &Family::Mutex(mutex.clone()), key:
            "lock", None, mutex.lock(key);
            "lock, waiting", held(&key).await, mutex.lock(key);
            "try_lock", None, mutex.try_lock(key);
            "try_lock, refused", held(&key).await, mutex.try_lock(key);
            "is_locked", held(&key).await, mutex.is_locked(key);
            "unlock", None, mutex.lock(key).await.unwrap().unlock();
            "extend", None, {
                let guard = mutex.lock(key).await.unwrap();
                async move { guard.extend().await }
            };
        }
    }
}

#[tokio::test]
async fn locks() {
    let lock = &RwLock::builder()
        .ttl(LONG)
        .build(&Store::in_memory(), "rw")
        .unwrap();
    let others = &lock.with_group("others").unwrap();
    let family = &Family::Writers(lock.clone());
    let written = async |key: &str| Some(Taken::Writer(lock.write(key).await.unwrap()));
    let read = async |lock: &RwLock, key: &str| Some(Taken::Reader(lock.read(key).await.unwrap()));
    each! { family, key:
        "read", None, lock.read(key);
        "read, waiting", written(&key).await, lock.read(key);
        "write", None, lock.write(key);
        "write, waiting", written(&key).await, lock.write(key);
        "write, after readers", read(lock, &key).await, lock.write(key);
        "read, after another group", read(others, &key).await, lock.read(key);
        "try_read", None, lock.try_read(key);
        "try_read, refused", written(&key).await, lock.try_read(key);
        "try_write", None, lock.try_write(key);
        "try_write, refused", written(&key).await, lock.try_write(key);
        "release a reader", None, lock.read(key).await.unwrap().release();
        "release a writer", None, lock.write(key).await.unwrap().release();
    }
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
