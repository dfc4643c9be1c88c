//! The limits that a process knows, and its reports.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;

use tokio::time::{advance, sleep, timeout};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::super::Adaptive;
use super::super::tests::rules;
use super::*;
use crate::layers::concurrency_limit::ConcurrencyLimitLayer;
use crate::wait_group::WaitGroup;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn limits() -> AdaptiveLimits {
    let (store, timeout) = (Store::in_memory(), Duration::from_secs(5));
    AdaptiveLimits::new(&store, "api", rules(false, 1, 100), timeout)
}

fn told(limit: i64, mean: i64) -> Result<Told, Error> {
    Ok(Told {
        limit,
        in_flight: 0,
        mean,
    })
}

/// Returns the measurements of a key.
fn seen(limits: &AdaptiveLimits) -> Seen {
    lock(&limits.0.known).get(&Key::from("k")).unwrap().seen
}

fn samples(ok: i64, overloads: i64, latency: i64, peak: i64) -> Seen {
    Seen {
        ok,
        overloads,
        latency,
        peak,
        span: 0,
    }
}

#[test]
fn the_number_of_known_keys_is_bounded() {
    let limits = limits();
    for key in 0..MOST as u64 + 100 {
        assert_eq!(limits.known(&Key::from(key)).ok(), Some(20), "{key}");
    }
    assert_eq!(lock(&limits.0.known).len(), MOST);
}

/// If there are too many keys, those that were not used for a minute are removed, except those with permits in flight.
#[test]
fn keys_that_are_not_used_make_room() {
    let (limits, now, mut all) = (limits(), Instant::now(), KnownKeys::new(MOST));
    let mut has_room =
        |key: u64, after| slot(&limits.0, &mut all, &Key::from(key), now + after).is_some();
    assert!(has_room(0, Duration::ZERO) && has_room(1, 2 * UNUSED));
    assert!((2..MOST as u64).all(|key| has_room(key, UNUSED)));
    let soon = 2 * UNUSED - Duration::from_nanos(1);
    assert!(has_room(7, soon) && has_room(MOST as u64 - 1, soon));
    all.get_mut(&Key::from(0_u64)).unwrap().in_flight = 1;
    let mut has_room =
        |key: u64, after| slot(&limits.0, &mut all, &Key::from(key), now + after).is_some();
    assert!(!has_room(9999, soon) && has_room(9999, 2 * UNUSED));
    assert!(
        [0_u64, 1, 9999]
            .iter()
            .all(|key| all.get(&Key::from(*key)).is_some())
    );
    assert!(all.len() < MOST, "more than one made room");
}

/// Only one report per key is in flight at a time, and one is sent per window.
#[test]
fn reports_are_bounded() {
    let (limits, key, now) = (limits(), Key::from("k"), Instant::now());
    let mut all = KnownKeys::new(MOST);
    let known = slot(&limits.0, &mut all, &key, now).unwrap();
    (known.seen.ok, known.seen.peak, known.in_flight) = (7, 9, 4);
    assert!(limits.0.due(known, now + ms(99)).is_none());
    let report = limits.0.due(known, now + ms(100)).unwrap();
    assert_eq!(
        (
            report.seen.ok,
            report.seen.peak,
            report.seen.span,
            report.known
        ),
        (7, 9, 100_000, 20)
    );
    assert!(
        limits.0.due(known, now + ms(5000)).is_none(),
        "it is not answered"
    );
    let report = limits.0.due(known, now + ms(10_100)).unwrap();
    assert_eq!(
        (report.seen.ok, report.seen.peak),
        (0, 4),
        "what is in flight counts again"
    );
    known.is_unanswered = false;
    assert!(limits.0.due(known, now + ms(10_199)).is_none());
    assert!(limits.0.due(known, now + ms(10_200)).is_some());
}

/// If the store has lost the limit, it continues with the limit of this process, unless that is old, or not based on
/// samples of this process.
#[test]
fn only_samples_are_knowledge() {
    let (limits, now) = (limits(), Instant::now());
    let mut all = KnownKeys::new(MOST);
    let all_of_it = (Some(now), Some(now));
    for (key, after, (heard_at, sampled_at), limit) in [
        (0_u64, 9_999, all_of_it, 7),
        (1, 10_000, all_of_it, 20),
        (2, 100, (Some(now), None), 20),
        (3, 10_000, (Some(now + ms(99)), Some(now)), 20),
        (4, 10_000, (Some(now), Some(now + ms(99))), 20),
    ] {
        let known = slot(&limits.0, &mut all, &Key::from(key), now).unwrap();
        (known.limit, known.heard_at, known.sampled_at) = (7, heard_at, sampled_at);
        assert_eq!(
            limits.0.due(known, now + ms(after)).unwrap().known,
            limit,
            "{key}"
        );
    }
}

/// A few expensive requests do not look like a queue.
#[test]
fn one_latency_does_not_stand_for_all() {
    let (limits, key) = (limits(), Key::from("k"));
    limits.known(&key).ok().unwrap();
    limits.0.hear(&key, &told(20, 10_000));
    limits.ended(&key, ms(4000), Signal::Success);
    limits.ended(&key, ms(9), Signal::Success);
    assert_eq!(seen(&limits).latency, 49_000);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_old_is_read_again() {
    for (after, limit) in [(9_999, 7), (10_000, 20)] {
        let (limits, key) = (limits(), Key::from("k"));
        assert_eq!(limits.0.hear(&key, &told(7, 0)), 7);
        advance(ms(after)).await;
        assert_eq!(limits.known(&key).ok(), Some(limit), "{after}");
    }
}

/// A request that weighs more than the limit takes all of it. A request that can never be admitted is left to be
/// refused.
#[tokio::test(start_paused = true)]
async fn requests_are_bounded_by_the_limit() {
    let (limits, key) = (limits(), Key::from("k"));
    for (weight, most, bounded) in [
        (5, u32::MAX, (5, 20)),
        (30, u32::MAX, (20, 20)),
        (100, u32::MAX, (20, 20)),
        (101, u32::MAX, (101, 100)),
        (5, 10, (5, 10)),
        (10, 10, (10, 10)),
        (11, 10, (11, 10)),
    ] {
        assert_eq!(
            limits.bounded(&key, weight, most).await,
            bounded,
            "{weight} {most}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_seen_of_a_key_is_reported() {
    let (limits, key) = (limits(), Key::from("k"));
    limits.ended(&key, ms(1), Signal::Success);
    assert!(lock(&limits.0.known).len() == 0, "it is not known");
    limits.known(&key).ok().unwrap();
    for latency in [5, 4999, 5000] {
        limits.ended(&key, ms(latency), Signal::Success);
    }
    limits.ended(&key, ms(1), Signal::Overload);
    limits.ended(&key, ms(9000), Signal::Ignore);
    let group = WaitGroup::new(&Store::in_memory(), "g", 9).unwrap();
    let lease = async || Lease::from(group.try_add("k").await.unwrap());
    let first = limits.in_flight(lease().await, 3);
    drop(limits.in_flight(lease().await, 2));
    let in_flight = || lock(&limits.0.known).get(&key).unwrap().in_flight;
    let all = samples(2, 2, 5_004_000, 5);
    assert_eq!((seen(&limits), in_flight()), (all, 3));
    // The reply to the report arrives at once.
    advance(ms(100)).await;
    limits.ended(&key, ms(1), Signal::Ignore);
    assert_eq!(seen(&limits), samples(0, 0, 0, 3));
    assert!(!lock(&limits.0.known).get(&key).unwrap().is_unanswered);
    drop(first);
    assert_eq!(in_flight(), 0);
    assert_eq!(
        [Duration::from_secs(3601), Duration::MAX].map(micros),
        [LONGEST; 2]
    );
}

/// A request whose future is dropped counts as overload if it took as long as one that times out.
#[tokio::test(start_paused = true)]
async fn the_end_of_each_request_is_noted() {
    let group = WaitGroup::new(&Store::in_memory(), "g", 20).unwrap();
    let adaptive = Adaptive::aimd().timeout(ms(1000)).window(ms(10_000));
    let adaptive = adaptive.classify(|_: &Result<(), Infallible>| Signal::Success);
    let layer = ConcurrencyLimitLayer::new(group, |_: &u64| "k")
        .adaptive(adaptive)
        .unwrap();
    let limits = layer.provide.from.source.adaptive.clone().unwrap();
    let service = layer.layer(service_fn(async |span| {
        sleep(ms(span)).await;
        Ok::<_, Infallible>(())
    }));
    for (span, dropped) in [
        (5, 99),
        (60_000, 998),
        (60_000, 999),
        (60_000, 1000),
        (1000, 1001),
    ] {
        let _ = timeout(ms(dropped), service.clone().oneshot(span)).await;
    }
    assert_eq!(seen(&limits), samples(1, 2, 5000, 1));
}
