//! A namespace of leases: who holds them in this process, who waits for them, and what is due when.
//!
//! The protocol in short. Who finds no room and waits has a place in a queue in the store, and sends nothing. Whoever
//! releases grants to the first in the queue, in the release script, and the grant is pushed to the waiter's process.
//! It is a *claim*, of short life: the waiter makes a full lease of it by its first renewal. Waiters *beat* now and
//! then, many in one call, which keeps their places and finds grants whose pushes were lost. They also do so when the
//! next lease ends, in case its holder is gone.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Lease;
use super::held::Held;
use super::kind::{Found, Kind, Query, Scope};
use super::number::Number;
use super::operations::{At, Beat, Inspect, Occupancy, Outcome, Renew, Scene, Take, Turn, Verb};
use super::releases::Releases;
use super::renewals::Renewals;
use super::room::{Room, Spans, Standing, Was};
use super::terms::Terms;
use super::waiters::Waiter;
pub(crate) use super::waiting::{Ask, Got, Wait};
use crate::error::Cause;
use crate::store::{Client, Link, Namespace, PeriodicTask};
use crate::telemetry::Leases;
use crate::{Error, Key, Store};

/// How long a grant stands until its waiter confirms it.
pub(super) const CLAIM: Duration = Duration::from_millis(1500);

/// How often a waiter says that it is alive.
pub(super) const BEAT: Duration = Duration::from_secs(2);

/// For how long it counts as alive after that.
pub(super) const LIFE: Duration = Duration::from_secs(7);

/// For how long an acquire that was withdrawn is refused if it comes after all.
const MOURNING: Duration = Duration::from_secs(60);

/// A namespace of leases.
pub(crate) struct Admission<K: Kind> {
    pub(in crate::primitive) store: Store,
    pub(super) clients: Clients<K>,
    pub(crate) namespace: Namespace<Room<K::Holders>>,
    pub(super) scene: Arc<Scene<K>>,
    pub(crate) terms: Terms,
    pub(super) renewals: Renewals,
    pub(super) leases: Leases,
    /// By the numbers in their tokens.
    pub(super) waiters: Mutex<HashMap<u64, Waiter>>,
    pub(super) releases: Releases<K>,
    /// Whether those who wait are sent away.
    closed: watch::Sender<bool>,
}

pub(super) struct Clients<K: Kind> {
    pub(super) turn: Client<Turn<K>>,
    renew: Client<Renew<K>>,
    pub(super) beat: Client<Beat<K>>,
    inspect: Client<Inspect<K>>,
}

impl<K: Kind> Admission<K> {
    pub(crate) fn new(
        store: &Store,
        namespace: &Namespace<Room<K::Holders>>,
        terms: Terms,
        scope: Scope<K>,
        leases: Leases,
    ) -> Arc<Self> {
        let spans = Spans { claim: micros(CLAIM), life: micros(LIFE), mourning: micros(MOURNING) };
        let usual = Take { ttl: micros(terms.ttl), most: u32::MAX.into(), rank: 0 };
        let admission = Arc::new(Self {
            store: store.clone(),
            clients: Clients {
                turn: namespace.client(),
                renew: namespace.client(),
                beat: namespace.client(),
                inspect: namespace.client(),
            },
            namespace: namespace.clone(),
            scene: Arc::new(Scene { channels: store.channels().into(), spans, usual, scope }),
            renewals: Renewals::new(store, terms.ttl, terms.watchdog),
            terms,
            leases,
            waiters: Mutex::default(),
            releases: Releases::new(),
            closed: watch::Sender::new(false),
        });
        let task: std::sync::Weak<dyn PeriodicTask> = Arc::<Self>::downgrade(&admission);
        store.scheduler().join(task);
        admission
    }

    /// Sends away those who wait now or later.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    pub(crate) async fn inspect(&self, key: Key) -> Result<At<Occupancy>, Error> {
        self.clients.inspect.run(key, Inspect(PhantomData)).await
    }

    /// A token that was never used, and the number in it. After the name of the process, `+` says that it certainly
    /// hears what is pushed to it; after the number, for how long a grant may stand where that is shorter than most.
    pub(crate) fn token(&self, suffix: &str) -> (u64, Arc<str>) {
        let (notifier, number) = (self.store.notifier(), self.store.notifier().number());
        let sign = if self.store.counts_hearers() && self.is_linked() { '+' } else { '-' };
        let (process, Terms { ttl, signature, .. }) = (notifier.process(), &self.terms);
        let short = if *ttl < CLAIM { format!(".{:x}", micros(*ttl)) } else { String::new() };
        (number, format!("{process}{sign}{number:x}{short}{signature}{suffix}").into())
    }

    pub(super) fn is_linked(&self) -> bool {
        *self.store.notifier().link().borrow() != Link::Down
    }

    /// Asks for what stands behind a token, and what is on record.
    pub(crate) async fn ask(
        &self,
        key: Key,
        token: Arc<str>,
        ask: &Ask<Query<K>>,
    ) -> Result<(At<Standing>, Option<Found<K>>), Error> {
        let most = ask.wait.map_or(0, |wait| wait.most.into());
        let take = Take { ttl: micros(self.terms.ttl), most, rank: ask.rank };
        let verb = if ask.insists { Verb::Insist(take) } else { Verb::Take(take) };
        let turn = Turn { query: Some(ask.query.clone()), ..self.turn(token, verb) };
        let turned = self.clients.turn.run(key, turn).await?;
        match turned.outcome {
            Outcome::Taken(standing) => Ok((standing, turned.found)),
            Outcome::Given(_) => Err(unasked()),
        }
    }

    pub(super) fn turn(&self, token: Arc<str>, verb: Verb) -> Turn<K> {
        Turn { scene: Arc::clone(&self.scene), token, verb, query: None }
    }

    /// Takes on a lease.
    pub(super) fn lease(self: &Arc<Self>, number: u64, held: Arc<Held>, is_claim: bool) -> Lease {
        self.renewals.add(number, &held, is_claim.then_some(CLAIM));
        Lease::new(held, Arc::new(Number { admission: Arc::clone(self), number }))
    }

    pub(crate) async fn release(&self, key: Key, token: Arc<str>, withdrawn: bool) -> Result<Was, Error> {
        let give = self.turn(token, Verb::Give { withdrawn });
        match self.clients.turn.run(key, give).await?.outcome {
            Outcome::Given(was) => Ok(was),
            Outcome::Taken(_) => Err(unasked()),
        }
    }

    /// Until when a place in the queue, or what came of it, may last.
    pub(crate) fn place_until(&self) -> Instant {
        Instant::now() + self.terms.ttl + LIFE
    }

    /// Makes what a token holds last anew; `None` where it holds no longer.
    pub(crate) async fn renew_token(&self, key: Key, token: Arc<str>) -> Result<At<Option<i64>>, Error> {
        self.clients.renew.run(key, Renew { token, ttl: micros(self.terms.ttl), kind: PhantomData }).await
    }

    /// Renews a lease once.
    pub(crate) async fn renew(self: &Arc<Self>, held: &Arc<Held>) -> Result<(), Error> {
        let sent = Instant::now();
        let renewed = self.renew_token(held.key.clone(), Arc::clone(&held.token)).await?;
        let prolonged = match renewed.what {
            Some(expiry) => held.renewed(sent, self.terms.drift.until(sent, renewed.now, expiry)),
            None => false,
        };
        if prolonged {
            held.counts.renewed();
            return Ok(());
        }
        held.counts.lost();
        held.end();
        if renewed.what.is_some() {
            // Too late for us; others need not wait for it to run out.
            self.release_detached(held.key.clone(), held.token.clone(), false, self.place_until());
        }
        Err(Error::lost())
    }
}

/// An answer to another question than was asked: decoding gives none.
pub(super) fn unasked() -> Error {
    Error::unavailable(Cause::Unexpected, "the answer to another question")
}

/// Whole µs, rounded up.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX / 4)
}

impl<K: Kind> fmt::Debug for Admission<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("terms", &self.terms).finish_non_exhaustive()
    }
}
