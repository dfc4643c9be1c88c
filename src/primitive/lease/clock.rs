//! The clock of a holder: it goes on while the host is suspended.
//!
//! `Instant` stands still in suspend on Linux, and so do timers. A server's clock goes on, and so do the leases there. So
//! what a holder believes is counted by this clock, and looked at anew on wake and each second. A pause of the whole
//! machine by a hypervisor is invisible to both.

use std::time::Duration;

use tokio::time::Instant;

/// What time it is, with the time spent in suspend.
pub(crate) fn now() -> Instant {
    Instant::now() + suspended()
}

/// The same point in time for timers and users, whose clock leaves suspend out.
pub(super) fn without_suspend(at: Instant) -> Instant {
    at.checked_sub(suspended()).unwrap_or(at)
}

/// For how long the host has been suspended since it started.
#[cfg(target_os = "linux")]
fn suspended() -> Duration {
    #[cfg(test)]
    let injected = tests::injected();
    #[cfg(not(test))]
    let injected = Duration::ZERO;
    read() + injected
}

#[cfg(not(target_os = "linux"))]
fn suspended() -> Duration {
    Duration::ZERO
}

/// The one clock is read between two readings of the other; again where something came in between.
#[cfg(target_os = "linux")]
fn read() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let micros = |id| {
        let time = clock_gettime(id);
        time.tv_sec * 1_000_000 + time.tv_nsec / 1000
    };
    let mut least = (i64::MAX, 0);
    for _ in 0..8 {
        let before = micros(ClockId::Monotonic);
        let with_suspend = micros(ClockId::Boottime);
        let gap = micros(ClockId::Monotonic) - before;
        least = least.min((gap, with_suspend - before));
        if gap < 50 {
            break;
        }
    }
    // What is shorter than this is noise.
    Duration::from_millis(u64::try_from(least.1 / 1000).unwrap_or(0))
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static INJECTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub(super) fn injected() -> Duration {
        INJECTED.get()
    }

    /// For this thread, the host was suspended for so long.
    pub(in crate::primitive) fn suspend(span: Duration) {
        INJECTED.set(INJECTED.get() + span);
    }

    #[test]
    fn time_in_suspend_counts() {
        let before = now();
        suspend(Duration::from_secs(3600));
        assert!(now() >= before + Duration::from_secs(3600));
        assert!(without_suspend(now()) < before + Duration::from_secs(60));
    }
}
