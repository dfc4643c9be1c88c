//! The permits. See the public module `wait_group`.

pub(crate) mod holders;
mod id;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub use self::id::PermitId;

use self::holders::{IDLE, Permits, suffix};
use super::lease::key_state::Was;
use super::lease::{Ask, Lease, LeaseOptions, Leases, Wait};
use crate::error::Subject;
use crate::store::Namespace;
use crate::telemetry::{self, Decisions};
use crate::{Error, Key, Store};

/// A namespace of WaitGroups, one per key. A cheap clone; see the [module](crate::wait_group) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time: who waits leaves the queue, and what was granted meanwhile is
/// given back, from a task of its own.
#[derive(Clone, Debug)]
pub struct WaitGroup {
    leases: Leases<Permits>,
    name: Arc<str>,
    pub(crate) decisions: Decisions,
    limit: u32,
    pub(crate) wait: Wait,
}

impl WaitGroup {
    /// The WaitGroups of the namespace `name` in a store: at most `limit` at once for each key. Waits as long as it
    /// takes; for other settings there is the [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// As [`WaitGroupBuilder::build`].
    pub fn new(store: &Store, name: &str, limit: u32) -> Result<Self, Error> {
        Self::builder(limit).build(store, name)
    }

    /// Settings of a namespace.
    pub fn builder(limit: u32) -> WaitGroupBuilder {
        WaitGroupBuilder { limit, wait: Wait::FOR_EVER, options: LeaseOptions::default() }
    }

    /// The same permits under another limit: that of a customer's plan, say.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where it is 0.
    pub fn with_limit(&self, limit: u32) -> Result<Self, Error> {
        Ok(Self { limit: check_limit(limit)?, ..self.clone() })
    }

    /// The same permits, waited for no longer than this.
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { wait: Wait { max_wait: Some(max_wait), ..self.wait }, ..self.clone() }
    }

    /// Gets a permit; waits its turn where none is free.
    ///
    /// # Errors
    ///
    /// As [`add_n`](Self::add_n).
    pub async fn add(&self, key: impl Into<Key>) -> Result<Permit, Error> {
        self.add_n(key, 1).await
    }

    /// Gets a permit that weighs as much as `n`; waits its turn until so many are free.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where it takes longer than `max_wait`, or too many wait already;
    /// [`is_exceeds_limit`](Error::is_exceeds_limit) where `n` is above the limit, and
    /// [`is_invalid`](Error::is_invalid) where it is 0; [`is_interrupted`](Error::is_interrupted) after
    /// [`close`](Self::close); [`is_unavailable`](Error::is_unavailable).
    pub async fn add_n(&self, key: impl Into<Key>, n: u32) -> Result<Permit, Error> {
        let added = self.acquire(key.into(), n, Some(self.wait)).await;
        self.decisions.admitted(added)
    }

    /// Gets a permit if one is free now and nobody waits for it.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where none is, and as [`add_n`](Self::add_n).
    pub async fn try_add(&self, key: impl Into<Key>) -> Result<Permit, Error> {
        self.try_add_n(key, 1).await
    }

    /// Gets a permit that weighs as much as `n`, if so many are free now and nobody waits for them.
    ///
    /// # Errors
    ///
    /// As [`try_add`](Self::try_add).
    pub async fn try_add_n(&self, key: impl Into<Key>, n: u32) -> Result<Permit, Error> {
        let added = self.acquire(key.into(), n, None).await;
        self.decisions.admitted(added)
    }

    /// Waits until no permit is out and nobody waits for one, as it is seen from the store in one moment.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where it takes longer than `max_wait`;
    /// [`is_interrupted`](Error::is_interrupted) after [`close`](Self::close);
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn wait(&self, key: impl Into<Key>) -> Result<(), Error> {
        let wait = Wait { max_waiters: u32::MAX, ..self.wait };
        let ask = Ask::new(Subject::Permit, IDLE.into(), 1, Some(wait));
        let lease = self.leases.acquire(key.into(), ask).await?;
        // It holds nothing, which says nothing of how long others hold.
        lease.state.give_up();
        lease.settled();
        Ok(())
    }

    /// How much is out now: the sum of the weights of all permits.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn count(&self, key: impl Into<Key>) -> Result<u32, Error> {
        let occupancy = self.leases.admission.inspect(key.into()).await?;
        Ok(u32::try_from(occupancy.what.used).unwrap_or(u32::MAX))
    }

    /// Sends away those who wait through this value or its clones, now or later. Permits stay.
    pub fn close(&self) {
        self.leases.close();
    }

    /// The limit of calls through this value.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Gives back a permit by its id, wherever it was got; whether it was still held.
    ///
    /// ```
    /// use tower_distributed::wait_group::PermitId;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
    /// let id = exports.add("acme").await?.into_id().to_string(); // goes with the job to another process
    ///
    /// let id: PermitId = id.parse()?;
    /// assert!(exports.done(&id).await?);
    /// assert!(!exports.done(&id).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where it is the id of a permit of another name;
    /// [`is_unavailable`](Error::is_unavailable).
    ///
    /// # Cancel safety
    ///
    /// Where the future is dropped, the permit may or may not have been given back; doing it twice does no harm.
    pub async fn done(&self, id: &PermitId) -> Result<bool, Error> {
        if id.name != self.name {
            let (name, own) = (&id.name, &self.name);
            return Err(Error::invalid(format!("the permit is one of {name:?}, this WaitGroup is {own:?}")));
        }
        Ok(self.leases.admission.release_token(&id.give_back()).await? == Was::Held)
    }

    /// The name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace of the same name in another store.
    pub(crate) fn in_store(&self, store: &Store) -> Self {
        let (options, namespace) = (self.leases.options().clone(), || Namespace::open(store, &self.name));
        Self {
            leases: Leases::shared(store, &self.name, namespace, options, counts(&self.name)),
            ..self.clone()
        }
    }

    /// Not counted as a decision yet.
    pub(crate) async fn acquire(&self, key: Key, n: u32, wait: Option<Wait>) -> Result<Permit, Error> {
        if n == 0 {
            return Err(Error::invalid("a permit must weigh at least 1, got 0"));
        }
        if n > self.limit {
            return Err(Error::exceeds_limit(n, self.limit));
        }
        let ask = Ask::new(Subject::Permit, suffix(n, self.limit), 0, wait);
        let lease = self.leases.acquire(key, ask).await?;
        Ok(Permit { lease, name: Arc::clone(&self.name) })
    }
}

fn counts(name: &str) -> telemetry::Leases {
    telemetry::Leases::new("permit", name)
}

fn check_limit(limit: u32) -> Result<u32, Error> {
    if limit == 0 {
        return Err(Error::invalid("a limit must be at least 1, got 0"));
    }
    Ok(limit)
}

/// A place among those who may be at it at once. Given back when it is dropped.
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back"]
pub struct Permit {
    lease: Lease,
    name: Arc<str>,
}

impl Permit {
    /// Gives it back; whether it was still held. See [`Lease::release`].
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn done(self) -> Result<bool, Error> {
        self.lease.release().await
    }

    /// As [`done`](Self::done), with an error where it was not held to the end.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) where it was not held any more; [`is_unavailable`](Error::is_unavailable).
    pub async fn done_checked(self) -> Result<(), Error> {
        self.lease.release_checked().await
    }

    /// Lets go of it without giving it back, for another task or process to do so by [`WaitGroup::done`].
    ///
    /// It is renewed once more, in the background; nobody renews it from then on, so it is free again after its time to
    /// live. [`extend`](Lease::extend) it before to know that it was renewed.
    #[must_use = "without its id a permit is given back by the end of its time to live alone"]
    pub fn into_id(self) -> PermitId {
        let (key, token) = self.lease.into_token();
        PermitId { name: self.name, key, token }
    }

    /// The lease under it.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Deref for Permit {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

/// Settings of a [`WaitGroup`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct WaitGroupBuilder {
    limit: u32,
    wait: Wait,
    options: LeaseOptions,
}

impl WaitGroupBuilder {
    /// After what time the permits of a crashed process are free again, 10 ms to 1 day. Default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Whether permits are renewed as long as they are held, every third of their time to live. Default: yes.
    pub fn watchdog(mut self, watchdog: bool) -> Self {
        self.options.watchdog = watchdog;
        self
    }

    /// How long to wait for one's turn. Default: as long as it takes.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.wait.max_wait = Some(max_wait);
        self
    }

    /// How many may wait for a key; more are refused at once. Default: any number.
    pub fn max_waiters(mut self, most: u32) -> Self {
        self.wait.max_waiters = most;
        self
    }

    /// The WaitGroups of the namespace `name` in a store. Whoever uses the same store and name shares them. Where limits
    /// differ, as during a deployment, each permit is granted by the limit it was asked for under.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, the limit is 0,
    /// or the time to live is out of range.
    pub fn build(self, store: &Store, name: &str) -> Result<WaitGroup, Error> {
        self.options.check()?;
        let limit = check_limit(self.limit)?;
        let namespace = Namespace::new(store, name)?;
        let leases = Leases::shared(store, name, || namespace, self.options, counts(name));
        let decisions = Decisions::new("wait_group", name);
        Ok(WaitGroup { leases, name: name.into(), decisions, limit, wait: self.wait })
    }
}
