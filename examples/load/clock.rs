//! `CLOCK_MONOTONIC`, which is the same for all processes of a machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine started.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    // The kernel's numbers are never negative.
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
