//! Reader-writer locks: who shares, who goes first, and what a writer's intent is worth.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tower_distributed::rw_lock::{RwLockReadGuard, RwLockWriteGuard};
use tower_distributed::{Error, RwLock};

use crate::line::Line;
use crate::stores::{Place, SOON};
use support::eventually;

pub(crate) async fn a_writer_is_never_beside_anybody(place: &Place, name: &str) {
    let lock = RwLock::new(place, name).unwrap();
    // So many readers, or -1 for a writer.
    let (inside, last) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicU64::new(0)));
    let worker = |worker| {
        let (lock, inside, last) = (lock.clone(), Arc::clone(&inside), Arc::clone(&last));
        tokio::spawn(async move {
            for round in 0..6 {
                if (worker + round) % 3 == 0 {
                    let guard = lock.write("k").await.unwrap();
                    assert_eq!(inside.swap(-1, Ordering::SeqCst), 0, "beside a writer");
                    assert!(guard.fence() > last.swap(guard.fence(), Ordering::SeqCst));
                    tokio::task::yield_now().await;
                    assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                    assert!(guard.release().await.unwrap());
                } else {
                    let guard = lock.read("k").await.unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "beside a writer");
                    let written = last.load(Ordering::SeqCst);
                    assert_eq!(guard.fence().unwrap_or(0), written, "that of the last writer");
                    assert_eq!(guard.handle().fence(), guard.fence());
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(guard.release().await.unwrap());
                }
            }
        })
    };
    for outcome in join_all((0..12).map(worker)).await {
        outcome.unwrap();
    }
    assert!(lock.try_write("k").await.is_ok());
}

pub(crate) async fn readers_share_and_writers_do_not(place: &Place, name: &str) {
    let lock = RwLock::new(place, name).unwrap();
    assert_eq!(lock.name(), name);
    let readers = [lock.try_read("k").await.unwrap(), lock.read("k").await.unwrap()];
    let error = lock.try_write("k").await.unwrap_err();
    assert!(error.is_refused() && error.retry_after() > Some(Duration::from_secs(15)), "{error}");
    assert!(lock.try_write("l").await.unwrap().release().await.unwrap());
    for reader in readers {
        assert!(lock.try_write("k").await.is_err());
        assert!(reader.release().await.unwrap());
    }
    let writer = lock.try_write("k").await.unwrap();
    assert!(lock.try_read("k").await.unwrap_err().is_refused());
    assert!(lock.try_write("k").await.unwrap_err().is_refused());
    assert!(writer.release().await.unwrap());
}

pub(crate) async fn groups_of_readers_exclude_each_other(place: &Place, name: &str) {
    let lock = RwLock::new(place, name).unwrap();
    let (red, blue) = (lock.with_group("red").unwrap(), lock.with_group("blue").unwrap());
    assert!(lock.with_group("not {this}").unwrap_err().is_invalid());
    let readers = [red.try_read("k").await.unwrap(), red.try_read("k").await.unwrap()];
    assert!(blue.try_read("k").await.unwrap_err().is_refused());
    assert!(lock.try_read("k").await.unwrap_err().is_refused(), "none is a group too");
    assert!(red.try_write("k").await.unwrap_err().is_refused());

    let waiting = blue.clone();
    let state = format!("{name}:k");
    let waiter = place.line_up(&state, 1, async move { waiting.read("k").await.unwrap() }).await;
    for reader in readers {
        assert!(reader.release().await.unwrap());
    }
    let reader = waiter.await.unwrap();
    assert!(red.try_read("k").await.unwrap_err().is_refused());
    assert!(blue.try_read("k").await.is_ok());
    drop(reader);
}

fn read(lock: &RwLock) -> impl Future<Output = Result<RwLockReadGuard, Error>> + Send + use<> {
    let lock = lock.clone();
    async move { lock.read("k").await }
}

fn write(lock: &RwLock) -> impl Future<Output = Result<RwLockWriteGuard, Error>> + Send + use<> {
    let lock = lock.clone();
    async move { lock.write("k").await }
}

pub(crate) async fn writers_go_first(place: &Place, name: &str) {
    let lock = RwLock::new(place, name).unwrap();
    let reader = lock.read("k").await.unwrap();
    let mut line = Line::new(place, name);
    line.comes("first writer", write(&lock)).await;
    assert!(lock.try_read("k").await.unwrap_err().is_refused(), "a writer waits");
    line.comes("reader", read(&lock)).await;
    line.comes("second writer", write(&lock)).await;
    assert!(reader.release().await.unwrap());
    assert_eq!(line.order().await, ["first writer", "second writer", "reader"]);
}

pub(crate) async fn readers_go_first_where_they_are_preferred(place: &Place, name: &str) {
    let lock = RwLock::builder().prefer_readers().build(place, name).unwrap();
    let reader = lock.read("k").await.unwrap();
    let mut line = Line::new(place, name);
    line.comes("a writer after readers", write(&lock)).await;
    let second = lock.try_read("k").await.unwrap();
    assert!(reader.release().await.unwrap());
    assert!(lock.try_read("k").await.unwrap().release().await.unwrap());
    assert!(second.release().await.unwrap());
    assert_eq!(line.order().await, ["a writer after readers"]);

    let writer = lock.write("k").await.unwrap();
    let mut line = Line::new(place, name);
    line.comes("writer", write(&lock)).await;
    line.comes("reader", read(&lock)).await;
    assert!(writer.release().await.unwrap());
    assert_eq!(line.order().await, ["reader", "writer"]);
}

pub(crate) async fn no_more_writers_in_a_row_than_allowed(place: &Place, name: &str) {
    let lock = RwLock::builder().most_writers(2).build(place, name).unwrap();
    let writer = lock.write("k").await.unwrap();
    let mut line = Line::new(place, name);
    line.comes("reader", read(&lock)).await;
    for writer in ["1st", "2nd", "3rd", "4th"] {
        line.comes(writer, write(&lock)).await;
    }
    assert!(writer.release().await.unwrap());
    assert_eq!(line.order().await, ["1st", "2nd", "reader", "3rd", "4th"]);
    assert!(RwLock::builder().most_writers(0).build(place, name).unwrap_err().is_invalid());
}

pub(crate) async fn all_readers_that_wait_go_together(place: &Place, name: &str) {
    let lock = RwLock::builder().most_writers(1).build(place, name).unwrap();
    let writer = lock.write("k").await.unwrap();
    let state = format!("{name}:k");
    let one = place.line_up(&state, 1, read(&lock)).await;
    let other = place.line_up(&state, 2, read(&lock)).await;
    let mut line = Line::behind(place, name, 2);
    line.comes("writer", write(&lock)).await;
    let last = place.line_up(&state, 4, write(&lock)).await;
    assert!(writer.release().await.unwrap());
    // One writer, then both readers at once, then the other writer.
    let readers = (one.await.unwrap().unwrap(), other.await.unwrap().unwrap());
    assert_eq!(line.order().await, ["writer"]);
    assert!(readers.0.is_held() && readers.1.is_held() && !last.is_finished());
    drop(readers);
    assert!(last.await.unwrap().unwrap().release().await.unwrap());
}

pub(crate) async fn an_intent_dies_with_its_writer(place: &Place, name: &str) {
    let lock = RwLock::new(place, name).unwrap();
    let reader = lock.read("k").await.unwrap();
    let (writing, reading) = (lock.clone(), lock.clone());
    let state = format!("{name}:k");
    let writer = place.line_up(&state, 1, async move { writing.write("k").await.map(drop) }).await;
    let waiter = place.line_up(&state, 2, async move { reading.read("k").await.unwrap() }).await;
    assert!(lock.try_read("k").await.unwrap_err().is_refused());
    writer.abort();
    assert!(writer.await.unwrap_err().is_cancelled());
    // The first reader still reads, so nothing was released.
    assert!(waiter.await.unwrap().release().await.unwrap());
    assert!(lock.try_read("k").await.unwrap().release().await.unwrap());
    assert!(reader.is_held() && reader.release().await.unwrap());
}

pub(crate) async fn a_reader_that_runs_out_frees_itself_alone(place: &Place, name: &str) {
    let crashing = RwLock::builder().ttl(Duration::from_millis(200)).watchdog(false);
    let crashing = crashing.build(place, name).unwrap();
    let lock = RwLock::new(place, name).unwrap();
    let (crashed, reader) = (crashing.read("k").await.unwrap(), lock.read("k").await.unwrap());
    let writing = lock.clone();
    let state = format!("{name}:k");
    let writer = place.line_up(&state, 1, async move { writing.write("k").await.unwrap() }).await;
    crashed.lost().await;
    // Until the store has forgotten it too; dropping it would release it.
    eventually("it to be gone", SOON, async || crashed.extend().await.is_err_and(|error| error.is_lost()))
        .await;
    assert!(reader.is_held() && reader.extend().await.is_ok() && !writer.is_finished());
    assert!(reader.release().await.unwrap());
    assert!(writer.await.unwrap().release().await.unwrap());
    assert!(!crashed.release().await.unwrap());
}

pub(crate) async fn waits_and_settings(place: &Place, name: &str) {
    let lock = RwLock::builder().app_id("shop/ä").build(place, name).unwrap();
    let writer = lock.write("k").await.unwrap();
    assert!(writer.token().contains("@shop%2f%c3%a4/"), "{}", writer.token());
    let hasty = RwLock::builder().max_wait(Duration::from_millis(50)).build(place, name).unwrap();
    let error = hasty.read("k").await.unwrap_err();
    assert!(error.is_waited_too_long(), "{error}");
    let full = RwLock::builder().max_waiters(0).build(place, name).unwrap();
    assert!(full.read("k").await.unwrap_err().is_queue_full());
    let waiting = lock.clone();
    let state = format!("{name}:k");
    place.lined_up(&state, 0).await;
    let waiter = place.line_up(&state, 1, async move { waiting.read("k").await.map(drop) }).await;
    lock.close();
    assert!(waiter.await.unwrap().unwrap_err().is_interrupted());
    for bytes in [&[b'{'; 65][..], b""] {
        assert!(RwLock::builder().app_id(bytes).build(place, name).unwrap_err().is_invalid());
    }
    assert!(writer.release().await.unwrap());
}
