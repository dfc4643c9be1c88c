//! A namespace of leases: who holds them in this process, who waits for them, and what is due when.
//!
//! The protocol in short. Who finds no room and waits has a place in a queue in the store, and sends nothing. Whoever
//! releases grants to the first in the queue, in the release script, and the grant is pushed to the waiter's process. A
//! grant stands for a short time: the waiter makes a full lease of it by its first renewal. Waiters send a *heartbeat* now
//! and then, many in one call, which keeps their places and finds grants whose pushes were lost. They also do so when the
//! next lease ends, in case its holder is gone.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::belief::Anchor;
use super::complete::{Complete, Completed};
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

/// How long a grant to a waiter stands until it is confirmed.
pub(super) const GRANT: Duration = Duration::from_millis(1500);

/// How often a waiter says that it is alive.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(2);

/// For how long an acquire that was withdrawn is refused if it comes after all.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// The groups of other terms than the usual ones come behind these.
const OTHER_TERMS: usize = 1 << 31;

/// A namespace of leases, shared by all that use it in this process.
pub(crate) struct Admission<K: Kind> {
    pub(in crate::primitive) store: Store,
    pub(crate) namespace: Namespace<KeyState<K::Holders>>,
    pub(super) clients: Clients<K>,
    pub(super) scene: Arc<Scene<K>>,
    ids: Ids,
    /// The terms that were acquired on: each has a number, by which calls are told apart that cannot leave together.
    terms: Mutex<Vec<Terms>>,
    pub(super) table: Mutex<Table<Found<K>>>,
    pub(super) renewals: Renewals,
    pub(super) releases: Releases<K>,
    /// For how long leases were held of late, ns.
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
        let spans = Spans { grant: micros(GRANT), alive: micros(ALIVE), tombstone: micros(TOMBSTONE) };
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
                scene: Arc::new(Scene { channels: store.channels().into(), spans, scope }),
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

    pub(crate) async fn inspect(&self, key: Key) -> Result<At<Occupancy>, Error> {
        self.clients.inspect.run(key, Inspect(PhantomData)).await
    }

    /// What is found at once of the leases before, where the store is in this process.
    pub(crate) fn find(&self, key: &Key, query: &Query<K>) -> Option<Found<K>> {
        let step = |state: &mut KeyState<K::Holders>, now| {
            K::Outcome::look(&state.holders, &self.scene.scope, query, false, now)
        };
        match self.namespace.cells()?.step(key.as_bytes(), step).ok()? {
            Look::Done(found) => Some(found),
            _ => None,
        }
    }

    /// Enters what came of a lease, gives it back to the store, and sends those who wait to ask anew. Whether it was
    /// still held; the same call twice says no the second time. Or else what keeps it from being entered: then nothing
    /// is changed.
    pub(crate) async fn complete(
        &self,
        state: &LeaseState,
        entry: Entry<K>,
    ) -> Result<Result<bool, Found<K>>, Error> {
        Ok(self.fill(state, entry).await?.outcome)
    }

    /// The same; also how full it is where it was entered.
    pub(crate) async fn fill(
        &self,
        state: &LeaseState,
        entry: Entry<K>,
    ) -> Result<Completed<Found<K>>, Error> {
        let (scene, token) = (Arc::clone(&self.scene), Arc::clone(&state.tenure.token));
        let complete = Complete { scene, token, entry };
        self.clients.complete.run(state.tenure.key.clone(), complete).await
    }

    /// A token that was never used, and the id in it.
    pub(crate) fn token(
        &self,
        LeaseOptions { ttl, signature, .. }: &LeaseOptions,
        suffix: &str,
    ) -> (u64, Arc<str>) {
        let (id, process) = (self.ids.next(), self.store.notifier().process());
        (id, format!("{process}-{id:x}.{:x}{signature}{suffix}", micros(*ttl)).into())
    }

    /// Whether pushes arrive.
    pub(super) fn link(&self) -> Link {
        self.store.notifier().current_link()
    }

    /// The operation on a token, without a query.
    pub(crate) fn operation(&self, token: Arc<str>, verb: Verb, terms: Terms) -> AcquireRelease<K> {
        let mut known = lock(&self.terms);
        let number = known.iter().position(|other| *other == terms).unwrap_or_else(|| {
            known.push(terms);
            known.len() - 1
        });
        drop(known);
        // Those by which is released come first: what is released leaves before what is asked for next.
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
        match self.client().run(back.key.clone(), self.release_operation(back)).await?.what {
            What::Released(was) => Ok(was),
            What::Acquired(_) => Err(unasked()),
        }
    }

    /// Makes what a token holds last anew; `None` where it holds no longer.
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
            // Too late for us; others need not wait for it to run out.
            self.give_back(GiveBack::of(tenure));
        }
        Err(Error::lost())
    }

    /// Notes for how long a lease was held.
    pub(super) fn note_hold_time(&self, held: Duration) {
        let held = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX / 8).max(1);
        let old = self.hold_time.load(Ordering::Relaxed);
        let new = if old == 0 { held } else { old - old / 8 + held / 8 };
        self.hold_time.store(new.max(1), Ordering::Relaxed);
    }

    /// For how long leases were held of late in this process, if any were.
    pub(crate) fn hold_time(&self) -> Option<Duration> {
        let nanos = self.hold_time.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

/// One value of a namespace of leases. A cheap clone.
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

    /// Sends away those who wait through this value, now or later.
    pub(crate) fn close(&self) {
        self.holding.closed.send_replace(true);
    }

    pub(crate) fn options(&self) -> &LeaseOptions {
        &self.holding.options
    }
}

impl<K: Kind<Outcome = ()>> Leases<K> {
    /// Those of a namespace: all values of one name in this process share what they know.
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

/// An answer to another question than was asked: decoding gives none.
pub(super) fn unasked() -> Error {
    Error::unavailable(Cause::Unexpected, "the answer to another question")
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
