//! Reader-writer locks of a store in memory, in virtual time.

use std::sync::Mutex;
use std::time::Duration;

use futures::future::{join_all, join3};
use tower_distributed::{RwLock, Store};

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
    assert!(
        lock.try_read("read").await.unwrap_err().is_overloaded(),
        "the fence is forgotten"
    );
    tokio::time::advance(Duration::from_secs(9 * 86_400)).await;
    drop(lock.try_read("read").await.unwrap());
}

/// Unless another number is set.
#[tokio::test(start_paused = true)]
async fn after_16_writers_in_a_row_the_readers_that_wait_go() {
    let lock = &RwLock::new(&Store::in_memory(), "documents").unwrap();
    let (first, served) = (lock.write("k").await.unwrap(), &Mutex::new(String::new()));
    let read = async {
        let guard = lock.read("k").await.unwrap();
        served.lock().unwrap().push('r');
        assert!(guard.release().await.unwrap());
    };
    let writes = (0..20).map(async |_| {
        let guard = lock.write("k").await.unwrap();
        served.lock().unwrap().push('w');
        assert!(guard.release().await.unwrap());
    });
    let release = async {
        // By then all wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(first.release().await.unwrap());
    };
    join3(read, join_all(writes), release).await;
    assert_eq!(
        *served.lock().unwrap(),
        format!("{}r{}", "w".repeat(16), "w".repeat(4))
    );
}
