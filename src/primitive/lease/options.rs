//! Under what options one value of a namespace acquires.

use std::time::Duration;

use tokio::sync::watch;

use super::belief::Drift;
use crate::Error;
use crate::telemetry::Leases;

/// What can be set.
#[derive(Clone, Debug)]
pub(crate) struct LeaseOptions {
    pub(crate) ttl: Duration,
    /// Whether leases are renewed as long as they are held.
    pub(crate) watchdog: bool,
    /// How long a lease is held at least, even if it is released earlier.
    pub(crate) at_least_for: Duration,
    pub(crate) drift: Drift,
    /// How often those who wait ask where nothing would wake them.
    pub(crate) ask_every: Duration,
    /// Whether others may release without waking anybody.
    pub(crate) foreign: bool,
    /// Whether those of one process who wait for a key stand in one line, and hand what they get on to each other.
    pub(crate) cohorts: bool,
    /// What tokens add to tell whose they are, `@` and a name.
    pub(crate) signature: String,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            watchdog: true,
            at_least_for: Duration::ZERO,
            drift: Drift(0.01),
            ask_every: Duration::from_millis(50),
            foreign: false,
            cohorts: false,
            signature: String::new(),
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(86_400);

impl LeaseOptions {
    /// Checks what a user can set.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { ttl, drift: Drift(factor), .. } = *self;
        if !(SHORTEST..=LONGEST).contains(&ttl) {
            return Err(Error::invalid(format!("a time to live must be 10 ms to 1 day, is {ttl:?}")));
        }
        if !(0.0..1.0).contains(&factor) {
            return Err(Error::invalid(format!("the drift factor must be from 0 to below 1, is {factor}")));
        }
        if self.at_least_for > ttl {
            return Err(Error::invalid(format!(
                "at_least_for must be at most the ttl ({ttl:?}), is {:?}",
                self.at_least_for
            )));
        }
        if self.drift.sure(ttl) < SHORTEST / 2 {
            return Err(Error::invalid(format!(
                "of a time to live of {ttl:?}, a drift factor of {factor} leaves {:?}: it must be 5 ms at least",
                self.drift.sure(ttl)
            )));
        }
        Ok(())
    }
}

/// One value of a namespace: what its leases have in common. Shared by its clones.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) options: LeaseOptions,
    pub(crate) leases: Leases,
    /// Whether those who wait through it are sent away.
    pub(crate) closed: watch::Sender<bool>,
}

/// Whole µs, rounded up.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX / 4)
}
