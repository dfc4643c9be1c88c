//! The builder of reader-writer locks.

use std::time::Duration;

use crate::error::Error;
use crate::lease::namespace::Leases;
use crate::lease::options::LeaseOptions;
use crate::lease::token::percent;
use crate::lease::waiter::Patience;
use crate::macros::{in_range, setters};
use crate::rw_lock::{RwLock, Settings};
use crate::store::Store;
use crate::store::client::Namespace;
use crate::telemetry;
use crate::telemetry::counters::Decisions;

/// A builder for a [`RwLock`].
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{RwLock, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let documents = RwLock::builder()
///     .ttl(Duration::from_millis(50))
///     .watchdog(false)                  // a writer that takes longer than 50 ms loses its lock
///     .max_wait(Duration::from_secs(5)) // `read` and `write` give up after 5 s
///     .max_waiters(100)                 // the 101st waiter is refused at once
///     .most_writers(4)                  // after four writers, readers that wait are served
///     .app_id("editor")                 // a part of the tokens in Redis
///     .build(&Store::in_memory(), "documents")?;
///
/// let slow = documents.write("42").await?;
/// assert!(slow.token().contains("editor"));
/// let next = documents.write("42").await?; // after 50 ms
/// assert!(!slow.is_held() && next.fence() > slow.fence());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RwLockBuilder {
    settings: Settings,
    app_id: Option<Vec<u8>>,
    options: LeaseOptions,
}

impl Default for RwLockBuilder {
    fn default() -> Self {
        let settings = Settings {
            prefer_readers: false,
            most_writers: 16,
            wait: Patience::FOR_EVER,
        };
        Self {
            settings,
            app_id: None,
            options: LeaseOptions::default(),
        }
    }
}

setters! { RwLockBuilder:
    /// Sets the ttl of a lock, 10 ms to 1 day. Default: 30 s.
    ///
    /// The lock of a crashed process expires after this time.
    fn ttl(ttl: Duration) => options.ttl = ttl;

    /// Sets whether a lock is renewed while it is held, every third of its ttl. Default: `true`.
    fn watchdog(watchdog: bool) => options.watchdog = watchdog;

    /// Sets the maximum time for which a lock is held, at least the [`ttl`](Self::ttl). Default: as long as its guard
    /// lives.
    ///
    /// The watchdog renews a lock as long as its guard exists, even if the guard is leaked or left in a map. After this
    /// time the lock is lost, as if it had expired: it is released to the next waiter,
    /// [`lost`](crate::LeaseHandle::lost) resolves, and the event `lease_lost` reports it. It needs the
    /// [`watchdog`](Self::watchdog): without it, the ttl is the maximum.
    fn max_hold(max_hold: Duration) => options.max_hold = Some(max_hold);

    /// Sets how long [`read`](RwLock::read) and [`write`](RwLock::write) wait. Default: no limit.
    ///
    /// A free lock is acquired even with a shorter `max_wait`, as long as the server replies within 500 ms. A call
    /// without a reply fails as [unavailable](crate::Error::is_unavailable).
    fn max_wait(max_wait: Duration) => settings.wait.max_wait = Some(max_wait);

    /// Sets the maximum number of waiters of a key. Further waiters are refused immediately. Default: no limit. 0
    /// refuses every call that would have to wait.
    fn max_waiters(most: u32) => settings.wait.max_waiters = most;

    /// Serves readers first if readers and writers wait. A writer waits until there are no readers, so it can starve.
    /// Default: writers first, and after [`most_writers`](Self::most_writers) in a row, the waiting readers.
    ///
    /// Use the same setting in all processes that share the namespace.
    fn prefer_readers() => settings.prefer_readers = true;

    /// Sets how many writers in a row may pass waiting readers, at least 1. Default: 16.
    fn most_writers(most: u32) => settings.most_writers = most;

    /// Sets how long the store remembers the last [fencing token](crate::rw_lock::RwLockWriteGuard::fence) of a key
    /// that is not locked, 1 s to 365 days, in whole milliseconds, and at least the [`ttl`](Self::ttl). Default: 7 to
    /// 8 days.
    ///
    /// A remembered token takes about 160 B in Redis. Choose a shorter time if you lock many keys, each of them rarely.
    ///
    /// Each writer and each renewal of its lock starts this time again. After it has passed, the next token is the time
    /// of the server (µs since 1970). It is greater than all earlier tokens of the key, unless the clock of the server
    /// has been set back by `fence_ttl` or more since the last writer. A failover to a server whose clock is behind
    /// also sets the clock back. A [reader](crate::rw_lock::RwLockReadGuard::fence) gets no token after this time.
    ///
    /// The last writer sets the time for its key, so use the same setting in all processes. With different settings,
    /// tokens still increase, but the shortest setting limits how far clocks may be set back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{RwLock, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let hour = Duration::from_secs(3600); // more than the clock of the server is ever set back
    /// let uploads = RwLock::builder().fence_ttl(hour).build(&Store::in_memory(), "uploads")?;
    /// let first = uploads.write("4711").await?;
    /// let fence = first.fence();
    /// first.release().await?;
    /// assert!(uploads.write("4711").await?.fence() > fence);
    ///
    /// let error = RwLock::builder().fence_ttl(Duration::ZERO).build(&Store::in_memory(), "uploads").unwrap_err();
    /// assert_eq!(error.to_string(), "fence_ttl must be 1 s to 365 days, is 0ns");
    /// # Ok(()) }
    /// ```
    fn fence_ttl(fence_ttl: Duration) => options.fence_ttl = Some(fence_ttl);

    /// Sets an id that the tokens in Redis contain, to identify the application that holds a lock. 1 to 64 bytes.
    /// Default: none.
    ///
    /// Bytes other than `A-Z a-z 0-9 - _ .` are percent-encoded.
    fn app_id(app_id: impl AsRef<[u8]>) => app_id = Some(app_id.as_ref().to_vec());
}

impl RwLock {
    /// Returns a builder to change the settings.
    pub fn builder() -> RwLockBuilder {
        RwLockBuilder::default()
    }
}

impl RwLockBuilder {
    /// Builds the locks of the namespace `name` in a store. All users of the same store and name share them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`, or if a
    /// setting is out of range.
    pub fn build(self, store: &Store, name: &str) -> Result<RwLock, Error> {
        self.options.check()?;
        in_range(
            "most_writers",
            1..,
            "at least 1",
            self.settings.most_writers,
        )?;
        let mut options = self.options;
        if let Some(app_id) = self.app_id {
            in_range("app_id", 1..=64, "1 to 64 bytes long", app_id.len())?;
            options.signature = format!("@{}", percent::encode(&app_id));
        }
        let namespace = Namespace::new(store, name)?;
        let counts = telemetry::Leases::new("rw_lock", name);
        let leases = Leases::shared(store, name, || namespace, options, counts);
        let decisions = Decisions::new("rw_lock", name);
        Ok(RwLock {
            leases,
            name: name.into(),
            decisions,
            group: "".into(),
            settings: self.settings,
        })
    }
}
