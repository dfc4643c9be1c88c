//! The builder of mutexes.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lease::holders::Exclusive;
use crate::lease::namespace::Leases;
use crate::lease::options::LeaseOptions;
use crate::macros::{in_range, setters};
use crate::mutex::{LockSource, Mutex, Settings};
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::redis::names::check_name;
use crate::store::validity::Drift;
use crate::telemetry;
use crate::telemetry::counters::Decisions;

/// A builder for a [`Mutex`].
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Mutex, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let reports = Mutex::builder()
///     .ttl(Duration::from_secs(10))     // the lock of a crashed process expires after 10 s
///     .max_wait(Duration::from_secs(5)) // `lock` gives up after 5 s
///     .max_waiters(100)                 // the 101st waiter is refused at once
///     .strict_fifo()                    // in the order of arrival across processes
///     .build(&Store::in_memory(), "reports")?;
/// let guard = reports.lock("2026-11").await?;
/// assert!(guard.unlock().await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct MutexBuilder {
    pub(crate) settings: Settings,
    options: LeaseOptions,
}

setters! { MutexBuilder:
    /// Sets the ttl of a lock, 10 ms to 1 day. Default: 30 s.
    ///
    /// The lock of a crashed process expires after this time.
    fn ttl(ttl: Duration) => options.ttl = ttl;

    /// Sets whether a lock is renewed while it is held, every third of its ttl. Default: `true`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let imports = Mutex::builder().ttl(Duration::from_secs(10)).watchdog(false);
    /// let imports = imports.build(&Store::in_memory(), "imports")?;
    /// let lock = imports.lock("2026-11").await?;
    /// for step in ["download", "parse", "write"] {
    ///     lock.extend().await?; // 10 s for the next step; an error if the lock is lost
    ///     println!("{step}");
    /// }
    /// # Ok(()) }
    /// ```
    fn watchdog(watchdog: bool) => options.watchdog = watchdog;

    /// Sets the maximum time for which a lock is held, at least the [`ttl`](Self::ttl). Default: as long as its guard
    /// lives.
    ///
    /// The watchdog renews a lock as long as its guard exists, even if the guard is leaked or left in a map. After this
    /// time the lock is lost, as if it had expired: it is released to the next waiter,
    /// [`lost`](crate::LeaseHandle::lost) resolves, and the event `lease_lost` reports it. It needs the
    /// [`watchdog`](Self::watchdog): without it, the ttl is the maximum.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # tokio::time::pause();
    /// let reports = Mutex::builder().max_hold(Duration::from_secs(3600)).build(&Store::in_memory(), "reports")?;
    /// let lock = reports.lock("2026-11").await?;
    /// lock.lost().await; // after an hour, unless it is unlocked
    /// assert!(reports.try_lock("2026-11").await.is_ok());
    /// # Ok(()) }
    /// ```
    fn max_hold(max_hold: Duration) => options.max_hold = Some(max_hold);

    /// Sets the minimum time for which a lock is held, even if it is unlocked earlier; at most the [`ttl`](Self::ttl).
    /// Default: zero.
    ///
    /// For scheduled jobs: hosts whose clocks differ start the same job at different times. If the job is short, a host
    /// whose clock is late would find the lock free again and run the job a second time. Choose a time longer than the
    /// maximum difference of the clocks.
    ///
    /// The holder's guard ends when it unlocks. The process then keeps the lock in the store for the rest of the time,
    /// and renews it. If the process ends earlier, the lock remains for up to its [`ttl`](Self::ttl).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let jobs = Mutex::builder().at_least_for(Duration::from_secs(10)).build(&Store::in_memory(), "jobs")?;
    /// jobs.try_lock("report").await?.unlock().await?;
    /// assert!(jobs.try_lock("report").await.unwrap_err().is_refused());
    /// # Ok(()) }
    /// ```
    fn at_least_for(span: Duration) => options.at_least_for = span;

    /// Sets how long [`lock`](Mutex::lock) waits. Default: no limit.
    ///
    /// A free lock is acquired even with a shorter `max_wait`, as long as the server replies within 500 ms. A call
    /// without a reply fails as [unavailable](crate::Error::is_unavailable).
    fn max_wait(max_wait: Duration) => settings.wait.max_wait = Some(max_wait);

    /// Sets the maximum number of waiters of a key in the queue of the store. Further waiters are refused immediately.
    /// Default: no limit. 0 refuses every call that would have to wait.
    ///
    /// With this setting, each waiter has its own place in the queue, as with [`strict_fifo`](Self::strict_fifo).
    ///
    /// With [`exact_names`](Self::exact_names) there is no queue, so [`build`](Self::build) returns an error that
    /// [is invalid](Error::is_invalid), unless [`strict_fifo`](Self::strict_fifo) is set as well.
    fn max_waiters(most: u32) => settings.wait.max_waiters = most;

    /// Gives each waiter its own place in the queue of the store, so that waiters are served in the order of arrival
    /// across processes.
    ///
    /// By default, a process hands the lock over to its own next waiter, in the order of arrival in this process, up to
    /// 31 times or for 2 ms. Then the process that has waited longest gets the lock.
    ///
    /// With [`exact_names`](Self::exact_names), waiters then wait in the queue instead of polling. They are served
    /// before clients of other libraries, which poll and get the lock only if the queue is empty.
    fn strict_fifo() => settings.strict_fifo = true;

    /// Sets the maximum number of attempts to lock, at least 1. Default: 32 on a quorum, no maximum on one store.
    ///
    /// With this setting, a waiter does not wait in the queue of the store. It tries again after each
    /// [pause](Self::retry_delay), until the attempts or [`max_wait`](Self::max_wait) end.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let jobs = Mutex::builder().tries(3).retry_delay(|_| Duration::from_millis(10));
    /// let jobs = jobs.build(&Store::in_memory(), "jobs")?;
    /// let _running = jobs.lock("report").await?;
    /// assert!(jobs.lock("report").await.unwrap_err().is_waited_too_long()); // after 20 ms
    /// # Ok(()) }
    /// ```
    fn tries(tries: u32) => settings.tries = Some(tries);

    /// Sets a function that returns the pause between two attempts of a waiter that polls. Its argument is the number
    /// of failed attempts, from 1. Default: a random time from 50 to 250 ms.
    ///
    /// The function is called once before each pause. With [`exact_names`](Self::exact_names) and
    /// [`strict_fifo`](Self::strict_fifo), [`build`](Self::build) calls it with 1 instead. The result is the interval
    /// at which a waiter in the queue checks the store, because an unlock by another library does not wake it. In this
    /// case, a pause shorter than 1 ms counts as 1 ms.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let doubled = |failed: u32| Duration::from_millis(10 << failed.min(6)); // 20 ms, 40 ms, … 640 ms
    /// let jobs = Mutex::builder().tries(3).retry_delay(doubled).build(&Store::in_memory(), "jobs")?;
    /// let _running = jobs.lock("report").await?;
    /// assert!(jobs.lock("report").await.unwrap_err().is_waited_too_long()); // after 60 ms
    /// # Ok(()) }
    /// ```
    fn retry_delay(delay: impl Fn(u32) -> Duration + Send + Sync + 'static)
        => settings.retry_delay = Arc::new(delay);

    /// Sets how long the store remembers the last [fencing token](crate::MutexGuard::fence) of a key that is not
    /// locked, 1 s to 365 days, in whole milliseconds, and at least the [`ttl`](Self::ttl). Default: 7 to 8 days.
    ///
    /// A remembered token takes about 160 B in Redis. Choose a shorter time if you lock many keys, each of them rarely.
    ///
    /// Each lock and each renewal starts this time again. After it has passed, the next token is the time of the server
    /// (µs since 1970). It is greater than all earlier tokens of the key, unless the clock of the server has been set
    /// back by `fence_ttl` or more since the last lock. A failover to a server whose clock is behind also sets the
    /// clock back. On a quorum, the clocks of the servers must not differ by `fence_ttl` or more.
    ///
    /// The last holder sets the time for its key, so use the same setting in all processes. With different settings,
    /// tokens still increase, but the shortest setting limits how far clocks may be set back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let hour = Duration::from_secs(3600); // more than the clock of the server is ever set back
    /// let uploads = Mutex::builder().fence_ttl(hour).build(&Store::in_memory(), "uploads")?;
    /// let first = uploads.lock("4711").await?;
    /// let fence = first.fence();
    /// first.unlock().await?;
    /// assert!(uploads.lock("4711").await?.fence() > fence);
    ///
    /// let error = Mutex::builder().fence_ttl(Duration::ZERO).build(&Store::in_memory(), "uploads").unwrap_err();
    /// assert_eq!(error.to_string(), "fence_ttl must be 1 s to 365 days, is 0ns");
    /// # Ok(()) }
    /// ```
    fn fence_ttl(fence_ttl: Duration) => options.fence_ttl = Some(fence_ttl);

    /// Sets the part of the ttl on which a holder does not rely, because clocks may run at different speeds. From 0 to
    /// below 1. Default: 0.01.
    ///
    /// A holder relies on the ttl minus this part and 2 ms. The rest must be at least 5 ms.
    fn drift_factor(factor: f64) => options.drift = Drift(factor);

    /// Sets a function that returns the value of each lock in Redis, for other programs to read. The value must not
    /// be empty. Default: a random value that is never repeated.
    ///
    /// Two holders with the same value still exclude each other. If a guard of this process already uses the value
    /// for the key, locking fails with an error that [is invalid](Error::is_invalid), because the caller would wait
    /// for its own lock.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let jobs = Mutex::builder().value_with(|| "host-7".to_owned()).build(&Store::in_memory(), "jobs")?;
    /// let lock = jobs.lock("report").await?;
    /// assert_eq!(lock.token(), "host-7");
    /// assert!(jobs.try_lock("report").await.unwrap_err().is_invalid()); // this process has the lock already
    /// # Ok(()) }
    /// ```
    fn value_with(value: impl Fn() -> String + Send + Sync + 'static)
        => settings.value = Some(Arc::new(value));

    /// Uses the key itself as the name of the lock in Redis, to share locks with other libraries. Default: the name
    /// is `prefix:{namespace:key}:lock`.
    ///
    /// Other libraries poll. With this setting, waiters here poll too, every [`retry_delay`](Self::retry_delay) and
    /// in no order, unless [`strict_fifo`](Self::strict_fifo) is set.
    ///
    /// The other keys of a lock are named `{key}:prefix:…`, or `key:prefix:=…` if the key has a hash tag. So a key
    /// must not contain `:prefix:`. It must not be empty, and may contain `}` only if it has a hash tag.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory(); // or the Redis that another service locks with redsync
    /// let jobs = Mutex::builder().exact_names().retry_delay(|_| Duration::from_millis(100)).build(&store, "jobs")?;
    /// let lock = jobs.lock("cron:report").await?; // the key `cron:report` in Redis
    /// assert!(jobs.is_locked("cron:report").await?);
    /// # Ok(()) }
    /// ```
    fn exact_names() => settings.exact_names = true;
}

impl Mutex {
    /// Returns a builder to change the settings.
    pub fn builder() -> MutexBuilder {
        MutexBuilder::default()
    }
}

impl MutexBuilder {
    /// Builds the mutexes of the namespace `name` in a store. All users of the same store and name share them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`, or if a
    /// setting is out of range.
    pub fn build(self, store: &Store, name: &str) -> Result<Mutex, Error> {
        let leases = self.leases(store, name)?;
        Ok(self.mutex(leases, None, name))
    }

    pub(crate) fn mutex(
        self,
        leases: Leases<Exclusive>,
        quorum: Option<Arc<dyn LockSource>>,
        name: &str,
    ) -> Mutex {
        let values = leases
            .namespace
            .store
            .shared(self.settings.shared_name(name), Arc::default);
        let settings = Arc::new(self.settings);
        let decisions = Decisions::new("mutex", name);
        Mutex {
            leases,
            quorum,
            name: name.into(),
            settings,
            values,
            decisions,
            several: Arc::default(),
        }
    }

    pub(crate) fn leases(&self, store: &Store, name: &str) -> Result<Leases<Exclusive>, Error> {
        let Settings {
            tries,
            exact_names,
            strict_fifo,
            wait,
            ..
        } = self.settings;
        self.options.check()?;
        check_name("the name of a namespace", name)?;
        in_range("tries", 1.., "at least 1", tries)?;
        if self.settings.polls() && wait.max_waiters != u32::MAX {
            let text = format!(
                "max_waiters must not be set with exact_names, is {}: waiters poll and have no queue; remove \
                 max_waiters, or set strict_fifo",
                wait.max_waiters
            );
            return Err(Error::invalid(text));
        }
        #[cfg(feature = "quorum")]
        self.settings.quorum.check()?;
        let options = LeaseOptions {
            foreign: exact_names,
            ask_every: match exact_names {
                true if strict_fifo => (self.settings.retry_delay)(1).max(Duration::from_millis(1)),
                _ => self.options.ask_every,
            },
            // Each waiter needs its own place in the queue if waiters are counted, or if each lock has its own value.
            cohorts: !strict_fifo
                && !exact_names
                && self.settings.value.is_none()
                && wait.max_waiters == u32::MAX,
            ..self.options.clone()
        };
        let namespace = match exact_names {
            true => Namespace::exact(store),
            false => Namespace::new(store, name)?,
        };
        let counts = telemetry::Leases::new("mutex", name);
        Ok(Leases::shared(
            store,
            self.settings.shared_name(name),
            || namespace,
            options,
            counts,
        ))
    }
}
