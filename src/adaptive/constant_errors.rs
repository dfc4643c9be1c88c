//! Errors that do not depend on the load have no effect on the limit, and those that do have one. Tested with a
//! simulated service, in virtual time.

#![allow(clippy::unwrap_used)]

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::adaptive::step::{Rules, Seen};
use crate::adaptive::tests::Limit;

const WINDOW: i64 = 50_000;

/// A fixed seed, so that all runs are equal: the samples of a window are random, and some assertions hold only for
/// nearly all runs.
const SEED: u64 = 7;

/// A service that refuses requests above `capacity` at once, and fails `fails` of 1000 requests at any load.
#[derive(Clone, Copy)]
struct Service {
    capacity: i64,
    fails: u64,
    /// The latency of a request, µs.
    latency: i64,
}

/// A service with a latency of 10 ms.
fn service(capacity: i64, fails: u64) -> Service {
    Service {
        capacity,
        fails,
        latency: 10_000,
    }
}

/// A limit in front of a service, with this number of callers that each send one request after the other.
struct Run {
    limit: Limit,
    callers: i64,
    rng: StdRng,
}

impl Run {
    fn new(follows: bool, callers: i64, seed: u64) -> Self {
        let mut limit = Limit::new(follows, 1, 1000);
        limit.rules = Rules {
            start: 100,
            window: WINDOW,
            ..limit.rules
        };
        Self {
            limit,
            callers,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Runs this number of windows. Returns how many requests succeeded.
    fn windows(&mut self, count: usize, service: Service) -> i64 {
        let mut served = 0;
        for _ in 0..count {
            let in_flight = self.limit.limit().min(self.callers);
            let length = WINDOW.max(service.latency * 2);
            let done = (in_flight * length / service.latency).max(1);
            let mut is_ok = |_: &i64| {
                let is_taken = self.rng.random_range(0..in_flight) < service.capacity;
                is_taken && self.rng.random_range(0..1000) >= service.fails
            };
            let ok = (0..done).filter(&mut is_ok).count();
            let ok = i64::try_from(ok).unwrap();
            self.limit.now += length;
            let latency = ok * service.latency;
            self.limit.report(Seen {
                ok,
                overloads: done - ok,
                latency,
                peak: in_flight,
                span: length,
            });
            served += ok;
        }
        served
    }
}

/// Without errors, the same run serves at most a tenth more than the share that fails.
#[test]
fn errors_at_any_load_do_not_steer() {
    for (callers, latency) in [(100, 10_000), (100, 100_000), (20, 50_000)] {
        for follows in [false, true] {
            for fails in [10, 20, 50, 200] {
                let served = |fails| {
                    let mut run = Run::new(follows, callers, SEED);
                    run.windows(
                        1000,
                        Service {
                            capacity: i64::MAX,
                            fails,
                            latency,
                        },
                    )
                };
                let (without, with) = (served(0), served(fails));
                let least = without * (1000 - i64::try_from(fails).unwrap()) / 1000 * 85 / 100;
                assert!(
                    with >= least,
                    "{callers} {follows} {fails}: {with} of {without}"
                );
            }
        }
    }
}

/// Also if the errors begin and end abruptly.
#[test]
fn errors_that_begin_do_not_steer() {
    for follows in [false, true] {
        let mut run = Run::new(follows, 100, SEED);
        for fails in [0, 50, 0, 200, 20] {
            let (served, all) = (run.windows(200, service(i64::MAX, fails)), 200 * 100 * 5);
            let least = all * (1000 - i64::try_from(fails).unwrap()) / 1000 * 8 / 10;
            assert!(served >= least, "{follows} {fails}: {served} of {all}");
        }
    }
}

/// Errors that depend on the load are detected even beside errors that do not.
#[test]
fn the_limit_follows_the_capacity_beside_errors() {
    for follows in [false, true] {
        for fails in [0, 10, 50, 200] {
            let mut run = Run::new(follows, 400, SEED);
            for capacity in [40, 150, 16, 80] {
                run.windows(300, service(capacity, fails));
                let served = run.windows(300, service(capacity, fails));
                let all = 300 * capacity * 5 * (1000 - i64::try_from(fails).unwrap()) / 1000;
                assert!(
                    served >= all * 55 / 100,
                    "{follows} {fails} {capacity}: {served} of {all}"
                );
                let limit = run.limit.cell.limit / 1000;
                assert!(
                    limit <= capacity * 2 + 4,
                    "{follows} {fails} {capacity}: {limit}"
                );
            }
        }
    }
}

/// A window of a small service has few samples, so it depends on chance: of 200 000 runs, 8 treat the service as one
/// that fails at any load, until the share is measured again, 100 windows later.
#[test]
fn a_small_service_is_not_taken_for_one_that_fails_at_any_load() {
    let service = |capacity| Service {
        capacity,
        fails: 0,
        latency: WINDOW,
    };
    let shrunk = |follows, seed| {
        let mut run = Run::new(follows, 80, seed);
        run.windows(100, service(40));
        run.windows(100, service(4));
        run
    };
    for follows in [false, true] {
        for seed in 0..40 {
            let run = shrunk(follows, seed);
            assert!(
                run.limit.cell.limit <= 9000,
                "seed {seed}, {follows}: {:?}",
                run.limit.cell
            );
        }
    }
    let mut unlucky = shrunk(true, 956_886_849_868_314_337);
    assert!(unlucky.limit.cell.limit > 9000, "{:?}", unlucky.limit.cell);
    unlucky.windows(50, service(4));
    assert!(unlucky.limit.cell.limit <= 9000, "{:?}", unlucky.limit.cell);
}

/// A service that fails most of its requests is overloaded, whatever its usual share is.
#[test]
fn a_service_that_fails_most_requests_is_overloaded() {
    for follows in [false, true] {
        let mut run = Run::new(follows, 400, SEED);
        run.windows(200, service(100, 0));
        run.windows(100, service(1, 0));
        assert!(run.limit.limit() <= 6, "{follows}: {}", run.limit.limit());
        run.windows(400, service(100, 1000));
        assert!(run.limit.limit() <= 4, "{follows}: {}", run.limit.limit());
        run.windows(1500, service(100, 0));
        assert!(run.limit.limit() >= 80, "{follows}: {}", run.limit.limit());
    }
}
