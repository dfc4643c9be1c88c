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
use crate::lease::handle::{CommonOwner, LeaseHandle, LeaseOwner, LeaseState};
use crate::lease::hold_time::HoldTime;
use crate::lease::key_state::{AcquireTerms, KeyState, TokenState};
use crate::lease::kind;
use crate::lease::kind::{Entry, Found, Kind, Outcome, Query, Scope};
use crate::lease::look::{Look, Snapshot, revoke};
use crate::lease::operations::{
    AcquireRelease, Answer, Heartbeat, Release, Renew, ReplyKind, ScriptContext, Verb, VerbOf,
};
use crate::lease::options::{Holding, LeaseOptions, Watched, micros, rules, spans};
use crate::lease::process::Tokens;
use crate::lease::process::event::{Event, Grant, Host};
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
pub(crate) struct LeaseNamespace<K: Kind> {
    pub(crate) store: Store,
    pub(crate) states: Namespace<KeyState<K::Holders>>,
    pub(crate) acquire_release: Client<AcquireRelease<K>>,
    pub(crate) renew: Client<Renew<K>>,
    pub(super) heartbeat: Client<Heartbeat<K>>,
    pub(super) look: Client<Look<K>>,
    pub(super) context: Arc<ScriptContext<K>>,
    pub(super) tokens: Mutex<State<K>>,
    /// Locked together with `tokens`, or alone.
    pub(super) new_leases: Stripes<Mutex<NewLeases>>,
    /// Whether `tokens` has recorded an outage.
    pub(super) has_outages: AtomicBool,
    /// Renewal times are rounded to multiples of a span since this time.
    pub(crate) began: Instant,
    pub(crate) local: ProcessHost<K>,
    pub(crate) hold_time: HoldTime,
    /// The limit of permits that the fleet has set for the keys.
    fleet: OnceLock<Arc<FleetSet>>,
}

pub(super) struct State<K: Kind> {
    pub(super) tokens: Tokens<ProcessHost<K>>,
    /// A reference to the namespace itself, while it has pending releases.
    pub(super) keep_alive: Option<Arc<LeaseNamespace<K>>>,
}

impl<K: Kind> LeaseNamespace<K> {
    pub(crate) fn new(
        store: &Store,
        namespace: &Namespace<KeyState<K::Holders>>,
        scope: Scope<K>,
    ) -> Arc<Self> {
        let namespace = store.notifier().join(|ids| {
            let began = clock::now();
            let local = ProcessHost {
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
                states: namespace.clone(),
                context: Arc::new(ScriptContext {
                    channels: spans(store).with(&store.channels()),
                    spans: spans(store),
                    scope,
                }),
                tokens: Mutex::new(State {
                    tokens: Tokens::new(local.clone(), rules(store, K::Outcome::HEARS), began),
                    keep_alive: None,
                }),
                new_leases: Stripes::new(Mutex::default),
                has_outages: AtomicBool::new(false),
                began,
                local,
                hold_time: HoldTime::new(Instant::now()),
                fleet: OnceLock::new(),
            })
        });
        store.scheduler().join(&namespace);
        namespace
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
        &self.context.scope
    }

    /// Returns an outcome that makes an acquire unnecessary, if the store is in memory. Does not wait.
    pub(crate) fn find(&self, key: &Key, query: &Query<K>) -> Option<Found<K>> {
        let step = |state: &mut KeyState<K::Holders>, now| {
            K::Outcome::look(&state.holders, &self.context.scope, query, false, now)
        };
        match self.states.cells()?.step(key.as_bytes(), step).ok()? {
            kind::Look::Done(found) => Some(found),
            _ => None,
        }
    }

    /// Stores an outcome, releases the lease to the store, and makes the waiters acquire again. Returns whether the
    /// lease was still held, and how full the filter is, for kinds that have one; or why the outcome was not stored, in
    /// which case nothing changes. `again`: it was sent before, and the reply is not known.
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

    /// Like [`complete`](Self::complete), but in the next batch, whose reply calls `then`: no task waits for it.
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

    /// Completes in memory. `None` if the store is not in memory.
    fn complete_in_memory(&self, state: &LeaseState, entry: &Entry<K>) -> Option<Completed<K>> {
        let Grant { key, token, .. } = &state.grant;
        let step = |state: &mut _, now| self.context.complete(state, token, entry, now);
        Some(
            self.states
                .cells()?
                .step_with(key.as_bytes(), K::Outcome::payload(entry), step),
        )
    }

    fn completion(&self, state: &LeaseState, entry: Entry<K>, again: bool) -> AcquireRelease<K> {
        let terms = AcquireTerms::usual(micros(state.ttl()));
        self.operation(
            state.grant.token.clone(),
            Verb::Complete { entry, again },
            terms,
        )
    }

    pub(super) fn operation(
        &self,
        token: Token,
        verb: VerbOf<K>,
        terms: AcquireTerms,
    ) -> AcquireRelease<K> {
        AcquireRelease {
            context: Arc::clone(&self.context),
            token,
            verb,
            terms,
        }
    }

    pub(crate) fn release_operation(&self, back: &Release) -> AcquireRelease<K> {
        let verb = Verb::Release {
            withdraws: back.withdrawn,
        };
        self.operation(back.token.clone(), verb, AcquireTerms::usual(back.ttl))
    }

    /// Releases a token. Also returns whether the call was sent twice.
    pub(crate) async fn release_token(&self, back: &Release) -> Result<(TokenState, bool), Error> {
        let answer = self
            .acquire_release
            .run(back.key.clone(), self.release_operation(back))
            .await?;
        match answer.what {
            ReplyKind::Released(was) => Ok((was, answer.twice)),
            ReplyKind::Acquired(_) | ReplyKind::Completed(..) => Err(unexpected()),
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

    /// Releases the lease of a token, or its place in the queue. The token may belong to another process. Returns
    /// whether the lease was held.
    pub(crate) async fn revoke(&self, key: Key, token: &[u8]) -> Result<bool, Error> {
        revoke::<K>(&self.store, &self.states, key, token).await
    }

    /// Estimates the time until a lease is free, from the end of the next lease (in `left` µs) and the recent hold
    /// times of the waiters `before` it.
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

/// On a change, the waiters send heartbeats with the new limit, and the store grants what now fits.
impl<K: Kind> Watcher for LeaseNamespace<K> {
    fn limit_changed(self: Arc<Self>) {
        self.handle(Event::Signal(Signal::Relinked));
    }
}

/// The result of [`LeaseNamespace::complete`].
pub(crate) type Completed<K> = Result<Result<(bool, u64), Found<K>>, Error>;

fn completed<K: Kind>(answer: Result<Answer<Found<K>>, Error>) -> Completed<K> {
    let Answer { found, what, .. } = answer?;
    match (found, what) {
        (Some(obstacle), _) => Ok(Err(obstacle)),
        (None, ReplyKind::Completed(was_held, level)) => Ok(Ok((was_held, level))),
        (None, _) => Err(unexpected()),
    }
}

/// The leases of one value of a namespace. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Leases<K: Kind> {
    pub(crate) namespace: Arc<LeaseNamespace<K>>,
    /// The common state and the owner of the leases, with a copy for each stripe of threads: with a single copy, all
    /// threads would contend for its reference counts.
    common: Arc<Stripes<(Arc<Holding>, CommonOwner)>>,
}

impl<K: Kind> Leases<K> {
    pub(crate) fn new(
        namespace: Arc<LeaseNamespace<K>>,
        options: LeaseOptions,
        leases: crate::telemetry::counters::Leases,
    ) -> Self {
        Self::of(namespace, &Holding::new(options, leases))
    }

    fn of(namespace: Arc<LeaseNamespace<K>>, holding: &Holding) -> Self {
        let watched: Weak<dyn Watched> = Arc::<LeaseNamespace<K>>::downgrade(&namespace);
        let holding = Holding {
            watched: Some(watched),
            ..holding.clone()
        };
        let common = || {
            let owner = Arc::clone(&namespace) as Arc<dyn LeaseOwner>;
            (Arc::new(holding.clone()), Arc::new(owner))
        };
        Self {
            common: Arc::new(Stripes::new(common)),
            namespace,
        }
    }

    /// Returns the common state and the owner, for the stripe of this thread.
    pub(super) fn common(&self) -> &(Arc<Holding>, CommonOwner) {
        &self.common[my_stripe()]
    }

    pub(crate) fn holding(&self) -> &Arc<Holding> {
        &self.common().0
    }

    /// Rejects the current and all later waiters of this value.
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
        leases: crate::telemetry::counters::Leases,
    ) -> Self {
        let namespace = store.shared(name, || LeaseNamespace::new(store, &namespace(), ()));
        Self::new(namespace, options, leases)
    }

    /// Returns the leases of this name in the [local share](Store::local_share). All users of the store and the name
    /// share them. They have the options of these leases, and are closed with them.
    pub(crate) fn local_share(
        &self,
        name: &str,
        open: impl FnOnce(&Store) -> Namespace<KeyState<K::Holders>>,
    ) -> Self {
        let store = self.namespace.store.local_share();
        let namespace = store.shared(name, || LeaseNamespace::new(store, &open(store), ()));
        Self::of(namespace, self.holding())
    }
}

impl<K: Kind> fmt::Debug for Leases<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}

debug!(LeaseNamespace<K: Kind>);

/// The waiters and leases of this process.
#[derive_where(Clone)]
pub(crate) struct ProcessHost<K> {
    pub(super) process: u64,
    pub(super) ids: Ids,
    pub(super) kind: PhantomData<fn(K)>,
}

impl<K> ProcessHost<K> {
    /// Returns a new id, and the token that contains it.
    pub(crate) fn token(&self, holding: &Holding, suffix: &Suffix) -> (u64, Token) {
        let id = self.ids.next();
        (id, Token::new(self.process, id, &holding.marks, suffix))
    }
}

impl<K: Kind> Host for ProcessHost<K> {
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
        ProcessHost::token(self, &waiter.holding, &waiter.ask.suffix)
    }

    fn lease(&mut self, waiter: &Self::Waiter, grant: Grant) -> LeaseHandle {
        LeaseHandle::new(grant, &waiter.holding)
    }
}

/// A lease, and when it is renewed, if ever.
pub(super) type Leased = (LeaseHandle, Option<Instant>);

/// Leases that were acquired without waiting, until their first renewal.
///
/// Most leases end before that. Until then no waiter of this process is behind them, so they need no entry in the
/// [tokens](Tokens), only an entry in this map.
#[derive(Default)]
pub(super) struct NewLeases {
    leases: HashMap<u64, Leased>,
    /// The first renewal, or an earlier time: leases that have ended do not change it.
    next: Option<Instant>,
}

impl NewLeases {
    /// Returns the earliest time at which a lease may have to be renewed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Adds a lease, which is renewed at `renew`. Returns that time if the scheduler has to learn of it: if no earlier
    /// renewal is to come.
    pub(super) fn insert(
        &mut self,
        lease: LeaseHandle,
        renew: Option<Instant>,
        now: Instant,
    ) -> Option<Instant> {
        self.leases.insert(lease.state.grant.id, (lease, renew));
        let renew = renew?;
        if let Some(next) = self.next
            && next <= renew
        {
            return (next <= now).then_some(renew);
        }
        self.next = Some(renew);
        Some(renew)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Leased> {
        self.leases.remove(&id)
    }

    /// Removes the leases that are due by `now`, or all if it is `None`.
    pub(super) fn take_due(&mut self, now: Option<Instant>) -> Vec<Leased> {
        if now.is_some_and(|now| self.next.is_none_or(|next| next > now)) {
            return Vec::new();
        }
        let is_due = |due: Option<Instant>| now.is_none_or(|now| due.is_some_and(|due| due <= now));
        let take_due = self
            .leases
            .extract_if(|_, (_, due)| is_due(*due))
            .map(|(_, leased)| leased);
        let take_due = take_due.collect();
        self.next = self.leases.values().filter_map(|(_, due)| *due).min();
        take_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::holders::Exclusive;
    use crate::store::scheduler::Signal;

    fn namespace() -> Arc<LeaseNamespace<Exclusive>> {
        let store = Store::in_memory();
        LeaseNamespace::new(&store, &Namespace::new(&store, "m").unwrap(), ())
    }

    /// The `retry_after` of a refusal.
    #[test]
    fn the_time_until_a_lease_is_free_is_estimated() {
        let namespace = namespace();
        let ns = Duration::from_nanos;
        let estimated = |left, before| {
            namespace
                .retry_after(left, before)
                .map(|span| span.as_nanos())
        };
        // The end of the next lease, until a hold time is known.
        assert_eq!(
            [-1, 0, 1, 5000].map(|left| estimated(left, 0)),
            [None, None, Some(1000), Some(5_000_000)]
        );
        namespace.hold_time.note(ns(1788));
        // The hold time, multiplied by the number of waiters ahead and one more.
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
        let namespace = namespace();
        namespace.handle(Event::Signal(Signal::Hurry));
        let weak = Arc::downgrade(&namespace);
        drop(namespace);
        assert!(weak.upgrade().is_none());
    }
}
