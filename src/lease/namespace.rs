//! A namespace of leases: its waiters and leases in this process, and its calls to the store.
//!
//! The protocol in short: a waiter that gets no lease takes a place in a queue in the store. It does not poll. A
//! release grants the lease to the first waiter in the queue, in the same script, and the grant is pushed to the
//! waiter's process. A grant lasts for a short time; the waiter's first renewal turns it into a full lease. From
//! time to time a process sends a *heartbeat* for its waiters, many in one call. A heartbeat keeps their places and
//! finds grants whose pushes were lost. It is also sent when the next lease ends, in case its holder has crashed.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use derive_where::derive_where;
use hashbrown::HashMap;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::lease::handle::{CommonKeeper, Keeper, LeaseHandle, LeaseState};
use crate::lease::hold_time::HoldTime;
use crate::lease::key_state::{KeyState, Terms, Was};
use crate::lease::kind;
use crate::lease::kind::{Entry, Found, Kind, Outcome, Query, Scope};
use crate::lease::look::{Look, Snapshot, revoke};
use crate::lease::operations::{
    AcquireRelease, Answer, Heartbeat, Renew, Scene, Verb, VerbOf, What,
};
use crate::lease::options::{Holding, LeaseOptions, Watched, micros, rules, spans};
use crate::lease::process::Tokens;
use crate::lease::process::event::{Event, Grant, Party, Release};
use crate::lease::process::wait::unexpected;
use crate::lease::settings::{FleetSet, KeyLimit, Watcher};
use crate::lease::token::{Suffix, Token};
use crate::lease::waiter::Waiter;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::notifier::Ids;
use crate::store::scheduler::Signal;
use crate::sync::{Stripes, my_stripe};

/// A namespace of leases, shared by all its values in this process.
pub(crate) struct Admission<K: Kind> {
    pub(crate) store: Store,
    pub(crate) namespace: Namespace<KeyState<K::Holders>>,
    pub(crate) acquire_release: Client<AcquireRelease<K>>,
    pub(crate) renew: Client<Renew<K>>,
    pub(super) heartbeat: Client<Heartbeat<K>>,
    pub(super) look: Client<Look<K>>,
    pub(super) scene: Arc<Scene<K>>,
    pub(super) tokens: Mutex<State<K>>,
    /// Locked with `tokens`, or alone.
    pub(super) young: Stripes<Mutex<Young>>,
    /// Whether the tokens know of an outage.
    pub(super) has_outages: AtomicBool,
    /// Renewal times are rounded to whole spans since this time.
    pub(crate) began: Instant,
    pub(crate) local: Local<K>,
    pub(crate) hold_time: HoldTime,
    /// What the fleet has set for the keys, for permits.
    fleet: OnceLock<Arc<FleetSet>>,
}

pub(super) struct State<K: Kind> {
    pub(super) tokens: Tokens<Local<K>>,
    /// The namespace, while the store owes it releases.
    pub(super) keep: Option<Arc<Admission<K>>>,
}

impl<K: Kind> Admission<K> {
    pub(crate) fn new(
        store: &Store,
        namespace: &Namespace<KeyState<K::Holders>>,
        scope: Scope<K>,
    ) -> Arc<Self> {
        let admission = store.notifier().join(|ids| {
            let began = clock::now();
            let local = Local {
                process: store.notifier().number(),
                ids,
                kind: PhantomData,
            };
            Arc::new(Self {
                store: store.clone(),
                acquire_release: namespace.client(),
                renew: namespace.client(),
                heartbeat: namespace.client(),
                look: namespace.client(),
                namespace: namespace.clone(),
                scene: Arc::new(Scene {
                    channels: spans(store).with(&store.channels()),
                    spans: spans(store),
                    scope,
                }),
                tokens: Mutex::new(State {
                    tokens: Tokens::new(local.clone(), rules(store, K::Outcome::HEARS), began),
                    keep: None,
                }),
                young: Stripes::new(Mutex::default),
                has_outages: AtomicBool::new(false),
                began,
                local,
                hold_time: HoldTime::new(Instant::now()),
                fleet: OnceLock::new(),
            })
        });
        store.scheduler().join(&admission);
        admission
    }

    /// Follows the limit that the fleet sets for this name.
    pub(crate) fn follow_limit(self: &Arc<Self>, name: &str) {
        self.fleet.get_or_init(|| {
            let fleet = FleetSet::of(&self.store, name);
            let watcher: Weak<dyn Watcher> = Arc::<Self>::downgrade(self);
            fleet.watch(watcher);
            fleet
        });
    }

    /// Returns the limit that the fleet has set.
    pub(crate) fn fleet_limit(&self) -> Option<KeyLimit> {
        self.fleet.get()?.known()
    }

    /// Returns the settings of the outcomes.
    pub(crate) fn scope(&self) -> &Scope<K> {
        &self.scene.scope
    }

    /// Returns an outcome that leaves nothing to do, if the store is in memory. Does not wait.
    pub(crate) fn find(&self, key: &Key, query: &Query<K>) -> Option<Found<K>> {
        let step = |state: &mut KeyState<K::Holders>, now| {
            K::Outcome::look(&state.holders, &self.scene.scope, query, false, now)
        };
        match self.namespace.cells()?.step(key.as_bytes(), step).ok()? {
            kind::Look::Done(found) => Some(found),
            _ => None,
        }
    }

    /// Enters an outcome, releases the lease to the store, and tells the waiters to acquire again. Returns whether the lease
    /// was still held, and how full the filter is, for kinds that have one; or why the outcome was not entered. Then nothing
    /// is changed. `again`: it was sent before, and the answer is not known.
    pub(crate) async fn complete(
        &self,
        state: &LeaseState,
        entry: Entry<K>,
        again: bool,
    ) -> Completed<K> {
        if let Some(completed) = self.complete_in_memory(state, &entry) {
            return completed;
        }
        let operation = self.completion(state, entry, again);
        completed::<K>(
            self.acquire_release
                .run(state.grant.key.clone(), operation)
                .await,
        )
    }

    /// The same in the next batch, whose reply calls `then`: no task waits for it.
    pub(crate) fn send_completion(
        &self,
        state: &LeaseState,
        entry: Entry<K>,
        then: impl FnOnce(Completed<K>) + Send + 'static,
    ) {
        if let Some(completed) = self.complete_in_memory(state, &entry) {
            return then(completed);
        }
        let here = Handle::try_current().ok();
        let operation = self.completion(state, entry, false);
        let key = state.grant.key.clone();
        self.acquire_release
            .send(here, key, operation, |answer| then(completed::<K>(answer)));
    }

    /// `None` if the store is not in memory.
    fn complete_in_memory(&self, state: &LeaseState, entry: &Entry<K>) -> Option<Completed<K>> {
        let Grant { key, token, .. } = &state.grant;
        let step = |state: &mut _, now| self.scene.complete(state, token, entry, now);
        Some(
            self.namespace
                .cells()?
                .step_with(key.as_bytes(), K::Outcome::payload(entry), step),
        )
    }

    fn completion(&self, state: &LeaseState, entry: Entry<K>, again: bool) -> AcquireRelease<K> {
        let terms = Terms::usual(micros(state.ttl()));
        self.operation(
            state.grant.token.clone(),
            Verb::Complete { entry, again },
            terms,
        )
    }

    /// Returns a new token without an entry here, and the id in it.
    pub(crate) fn token(&self, holding: &Holding, suffix: &Suffix) -> (u64, Token) {
        self.local.token(holding, suffix)
    }

    pub(super) fn operation(
        &self,
        token: Token,
        verb: VerbOf<K>,
        terms: Terms,
    ) -> AcquireRelease<K> {
        AcquireRelease {
            scene: Arc::clone(&self.scene),
            token,
            verb,
            terms,
        }
    }

    pub(crate) fn release_operation(&self, back: &Release) -> AcquireRelease<K> {
        let verb = Verb::Release {
            withdraws: back.withdrawn,
        };
        self.operation(back.token.clone(), verb, Terms::usual(back.ttl))
    }

    /// Releases. Returns also whether the call was sent twice.
    pub(crate) async fn release_token(&self, back: &Release) -> Result<(Was, bool), Error> {
        let answer = self
            .acquire_release
            .run(back.key.clone(), self.release_operation(back))
            .await?;
        match answer.what {
            What::Released(was) => Ok((was, answer.twice)),
            What::Acquired(_) | What::Completed(..) => Err(unexpected()),
        }
    }

    pub(crate) fn renewal(&self, token: &Token, ttl: i64, fence: i64) -> Renew<K> {
        Renew {
            token: token.clone(),
            ttl,
            fence,
            kind: PhantomData,
        }
    }

    /// Releases a token that has no entry here, in the background.
    pub(crate) fn release_later(self: &Arc<Self>, release: Release) {
        self.handle(Event::Releases(release));
    }

    /// Reads the holders of a key.
    pub(crate) async fn look(&self, key: Key) -> Result<Snapshot, Error> {
        self.look.run(key, Look::all()).await
    }

    /// Returns the sum of the weights held.
    pub(crate) async fn in_use(&self, key: Key) -> Result<u64, Error> {
        Ok(self.look.run(key, Look::sums()).await?.in_use)
    }

    /// Releases the lease or the place of a token, which may be of another process. Returns whether it was held.
    pub(crate) async fn revoke(&self, key: Key, token: &[u8]) -> Result<bool, Error> {
        revoke::<K>(&self.store, &self.namespace, key, token).await
    }

    /// Estimates the time until a lease is free, from the end of the next lease (in `left` µs) and the recent hold times
    /// of the waiters `before` it.
    pub(super) fn retry_after(&self, left: i64, before: i64) -> Option<Duration> {
        let left = u64::try_from(left)
            .ok()
            .filter(|left| *left > 0)
            .map(Duration::from_micros);
        let turns = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
        let recent = self.hold_time.recent(Instant::now());
        let typical = recent.map_or(Duration::MAX, |held| held.saturating_mul(turns));
        left.map(|left| left.min(typical))
    }
}

/// The waiters send heartbeats with the new limit, and the store grants what fits now.
impl<K: Kind> Watcher for Admission<K> {
    fn limit_changed(self: Arc<Self>) {
        self.handle(Event::Signal(Signal::Relinked));
    }
}

/// The result of [`Admission::complete`].
pub(crate) type Completed<K> = Result<Result<(bool, u64), Found<K>>, Error>;

fn completed<K: Kind>(answer: Result<Answer<Found<K>>, Error>) -> Completed<K> {
    let Answer { found, what, .. } = answer?;
    match (found, what) {
        (Some(obstacle), _) => Ok(Err(obstacle)),
        (None, What::Completed(was_held, level)) => Ok(Ok((was_held, level))),
        (None, _) => Err(unexpected()),
    }
}

/// The leases of one value of a namespace. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Leases<K: Kind> {
    pub(crate) admission: Arc<Admission<K>>,
    /// For each stripe of threads, so that their leases do not share counts of references: what leases have in common, and who
    /// keeps them.
    common: Arc<Stripes<(Arc<Holding>, CommonKeeper)>>,
}

impl<K: Kind> Leases<K> {
    pub(crate) fn new(
        admission: Arc<Admission<K>>,
        options: LeaseOptions,
        leases: crate::telemetry::leases::Leases,
    ) -> Self {
        Self::of(admission, &Holding::new(options, leases))
    }

    fn of(admission: Arc<Admission<K>>, holding: &Holding) -> Self {
        let watched: Weak<dyn Watched> = Arc::<Admission<K>>::downgrade(&admission);
        let holding = Holding {
            watched: Some(watched),
            ..holding.clone()
        };
        let common = || {
            let keeper = Arc::clone(&admission) as Arc<dyn Keeper>;
            (Arc::new(holding.clone()), Arc::new(keeper))
        };
        Self {
            common: Arc::new(Stripes::new(common)),
            admission,
        }
    }

    pub(crate) fn holding(&self) -> &Arc<Holding> {
        &self.common[my_stripe()].0
    }

    pub(super) fn keeper(&self) -> &CommonKeeper {
        &self.common[my_stripe()].1
    }

    /// Sends away the waiters of this value, now and later.
    pub(crate) fn close(&self) {
        self.holding().closed.send_replace(true);
    }

    pub(crate) fn options(&self) -> &LeaseOptions {
        &self.holding().options
    }
}

impl<K: Kind> Leases<K>
where
    K::Outcome: Outcome<K::Holders, Scope = ()>,
{
    /// Creates the leases of a namespace. All values of one name in this process share its state.
    pub(crate) fn shared(
        store: &Store,
        name: &str,
        namespace: impl FnOnce() -> Namespace<KeyState<K::Holders>>,
        options: LeaseOptions,
        leases: crate::telemetry::leases::Leases,
    ) -> Self {
        let admission = store.shared(name, || Admission::new(store, &namespace(), ()));
        Self::new(admission, options, leases)
    }

    /// Returns the leases of this name in the [local share](Store::local_share). All users of the store and the name
    /// share them. They have the options of these leases, and are closed with them.
    pub(crate) fn local_share(
        &self,
        name: &str,
        open: impl FnOnce(&Store) -> Namespace<KeyState<K::Holders>>,
    ) -> Self {
        let store = self.admission.store.local_share();
        let admission = store.shared(name, || Admission::new(store, &open(store), ()));
        Self::of(admission, self.holding())
    }
}

impl<K: Kind> fmt::Debug for Leases<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}

debug!(Admission<K: Kind>);

/// The waiters and leases of this process.
#[derive_where(Clone)]
pub(crate) struct Local<K> {
    pub(super) process: u64,
    pub(super) ids: Ids,
    pub(super) kind: PhantomData<fn(K)>,
}

impl<K> Local<K> {
    /// Returns a new id, and the token that contains it.
    pub(super) fn token(&self, holding: &Holding, suffix: &Suffix) -> (u64, Token) {
        let id = self.ids.next();
        (id, Token::new(self.process, id, &holding.marks, suffix))
    }
}

impl<K: Kind> Party for Local<K> {
    type Waiter = Arc<Waiter<K>>;
    type Lease = LeaseHandle;
    type Found = Found<K>;

    fn options(waiter: &Self::Waiter) -> &Arc<Holding> {
        &waiter.holding
    }

    fn gives_up(waiter: &Self::Waiter) -> bool {
        waiter.ask.gives_up
    }

    fn outlasts(lease: &LeaseHandle) -> bool {
        lease.state.outlasts()
    }

    fn token(&mut self, waiter: &Self::Waiter) -> (u64, Token) {
        Local::token(self, &waiter.holding, &waiter.ask.suffix)
    }

    fn lease(&mut self, waiter: &Self::Waiter, grant: Grant) -> LeaseHandle {
        LeaseHandle::new(grant, &waiter.holding)
    }
}

/// A lease, and when it is renewed, if it is.
pub(super) type Leased = (LeaseHandle, Option<Instant>);

/// Leases that were acquired at once, until they are renewed for the first time.
///
/// Most leases end before that. Until then no waiter of this process is behind them, so they need nothing of the
/// [tokens](Tokens), and are no more than an entry in a map.
#[derive(Default)]
pub(super) struct Young {
    leases: HashMap<u64, Leased>,
    /// Not later than the first renewal: leases that have ended do not change it.
    next: Option<Instant>,
}

impl Young {
    /// Returns when the first lease may have to be renewed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    pub(super) fn insert(&mut self, id: u64, leased: Leased) {
        self.next = [self.next, leased.1].into_iter().flatten().min();
        self.leases.insert(id, leased);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Leased> {
        self.leases.remove(&id)
    }

    /// Removes the leases that are to be renewed until `now`, or all.
    pub(super) fn grown_up(&mut self, now: Option<Instant>) -> Vec<Leased> {
        if now.is_some_and(|now| self.next.is_none_or(|next| next > now)) {
            return Vec::new();
        }
        let is_grown_up =
            |due: Option<Instant>| now.is_none_or(|now| due.is_some_and(|due| due <= now));
        let grown_up = self
            .leases
            .extract_if(|_, (_, due)| is_grown_up(*due))
            .map(|(_, leased)| leased);
        let grown_up = grown_up.collect();
        self.next = self.leases.values().filter_map(|(_, due)| *due).min();
        grown_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::holders::Exclusive;
    use crate::store::scheduler::Signal;

    fn admission() -> Arc<Admission<Exclusive>> {
        let store = Store::in_memory();
        Admission::new(&store, &Namespace::new(&store, "m").unwrap(), ())
    }

    /// The time for which a caller that is refused is told to wait.
    #[test]
    fn the_time_until_a_lease_is_free_is_estimated() {
        let admission = admission();
        let ns = Duration::from_nanos;
        let estimated = |left, before| {
            admission
                .retry_after(left, before)
                .map(|span| span.as_nanos())
        };
        // The end of the next lease, until it is known how long leases are held.
        assert_eq!(
            [-1, 0, 1, 5000].map(|left| estimated(left, 0)),
            [None, None, Some(1000), Some(5_000_000)]
        );
        admission.hold_time.note(ns(1788));
        // As many turns as there are waiters before, and its own.
        let expected = [
            (9, 0, 1788),
            (1, 0, 1000),
            (9, 3, 7152),
            (9, 9, 9000),
            (9, i64::MAX, 9000),
            (0, 0, 0),
        ];
        for (left, before, nanos) in expected {
            assert_eq!(
                estimated(left, before).unwrap_or(0),
                nanos,
                "{left} {before}"
            );
        }
    }

    #[test]
    fn a_namespace_that_owes_no_release_is_dropped() {
        let admission = admission();
        admission.handle(Event::Signal(Signal::Hurry));
        let weak = Arc::downgrade(&admission);
        drop(admission);
        assert!(weak.upgrade().is_none());
    }
}
