//! How the limit of a key changes.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Adaptive;
use super::step::{Adapt, Adapted, Rules, Seen, Told};
use crate::store::operation::{Cell as _, Operation as _};

const START: i64 = 1_760_000_000_000_000;
const WINDOW: i64 = 100_000;
const HOUR: i64 = 3_600_000_000;

fn seen(ok: i64, latency: i64, peak: i64, span: i64) -> Seen {
    Seen {
        ok,
        latency,
        peak,
        span,
        ..Seen::default()
    }
}

/// The rules of a limit that starts at 20.
pub(super) fn rules(follows: bool, min: i64, max: i64) -> Rules {
    Rules {
        follows,
        min,
        max,
        start: 20,
        window: WINDOW,
    }
}

/// A key whose limit starts at 20, and the time.
pub(super) struct Limit {
    pub(super) cell: Adapted,
    pub(super) now: i64,
    pub(super) rules: Rules,
}

impl Limit {
    pub(super) fn new(follows: bool, min: i64, max: i64) -> Self {
        Self {
            cell: Adapted::default(),
            now: START,
            rules: rules(follows, min, max),
        }
    }

    pub(super) fn report(&mut self, seen: Seen) -> Told {
        Adapt {
            rules: self.rules,
            known: self.rules.start,
            seen,
        }
        .apply(&mut self.cell, self.now)
    }

    pub(super) fn limit(&mut self) -> i64 {
        self.report(Seen::default()).limit
    }

    /// A window in which all permits are in use, each request takes `latency` µs, and `overloads` of 100 fail.
    fn window(&mut self, latency: i64, overloads: i64) {
        let limit = self.limit();
        self.used_window(limit, latency, overloads);
    }

    fn used_window(&mut self, in_flight: i64, latency: i64, overloads: i64) {
        let length = WINDOW.max(latency * 2);
        self.now += length;
        let done = (in_flight * length / latency).max(20);
        let failed = done * overloads / 100;
        let ok = done - failed;
        let seen = seen(ok, ok * latency, in_flight, length);
        self.report(Seen {
            overloads: failed,
            ..seen
        });
    }

    /// Runs for `span` behind a service that handles `capacity` requests at once, in `service` µs each.
    fn run(&mut self, span: i64, capacity: i64, service: i64) {
        let end = self.now + span;
        while self.now < end {
            let limit = self.limit();
            self.window(service * limit.max(capacity) / capacity, 0);
        }
    }

    /// Does the same, and asserts the resulting limit.
    #[track_caller]
    fn comes_to(&mut self, limits: Range<i64>, span: i64, capacity: i64, service: i64) {
        self.run(span, capacity, service);
        let stored = self.cell.limit / 1000;
        assert!(
            limits.contains(&stored),
            "{stored} of {capacity} at {}",
            self.now - START
        );
    }
}

/// The first overload with an unknown usual share starts a measurement with half of the load.
#[test]
fn additive_increase_multiplicative_decrease() {
    let mut limit = Limit::new(false, 1, 100);
    limit.window(1000, 0);
    limit.window(1000, 0);
    assert_eq!(limit.limit(), 21, "the first report begins a window");
    limit.window(1000, 20);
    limit.window(1000, 20);
    assert!(
        limit.limit() <= 10 && limit.cell.limit == 21_000,
        "half of the load"
    );
    limit.window(1000, 0);
    limit.window(1000, 0);
    assert_eq!(
        (limit.limit(), limit.cell.limit),
        (18, 18_900),
        "it has helped"
    );
    limit.window(1000, 20);
    assert_eq!(
        (limit.limit(), limit.cell.limit),
        (17, 17_010),
        "it is known to"
    );
}

/// Without samples a limit returns to its start, whatever it was, and whatever requests arrive meanwhile.
#[test]
fn without_samples_a_limit_returns_to_its_start() {
    for follows in [false, true] {
        for share in [0, 90] {
            let mut limit = Limit::new(follows, 1, 100);
            (0..100).for_each(|_| limit.window(10_000, share));
            let moved = limit.limit();
            assert!(moved == 1 || moved > 30, "{moved}");
            let (base, ended) = (limit.cell.base, limit.now);
            // Requests arrive and get no permit; or they get one, and end without a sample.
            for second in 1..=60 {
                limit.now = ended + second * 1_000_000;
                let peak = second % 2;
                assert_eq!(limit.report(seen(0, 0, peak, 0)).limit, moved);
            }
            limit.now += 1;
            assert_eq!(limit.limit(), 20);
            limit.report(seen(0, 0, 1, 0));
            assert_eq!((limit.limit(), limit.cell.base), (20, base));
            (0..50).for_each(|_| limit.window(10_000, 0));
            assert!(limit.limit() > 20);
        }
    }
}

/// A service that takes ten minutes for a request has no sample for that time.
#[test]
fn slow_services_have_longer_pauses() {
    let mut limit = Limit::new(false, 1, 100);
    let minutes = 10 * 60_000_000;
    for _ in 0..20 {
        limit.now += minutes;
        limit.report(seen(20, 20 * minutes, 20, HOUR));
    }
    let moved = limit.limit();
    assert!(moved > 30);
    limit.now += 2 * minutes;
    assert_eq!(limit.limit(), moved);
    limit.now += 1;
    assert_eq!(limit.limit(), 20);
}

#[test]
fn a_limit_that_is_not_used_does_not_grow() {
    for follows in [false, true] {
        let mut limit = Limit::new(follows, 1, 100);
        (0..1000).for_each(|_| limit.used_window(9, 10_000, 0));
        assert_eq!(limit.limit(), 20);
        // Eight processes with one request each use less than half of it too, although they report at different times.
        for step in 0..1000 {
            limit.now += WINDOW / 8 + step % 7;
            limit.report(seen(10, 100_000, 1, WINDOW));
        }
        assert_eq!(limit.limit(), 20);
        // A process that has not reported for a long time does not count for all of that time.
        let mut limit = Limit::new(follows, 1, 100);
        limit.used_window(9, 10_000, 0);
        limit.now += WINDOW;
        limit.report(seen(10, 100_000, 9, HOUR));
        assert_eq!(limit.limit(), 20);
        limit.run(20_000_000, 1000, 10_000);
        assert!(
            limit.limit() > 40,
            "{follows}: it is used: {}",
            limit.limit()
        );
    }
}

/// The limit of a service that handles 32 requests at once stays near 32 during a day of full load. The limit of a
/// service whose capacity changes follows the capacity. The limit recovers if each request takes five times as long
/// without a queue.
#[test]
fn the_limit_follows_the_capacity() {
    let new = || Limit::new(true, 1, 1000);
    let (mut constant, mut changing, mut slower) = (new(), new(), new());
    constant.run(60_000_000, 32, 10_000);
    (0..24).for_each(|_| constant.comes_to(30..60, HOUR, 32, 10_000));
    for capacity in [64, 16, 128, 32].repeat(20) {
        changing.comes_to(
            capacity * 9 / 10..capacity * 2 + 8,
            30_000_000,
            capacity,
            10_000,
        );
    }
    slower.run(60_000_000, 32, 10_000);
    slower.comes_to(30..60, 120_000_000, 32, 50_000);
}

#[test]
fn few_samples_do_not_end_a_window() {
    let mut limit = Limit::new(false, 1, 100);
    limit.window(1000, 0);
    limit.window(1000, 0);
    let one = seen(1, 1000, 20, WINDOW);
    for _ in 0..9 {
        limit.now += WINDOW;
        limit.report(one);
        assert_eq!(limit.limit(), 21);
    }
    limit.now += WINDOW;
    limit.report(one);
    assert_eq!(limit.limit(), 22);
    // A limit of 1 needs only one sample.
    let mut limit = Limit::new(false, 1, 1);
    limit.report(one);
    limit.now += WINDOW;
    limit.report(seen(1, 7, 20, WINDOW));
    assert_eq!(limit.cell.mean, 503);
}

/// A client of a pool for a Cluster may send a report twice. The server cannot detect copies without remembering each
/// process. Copies change the limit only once, since the second is in the next window.
#[test]
fn a_report_that_arrives_twice_moves_the_limit_once() {
    for follows in [false, true] {
        let mut limit = Limit::new(follows, 1, 100);
        limit.window(10_000, 0);
        limit.now += WINDOW;
        let bad = Seen {
            overloads: 100,
            ..seen(0, 0, 20, WINDOW)
        };
        limit.report(bad);
        let once = limit.limit();
        limit.report(bad);
        assert_eq!(limit.limit(), once);
    }
}

#[test]
fn what_is_known_of_a_service_is_kept_for_an_hour() {
    let mut limit = Limit::new(false, 1, 100);
    (0..10).for_each(|_| limit.window(1000, 0));
    let moved = limit.limit();
    assert!(moved > 25);
    limit.now += HOUR - 1000;
    assert!(!limit.cell.is_idle(limit.now));
    limit.now += 1001;
    assert!(limit.cell.is_idle(limit.now));
    assert_eq!(limit.limit(), 20, "the start value");
    // A store that has lost the limit continues with the one that a process knows.
    let seen = seen(1, 0, 0, 0);
    let told = Adapt {
        rules: limit.rules,
        known: moved,
        seen,
    }
    .apply(&mut Adapted::default(), limit.now);
    assert_eq!(told.limit, moved);
}

#[test]
fn no_report_and_no_clock_brings_the_limit_out_of_its_bounds() {
    let seed = rand::random();
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..300 {
        let (low, high) = (rng.random_range(1..50), rng.random_range(50..1_000_000));
        let mut limit = Limit::new(rng.random_bool(0.5), low, high);
        for _ in 0..100 {
            limit.now +=
                [0, 1, WINDOW, -WINDOW, HOUR, -HOUR, 90 * 24 * HOUR][rng.random_range(0..7)];
            let mut number =
                |most: i64| [0, 1, rng.random_range(0..=most), most][rng.random_range(0..4)];
            let (ok, overloads, latency) = (number(1 << 32), number(1 << 32), number(1 << 50));
            let (peak, span) = (number(1 << 32).min(1_000_000), number(HOUR));
            let told = limit.report(Seen {
                overloads,
                ..seen(ok, latency, peak, span)
            });
            assert!((low..=high).contains(&told.limit), "{seed}: {told:?}");
            assert!(
                told.in_flight >= 0 && (0..=HOUR).contains(&told.mean),
                "{seed}: {told:?}"
            );
        }
    }
}

#[test]
fn settings_are_checked() {
    let (ms, nano) = (Duration::from_millis, Duration::from_nanos(1));
    let usual = Adaptive::aimd().rules(20).unwrap();
    assert_eq!(usual, rules(false, 1, 1000));
    let adaptive = Adaptive::gradient().min(4).max(500).start(7).window(ms(50));
    let set = Rules {
        start: 7,
        window: 50_000,
        ..rules(true, 4, 500)
    };
    assert_eq!(adaptive.rules(20).unwrap(), set);
    let (aimd, hour) = (Adaptive::aimd, ms(3_600_000));
    for (adaptive, is_good) in [
        (aimd().max(1_000_000), true),
        (aimd().min(20).max(20), true),
        (aimd().window(ms(10)).timeout(ms(1)), true),
        (aimd().window(ms(10_000)).timeout(hour), true),
        (aimd().min(0), false),
        (aimd().max(1_000_001), false),
        (aimd().min(21), false),
        (aimd().max(19), false),
        (aimd().min(9).max(8), false),
        (aimd().window(ms(10) - nano), false),
        (aimd().window(ms(10_000) + nano), false),
        (aimd().timeout(ms(1) - nano), false),
        (aimd().timeout(hour + nano), false),
    ] {
        let refused = adaptive.rules(20).err();
        assert_eq!(
            refused.map(|error| error.is_invalid()),
            (!is_good).then_some(true),
            "{adaptive:?}"
        );
    }
}
