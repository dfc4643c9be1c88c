//! On what terms leases are granted.

use std::time::Duration;

use super::held::Drift;
use crate::Error;

/// The terms of one family.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// Whether leases are renewed as long as they are held.
    pub(crate) watchdog: bool,
    pub(crate) drift: Drift,
    /// How often those who wait ask where nothing would wake them.
    pub(crate) ask_every: Duration,
    /// Whether others may release without waking anybody.
    pub(crate) foreign: bool,
    /// What tokens add to tell whose they are, `@` and a name.
    pub(crate) signature: String,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            watchdog: true,
            drift: Drift(0.01),
            ask_every: Duration::from_millis(50),
            foreign: false,
            signature: String::new(),
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(86_400);

/// Checks a time to live.
pub(crate) fn check_ttl(ttl: Duration) -> Result<Duration, Error> {
    if (SHORTEST..=LONGEST).contains(&ttl) {
        Ok(ttl)
    } else {
        Err(Error::invalid(format!("a time to live must be 10 ms to 1 day, is {ttl:?}")))
    }
}
