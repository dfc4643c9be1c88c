#![doc = include_str!("wait_group/page.md")]

mod builder;
pub(crate) mod permits;
pub(crate) mod turn;

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::error::reasons::{Busy, Subject, Why};
use crate::key::Key;
use crate::lease::handle::{Lease, guard};
use crate::lease::look::{Holder, Snapshot};
use crate::lease::namespace::Leases;
use crate::lease::settings::{CallerSettings, KeyLimit, Rules};
use crate::lease::token::{Suffix, Token, percent};
use crate::lease::waiter::{AcquireRequest, Acquired, Patience};
use crate::macros::in_range;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::failure::Sharing;
use crate::store::replicas::Replicas;
use crate::telemetry::counters::Decisions;
use crate::wait_group::permits::Permits;
use crate::wait_group::turn::Queueing;

pub use self::builder::WaitGroupBuilder;
pub use self::turn::Turn;
#[cfg(feature = "http")]
pub use crate::adaptive::http::watched_body::WatchedBody;
pub use crate::adaptive::look::AdaptiveState;
pub use crate::adaptive::{Adaptive, Classify, HttpSignals, Signal};
pub use crate::layers::concurrency_limit::ConcurrencyLimitLayer;

/// A namespace of WaitGroups, one for each key. Cheap to clone. See the [module](crate::wait_group) for details.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 10)?;
/// let large = exports.add_n("acme", 8).await?; // weighs as much as eight small exports
/// assert!(exports.try_add_n("acme", 3).await.unwrap_err().is_refused());
///
/// let premium = exports.with_limit(20)?; // the limit of another plan
/// assert_eq!(premium.limit(), 20);
/// let other = premium.add_n("acme", 3).await?;
/// let hasty = exports.with_max_wait(Duration::from_millis(10));
/// assert!(hasty.add("acme").await.unwrap_err().is_waited_too_long());
///
/// assert!(large.done().await?); // `false`: the permit was lost
/// exports.close(); // this process shuts down
/// assert!(premium.add("acme").await.unwrap_err().is_interrupted());
/// assert!(other.done().await?); // permits stay valid
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// All methods are cancel safe. If the future is dropped, the waiter leaves the queue. A permit that was granted in
/// the meantime is released in the background.
#[derive(Clone, Debug)]
pub struct WaitGroup {
    pub(crate) leases: Leases<Permits>,
    name: Arc<str>,
    pub(crate) decisions: Decisions,
    limit: u32,
    /// The limit that was set in the builder.
    most: u32,
    pub(crate) wait: Patience,
    queueing: Arc<Queueing>,
    rules: Arc<Rules>,
    pub(crate) turn: Turn,
}

/// The limit of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLimit {
    pub(crate) limit: u32,
    /// The limit that was chosen for this call alone.
    pub(crate) chosen: Option<u32>,
    /// The limit for all waiters of the key.
    pub(crate) of_key: Option<KeyLimit>,
}

impl WaitGroup {
    /// Creates the WaitGroups of the namespace `name` in a store, with at most `limit` permits for each key.
    ///
    /// Waits have no time limit. Use the [`builder`](Self::builder) for other settings.
    ///
    /// # Errors
    ///
    /// Same as [`WaitGroupBuilder::build`].
    pub fn new(store: &Store, name: &str, limit: u32) -> Result<Self, Error> {
        Self::builder(limit).build(store, name)
    }

    /// Returns the same permits with another limit, for example the limit of a customer's plan.
    ///
    /// With a limit of 0, all calls are refused, regardless of the limit of the fleet. Each waiting caller keeps the
    /// limit with which it called, unless the fleet [sets one](crate::fleet::FleetLimit), which then applies instead.
    ///
    /// # Errors
    ///
    /// Currently none.
    pub fn with_limit(&self, limit: u32) -> Result<Self, Error> {
        Ok(Self {
            limit,
            ..self.clone()
        })
    }

    /// Returns the same permits with another [`max_wait`](WaitGroupBuilder::max_wait).
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self {
            wait: Patience {
                max_wait: Some(max_wait),
                ..self.wait
            },
            ..self.clone()
        }
    }

    /// Returns the same permits for calls with another place among the waiters: the place of a flow, or of a class.
    /// [`Turn`] has an example.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the share is not 1 to 1000, if there is no such class, or if the turn has a
    /// flow and [the newest is served first](WaitGroupBuilder::newest_first_after).
    pub fn with_turn(&self, turn: Turn) -> Result<Self, Error> {
        self.queueing.class(turn)?;
        Ok(Self {
            turn,
            ..self.clone()
        })
    }

    /// Acquires a permit. Waits until one is free.
    ///
    /// # Errors
    ///
    /// Same as [`add_n`](Self::add_n).
    pub async fn add(&self, key: impl Into<Key>) -> Result<Permit, Error> {
        self.add_n(key, 1).await
    }

    /// Acquires a permit with the weight `n`. Waits until `n` is free.
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused): the wait exceeded [`max_wait`](WaitGroupBuilder::max_wait), or the
    ///   queue is full ([`max_waiters`](WaitGroupBuilder::max_waiters)) or
    ///   [too long](WaitGroupBuilder::refuse_early).
    /// * [`is_refused`](Error::is_refused) also if the limit is 0.
    /// * [`is_exceeds_limit`](Error::is_exceeds_limit): `n` is above the limit that was set in the builder, and above
    ///   the limit of [`with_limit`](Self::with_limit), each minus the permits that are
    ///   [reserved](WaitGroupBuilder::reserve) for higher classes. If `n` is only above a limit that was lowered later,
    ///   the call acquires its permit when no other is held.
    /// * [`is_invalid`](Error::is_invalid): `n` is 0.
    /// * [`is_interrupted`](Error::is_interrupted): [`close`](Self::close) was called.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    pub async fn add_n(&self, key: impl Into<Key>, n: u32) -> Result<Permit, Error> {
        self.permit(
            self.acquire(
                key.into(),
                n,
                self.limit_of_call(None),
                Some(self.wait),
                self.turn,
            )
            .await,
        )
    }

    /// Acquires a permit if one is free and there are no waiters. Does not wait.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) if no permit is free or there are waiters. Otherwise the same as
    /// [`add_n`](Self::add_n).
    pub async fn try_add(&self, key: impl Into<Key>) -> Result<Permit, Error> {
        self.try_add_n(key, 1).await
    }

    /// Acquires a permit with the weight `n` if it fits and there are no waiters. Does not wait.
    ///
    /// # Errors
    ///
    /// Same as [`try_add`](Self::try_add).
    pub async fn try_add_n(&self, key: impl Into<Key>, n: u32) -> Result<Permit, Error> {
        self.permit(
            self.acquire(key.into(), n, self.limit_of_call(None), None, self.turn)
                .await,
        )
    }

    /// Waits until no permit is held and no caller is waiting for one. The store checks both in one step.
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused): the wait exceeded [`max_wait`](WaitGroupBuilder::max_wait).
    /// * [`is_interrupted`](Error::is_interrupted): [`close`](Self::close) was called.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    pub async fn wait(&self, key: impl Into<Key>) -> Result<(), Error> {
        let wait = Patience {
            max_waiters: u32::MAX,
            ..self.wait
        };
        // This token waits until no permit is held, and then holds nothing. No settings apply to it, so it has none but
        // the limit.
        let told = CallerSettings {
            limit: self.leases.namespace.fleet_limit(),
            rules: Arc::default(),
        };
        let ask = AcquireRequest::new(
            told,
            Subject::Permit,
            Suffix::Text("/idle".into()),
            permits::IDLE,
            Some(wait),
        );
        let Acquired::Lease(lease, _) = self.leases.acquire(key.into(), ask).await?;
        // This lease holds nothing, so its duration must not count as a hold time.
        lease.state.give_up();
        lease.settled();
        Ok(())
    }

    /// Returns the sum of the weights of all permits currently held.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    pub async fn count(&self, key: impl Into<Key>) -> Result<u32, Error> {
        Ok(u32::try_from(self.leases.namespace.in_use(key.into()).await?).unwrap_or(u32::MAX))
    }

    /// Returns the permits of a key and the number of waiters. Changes nothing. [`Snapshot`] has an example.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    pub async fn inspect(&self, key: impl Into<Key>) -> Result<Snapshot, Error> {
        self.leases.namespace.look(key.into()).await
    }

    pub(crate) fn store(&self) -> &Store {
        &self.leases.namespace.store
    }

    /// Revokes the permit of a holder. As after a release by the holder, waiters that fit are woken and acquire
    /// permits. Returns whether the holder still held it.
    ///
    /// The holder's consent is not needed. A message notifies its process, which then checks the store at once, and the
    /// permit is [lost](crate::LeaseHandle::lost). A process receives messages once a caller has waited for a lock or a
    /// permit, or for `lost()` for 1 s. Without messages, the holder detects the loss at its next renewal, after a
    /// third of its ttl at most; without [`watchdog`](WaitGroupBuilder::watchdog), when the ttl ends.
    ///
    /// ```
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::new(&Store::in_memory(), "exports", 1)?;
    /// let stuck = exports.add("acme").await?;
    /// let snapshot = exports.inspect("acme").await?;
    /// assert!(exports.revoke("acme", &snapshot.holders[0]).await?);
    /// let _next = exports.try_add("acme").await?;
    /// assert!(stuck.extend().await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the permit may have been revoked.
    pub async fn revoke(&self, key: impl Into<Key>, holder: &Holder) -> Result<bool, Error> {
        self.leases
            .namespace
            .revoke(key.into(), holder.whole_token())
            .await
    }

    /// Closes this value and its clones: pending and later calls that acquire or wait fail with an error that [is
    /// interrupted](Error::is_interrupted). Calls of `try_add` fail once the store has replied. Permits stay valid.
    pub fn close(&self) {
        self.leases.close();
    }

    /// Returns the limit for calls through this value.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Releases a permit by its id, in any process. Returns whether the permit was still held.
    ///
    /// ```
    /// use tower_distributed::wait_group::PermitId;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
    /// let id = exports.add("acme").await?.into_id().to_string(); // send it with the job to another process
    ///
    /// let id: PermitId = id.parse()?;
    /// assert!(exports.done(&id).await?);
    /// assert!(!exports.done(&id).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_invalid`](Error::is_invalid): the permit belongs to a WaitGroup with another name.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permit may or may not be released. It is safe to release a permit twice.
    pub async fn done(&self, id: &PermitId) -> Result<bool, Error> {
        if id.name != self.name {
            let name = &id.name;
            let own = &self.name;
            return Err(Error::invalid(format!(
                "the permit must belong to the WaitGroup {own:?}, is one of {name:?}"
            )));
        }
        // The permit may belong to another process, and so may the next waiter.
        self.leases
            .namespace
            .revoke(id.key.clone(), id.token.text().as_bytes())
            .await
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the permits of this name in the memory of this process, which replaces the store while it is
    /// unavailable, and how many processes share the limit.
    pub(crate) fn local_share(&self, sharing: Sharing) -> (Replicas, Self) {
        let leases = self
            .leases
            .local_share(&self.name, |store| Namespace::open(store, &self.name));
        let store = &self.leases.namespace.store;
        let replicas = Replicas::of(store, "wait_group", &self.name, sharing);
        (
            replicas,
            Self {
                leases,
                ..self.clone()
            },
        )
    }

    /// Returns the share of one of `replicas` processes that currently share the limit.
    pub(crate) fn share(&self, replicas: NonZeroU32) -> Self {
        let queueing = Arc::new(self.queueing.share(replicas));
        let rules = Arc::new(Rules {
            version: self.rules.version,
            ..(*queueing.rules()).clone()
        });
        Self {
            queueing,
            rules,
            ..self.clone()
        }
    }

    /// The limit for a call: the limit of the fleet, otherwise the limit of this value. If a limit is `chosen` for the
    /// call, it applies if it is lower, or if the fleet has set none.
    pub(crate) fn limit_of_call(&self, chosen: Option<u32>) -> CallLimit {
        let of_key = self.leases.namespace.fleet_limit();
        let fleet = of_key
            .and_then(|of_key| of_key.limit)
            .map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        // If this value is closed, no setting opens it.
        let in_force = if self.limit == 0 {
            0
        } else {
            fleet.unwrap_or(self.limit)
        };
        let chosen = chosen.filter(|chosen| *chosen != in_force);
        let limit = chosen.map_or(in_force, |chosen| {
            fleet.map_or(chosen, |fleet| fleet.min(chosen))
        });
        CallLimit {
            limit,
            chosen,
            of_key,
        }
    }

    /// Counts a decision.
    fn permit(&self, acquired: Result<Lease, Error>) -> Result<Permit, Error> {
        let lease = self.decisions.admitted(acquired)?;
        Ok(Permit {
            lease,
            name: Arc::clone(&self.name),
        })
    }

    /// Acquires the lease of a permit. Does not count a decision.
    pub(crate) async fn acquire(
        &self,
        key: Key,
        n: u32,
        CallLimit {
            limit,
            chosen,
            of_key,
        }: CallLimit,
        wait: Option<Patience>,
        turn: Turn,
    ) -> Result<Lease, Error> {
        if n == 0 {
            return Err(Error::invalid(
                "the weight of a permit must be at least 1, is 0",
            ));
        }
        let (rank, reserved) = self.queueing.class(turn)?;
        if limit == 0 {
            return Err(Busy {
                subject: Subject::Permit,
                why: Why::Closed,
                retry_after: None,
            }
            .into());
        }
        // A weight above a limit that changes at run time runs alone. A weight above the limit that was chosen for the
        // call is an error.
        let most = match chosen {
            Some(chosen) => chosen,
            None => limit.max(self.most),
        };
        // A limit that changes at run time leaves each class at least one permit.
        let most = most.saturating_sub(reserved).max(1);
        if n > most {
            return Err(Error::exceeds_limit(n, most));
        }
        let free = limit.saturating_sub(reserved).max(1);
        let suffix = self.queueing.suffix(turn, n, free, limit - free, chosen);
        let told = CallerSettings {
            limit: of_key,
            rules: Arc::clone(&self.rules),
        };
        let mut ask = AcquireRequest::new(told, Subject::Permit, suffix, rank, wait);
        ask.early = self.queueing.early.then_some((free / n).max(1));
        let Acquired::Lease(lease, _) = self.leases.acquire(key, ask).await?;
        Ok(lease)
    }
}

fn check_limit(limit: u32) -> Result<u32, Error> {
    in_range("the limit", 1.., "at least 1", limit).map(|()| limit)
}

/// A permit of a [`WaitGroup`]. Dropping it releases the permit in the background.
#[derive(Debug)]
#[must_use = "a permit that is dropped is released"]
pub struct Permit {
    lease: Lease,
    name: Arc<str>,
}

impl Permit {
    /// Converts the permit into its id without releasing it. Another task or process can release it with
    /// [`WaitGroup::done`].
    ///
    /// The permit is renewed once more, in the background, and not after that. So it expires after its ttl if it is
    /// not released. To be sure that it was renewed, call [`extend`](Lease::extend) before.
    #[must_use = "without its id, the permit is held until its ttl ends"]
    pub fn into_id(self) -> PermitId {
        let (key, token) = self.lease.into_token();
        PermitId {
            name: self.name,
            key,
            token,
        }
    }
}

guard!(Permit.lease, "the permit", done);

/// The id of a permit that is no longer renewed.
///
/// [`Permit::into_id`] returns it. Convert it to a string to send it to another task or
/// process, which parses it and passes it to [`WaitGroup::done`].
///
/// Any process that knows the id can release the permit.
///
/// ```
/// use tower_distributed::wait_group::PermitId;
/// use tower_distributed::{Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let id = exports.add("acme").await?.into_id();
/// assert_eq!(id.key().as_bytes(), b"acme");
/// assert_eq!(id.to_string().parse::<PermitId>()?, id);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermitId {
    name: Arc<str>,
    key: Key,
    token: Token,
}

impl PermitId {
    /// Returns the key of the permit.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }
}

/// Writes `name:key:token`, in letters, digits and `% - . / _ :`.
impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}",
            self.name,
            percent::encode(self.key.as_bytes()),
            self.token
        )
    }
}

impl FromStr for PermitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut parts = text.split(':');
            let name = parts.next()?;
            let key = percent::decode(parts.next()?)?;
            let token = parts.next()?;
            let is_whole = parts.next().is_none() && !name.is_empty() && token.len() <= 128;
            let token = Token::from(token);
            let is_permit = token.ttl().is_some() && permits::size(&token).is_some();
            (is_permit && is_whole).then(|| Self {
                name: name.into(),
                key: Key::from(key),
                token,
            })
        };
        parsed().ok_or_else(|| {
            Error::invalid(format!(
                "a permit id must have the format of Permit::into_id, is {text:?}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let token = "0123456789abcdef-1f.1c9c380/2/5";
        let id = PermitId {
            name: "exports".into(),
            key: Key::from("acme:1/ä"),
            token: token.into(),
        };
        assert_eq!(id.to_string(), format!("exports:acme%3a1%2f%c3%a4:{token}"));
        assert_eq!(id.to_string().parse::<PermitId>().unwrap(), id);
        for other in [
            "",
            "a",
            "a:b:c",
            "a:%:0123456789abcdef-1f.1c9c380/2/5",
            &format!("a:b:{token}:d"),
        ] {
            let error = other.parse::<PermitId>().unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains(&format!("{other:?}")),
                "{error}"
            );
        }
    }
}
