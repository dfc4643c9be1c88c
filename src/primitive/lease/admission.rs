//! A namespace of leases: the holders in this process, the waiters in this process, and when their renewals and
//! heartbeats are due.
//!
//! The protocol in short: a waiter that gets no lease takes a place in a queue in the store. It does not poll. A
//! release grants the lease to the first waiter in the queue, in the same script, and the grant is pushed to the
//! waiter's process. A grant lasts for a short time; the waiter's first renewal turns it into a full lease. From
//! time to time a process sends a *heartbeat* for its waiters, many in one call. A heartbeat keeps their places and
//! finds grants whose pushes were lost. It is also sent when the next lease ends, in case its holder has crashed.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::belief::Anchor;
use super::complete::{Complete, Completed};
use super::fence_ttl;
use super::key_state::{KeyState, Spans, Terms, Was};
use super::kind::{Entry, Found, Kind, Query, Scope};
use super::operations::{AcquireRelease, At, Heartbeat, Inspect, Occupancy, Renew, Scene, Verb, What};
use super::options::{Holding, LeaseOptions, micros};
use super::outcome::{Look, Outcome as _};
use super::releases::{ALIVE, GiveBack, Releases};
use super::renewals::Renewals;
use super::state::LeaseState;
use super::table::Table;
use crate::error::Cause;
use crate::primitive::clock;
use crate::store::{Client, Ids, Link, Namespace, PeriodicTask, lock};
use crate::{Error, Key, Store};

/// How long a grant to a waiter lasts until it is confirmed.
const GRANT: Duration = Duration::from_millis(1500);

/// [`GRANT`], and the time in which the heartbeat that finds the grant, and the renewal that confirms it, become durable.
fn grant_time(store: &Store) -> Duration {
    GRANT + 3 * store.durable_within().unwrap_or_default()
}

pub(super) fn spans(store: &Store) -> Spans {
    Spans { grant: micros(grant_time(store)), alive: micros(ALIVE), tombstone: micros(TOMBSTONE) }
}

/// How often a waiter sends a heartbeat.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long an acquire that was withdrawn is refused if it runs late.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// The groups of other terms follow those of the usual terms.
const OTHER_TERMS: usize = 1 << 31;

/// A namespace of leases, shared by all its values in this process.
pub(crate) struct Admission<K: Kind> {
    pub(in crate::primitive) store: Store,
    pub(crate) namespace: Namespace<KeyState<K::Holders>>,
    pub(super) clients: Clients<K>,
    pub(super) scene: Arc<Scene<K>>,
    ids: Ids,
    /// All terms in use. The index of each is its number: operations with different terms cannot share a call.
    terms: Mutex<Vec<Terms>>,
    pub(super) table: Mutex<Table<Found<K>>>,
    pub(super) renewals: Renewals,
    pub(super) releases: Releases<K>,
    /// The average of recent hold times, ns.
    hold_time: AtomicU64,
}

pub(super) struct Clients<K: Kind> {
    pub(super) acquire_release: Client<AcquireRelease<K>>,
    renew: Client<Renew<K>>,
    pub(super) heartbeat: Client<Heartbeat<K>>,
    inspect: Client<Inspect<K>>,
    complete: Client<Complete<K>>,
}

impl<K: Kind> Admission<K> {
    pub(crate) fn new(
        store: &Store,
        namespace: &Namespace<KeyState<K::Holders>>,
        scope: Scope<K>,
    ) -> Arc<Self> {
        let admission = store.notifier().join(|ids| {
            Arc::new(Self {
                store: store.clone(),
                clients: Clients {
                    acquire_release: namespace.client(),
                    renew: namespace.client(),
                    heartbeat: namespace.client(),
                    inspect: namespace.client(),
                    complete: namespace.client(),
                },
                namespace: namespace.clone(),
                scene: Arc::new(Scene { channels: store.channels().into(), spans: spans(store), scope }),
                ids,
                terms: Mutex::default(),
                table: Mutex::new(Table::new()),
                renewals: Renewals::new(store),
                releases: Releases::new(),
                hold_time: AtomicU64::new(0),
            })
        });
        let task: std::sync::Weak<dyn PeriodicTask> = Arc::<Self>::downgrade(&admission);
        store.scheduler().join(task);
        admission
    }

    /// How long a grant to a waiter lasts, or its ttl if that is shorter.
    pub(super) fn grant_time(&self) -> Duration {
        grant_time(&self.store)
    }

    pub(crate) async fn inspect(&self, key: Key) -> Result<At<Occupancy>, Error> {
        self.clients.inspect.run(key, Inspect(PhantomData)).await
    }

    /// Returns an outcome that leaves nothing to do, if the store is in memory. Does not wait.
    pub(crate) fn find(&self, key: &Key, query: &Query<K>) -> Option<Found<K>> {
        let step = |state: &mut KeyState<K::Holders>, now| {
            K::Outcome::look(&state.holders, &self.scene.scope, query, false, now)
        };
        match self.namespace.cells()?.step(key.as_bytes(), step).ok()? {
            Look::Done(found) => Some(found),
            _ => None,
        }
    }

    /// Enters an outcome, releases the lease to the store, and tells the waiters to ask again. Returns whether the
    /// lease was still held; a second identical call returns `false`. The inner error is why the outcome was not
    /// entered: then nothing is changed.
    pub(crate) async fn complete(
        &self,
        state: &LeaseState,
        entry: Entry<K>,
    ) -> Result<Result<bool, Found<K>>, Error> {
        Ok(self.fill(state, entry).await?.outcome)
    }

    /// Like [`complete`](Self::complete), and also returns how full the filter is now.
    pub(crate) async fn fill(
        &self,
        state: &LeaseState,
        entry: Entry<K>,
    ) -> Result<Completed<Found<K>>, Error> {
        let (scene, token) = (Arc::clone(&self.scene), Arc::clone(&state.tenure.token));
        let complete = Complete { scene, token, entry };
        self.clients.complete.run(state.tenure.key.clone(), complete).await
    }

    /// Returns a new token, and the id in it.
    pub(crate) fn token(
        &self,
        LeaseOptions { ttl, signature, fence_ttl, .. }: &LeaseOptions,
        suffix: &str,
    ) -> (u64, Arc<str>) {
        let (id, process) = (self.ids.next(), self.store.notifier().process());
        let fence_ttl = fence_ttl::in_token(*fence_ttl);
        (id, format!("{process}-{id:x}.{:x}{fence_ttl}{signature}{suffix}", micros(*ttl)).into())
    }

    /// Returns whether pushes arrive.
    pub(super) fn link(&self) -> Link {
        self.store.notifier().current_link()
    }

    /// Returns an operation on a token, without a query.
    pub(crate) fn operation(&self, token: Arc<str>, verb: Verb, terms: Terms) -> AcquireRelease<K> {
        let mut known = lock(&self.terms);
        let number = known.iter().position(|other| *other == terms).unwrap_or_else(|| {
            known.push(terms);
            known.len() - 1
        });
        drop(known);
        // The groups of releases are first: a release is sent before the next acquire.
        let group = if terms == Terms::usual(terms.ttl) { number } else { number | OTHER_TERMS };
        AcquireRelease { scene: Arc::clone(&self.scene), token, verb, terms, group, query: None }
    }

    pub(crate) fn client(&self) -> &Client<AcquireRelease<K>> {
        &self.clients.acquire_release
    }

    pub(super) fn release_operation(&self, back: &GiveBack) -> AcquireRelease<K> {
        let verb = if back.withdrawn { Verb::Withdraw } else { Verb::Release };
        self.operation(Arc::clone(&back.token), verb, Terms::usual(back.ttl))
    }

    pub(crate) async fn release_token(&self, back: &GiveBack) -> Result<Was, Error> {
        Ok(self.release_answer(back).await?.0)
    }

    /// Releases, and returns also whether the call was sent twice.
    pub(super) async fn release_answer(&self, back: &GiveBack) -> Result<(Was, bool), Error> {
        let answer = self.client().run(back.key.clone(), self.release_operation(back)).await?;
        match answer.what {
            What::Released(was) => Ok((was, answer.twice)),
            What::Acquired(_) => Err(unasked()),
        }
    }

    /// Renews the lease of a token. Returns `None` if it holds no longer.
    pub(crate) async fn renew_token(
        &self,
        key: Key,
        token: Arc<str>,
        ttl: Duration,
        fence: i64,
    ) -> Result<At<Option<i64>>, Error> {
        self.clients.renew.run(key, Renew { token, ttl: micros(ttl), fence, kind: PhantomData }).await
    }

    /// Renews a lease once.
    pub(crate) async fn renew(self: &Arc<Self>, state: &Arc<LeaseState>) -> Result<(), Error> {
        let (sent, tenure) = (clock::now(), &state.tenure);
        let renewed = self.renew_token(tenure.key.clone(), Arc::clone(&tenure.token), tenure.ttl, 0).await?;
        let anchor = Anchor { sent, now: renewed.now };
        let drift = state.holding.options.drift;
        let until = renewed.what.map(|expiry| anchor.until(expiry, tenure.ttl, drift));
        if until.is_some_and(|until| tenure.renewed(sent, until)) {
            state.counts.renewed();
            return Ok(());
        }
        state.lose();
        tenure.end();
        self.tenure_over(tenure.id);
        if until.is_some() && !state.is_given_up() {
            // Too late for this process. The release saves others the wait for its expiry.
            self.give_back(GiveBack::of(tenure));
        }
        Err(Error::lost())
    }

    /// Records how long a lease was held.
    pub(super) fn note_hold_time(&self, held: Duration) {
        let held = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX / 8).max(1);
        let old = self.hold_time.load(Ordering::Relaxed);
        let new = if old == 0 { held } else { old - old / 8 + held / 8 };
        self.hold_time.store(new.max(1), Ordering::Relaxed);
    }

    /// Returns the average of recent hold times in this process, if there are any.
    pub(crate) fn hold_time(&self) -> Option<Duration> {
        let nanos = self.hold_time.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

/// The leases of one value of a namespace. Cheap to clone.
pub(crate) struct Leases<K: Kind> {
    pub(crate) admission: Arc<Admission<K>>,
    pub(crate) holding: Arc<Holding>,
}

impl<K: Kind> Leases<K> {
    pub(crate) fn new(
        admission: Arc<Admission<K>>,
        options: LeaseOptions,
        leases: crate::telemetry::Leases,
    ) -> Self {
        let closed = tokio::sync::watch::Sender::new(false);
        Self { admission, holding: Arc::new(Holding { options, leases, closed }) }
    }

    /// Sends away the waiters of this value, now and later.
    pub(crate) fn close(&self) {
        self.holding.closed.send_replace(true);
    }

    pub(crate) fn options(&self) -> &LeaseOptions {
        &self.holding.options
    }
}

impl<K: Kind<Outcome = ()>> Leases<K> {
    /// Creates the leases of a namespace. All values of one name in this process share its state.
    pub(crate) fn shared(
        store: &Store,
        name: &str,
        namespace: impl FnOnce() -> Namespace<KeyState<K::Holders>>,
        options: LeaseOptions,
        leases: crate::telemetry::Leases,
    ) -> Self {
        let admission = store.shared(name, || Admission::new(store, &namespace(), ()));
        Self::new(admission, options, leases)
    }
}

/// The error for an answer of the wrong operation. Decoding never returns one.
pub(super) fn unasked() -> Error {
    Error::unavailable(Cause::Unexpected, "the reply belongs to another operation")
}

impl<K: Kind> Clone for Leases<K> {
    fn clone(&self) -> Self {
        Self { admission: Arc::clone(&self.admission), holding: Arc::clone(&self.holding) }
    }
}

impl<K: Kind> fmt::Debug for Leases<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("options", &self.holding.options).finish_non_exhaustive()
    }
}

impl<K: Kind> fmt::Debug for Admission<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").finish_non_exhaustive()
    }
}
