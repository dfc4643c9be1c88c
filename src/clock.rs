//! The clock of a lease holder, which keeps running while the host is suspended, and random bits.
//!
//! On Linux, `Instant` and timers stop during suspend, but the server's clock and the leases on the server do not.
//! So a holder measures its lease by this clock, and checks it again on wake and every second. A hypervisor that
//! pauses the whole machine stops both clocks, and cannot be detected.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

#[cfg(target_os = "linux")]
use self::linux::suspended;

/// The current time, including the time spent in suspend.
pub(crate) fn now() -> Instant {
    let now = Instant::now();
    now + suspended(now, false)
}

/// Like [`now`], but see [`at`].
pub(crate) fn recent() -> Instant {
    at(Instant::now())
}

/// This clock at a recent time of the clock that excludes suspend, without another reading: after a suspend it may be
/// too early, by the time in suspend, for half a millisecond. So a lease that counts from it ends too early then, never
/// too late.
pub(crate) fn at(now: Instant) -> Instant {
    now + suspended(now, true)
}

/// Microseconds since a fixed time before the process began, including the time spent in suspend.
pub(crate) fn micros() -> i64 {
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

/// Converts a time of this clock to the clock of timers and users, which excludes suspend.
pub(crate) fn without_suspend(at: Instant) -> Instant {
    at.checked_sub(suspended(Instant::now(), false))
        .unwrap_or(at)
}

/// Moves a time back by less than a grain, to a whole number of grains since `began`. So operations that are due at
/// about the same time are due together, and are sent in one call.
pub(crate) fn together(began: Instant, due: Instant, grain: Duration) -> Instant {
    // In numbers, since each lease comes through here. They fit for 500 years.
    let span = due.saturating_duration_since(began).as_nanos() as u64;
    due - Duration::from_nanos(span % (grain.as_nanos() as u64).max(1))
}

/// Returns 64 random bits that need not be secret: for names, pauses and samples. The standard hasher has random seeds,
/// which differ with each call.
pub(crate) fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns a random number above 0, up to and including 1.
pub(crate) fn fraction() -> f64 {
    ((bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(not(target_os = "linux"))]
fn suspended(_: Instant, _: bool) -> Duration {
    Duration::ZERO
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// The time of the first call by the clock that excludes suspend and by the clock that includes it, and the
    /// time in suspend until then.
    static BEGAN: LazyLock<(std::time::Instant, Duration, Duration)> = LazyLock::new(|| {
        let began = std::time::Instant::now();
        let suspended = read();
        (began, since_start(ClockId::Boottime), suspended)
    });

    /// When the time in suspend was last measured, in µs since `BEGAN`, and the result, in ms.
    static LAST: AtomicI64 = AtomicI64::new(-RECENT);
    static SUSPENDED: AtomicU64 = AtomicU64::new(0);

    /// How long a measurement is used, in µs.
    const RECENT: i64 = 500;

    /// How long the host was suspended since it started. `recent`: a measurement of the last 500 µs is enough.
    ///
    /// Usually both clocks have advanced equally since `BEGAN`, and the time in suspend is unchanged. That check needs
    /// one clock reading. If they differ, or a test has paused tokio's clock, both clocks are read again.
    pub(super) fn suspended(now: Instant, recent: bool) -> Duration {
        #[cfg(test)]
        let injected = tests::injected();
        #[cfg(not(test))]
        let injected = Duration::ZERO;
        let (began, with_suspend, suspended) = *BEGAN;
        let passed = now.into_std().saturating_duration_since(began);
        let micros = passed.as_micros() as i64;
        if recent && (0..RECENT).contains(&(micros - LAST.load(Ordering::Acquire))) {
            return injected + Duration::from_millis(SUSPENDED.load(Ordering::Relaxed));
        }
        let passed_with_suspend = since_start(ClockId::Boottime).saturating_sub(with_suspend);
        let differ = passed_with_suspend.abs_diff(passed) >= Duration::from_millis(1);
        let suspended = if differ { read() } else { suspended };
        SUSPENDED.store(suspended.as_millis() as u64, Ordering::Relaxed);
        LAST.store(micros, Ordering::Release);
        injected + suspended
    }

    pub(super) fn since_start(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        Duration::try_from(time).unwrap_or_default()
    }

    /// Reads one clock between two readings of the other, and repeats this if the readings are too far apart.
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
        // Less than a millisecond is measurement noise.
        Duration::from_millis(u64::try_from(least.1.as_millis()).unwrap_or(0))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static INJECTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub(super) fn injected() -> Duration {
        INJECTED.get()
    }

    /// Simulates that the host was suspended for `span`, in this thread.
    pub(crate) fn suspend(span: Duration) {
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
