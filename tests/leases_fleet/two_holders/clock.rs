//! `CLOCK_MONOTONIC` as a number: the same clock for all processes of a machine, and the one under `Instant`.

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// How often the two clocks are read to find out how they stand to each other.
const READINGS: usize = 1000;

/// Turns instants of this process into nanoseconds that all processes understand.
///
/// `Instant` does not tell its number, so it was read somewhere between two readings of the clock. A
/// [`beginning`](Self::beginning) goes by the later reading and an [`end`](Self::end) by the earlier one: an
/// interval from one to the other is never longer than it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    base: Instant,
    earliest: u64,
    latest: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let reading = |_| {
            let earliest = nanoseconds();
            let base = Instant::now();
            Self { base, earliest, latest: nanoseconds() }
        };
        (0..READINGS).map(reading).min_by_key(|clock| clock.latest - clock.earliest).unwrap()
    }

    /// No earlier than `at`.
    pub(super) fn beginning(self, at: Instant) -> u64 {
        self.latest + self.since_base(at)
    }

    /// No later than `at`.
    pub(super) fn end(self, at: Instant) -> u64 {
        self.earliest + self.since_base(at)
    }

    fn since_base(self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap()
    }
}

fn nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}
