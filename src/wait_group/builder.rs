//! The builder of WaitGroups.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lease::namespace::Leases;
use crate::lease::options::LeaseOptions;
use crate::lease::waiter::Patience;
use crate::macros::setters;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::telemetry;
use crate::telemetry::counters::Decisions;
use crate::wait_group::turn::{Queueing, Turn};
use crate::wait_group::{WaitGroup, check_limit};

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
    wait: Patience,
    options: LeaseOptions,
    queueing: Queueing,
}

setters! { WaitGroupBuilder:
    /// Sets the ttl of a permit, 10 ms to 1 day. Default: 30 s.
    ///
    /// The permits of a crashed process expire after this time.
    fn ttl(ttl: Duration) => options.ttl = ttl;

    /// Sets whether a permit is renewed while it is held, every third of its ttl. Default: `true`.
    fn watchdog(watchdog: bool) => options.watchdog = watchdog;

    /// Sets the maximum time for which a permit is held, at least the [`ttl`](Self::ttl). Default: as long as it lives.
    ///
    /// The watchdog renews a permit as long as its guard exists, even if the guard is leaked or left in a map. After
    /// this time the permit is lost, as if it had expired: it is released to the next waiter,
    /// [`lost`](crate::LeaseHandle::lost) resolves, and the event `lease_lost` reports it. It needs the
    /// [`watchdog`](Self::watchdog): without it, the ttl is the maximum.
    fn max_hold(max_hold: Duration) => options.max_hold = Some(max_hold);

    /// Sets how long [`add`](WaitGroup::add), [`add_n`](WaitGroup::add_n) and [`wait`](WaitGroup::wait) wait.
    /// Default: no limit.
    ///
    /// A free permit is acquired even with a shorter `max_wait`, as long as the server replies within 500 ms. A call
    /// without a reply fails as [unavailable](crate::Error::is_unavailable).
    fn max_wait(max_wait: Duration) => wait.max_wait = Some(max_wait);

    /// Sets the maximum number of waiters of a key. Further waiters are refused immediately. Default: no limit. 0
    /// refuses every call that would have to wait.
    ///
    /// Calls of [`wait`](WaitGroup::wait) do not count. With [`priorities`](Self::priorities), only the waiters of the
    /// same class and of those above it count. A caller of a [flow](Turn::flow) without a waiter takes the place of the
    /// last one of the longest flow of its class, if that has two or more: that waiter is refused. So made-up flows
    /// take no places. Waiters of a process that paused do not count until they come back; then there may be more.
    fn max_waiters(most: u32) => wait.max_waiters = most;

    /// Gives the flows of a key fair shares, as in *Fair shares* of the [module](crate::wait_group#fair-shares). Calls
    /// whose [`Turn`] has no flow count as one flow. Without this setting, they have as many shares as there are other
    /// flows.
    ///
    /// The share of a flow is that of its newest waiter. The store keeps flows with waiters, and flows that were served
    /// until it would be their turn again.
    ///
    /// ```
    /// use tower_distributed::wait_group::Turn;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::builder(10).fair().build(&Store::in_memory(), "exports")?;
    /// let permit = exports.with_turn(Turn::of("acme"))?.add("all").await?; // waits for its turn among the tenants
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    fn fair() => queueing.fair = true;

    /// Sets the number of classes, 1 to 8. Default: 1. A class is served before lower classes, see *Classes* of the
    /// [module](crate::wait_group#classes). Class 0 is the highest. Calls whose [`Turn`] has no class are in the
    /// lowest.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::wait_group::Turn;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::builder(10)
    ///     .priorities(3)
    ///     .aging(Duration::from_secs(5)) // each class is served every 5 s at least
    ///     .reserve(0, 2)                 // classes 1 and 2 get at most 8 permits
    ///     .build(&Store::in_memory(), "exports")?;
    /// let urgent = exports.with_turn(Turn::new().class(0))?;
    /// let _permit = urgent.add_n("acme", 10).await?;
    /// assert!(exports.add_n("acme", 9).await.unwrap_err().is_exceeds_limit());
    /// # Ok(()) }
    /// ```
    fn priorities(classes: u8) => queueing.classes = classes;

    /// Sets how long the waiters of a class may be passed by higher classes, 1 ms to 1 day. After that, the first
    /// waiter of the class is served next. Default: 10 s.
    fn aging(aging: Duration) => queueing.aging = aging;

    /// Sets whether a call is refused immediately if it probably cannot be served within its `max_wait`. The estimate
    /// is its place in the queue, times the recent hold time of permits in this process, divided by the limit. Default:
    /// `false`.
    ///
    /// No call is refused while the hold time is unknown: before the first release, and if there was no release for 60
    /// s, or for eight times the hold time. While this process releases no permit, one call per second is not refused,
    /// so that an estimate that is too high is detected.
    ///
    /// [`retry_after`](Error::retry_after) returns when a call would be served in time. The error [is like that of a
    /// full queue](Error::is_queue_full).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::builder(10)
    ///     .max_wait(Duration::from_secs(5))
    ///     .refuse_early(true)
    ///     .build(&Store::in_memory(), "exports")?;
    /// # let _ = exports;
    /// # Ok(()) }
    /// ```
    fn refuse_early(refuse_early: bool) => queueing.early = refuse_early;

    /// Serves the newest waiter of a key first while there have been waiters for this `interval`, 1 ms to 1 day.
    /// Otherwise waiters are served in the order of arrival, which is the default. See *Newest first under overload* of
    /// the [module](crate::wait_group#newest-first-under-overload).
    ///
    /// Waiters that are not served end by their [`max_wait`](Self::max_wait), so set one. This cannot be combined with
    /// [`fair`](Self::fair), or with turns of a [flow](Turn::flow), which keep the order of arrival.
    ///
    /// With [`priorities`](Self::priorities), each class has its own interval and serves its own newest waiter, below
    /// the classes above it. [`refuse_early`](Self::refuse_early) expects that a call is served next, if the newest is
    /// served first when it comes. If the interval ends while permits are free that the first waiter does not fit, the
    /// newest one gets them with the next call or heartbeat, at most 1.35 s later. If the store loses this state, or
    /// its clock is set back, the interval begins anew.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory();
    /// let search = WaitGroup::builder(100)
    ///     .newest_first_after(Duration::from_millis(100))
    ///     .max_wait(Duration::from_secs(2)) // no client waits for longer
    ///     .build(&store, "search")?;
    /// # let _ = search;
    ///
    /// let fair = WaitGroup::builder(100).fair().newest_first_after(Duration::from_millis(100));
    /// assert!(fair.build(&store, "fair").unwrap_err().is_invalid());
    /// # Ok(()) }
    /// ```
    fn newest_first_after(interval: Duration) => queueing.newest = Some(interval);
}

impl WaitGroup {
    /// Returns a builder to change the settings. `limit`: the maximum number of permits for each key, at least 1.
    pub fn builder(limit: u32) -> WaitGroupBuilder {
        WaitGroupBuilder::new(limit)
    }
}

impl WaitGroupBuilder {
    /// Reserves the last `permits` of each key for this class and higher classes. For calls of lower classes, the limit
    /// is lower by this number. Default: none.
    pub fn reserve(mut self, class: u8, permits: u32) -> Self {
        self.queueing.reserved.push((class, permits));
        self
    }

    pub(super) fn new(limit: u32) -> Self {
        Self {
            limit,
            wait: Patience::FOR_EVER,
            options: LeaseOptions::default(),
            queueing: Queueing::default(),
        }
    }

    /// Builds the WaitGroups of the namespace `name` in a store. All users of the same store and name share them.
    ///
    /// If the processes use different limits, for example during a deployment, each call is decided by its own limit, unless the
    /// fleet [sets one](crate::fleet::FleetLimit). Of all other settings, those that were built last apply to the waiters: see *During a
    /// deployment* of the [module](crate::wait_group#during-a-deployment).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`, if the
    /// limit is 0, if the ttl, the number of classes, the aging, the number of reserved permits or the interval of
    /// [`newest_first_after`](Self::newest_first_after) is out of range, or if that interval is set with
    /// [`fair`](Self::fair).
    pub fn build(self, store: &Store, name: &str) -> Result<WaitGroup, Error> {
        self.options.check()?;
        let limit = check_limit(self.limit)?;
        self.queueing.check(limit)?;
        let namespace = Namespace::new(store, name)?;
        let counts = telemetry::Leases::new("permit", name);
        let leases = Leases::shared(store, name, || namespace, self.options, counts);
        leases.namespace.follow_limit(name);
        let decisions = Decisions::new("wait_group", name);
        let wait = self.wait;
        let queueing = Arc::new(self.queueing);
        let turn = Turn::new();
        let rules = queueing.rules();
        let most = limit;
        Ok(WaitGroup {
            leases,
            name: name.into(),
            decisions,
            limit,
            most,
            wait,
            queueing,
            rules,
            turn,
        })
    }
}
