#![doc = include_str!("mutex/page.md")]

pub(crate) mod all;
pub(crate) mod builder;
mod jobs;
// One of the tests creates quorums.
#[cfg(test)]
#[cfg(feature = "quorum")]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Subject, Why};
use crate::key::Key;
use crate::lease::acquire_all::AcquireAll;
use crate::lease::handle::{Lease, guard};
use crate::lease::holders::Exclusive;
use crate::lease::look::{Holder, Snapshot};
use crate::lease::namespace::{LeaseNamespace, Leases};
use crate::lease::token::Suffix;
use crate::lease::waiter::{AcquireRequest, Acquired, Patience};
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::redis::names::check_exact;
use crate::store::timer::sleep;
use crate::sync::lock;
use crate::telemetry::counters::Decisions;

pub use self::all::MutexGuards;
pub use self::builder::MutexBuilder;
pub use crate::layers::mutex::MutexLayer;

/// Where locks are that are not in one store.
pub(crate) trait LockSource: fmt::Debug + Send + Sync {
    /// Makes one attempt to lock.
    fn acquire(
        self: Arc<Self>,
        key: Key,
        suffix: Suffix,
    ) -> BoxFuture<'static, Result<Lease, Error>>;

    fn is_locked(self: Arc<Self>, key: Key) -> BoxFuture<'static, Result<bool, Error>>;
}

/// A namespace of mutexes, one for each key. Cheap to clone. See the [module](crate::mutex) for details.
///
/// # Cancel safety
///
/// All methods are cancel safe. If the future is dropped, the waiter leaves the queue. A lock that was granted in the
/// meantime is released in the background.
///
/// A future that is granted the lock and is not polled keeps it for about 1 s (half of the ttl if that is shorter). If
/// its own call acquired a free lock, it keeps the lock for up to the time that [a call can
/// take](crate::StoreBuilder#how-long-a-call-can-take) plus 1.5 s. Then the next waiter gets the lock, and the future
/// acquires it anew when it is polled.
#[derive(Clone, Debug)]
pub struct Mutex {
    /// The leases in the store, or in the first store of a quorum. The options and the end of the latter are those of
    /// the quorum.
    pub(crate) leases: Leases<Exclusive>,
    /// `None`: the locks are in one store.
    pub(crate) quorum: Option<Arc<dyn LockSource>>,
    name: Arc<str>,
    settings: Arc<Settings>,
    values: Arc<Values>,
    pub(crate) decisions: Decisions,
    /// For [`lock_all`](Self::lock_all), made on first use.
    several: Arc<OnceLock<Option<Client<AcquireAll>>>>,
}

/// The settings of mutexes that are not options of their leases.
#[derive(Clone)]
pub(crate) struct Settings {
    wait: Patience,
    /// `None`: on one store, wait in the queue; on a quorum, 32 tries.
    tries: Option<u32>,
    /// The pause after this number of attempts.
    retry_delay: Arc<dyn Fn(u32) -> Duration + Send + Sync>,
    value: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    exact_names: bool,
    strict_fifo: bool,
    #[cfg(feature = "quorum")]
    pub(crate) quorum: QuorumSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: Patience::FOR_EVER,
            tries: None,
            retry_delay: Arc::new(|_| {
                Duration::from_millis(50) + Duration::from_millis(200).mul_f64(clock::fraction())
            }),
            value: None,
            exact_names: false,
            strict_fifo: false,
            #[cfg(feature = "quorum")]
            quorum: QuorumSettings::default(),
        }
    }
}

/// The settings of mutexes on a quorum.
#[cfg(feature = "quorum")]
#[derive(Clone, Debug)]
pub(crate) struct QuorumSettings {
    pub(crate) timeout_factor: f64,
    pub(crate) fail_fast: bool,
    pub(crate) shuffle_nodes: bool,
}

#[cfg(feature = "quorum")]
impl Default for QuorumSettings {
    fn default() -> Self {
        Self {
            timeout_factor: 0.05,
            fail_fast: false,
            shuffle_nodes: false,
        }
    }
}

#[cfg(feature = "quorum")]
impl QuorumSettings {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let factor = self.timeout_factor;
        if factor > 0.0 && factor < 1.0 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "timeout_factor must be above 0 and below 1, is {factor}"
        )))
    }
}

impl Settings {
    /// Whether waiters poll, as in other libraries, instead of waiting in the queue.
    fn polls(&self) -> bool {
        self.exact_names && !self.strict_fifo
    }

    /// The name under which mutexes share their state. All mutexes with exact names are in one namespace.
    fn shared_name<'a>(&self, name: &'a str) -> &'a str {
        if self.exact_names { "" } else { name }
    }
}

debug!(Settings, wait, tries, exact_names);

impl Mutex {
    /// Creates the mutexes of the namespace `name` in a store, with the default settings.
    ///
    /// Use the [`builder`](Self::builder) for other settings.
    ///
    /// # Errors
    ///
    /// Same as [`MutexBuilder::build`].
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        Self::builder().build(store, name)
    }

    /// Locks the mutex of a key. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused): the wait exceeded [`max_wait`](MutexBuilder::max_wait) or
    ///   [`tries`](MutexBuilder::tries), or the queue is full ([`max_waiters`](MutexBuilder::max_waiters)).
    /// * [`is_interrupted`](Error::is_interrupted): [`close`](Self::close) was called.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    /// * [`is_invalid`](Error::is_invalid): the key is not allowed with [`exact_names`](MutexBuilder::exact_names),
    ///   or the value of [`value_with`](MutexBuilder::value_with) is empty or already in use for this key.
    pub async fn lock(&self, key: impl Into<Key>) -> Result<MutexGuard, Error> {
        self.decisions
            .admitted(self.wait(key.into(), self.settings.wait).await)
    }

    /// Locks the mutex of a key if it is free and has no waiters. Does not wait.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) if the lock is held or has waiters. Otherwise the same as
    /// [`lock`](Self::lock).
    pub async fn try_lock(&self, key: impl Into<Key>) -> Result<MutexGuard, Error> {
        let locked = self.ask(key.into(), None).await;
        self.decisions.admitted(locked)
    }

    /// Returns whether the lock of a key is held, by this process or by another.
    ///
    /// ```
    /// # use tower_distributed::{Mutex, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let reports = Mutex::new(&Store::in_memory(), "reports")?;
    /// let lock = reports.lock("2026-11").await?;
    /// assert!(reports.is_locked("2026-11").await?);
    /// lock.unlock().await?;
    /// assert!(!reports.is_locked("2026-11").await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    pub async fn is_locked(&self, key: impl Into<Key>) -> Result<bool, Error> {
        if let Some(quorum) = &self.quorum {
            return Arc::clone(quorum).is_locked(key.into()).await;
        }
        Ok(self.leases.namespace.in_use(key.into()).await? > 0)
    }

    /// Returns the holder of a lock and the number of waiters. Changes nothing.
    ///
    /// ```
    /// # use tower_distributed::{Mutex, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let reports = Mutex::new(&Store::in_memory(), "reports")?;
    /// let lock = reports.lock("2026-11").await?;
    /// let snapshot = reports.inspect("2026-11").await?;
    /// assert_eq!(snapshot.holders[0].fence, Some(lock.fence()));
    /// assert_eq!(snapshot.waiting, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    /// * [`is_invalid`](Error::is_invalid): the lock is on a quorum, or the key is not allowed with
    ///   [`exact_names`](MutexBuilder::exact_names).
    pub async fn inspect(&self, key: impl Into<Key>) -> Result<Snapshot, Error> {
        let key = key.into();
        self.one_store(&key)?.look(key).await
    }

    /// Revokes the lock of a holder. As after a release by the holder, the next waiter is woken and acquires the lock.
    /// Returns whether the holder still held it.
    ///
    /// The holder's consent is not needed. A message notifies its process, which then checks the store at once, and the
    /// lock is [lost](crate::LeaseHandle::lost). A process receives messages once a caller has waited for a lock or a
    /// permit, or for `lost()` for 1 s. Without messages, the holder detects the loss at its next renewal, after a
    /// third of its ttl at most; without [`watchdog`](MutexBuilder::watchdog), when the ttl ends. Until then two
    /// holders may work at once: the resource must check the [fencing token](MutexGuard::fence), which is higher for
    /// the next holder. Waiters of the holder's own process share its place in the queue, and wait until it detects the
    /// loss. A holder that hands the lock on to one of them before that does not detect the loss: even
    /// [`unlock`](MutexGuard::unlock) returns `true`.
    ///
    /// ```
    /// # use tower_distributed::{Mutex, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let reports = Mutex::new(&Store::in_memory(), "reports")?;
    /// let stuck = reports.lock("2026-11").await?;
    ///
    /// let snapshot = reports.inspect("2026-11").await?;
    /// assert!(reports.revoke("2026-11", &snapshot.holders[0]).await?);
    /// let next = reports.try_lock("2026-11").await?;
    /// assert!(next.fence() > stuck.fence());
    /// assert!(stuck.extend().await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The same errors as [`inspect`](Self::inspect). If the store is unavailable, the lock may have been revoked.
    pub async fn revoke(&self, key: impl Into<Key>, holder: &Holder) -> Result<bool, Error> {
        let key = key.into();
        self.one_store(&key)?
            .revoke(key, holder.whole_token())
            .await
    }

    /// The leases in the one store of this value.
    fn one_store(&self, key: &Key) -> Result<&LeaseNamespace<Exclusive>, Error> {
        if self.quorum.is_some() {
            let text = "the locks of a quorum have no single state: inspect each of its stores";
            return Err(Error::invalid(text));
        }
        self.check(key)?;
        Ok(&self.leases.namespace)
    }

    /// Checks a key that is used as the name of a lock.
    fn check(&self, key: &Key) -> Result<(), Error> {
        match self.settings.exact_names {
            true => check_exact(key, self.leases.namespace.store.prefix()),
            false => Ok(()),
        }
    }

    /// Closes this value and its clones: pending and later calls of [`lock`](Self::lock) and
    /// [`try_lock`](Self::try_lock) fail with an error that [is interrupted](Error::is_interrupted). Guards stay valid.
    ///
    /// ```
    /// # use tower_distributed::{Mutex, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let reports = Mutex::new(&Store::in_memory(), "reports")?;
    /// let lock = reports.lock("2026-11").await?;
    /// reports.close(); // this process shuts down
    /// assert!(reports.lock("2026-12").await.unwrap_err().is_interrupted());
    /// assert!(lock.unlock().await?);
    /// # Ok(()) }
    /// ```
    pub fn close(&self) {
        self.leases.close();
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the mutexes of this name in the memory of this process, which replaces the store while it is
    /// unavailable. For a quorum, it replaces all stores.
    pub(crate) fn local_share(&self) -> Self {
        let name = self.settings.shared_name(&self.name);
        let leases = self
            .leases
            .local_share(name, |store| match self.settings.exact_names {
                true => Namespace::exact(store),
                false => Namespace::open(store, name),
            });
        let values = leases.namespace.store.shared(name, Arc::default);
        Self {
            leases,
            quorum: None,
            values,
            several: Arc::default(),
            ..self.clone()
        }
    }

    /// Locks, and waits for up to `max_wait` (`None`: does not wait). Does not count a decision.
    pub(crate) async fn acquire(
        &self,
        key: Key,
        max_wait: Option<Duration>,
    ) -> Result<MutexGuard, Error> {
        match max_wait {
            None => self.ask(key, None).await,
            max_wait => {
                self.wait(
                    key,
                    Patience {
                        max_wait,
                        ..self.settings.wait
                    },
                )
                .await
            }
        }
    }

    /// Waits in the queue of the store, or polls if there is no queue or `tries` is set.
    async fn wait(&self, key: Key, wait: Patience) -> Result<MutexGuard, Error> {
        let tries = match self.settings.tries {
            Some(tries) => tries,
            None if self.quorum.is_some() => 32,
            None if self.settings.polls() => u32::MAX,
            None => return self.ask(key, Some(wait)).await,
        };
        self.try_often(key, wait.max_wait, tries).await
    }

    /// Makes one attempt. `wait`: `Some` to take a place in the queue if the lock is not free.
    async fn ask(&self, key: Key, wait: Option<Patience>) -> Result<MutexGuard, Error> {
        self.check(&key)?;
        let (suffix, in_use) = self.suffix(&key)?;
        let lease = match &self.quorum {
            Some(quorum) => Arc::clone(quorum).acquire(key, suffix).await?,
            None => {
                let ask = AcquireRequest::new((), Subject::Lock, suffix, 0, wait);
                let Acquired::Lease(lease, _) = self.leases.acquire(key, ask).await?;
                lease
            }
        };
        Ok(MutexGuard::new(lease, in_use))
    }

    /// The suffix of the token of a lock: the value of the user, which is marked as in use.
    fn suffix(&self, key: &Key) -> Result<(Suffix, Option<InUse>), Error> {
        match self.settings.value.as_ref().map(|value| value()) {
            Some(value) if value.is_empty() => {
                Err(Error::invalid("the value of a lock must not be empty"))
            }
            Some(value) => Ok((
                format!(":{value}").into(),
                Some(self.values.take(key, &value)?),
            )),
            None => Ok((Suffix::default(), None)),
        }
    }

    /// Makes up to `tries` attempts, with pauses between them.
    async fn try_often(
        &self,
        key: Key,
        max_wait: Option<Duration>,
        tries: u32,
    ) -> Result<MutexGuard, Error> {
        let settings = &self.settings;
        let deadline = max_wait.and_then(|max_wait| Instant::now().checked_add(max_wait));
        let mut closed = self.leases.holding().closed.subscribe();
        let mut tried = 0;
        loop {
            if *closed.borrow_and_update() {
                return Err(Error::interrupted());
            }
            let error = match self.ask(key.clone(), None).await {
                Ok(guard) => return Ok(guard),
                // An outage can end before the next attempt, or another node can reply.
                Err(error) if error.is_refused() || error.is_away() && !error.is_denied() => error,
                Err(error) => return Err(error),
            };
            tried += 1;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let delay = (tried < tries).then(|| (settings.retry_delay)(tried));
            let Some(delay) = delay.filter(|delay| left.is_none_or(|left| *delay <= left)) else {
                return Err(if error.is_refused() {
                    waited_too_long(error.retry_after())
                } else {
                    error
                });
            };
            tokio::select! {
                () = sleep(delay) => {}
                _ = closed.changed() => {}
            }
        }
    }
}

fn waited_too_long(retry_after: Option<Duration>) -> Error {
    Busy {
        subject: Subject::Lock,
        why: Why::WaitedTooLong,
        retry_after,
    }
    .into()
}

/// The values in use in one namespace. All mutexes of a name share them.
#[derive(Debug, Default)]
struct Values(std::sync::Mutex<HashSet<Name>>);

type Name = (Key, Box<str>);

/// A value in use. Dropping this frees the value.
#[derive(Debug)]
struct InUse {
    values: Arc<Values>,
    name: Name,
}

impl Values {
    /// Marks a value as in use for a key. Fails if it is already in use.
    fn take(self: &Arc<Self>, key: &Key, value: &str) -> Result<InUse, Error> {
        let name: Name = (key.clone(), value.into());
        if lock(&self.0).insert(name.clone()) {
            return Ok(InUse {
                values: Arc::clone(self),
                name,
            });
        }
        Err(Error::invalid(format!(
            "the lock value {value:?} is already in use for this key in this process: each holder needs its own \
             value, and dropping the guard frees the value"
        )))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        lock(&self.values.0).remove(&self.name);
    }
}

/// A guard of a locked mutex. Dropping it unlocks the mutex in the background.
///
/// ```
/// # use tower_distributed::{Mutex, Store};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let reports = Mutex::new(&Store::in_memory(), "reports")?;
/// let lock = reports.lock("2026-11").await?;
/// // Write the report here.
/// assert!(lock.unlock().await?); // `false`: another process may have written it too
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped unlocks its mutex"]
pub struct MutexGuard(Lease);

impl MutexGuard {
    /// The value stays in use until the lease is released.
    fn new(lease: Lease, in_use: Option<InUse>) -> Self {
        Self(match in_use {
            Some(in_use) => lease.with_guard(in_use),
            None => lease,
        })
    }

    /// Returns the fencing token, which is greater than the token of every earlier holder of this key.
    ///
    /// The resource that you write to should check it: see [`guarantees`](crate::guarantees).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence().unwrap_or(0)
    }
}

guard!(MutexGuard.0, "the lock", unlock);
