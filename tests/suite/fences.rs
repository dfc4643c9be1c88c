//! How long the last fencing token of a key is remembered, and that tokens rise without it.

use std::time::Duration;

use tower_distributed::{Mutex, RwLock};

use crate::stores::{Place, SOON};
use support::eventually;

const SECOND: Duration = Duration::from_secs(1);
const WEEK: i64 = 7 * 86_400_000;

/// The Redis key with the fence of the key `k`.
fn mark(place: &Place, name: &str, part: &str) -> String {
    place.part(&format!("{name}:k"), part)
}

/// How long the mark is kept, ms; `None` in process.
fn left(place: &Place, mark: &str) -> Option<i64> {
    Some(place.server_of(mark)?.query(&["PTTL", mark]).unwrap())
}

pub(crate) async fn fences_rise_after_they_are_forgotten(place: &Place, name: &str) {
    let mutex = Mutex::builder()
        .ttl(SECOND)
        .fence_ttl(SECOND)
        .build(place, name)
        .unwrap();
    let locks = RwLock::builder()
        .ttl(SECOND)
        .fence_ttl(SECOND)
        .build(place, name)
        .unwrap();
    let marks = [mark(place, name, "fence"), mark(place, name, "rw:fence")];
    let (mut last, mut last_writer) = (0, 0);
    for _ in 0..2 {
        for _ in 0..3 {
            let (guard, writer) = (
                mutex.lock("k").await.unwrap(),
                locks.write("k").await.unwrap(),
            );
            assert!(guard.fence() > last && writer.fence() > last_writer);
            (last, last_writer) = (guard.fence(), writer.fence());
            // On a busy machine they may be lost before.
            guard.unlock().await.unwrap();
            writer.release().await.unwrap();
        }
        for mark in &marks {
            let Some(server) = place.server_of(mark) else {
                continue;
            };
            // A fence is kept for a millisecond longer than its lease.
            assert!(left(place, mark).unwrap() <= 1001);
            eventually(mark, SOON, async || {
                server.query(&["EXISTS", mark]) == Ok(0)
            })
            .await;
        }
        if place.server_of(&marks[1]).is_some() {
            assert_eq!(locks.read("k").await.unwrap().fence(), None);
        }
    }
}

/// The last holder decides how long the fence is kept.
pub(crate) async fn fences_rise_under_several_settings(place: &Place, name: &str) {
    let minute = 60 * SECOND;
    let mutexes = [
        Mutex::builder(),
        Mutex::builder().fence_ttl(minute),
        Mutex::builder().value_with(|| "host".to_owned()),
        Mutex::builder()
            .fence_ttl(minute)
            .value_with(|| "host".to_owned()),
    ];
    let mutexes = mutexes.map(|builder| builder.build(place, name).unwrap());
    let locks = [RwLock::builder(), RwLock::builder().fence_ttl(minute)];
    let locks = locks.map(|builder| builder.build(place, name).unwrap());
    let (mut last, mut last_writer) = (0, 0);
    let is_kept = |part: &str, short: bool| {
        let kept = if short {
            50_000..=60_000
        } else {
            WEEK..=WEEK / 7 * 8
        };
        let left = left(place, &mark(place, name, part));
        assert!(
            left.is_none_or(|left| kept.contains(&left)),
            "{part} is kept for {left:?}"
        );
    };
    for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
        for at in [one, other] {
            let (guard, writer) = (
                mutexes[at].lock("k").await.unwrap(),
                locks[at % 2].write("k").await.unwrap(),
            );
            assert!(guard.fence() > last && writer.fence() > last_writer);
            (last, last_writer) = (guard.fence(), writer.fence());
            is_kept("fence", at % 2 == 1);
            is_kept("rw:fence", at % 2 == 1);
            assert!(guard.unlock().await.unwrap() && writer.release().await.unwrap());
        }
    }
}
