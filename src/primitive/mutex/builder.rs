//! Settings of a mutex.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::holder::Exclusive;
use super::quorum::Quorum;
use super::values::Values;
use super::{Mutex, Place};
use crate::primitive::lease::{Drift, LeaseOptions, Leases, Wait};
use crate::store::{Namespace, check_name};
use crate::telemetry::{self, Decisions};
use crate::{Error, Store, random};

/// Settings of a [`Mutex`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct MutexBuilder {
    settings: Settings,
    options: LeaseOptions,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) wait: Wait,
    /// `None`: as is usual there.
    pub(super) tries: Option<u32>,
    delay: Delay,
    pub(super) value: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    pub(super) exact_names: bool,
    pub(super) strict_fifo: bool,
    pub(super) timeout_factor: f64,
    pub(super) fail_fast: bool,
    pub(super) shuffle_nodes: bool,
    pub(super) cancel_when_lost: bool,
}

#[derive(Clone)]
enum Delay {
    /// Somewhere between.
    Random(Duration, Duration),
    Fixed(Duration),
    By(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: Wait::FOR_EVER,
            tries: None,
            delay: Delay::Random(Duration::from_millis(50), Duration::from_millis(250)),
            value: None,
            exact_names: false,
            strict_fifo: false,
            timeout_factor: 0.05,
            fail_fast: false,
            shuffle_nodes: false,
            cancel_when_lost: true,
        }
    }
}

impl Settings {
    /// Whether those who wait try again and again, as other libraries do, rather than stand in a queue.
    pub(super) fn polls(&self) -> bool {
        self.exact_names && !self.strict_fifo
    }

    /// By which name all share what they know: those with exact names are all of one namespace.
    fn shared_name<'a>(&self, name: &'a str) -> &'a str {
        if self.exact_names { "" } else { name }
    }

    /// The pause after so many tries.
    pub(super) fn retry_delay(&self, tried: u32) -> Duration {
        match &self.delay {
            Delay::Random(least, most) => *least + (*most - *least).mul_f64(random::fraction()),
            Delay::Fixed(delay) => *delay,
            Delay::By(delay) => delay(tried),
        }
    }
}

impl MutexBuilder {
    /// After what time the lock of a crashed process is free again, 10 ms to 1 day. Default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Whether locks are renewed as long as they are held, every third of their time to live. Default: yes.
    pub fn watchdog(mut self, watchdog: bool) -> Self {
        self.options.watchdog = watchdog;
        self
    }

    /// Sets how long a lock is held at least, even if it is unlocked earlier; at most the [`ttl`](Self::ttl). Default: zero.
    ///
    /// For scheduled jobs: hosts whose clocks differ start the same job at different times. With a short job, a host whose
    /// clock is late would find the lock free again and run the job a second time. Set it to more than the clocks may differ.
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
    pub fn at_least_for(mut self, span: Duration) -> Self {
        self.options.at_least_for = span;
        self
    }

    /// Sets whether [`with_lock`](Mutex::with_lock), [`try_with_lock`](Mutex::try_with_lock) and
    /// [`once_per_tick`](Mutex::once_per_tick) drop the work when the lock is lost. Default: `true`.
    pub fn cancel_when_lost(mut self, cancel: bool) -> Self {
        self.settings.cancel_when_lost = cancel;
        self
    }

    /// How long to wait for one's turn. Default: as long as it takes.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.settings.wait.max_wait = Some(max_wait);
        self
    }

    /// How many may wait for a key in the store's queue; more are refused at once. Each who waits has a place of its own
    /// there then. Nobody stands in it with [`exact_names`](Self::exact_names), unless [`strict_fifo`](Self::strict_fifo) is
    /// set: together with those it [is invalid](Error::is_invalid). Default: any number.
    pub fn max_waiters(mut self, most: u32) -> Self {
        self.settings.wait.max_waiters = most;
        self
    }

    /// Whether each who waits has a place of its own in the queue of the store, so that the lock goes round strictly in the
    /// order of arrival, whatever process they wait in. Default: no; a process hands the lock on within itself, in the order
    /// of arrival there, up to 31 times or for 2 ms, and then the process has its turn that has waited longest.
    ///
    /// With [`exact_names`](Self::exact_names) it makes those who wait stand in a queue at all, whose members go first: lockers
    /// of other libraries, which poll, get the lock only when nobody waits here.
    pub fn strict_fifo(mut self) -> Self {
        self.settings.strict_fifo = true;
        self
    }

    /// To try so often, at least once, with pauses in between, rather than to wait one's turn. On a quorum there
    /// are no turns, and the default is 32.
    pub fn tries(mut self, tries: u32) -> Self {
        self.settings.tries = Some(tries);
        self
    }

    /// The pause between tries, and how often those who wait ask where locks of others do not wake them. Default:
    /// something between 50 and 250 ms each time.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.settings.delay = Delay::Fixed(delay);
        self
    }

    /// The pause between tries, by the number of those that have failed (from 1).
    pub fn retry_delay_with(mut self, delay: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.settings.delay = Delay::By(Arc::new(delay));
        self
    }

    /// Of the time to live, how much is not relied on, since clocks may run at different speeds; from 0 to below 1.
    /// Default: 0.01.
    pub fn drift_factor(mut self, factor: f64) -> Self {
        self.options.drift = Drift(factor);
        self
    }

    /// Of the time to live, how long each server of a quorum may take to answer; above 0 and below 1. Default: 0.05,
    /// and never above the [time-out](crate::StoreBuilder::timeout) of its store.
    pub fn timeout_factor(mut self, factor: f64) -> Self {
        self.settings.timeout_factor = factor;
        self
    }

    /// Makes the values that locks hold, for others to read. They must not be empty. A value does not make two holders one:
    /// who has the same value waits or is refused like anybody else. But locking by a value that a guard of this process
    /// has for the key already [is invalid](Error::is_invalid): a holder would wait for itself. Default: random, and never
    /// twice the same.
    pub fn value_with(mut self, value: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.settings.value = Some(Arc::new(value));
        self
    }

    /// Keys are the names of the locks in Redis as they are, rather than `prefix:{namespace:key}:lock`: to share them
    /// with other libraries. Those libraries poll; so do those who wait here then, every
    /// [`retry_delay`](Self::retry_delay) and in no order, unless [`strict_fifo`](Self::strict_fifo) is set. What is kept
    /// beside a lock is named `{key}:prefix:…`, or `key:prefix:=…` where the key has a hash tag; so no key may contain
    /// `:prefix:`. Default: no.
    pub fn exact_names(mut self) -> Self {
        self.settings.exact_names = true;
        self
    }

    /// Whether a quorum stops asking as soon as the outcome is certain, rather than hear every server. Default: no.
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.settings.fail_fast = fail_fast;
        self
    }

    /// Whether a quorum asks its servers in another order each time. Default: no.
    pub fn shuffle_nodes(mut self, shuffle: bool) -> Self {
        self.settings.shuffle_nodes = shuffle;
        self
    }

    /// The mutexes of the namespace `name` in a store. Whoever uses the same store and name shares them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, or a setting is
    /// out of range.
    pub fn build(self, store: &Store, name: &str) -> Result<Mutex, Error> {
        let place = Place::Store(self.leases(store, name)?);
        let values = Values::shared(store, self.settings.shared_name(name));
        let decisions = Decisions::new("mutex", name);
        Ok(Mutex { place, name: name.into(), settings: Arc::new(self.settings), values, decisions })
    }

    /// The mutexes of the namespace `name` on several independent stores, of which a majority must grant a lock.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where there are no stores or one is there twice, and as
    /// [`build`](Self::build).
    pub fn build_quorum(self, stores: impl IntoIterator<Item = Store>, name: &str) -> Result<Mutex, Error> {
        let stores: Vec<_> = stores.into_iter().collect();
        let [first, ..] = &stores[..] else {
            return Err(Error::invalid("a quorum needs at least one store, got none"));
        };
        for (position, store) in stores.iter().enumerate() {
            if let Some(same) = stores[..position].iter().position(|other| other.is_same(store)) {
                return Err(Error::invalid(format!(
                    "the stores of a quorum must be independent, but number {same} and {position} (from 0) are the same"
                )));
            }
        }
        let nodes = stores.iter().map(|store| self.leases(store, name)).collect::<Result<_, _>>()?;
        let place = Place::Quorum(Quorum::new(first, nodes, &self.settings));
        let values = Values::shared(first, self.settings.shared_name(name));
        let decisions = Decisions::new("mutex", name);
        Ok(Mutex { place, name: name.into(), settings: Arc::new(self.settings), values, decisions })
    }

    fn leases(&self, store: &Store, name: &str) -> Result<Leases<Exclusive>, Error> {
        let Settings { tries, timeout_factor, exact_names, strict_fifo, wait, .. } = self.settings;
        self.options.check()?;
        check_name("the name of a namespace", name)?;
        if tries == Some(0) {
            return Err(Error::invalid("tries must be at least 1, got 0"));
        }
        if self.settings.polls() && wait.max_waiters != u32::MAX {
            let text = format!(
                "with exact names those who wait poll, and no queue can be kept to {} of them: leave max_waiters out, or set \
                 strict_fifo",
                wait.max_waiters
            );
            return Err(Error::invalid(text));
        }
        if !(timeout_factor > 0.0 && timeout_factor < 1.0) {
            let text = format!("the time-out factor must be above 0 and below 1, is {timeout_factor}");
            return Err(Error::invalid(text));
        }
        let options = LeaseOptions {
            foreign: exact_names,
            ask_every: match exact_names {
                true => self.settings.retry_delay(1).max(Duration::from_millis(1)),
                false => self.options.ask_every,
            },
            // Each stands in the queue by itself where it is to be counted, or has a value of its own.
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
        Ok(Leases::shared(store, self.settings.shared_name(name), || namespace, options, counts))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("wait", &self.wait)
            .field("tries", &self.tries)
            .field("exact_names", &self.exact_names)
            .finish_non_exhaustive()
    }
}
