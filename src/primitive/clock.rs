//! The clock of a holder: it goes on while the host is suspended.
//!
//! `Instant` stands still in suspend on Linux, and so do timers. A server's clock goes on, and so do the leases there. So
//! what a holder believes is counted by this clock, and looked at anew on wake and each second. A pause of the whole
//! machine by a hypervisor is invisible to both.

use std::time::Duration;

use tokio::time::Instant;

/// What time it is, with the time spent in suspend.
pub(crate) fn now() -> Instant {
    let now = Instant::now();
    now + suspended(now)
}

/// Microseconds since some time before the process began, with those spent in suspend.
pub(super) fn micros() -> i64 {
    #[cfg(target_os = "linux")]
    let since = linux::since_start(rustix::time::ClockId::Boottime);
    #[cfg(not(target_os = "linux"))]
    let since = {
        static BEGAN: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        BEGAN.elapsed()
    };
    since.as_micros() as i64
}

/// The same point in time for timers and users, whose clock leaves suspend out.
pub(super) fn without_suspend(at: Instant) -> Instant {
    at.checked_sub(suspended(Instant::now())).unwrap_or(at)
}

/// For how long the host has been suspended since it started.
#[cfg(target_os = "linux")]
fn suspended(now: Instant) -> Duration {
    #[cfg(test)]
    let injected = tests::injected();
    #[cfg(not(test))]
    let injected = Duration::ZERO;
    linux::suspended(now) + injected
}

#[cfg(not(target_os = "linux"))]
fn suspended(_: Instant) -> Duration {
    Duration::ZERO
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::LazyLock;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// When this was first asked, by the clock that stands still in suspend, and what was suspended before.
    static BEGAN: LazyLock<(std::time::Instant, Duration, Duration)> = LazyLock::new(|| {
        let (began, suspended) = (std::time::Instant::now(), read());
        (began, since_start(ClockId::Boottime), suspended)
    });

    /// Both clocks have gone on alike since then, mostly: that takes one reading more. Otherwise, or where a test has paused
    /// tokio's clock, it is read anew.
    pub(super) fn suspended(now: Instant) -> Duration {
        let (began, with_suspend, suspended) = *BEGAN;
        let passed = now.into_std().saturating_duration_since(began);
        let passed_with_suspend = since_start(ClockId::Boottime).saturating_sub(with_suspend);
        let differ = passed_with_suspend.abs_diff(passed) >= Duration::from_millis(1);
        if differ { read() } else { suspended }
    }

    pub(super) fn since_start(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        Duration::try_from(time).unwrap_or_default()
    }

    /// The one clock is read between two readings of the other; again where something came in between.
    fn read() -> Duration {
        let mut least = (Duration::MAX, Duration::ZERO);
        for _ in 0..8 {
            let before = since_start(ClockId::Monotonic);
            let with_suspend = since_start(ClockId::Boottime);
            let gap = since_start(ClockId::Monotonic).saturating_sub(before);
            least = least.min((gap, with_suspend.saturating_sub(before)));
            if gap < Duration::from_micros(50) {
                break;
            }
        }
        // What is shorter than this is noise.
        Duration::from_millis(u64::try_from(least.1.as_millis()).unwrap_or(0))
    }
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
