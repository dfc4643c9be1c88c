//! Reader-writer locks: who shares, and who goes first.

use std::time::Duration;

use tower_distributed::rw_lock::RwLockBuilder;
use tower_distributed::{Error, Lease, RwLock};

use crate::line::Line;
use crate::stores::Place;

pub(crate) async fn readers_share_and_writers_do_not(place: &Place, name: &str) {
    let lock = RwLock::new(place, name).unwrap();
    assert_eq!(lock.name(), name);
    let readers = [
        lock.try_read("k").await.unwrap(),
        lock.read("k").await.unwrap(),
    ];
    let error = lock.try_write("k").await.unwrap_err();
    assert!(
        error.is_refused() && error.retry_after() > Some(Duration::from_secs(15)),
        "{error}"
    );
    assert!(lock.try_write("l").await.unwrap().release().await.unwrap());
    for reader in readers {
        assert!(lock.try_write("k").await.is_err());
        assert!(reader.release().await.unwrap());
    }
    let writer = lock.try_write("k").await.unwrap();
    assert!(lock.try_read("k").await.unwrap_err().is_refused());
    assert!(lock.try_write("k").await.unwrap_err().is_refused());
    let fence = writer.fence();
    assert!(writer.release().await.unwrap());
    let reader = lock.read("k").await.unwrap();
    assert_eq!(
        (reader.fence(), reader.handle().fence()),
        (Some(fence), Some(fence)),
        "that of the last writer"
    );
    assert!(reader.release().await.unwrap());
    assert!(lock.write("k").await.unwrap().fence() > fence);
}

pub(crate) async fn groups_of_readers_exclude_each_other(place: &Place, name: &str) {
    let lock = RwLock::new(place, name).unwrap();
    let (red, blue) = (
        lock.with_group("red").unwrap(),
        lock.with_group("blue").unwrap(),
    );
    assert!(lock.with_group("not {this}").unwrap_err().is_invalid());
    let readers = [
        red.try_read("k").await.unwrap(),
        red.try_read("k").await.unwrap(),
    ];
    assert!(blue.try_read("k").await.unwrap_err().is_refused());
    assert!(
        lock.try_read("k").await.unwrap_err().is_refused(),
        "none is a group too"
    );
    assert!(red.try_write("k").await.unwrap_err().is_refused());

    let waiting = blue.clone();
    let state = format!("{name}:k");
    let waiter = place
        .line_up(&state, 1, async move { waiting.read("k").await.unwrap() })
        .await;
    for reader in readers {
        assert!(reader.release().await.unwrap());
    }
    let reader = waiter.await.unwrap();
    assert!(red.try_read("k").await.unwrap_err().is_refused());
    assert!(blue.try_read("k").await.is_ok());
    drop(reader);
}

/// The settings, whether a writer holds it at first, who waits in the order of arrival (`w` for writers), whether another reader is
/// let in meanwhile, and the order in which they are served.
type Turns = (
    RwLockBuilder,
    bool,
    &'static [&'static str],
    bool,
    &'static [&'static str],
);

pub(crate) async fn readers_and_writers_take_turns(place: &Place, name: &str) {
    let builder = RwLock::builder;
    let rows: [Turns; 5] = [
        (
            builder(),
            false,
            &["w1", "r", "w2"],
            false,
            &["w1", "w2", "r"],
        ),
        (builder().prefer_readers(), false, &["w"], true, &["w"]),
        (
            builder().prefer_readers(),
            true,
            &["w", "r"],
            false,
            &["r", "w"],
        ),
        (
            builder().most_writers(2),
            true,
            &["r", "w1", "w2", "w3", "w4"],
            false,
            &["w1", "w2", "r", "w3", "w4"],
        ),
        (
            builder().most_writers(1),
            true,
            &["r", "r", "w1", "w2"],
            false,
            &["w1", "r", "r", "w2"],
        ),
    ];
    for (number, (builder, is_written, waiters, lets_in, order)) in rows.into_iter().enumerate() {
        let name = &format!("{name}.{number}");
        let lock = builder.build(place, name).unwrap();
        let take = |writes: bool| {
            let lock = lock.clone();
            async move {
                match writes {
                    true => lock.write("k").await.map(Lease::from),
                    false => lock.read("k").await.map(Lease::from),
                }
            }
        };
        let (holder, mut line) = (take(is_written).await.unwrap(), Line::new(place, name));
        for waiter in waiters {
            line.comes(waiter, take(waiter.starts_with('w'))).await;
        }
        let reader = lock.try_read("k").await;
        assert_eq!(
            reader.as_ref().is_err_and(Error::is_refused),
            !lets_in,
            "{number}: {reader:?}"
        );
        assert!(holder.release().await.unwrap());
        drop(reader);
        assert_eq!(line.order().await, order, "{number}");
    }
}
