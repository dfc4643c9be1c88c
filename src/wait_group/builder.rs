//! The builder of WaitGroups.

use std::time::Duration;

use super::WaitGroup;
use crate::lease::{LeaseOptions, Leases, Wait};
use crate::setters::{in_range, setters};
use crate::store::Namespace;
use crate::telemetry::{self, Decisions};
use crate::{Error, Store};

/// A builder for a [`WaitGroup`].
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let calls = WaitGroup::builder(1)
///     .ttl(Duration::from_millis(50))
///     .watchdog(false)                  // a call that takes longer than 50 ms goes on without a permit
///     .max_wait(Duration::from_secs(5)) // `add` gives up after 5 s
///     .max_waiters(100)                 // the 101st waiter is refused at once
///     .build(&Store::in_memory(), "calls")?;
///
/// let slow = calls.add("acme").await?;
/// let _next = calls.add("acme").await?; // after 50 ms
/// assert!(!slow.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct WaitGroupBuilder {
    limit: u32,
    wait: Wait,
    options: LeaseOptions,
}

setters! { WaitGroupBuilder:
    /// Sets the ttl of a permit, 10 ms to 1 day. Default: 30 s.
    ///
    /// The permits of a crashed process expire after this time.
    fn ttl(ttl: Duration) => options.ttl = ttl;

    /// Sets whether a permit is renewed while it is held, every third of its ttl. Default: `true`.
    fn watchdog(watchdog: bool) => options.watchdog = watchdog;

    /// Sets how long [`add`](WaitGroup::add), [`add_n`](WaitGroup::add_n) and [`wait`](WaitGroup::wait) wait.
    /// Default: no limit.
    fn max_wait(max_wait: Duration) => wait.max_wait = Some(max_wait);

    /// Sets the most waiters of a key. Further waiters are refused immediately. Default: no limit. 0 refuses every
    /// call that would have to wait.
    ///
    /// Calls of [`wait`](WaitGroup::wait) do not count.
    fn max_waiters(most: u32) => wait.max_waiters = most;
}

impl WaitGroupBuilder {
    pub(super) fn new(limit: u32) -> Self {
        Self { limit, wait: Wait::FOR_EVER, options: LeaseOptions::default() }
    }

    /// Builds the WaitGroups of the namespace `name` in a store. All users of the same store and name share them.
    ///
    /// If the processes use different limits, for example during a deployment, each call is decided by its own limit.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`, if the
    /// limit is 0, or if the ttl is out of range.
    pub fn build(self, store: &Store, name: &str) -> Result<WaitGroup, Error> {
        self.options.check()?;
        let limit = check_limit(self.limit)?;
        let namespace = Namespace::new(store, name)?;
        let counts = telemetry::Leases::new("permit", name);
        let leases = Leases::shared(store, name, || namespace, self.options, counts);
        let decisions = Decisions::new("wait_group", name);
        Ok(WaitGroup { leases, name: name.into(), decisions, limit, wait: self.wait })
    }
}

pub(super) fn check_limit(limit: u32) -> Result<u32, Error> {
    in_range("the limit", 1.., "at least 1", limit).map(|()| limit)
}
