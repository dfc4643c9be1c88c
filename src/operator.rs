#![doc = include_str!("operator/page.md")]

mod entry;
mod refused;
mod scan;
mod state;

use std::sync::Arc;

pub use self::entry::{Entry, Kind};
pub use self::scan::Scan;
pub use self::state::{DedupeState, FlightState, PermitState, State};
pub use super::bloom_filter::look::FilterState;
pub use crate::single_flight::answer::StoredAnswer;
pub use crate::store::redis::commands::Library;

use crate::adaptive;
use crate::bloom_filter;
use crate::bucket::adjust::{Peek, Reset};
use crate::bucket::chosen::QuotaTable;
use crate::bucket::quotas::Quotas;
use crate::dedupe::filter::FilterClaims;
use crate::dedupe::{cannot_forget, exact};
use crate::error::Error;
use crate::fleet;
use crate::fleet::value::Sealed;
use crate::key::Key;
use crate::lease::holders::Exclusive;
use crate::lease::kind::Kind as LeaseKind;
use crate::lease::look::{Holder, Snapshot, look, revoke};
use crate::lease::operations::StateOf;
use crate::rw_lock::holders::ReadWrite;
use crate::single_flight::answer::Flight;
use crate::single_flight::stored;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::operation::Cell;
use crate::store::redis::names::{Stem, check_name};
use crate::wait_group::permits::Permits;

/// Inspects a store, and changes single states. Cheap to clone. See the [module](crate::operator).
#[derive(Clone, Debug)]
pub struct Operator {
    store: Store,
}

impl Operator {
    /// Creates an operator of a store. It needs no settings of the services that use the store, except for the
    /// [prefix](crate::StoreBuilder::prefix).
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
        }
    }

    /// Returns the command that grants a Redis user the permissions that an operator needs, and no others. See
    /// [`Store::acl_rule`] for details of such commands.
    ///
    /// With `SCAN`, the user can list the names of all keys in the database, including keys that it may not read.
    ///
    /// ```
    /// use tower_distributed::Store;
    /// use tower_distributed::operator::Operator;
    ///
    /// let store = Store::builder().prefix("shop").redis("redis://127.0.0.1/")?;
    /// let rule = Operator::new(&store).acl_rule("ops")?;
    /// assert!(rule.starts_with("ACL SETUSER ops resetkeys ~shop:* resetchannels &shop:wake:* -@all +evalsha +eval"));
    /// assert!(rule.contains(" +scan"));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The same as [`Store::acl_rule`].
    pub fn acl_rule(&self, user: &str) -> Result<String, Error> {
        self.store.operator_acl_rule(user)
    }

    /// Lists the stored entries: buckets that are not full, leases with holders or waiters, answers, filters and
    /// handled items.
    ///
    /// On Redis the pages come from `SCAN`, on a Cluster from all masters. Keys of other programs are not listed, even
    /// if they begin with the prefix. Like `SCAN`, it lists each entry that exists during the whole scan, and may list
    /// an entry twice. A failover or moving slots during the scan can hide entries. Locks with
    /// [`exact_names`](crate::mutex::MutexBuilder::exact_names) are not listed: their names cannot be told from those
    /// of other programs.
    pub fn scan(&self) -> Scan {
        Scan::new(&self.store, None)
    }

    /// Like [`scan`](Self::scan), for one namespace. Redis still scans the names of all keys.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not valid for a namespace.
    pub fn scan_namespace(&self, namespace: &str) -> Result<Scan, Error> {
        check_name("the name of a namespace", namespace)?;
        Ok(Scan::new(&self.store, Some(namespace)))
    }

    /// Returns the state of an entry; `None` if nothing is stored: the bucket is full, the lock is free, or there is no
    /// answer.
    ///
    /// Changes nothing: no state is created, and no ttl is extended.
    ///
    /// An answer of a single flight:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::operator::{Entry, Kind, Operator, State};
    /// use tower_distributed::single_flight::Postcard;
    /// use tower_distributed::{SingleFlight, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory();
    /// let prices = SingleFlight::builder(Postcard).ttl(Duration::from_secs(60)).build(&store, "prices")?;
    /// let price: u64 = prices.run("book-7", || async { 1990 }).await?;
    ///
    /// let (operator, entry) = (Operator::new(&store), Entry::new(Kind::SingleFlight, "prices", "book-7")?);
    /// let Some(State::Flight(flight)) = operator.inspect(&entry).await? else { panic!("the answer is stored") };
    /// let answer = flight.answer.expect("the run has ended");
    /// assert!(flight.runs.is_free() && answer.fresh_for > Duration::from_secs(50) && answer.bytes > 0);
    /// assert!(operator.forget(&entry).await?);
    /// assert!(operator.inspect(&entry).await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// A Bloom filter:
    ///
    /// ```
    /// use tower_distributed::operator::{Entry, Kind, Operator, State};
    /// use tower_distributed::{BloomFilter, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory();
    /// let urls = BloomFilter::new(&store, "urls", 1000, 0.01)?;
    /// urls.insert_all((0..500_u32).map(u32::to_be_bytes)).await?;
    ///
    /// let operator = Operator::new(&store);
    /// let Some(page) = operator.scan_namespace("urls")?.next().await? else { panic!("the filter is stored") };
    /// let Some(State::Filter(filter)) = operator.inspect(&page[0]).await? else { panic!("it is a filter") };
    /// assert_eq!((filter.size.bits, filter.size.hashes, filter.size.keys), (urls.size().bits, urls.size().hashes, 1));
    /// assert!((450..550).contains(&filter.estimated_count) && (0.2..0.4).contains(&filter.filled));
    /// assert!(operator.forget(&page[0]).await.unwrap_err().is_invalid()); // it cannot forget one item
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the store is unavailable, or a key holds another type of value, such
    /// as a configuration that this version cannot read ([`is_wrong_type`](Error::is_wrong_type)).
    pub async fn inspect(&self, entry: &Entry) -> Result<Option<State>, Error> {
        let name = &entry.namespace;
        match entry.kind {
            Kind::TokenBucket => {
                let (namespace, key) = self.place(entry)?;
                Ok(namespace
                    .client()
                    .run(key, Peek)
                    .await?
                    .under_its_own()
                    .map(State::Bucket))
            }
            Kind::SingleFlight => {
                let runs = self.leases(entry).await?;
                let (namespace, key) = self.place(entry)?;
                let answer = stored::look(&namespace, key).await?;
                let is_there = answer.is_some() || !runs.is_free();
                Ok(is_there.then_some(State::Flight(FlightState { runs, answer })))
            }
            Kind::BloomFilter => Ok(
                bloom_filter::look::look(&Namespace::open(&self.store, name))
                    .await?
                    .map(State::Filter),
            ),
            Kind::Dedupe => self.dedupe(entry).await,
            Kind::FleetQuotas => self.setting::<Quotas>(name).await,
            Kind::FleetTable => self.setting::<QuotaTable>(name).await,
            Kind::FleetLimit => self.setting::<u32>(name).await,
            Kind::RefusedKeys => Ok(self
                .refused(entry)
                .await?
                .map(|list| State::Refused(list.into()))),
            Kind::WaitGroup => {
                let leases = self.leases(entry).await?;
                let (namespace, key) = self.place(entry)?;
                match adaptive::look::look(&namespace, key).await? {
                    Some(limit) => Ok(Some(State::Permits(PermitState { leases, limit }))),
                    None => Ok((!leases.is_free()).then_some(State::Leases(leases))),
                }
            }
            Kind::Mutex | Kind::RwLock | Kind::ExactClaim | Kind::FilterClaim => {
                let leases = self.leases(entry).await?;
                Ok((!leases.is_free()).then_some(State::Leases(leases)))
            }
        }
    }

    /// The state of an exact dedupe, and of the item that an entry names.
    async fn dedupe(&self, entry: &Entry) -> Result<Option<State>, Error> {
        let name = &entry.namespace;
        let Some(layout) = exact::stored(&self.store, name).await?.map(Arc::new) else {
            return Ok(None);
        };
        let is_handled = match entry.key() {
            Some(item) => {
                let buckets = Namespace::open(&self.store, name);
                Some(exact::look(&buckets, &layout, item.as_bytes()).await?)
            }
            None => None,
        };
        Ok(Some(State::Dedupe(DedupeState {
            capacity: layout.capacity(),
            remember_for: layout.remember_for(),
            is_handled,
        })))
    }

    /// Revokes the lease of a holder. As after a release by the holder, waiters that fit are woken and acquire leases.
    /// Returns whether the holder still held it.
    ///
    /// The holder's consent is not needed. A message notifies its process, and its lease is
    /// [lost](crate::LeaseHandle::lost) at once. Without a message, the holder detects the loss at its next renewal,
    /// after a third of its ttl at most; without a watchdog, when the ttl ends. Until then two holders may work at
    /// once: see [`Mutex::revoke`](crate::Mutex::revoke). The work of a revoked claim or flight is started again by
    /// another caller.
    ///
    /// # Errors
    ///
    /// * [`is_invalid`](Error::is_invalid): entries of this kind have [no holders](Kind::has_holders).
    /// * [`is_unavailable`](Error::is_unavailable): the lease may have been revoked.
    pub async fn revoke(&self, entry: &Entry, holder: &Holder) -> Result<bool, Error> {
        match entry.kind {
            Kind::WaitGroup => self.revoke_from::<Permits>(entry, holder).await,
            Kind::Mutex => self.revoke_from::<Exclusive>(entry, holder).await,
            Kind::RwLock => self.revoke_from::<ReadWrite>(entry, holder).await,
            Kind::SingleFlight => self.revoke_from::<Flight>(entry, holder).await,
            Kind::ExactClaim => self.revoke_from::<exact::ExactClaims>(entry, holder).await,
            Kind::FilterClaim => self.revoke_from::<FilterClaims>(entry, holder).await,
            kind => Err(Error::invalid(format!(
                "{kind} entries have no holders, so none can be revoked"
            ))),
        }
    }

    /// Fills a bucket and unblocks it, like [`TokenBucket::reset`](crate::TokenBucket::reset).
    ///
    /// A process with a [cached refusal](crate::TokenBucket::cache_refusals) of the key may refuse requests until the
    /// refusal ends, and a process with [prefetched](crate::TokenBucket::prefetch) tokens keeps them.
    ///
    /// # Errors
    ///
    /// * [`is_invalid`](Error::is_invalid): the entry is not a bucket.
    /// * [`is_unavailable`](Error::is_unavailable): the bucket may have been reset.
    pub async fn reset(&self, entry: &Entry) -> Result<(), Error> {
        if entry.kind != Kind::TokenBucket {
            return Err(Error::invalid(format!(
                "only a token_bucket can be reset, not a {}",
                entry.kind
            )));
        }
        let (namespace, key) = self.place(entry)?;
        namespace.client().run(key, Reset).await
    }

    /// Removes the answer of a single flight, the response of an idempotency key, or a handled item of an exact
    /// `Dedupe`. Returns whether it was stored.
    ///
    /// A message to all processes removes an answer from their [local
    /// caches](crate::single_flight::SingleFlightBuilder::local_cache). If only the [digest](Entry::key) of a key is
    /// known, local caches keep the answer as long as it is fresh.
    ///
    /// # Errors
    ///
    /// * [`is_invalid`](Error::is_invalid): the entry is of another kind. One item cannot be removed from a Bloom
    ///   filter.
    /// * [`is_unavailable`](Error::is_unavailable): the entry may have been removed.
    pub async fn forget(&self, entry: &Entry) -> Result<bool, Error> {
        let name = &entry.namespace;
        match (entry.kind, entry.key()) {
            (Kind::SingleFlight, _) => {
                let (namespace, key) = self.place(entry)?;
                let was_stored = stored::look(&namespace, key.clone()).await?.is_some();
                stored::forget(&self.store, &namespace, (name, key)).await?;
                Ok(was_stored)
            }
            (Kind::Dedupe, Some(item)) => match exact::stored(&self.store, name).await? {
                Some(layout) => {
                    let buckets = Namespace::open(&self.store, name);
                    exact::forget(&buckets, layout.digest(item.as_bytes())).await
                }
                None => Ok(false),
            },
            (Kind::Dedupe, None) => Err(Error::invalid(
                "name the item of the Dedupe that is to be forgotten",
            )),
            (Kind::BloomFilter, _) => Err(cannot_forget(name)),
            (kind, _) => Err(Error::invalid(format!(
                "only an answer of a single_flight and an item of a dedupe can be forgotten, not a {kind}"
            ))),
        }
    }

    /// Lists the libraries of [functions](crate::wire_format#functions) of all versions of this crate: on each server that has
    /// slots, sorted by name.
    ///
    /// Redis does not report whether a library is in use. Listing loads none. A store in memory has none.
    ///
    /// ```no_run
    /// use tower_distributed::Store;
    /// use tower_distributed::operator::Operator;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let operator = Operator::new(&Store::redis("redis://127.0.0.1/")?);
    /// for library in operator.libraries().await? {
    ///     println!("{} on {}", library.name, library.server);
    ///     if !library.is_own {
    ///         operator.delete_library(&library).await?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if a server does not reply, has no functions, or denies `FUNCTION
    /// LIST`.
    pub async fn libraries(&self) -> Result<Vec<Library>, Error> {
        self.store.libraries().await
    }

    /// Deletes a library from its server. A process that still uses it loads it again with its next call.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the server does not reply, denies `FUNCTION DELETE`, or no longer
    /// has the library.
    pub async fn delete_library(&self, library: &Library) -> Result<(), Error> {
        self.store.delete_library(library).await
    }

    async fn leases(&self, entry: &Entry) -> Result<Snapshot, Error> {
        match entry.kind {
            Kind::WaitGroup => self.look::<Permits>(entry).await,
            Kind::RwLock => self.look::<ReadWrite>(entry).await,
            Kind::SingleFlight => self.look::<Flight>(entry).await,
            Kind::ExactClaim => self.look::<exact::ExactClaims>(entry).await,
            Kind::FilterClaim => self.look::<FilterClaims>(entry).await,
            _ => self.look::<Exclusive>(entry).await,
        }
    }

    async fn setting<T: Sealed>(&self, name: &str) -> Result<Option<State>, Error> {
        let versions = fleet::look::<T>(&self.store, name).await?;
        Ok((!versions.is_empty()).then_some(State::Setting(versions)))
    }

    async fn look<K: LeaseKind>(&self, entry: &Entry) -> Result<Snapshot, Error> {
        let (namespace, key) = self.place::<StateOf<K>>(entry)?;
        look::<K>(&namespace, key).await
    }

    async fn revoke_from<K: LeaseKind>(
        &self,
        entry: &Entry,
        holder: &Holder,
    ) -> Result<bool, Error> {
        let (namespace, key) = self.place::<StateOf<K>>(entry)?;
        revoke::<K>(&self.store, &namespace, key, holder.whole_token()).await
    }

    /// Returns the namespace of an entry, and its key there.
    fn place<C: Cell>(&self, entry: &Entry) -> Result<(Namespace<C>, Key), Error> {
        let (store, name) = (&self.store, &*entry.namespace);
        match &entry.stem {
            Some(Stem::Key(key)) if matches!(entry.kind, Kind::ExactClaim | Kind::FilterClaim) => {
                Ok((Namespace::beside(store, name), key.clone()))
            }
            Some(Stem::Key(key)) => Ok((Namespace::open(store, name), key.clone())),
            Some(Stem::Digest(_)) if store.is_in_memory() => Err(Error::invalid(
                "a store in memory has keys, and no digests of them",
            )),
            Some(Stem::Digest(digest)) => Ok((Namespace::by_digest(store, name), digest.clone())),
            None => Err(Error::invalid(format!(
                "{entry} is a whole namespace: name a key"
            ))),
        }
    }
}
