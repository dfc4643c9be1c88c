//! A family of leases: who holds them in this process, who waits for them, and what is due when.
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

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::held::{Held, Tenure};
use super::kind::Kind;
use super::operations::{At, Beat, Inspect, Occupancy, Outcome, Renew, Scene, Standings, Take, Turn, Verb};
use super::renewals::Renewals;
use super::room::{Room, Spans, Standing, Was};
use super::terms::Terms;
use super::waiting::Handed;
pub(crate) use super::waiting::{Ask, Wait};
use super::{Keeper, Lease};
use crate::error::Cause;
use crate::store::{Attend, Family, Link, Port, Running, Woken, lock, see_to_the_end};
use crate::{Error, Key, Store};

/// How long a grant stands until its waiter confirms it.
pub(super) const CLAIM: Duration = Duration::from_millis(1500);

/// How often a waiter says that it is alive.
const BEAT: Duration = Duration::from_secs(2);

/// For how long it counts as alive after that.
const LIFE: Duration = Duration::from_secs(7);

/// For how long an acquire that was withdrawn is refused if it comes after all.
const MOURNING: Duration = Duration::from_secs(60);

/// How many try again at a time to release what they could not while the store was away.
const MOST_RETRIES: usize = 256;

/// How many waiters of a key beat in one call.
const MOST_TOKENS: usize = 256;

/// A family of leases.
pub(crate) struct Admission<K: Kind> {
    pub(super) store: Store,
    ports: Ports<K>,
    pub(crate) family: Family<Room<K::Holders>>,
    scene: Arc<Scene>,
    pub(crate) terms: Terms,
    pub(super) renewals: Renewals,
    /// By the numbers in their tokens.
    waiters: Mutex<HashMap<u64, Waiter>>,
    /// How many more may try again to release what they could not.
    retries: Arc<Semaphore>,
    /// Whether those who wait are sent away.
    closed: watch::Sender<bool>,
}

struct Ports<K: Kind> {
    turn: Port<Turn<K>>,
    renew: Port<Renew<K>>,
    beat: Port<Beat<K>>,
    inspect: Port<Inspect<K>>,
}

pub(super) struct Waiter {
    pub(super) key: Key,
    pub(super) token: Arc<str>,
    /// When a call was sent, and what the server's clock said when it ran.
    pub(super) anchor: (Instant, i64),
    /// What is to be handed on to it in this process. It has no place in the store any more.
    pub(super) behind: Option<Arc<Tenure>>,
    /// `None` while it is under way.
    pub(super) due: Option<Instant>,
    /// Dropped without news: its place is lost.
    pub(super) news: Option<oneshot::Sender<Granted>>,
}

/// What a waiter learns by asking.
pub(super) struct Granted {
    pub(super) until: Instant,
    pub(super) fence: i64,
}

impl<K: Kind> Admission<K> {
    pub(crate) fn new(store: &Store, family: &Family<Room<K::Holders>>, terms: Terms) -> Arc<Self> {
        let spans = Spans {
            claim: micros(CLAIM.min(terms.ttl.max(CLAIM / 3))),
            life: micros(LIFE),
            mourning: micros(MOURNING),
        };
        let usual = Take { ttl: micros(terms.ttl), most: u32::MAX.into(), rank: 0 };
        let admission = Arc::new(Self {
            store: store.clone(),
            ports: Ports {
                turn: family.port(),
                renew: family.port(),
                beat: family.port(),
                inspect: family.port(),
            },
            family: family.clone(),
            scene: Arc::new(Scene { channels: store.channels().into(), spans, usual }),
            renewals: Renewals::new(store, terms.ttl, terms.watchdog),
            terms,
            waiters: Mutex::default(),
            retries: Arc::new(Semaphore::new(MOST_RETRIES)),
            closed: watch::Sender::new(false),
        });
        let attendant: std::sync::Weak<dyn Attend> = Arc::<Self>::downgrade(&admission);
        store.rounds().join(attendant);
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
        self.ports.inspect.run(key, Inspect(PhantomData)).await
    }

    /// A token that was never used, and the number in it. After the name of the process, `+` says that it certainly
    /// hears what is pushed to it.
    pub(crate) fn token(&self, suffix: &str) -> (u64, Arc<str>) {
        let (wakes, number) = (self.store.wakes(), self.store.wakes().number());
        let sign = if self.store.counts_hearers() && self.is_linked() { '+' } else { '-' };
        (number, format!("{}{sign}{number:x}{}{suffix}", wakes.process(), self.terms.signature).into())
    }

    fn is_linked(&self) -> bool {
        *self.store.wakes().link().borrow() != Link::Down
    }

    pub(crate) async fn ask(
        &self,
        key: Key,
        token: Arc<str>,
        rank: i64,
        most: i64,
    ) -> Result<At<Standing>, Error> {
        let take = self.turn(token, Verb::Take(Take { ttl: micros(self.terms.ttl), most, rank }));
        match self.ports.turn.run(key, take).await?.outcome {
            Outcome::Taken(standing) => Ok(standing),
            Outcome::Given(_) => Err(unasked()),
        }
    }

    fn turn(&self, token: Arc<str>, verb: Verb) -> Turn<K> {
        Turn { scene: Arc::clone(&self.scene), token, verb, kind: PhantomData }
    }

    /// Takes on a lease.
    pub(super) fn lease(self: &Arc<Self>, number: u64, held: Arc<Held>, is_claim: bool) -> Lease {
        self.renewals.add(number, &held, is_claim.then_some(CLAIM));
        Lease::new(held, Arc::new(Number { admission: Arc::clone(self), number }))
    }

    pub(super) fn wait(&self, number: u64, mut waiter: Waiter, soonest: i64) {
        let due = self.next_beat(waiter.anchor, soonest);
        waiter.due = Some(due);
        lock(&self.waiters).insert(number, waiter);
        self.store.rounds().see_to(due);
    }

    pub(super) fn stop_waiting(&self, number: u64) -> Option<Waiter> {
        lock(&self.waiters).remove(&number)
    }

    /// These wait no longer in the store, but for what their process hands on.
    pub(super) fn line_up_behind(&self, tenure: &Arc<Tenure>, numbers: Vec<u64>) {
        let mut waiters = lock(&self.waiters);
        for number in numbers {
            if let Some(waiter) = waiters.get_mut(&number) {
                (waiter.behind, waiter.due) = (Some(Arc::clone(tenure)), Some(tenure.until()));
            }
        }
    }

    /// Whether a waiter waits for what its process hands on.
    fn is_behind(&self, number: u64) -> bool {
        lock(&self.waiters).get(&number).is_some_and(|waiter| waiter.behind.is_some())
    }

    /// When a waiter asks next: in time to keep its place, and when the next lease ends.
    fn next_beat(&self, (sent, now): (Instant, i64), soonest: i64) -> Instant {
        let asks = self.terms.foreign || !self.is_linked();
        let beat = Instant::now() + if asks { self.terms.ask_every.min(BEAT) } else { BEAT };
        if soonest == 0 {
            return beat;
        }
        // A little later than it ends: what comes too early has to come again.
        let ends = sent + Duration::from_micros(u64::try_from(soonest - now).unwrap_or(0));
        beat.min(ends.max(Instant::now()) + Duration::from_millis(2))
    }

    pub(crate) async fn release(&self, key: Key, token: Arc<str>, withdrawn: bool) -> Result<Was, Error> {
        let give = self.turn(token, Verb::Give { withdrawn });
        match self.ports.turn.run(key, give).await?.outcome {
            Outcome::Given(was) => Ok(was),
            Outcome::Taken(_) => Err(unasked()),
        }
    }

    /// Releases in a task of its own, again and again while the store is away, until the lease or the place would
    /// have run out.
    pub(crate) fn release_detached(
        self: &Arc<Self>,
        key: Key,
        token: Arc<str>,
        withdrawn: bool,
        until: Instant,
    ) {
        // Begun here and now where that can be, so that it comes before what is asked for next.
        let first = self
            .store
            .can_begin()
            .then(|| self.ports.turn.begin(key.clone(), self.turn(token.clone(), Verb::Give { withdrawn })));
        if let Some(Running::Ready(_)) = first {
            return;
        }
        let first = first.map(|first| async move { first.await.is_ok() }.boxed());
        let admission = Arc::clone(self);
        let again = move || {
            let (admission, key, token) = (Arc::clone(&admission), key.clone(), Arc::clone(&token));
            async move {
                let mut pause = Duration::from_millis(20);
                let mut place = None;
                while admission.release(key.clone(), token.clone(), withdrawn).await.is_err()
                    && Instant::now() < until
                {
                    // Only so many try again: the others run out by themselves.
                    if place.is_none() {
                        match Arc::clone(&admission.retries).try_acquire_owned() {
                            Ok(permit) => place = Some(permit),
                            Err(_) => return,
                        }
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        };
        see_to_the_end(first, again);
    }

    /// Until when a place in the queue, or what came of it, may last.
    pub(crate) fn place_until(&self) -> Instant {
        Instant::now() + self.terms.ttl + LIFE
    }

    /// Makes what a token holds last anew; `None` where it holds no longer.
    pub(crate) async fn renew_token(&self, key: Key, token: Arc<str>) -> Result<At<Option<i64>>, Error> {
        self.ports.renew.run(key, Renew { token, ttl: micros(self.terms.ttl), kind: PhantomData }).await
    }

    /// Renews a lease once.
    pub(crate) async fn renew(self: &Arc<Self>, held: &Arc<Held>) -> Result<(), Error> {
        let sent = Instant::now();
        let renewed = self.renew_token(held.key.clone(), Arc::clone(&held.token)).await?;
        let prolonged = match renewed.what {
            Some(expiry) => held.prolong(self.terms.drift.until(sent, renewed.now, expiry)),
            None => false,
        };
        if prolonged {
            return Ok(());
        }
        held.end();
        if renewed.what.is_some() {
            // Too late for us; others need not wait for it to run out.
            self.release_detached(held.key.clone(), held.token.clone(), false, self.place_until());
        }
        Err(Error::lost())
    }

    async fn watch_over(self: Arc<Self>, number: u64, held: Arc<Held>) {
        let renewed = self.renew(&held).await;
        self.renewals.settle(number, &held, renewed.is_ok());
    }

    async fn beat(self: Arc<Self>, key: Key, waiters: Vec<(u64, Arc<str>)>) {
        let sent = Instant::now();
        let beat = Beat {
            scene: Arc::clone(&self.scene),
            tokens: waiters.iter().map(|(_, token)| Arc::clone(token)).collect(),
            ttl: micros(self.terms.ttl),
            kind: PhantomData,
        };
        match self.ports.beat.run(key, beat).await {
            Ok(At { now, what: Standings { soonest, each } }) => {
                for ((number, _), standing) in waiters.iter().zip(each) {
                    self.stands(*number, standing, (sent, now), soonest);
                }
            }
            Err(_) => {
                let again = Instant::now() + self.terms.ask_every.min(BEAT);
                let mut table = lock(&self.waiters);
                for (number, _) in &waiters {
                    if let Some(waiter) = table.get_mut(number) {
                        waiter.due = Some(again);
                    }
                }
            }
        }
    }

    /// What a waiter has come to.
    fn stands(&self, number: u64, standing: Standing, anchor: (Instant, i64), soonest: i64) {
        let granted = match standing {
            Standing::Held { expiry, fence } => {
                Some(Granted { until: self.terms.drift.until(anchor.0, anchor.1, expiry), fence })
            }
            _ if self.is_behind(number) => return,
            Standing::Queued { .. } => {
                let due = self.next_beat(anchor, soonest);
                if let Some(waiter) = lock(&self.waiters).get_mut(&number) {
                    (waiter.anchor, waiter.due) = (anchor, Some(due));
                }
                return;
            }
            Standing::Refused { .. } | Standing::Withdrawn => None,
        };
        if let Some(Waiter { news: Some(news), .. }) = self.stop_waiting(number)
            && let Some(granted) = granted
        {
            // If it has gone away by now, it has seen to what it was granted.
            let _ = news.send(granted);
        }
    }
}

impl<K: Kind> Attend for Admission<K> {
    fn due(&self) -> Option<Instant> {
        let beat = lock(&self.waiters).values().filter_map(|waiter| waiter.due).min();
        self.renewals.due().into_iter().chain(beat).min()
    }

    fn attend(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let now = Instant::now();
        let due = self.renewals.take_due(now).into_iter();
        let renewals = join_all(due.map(|(number, held)| Arc::clone(&self).watch_over(number, held)));
        let mut by_key: HashMap<Key, Vec<(u64, Arc<str>)>> = HashMap::new();
        for (number, waiter) in lock(&self.waiters).iter_mut() {
            if waiter.due.take_if(|due| *due <= now).is_none() {
                continue;
            }
            match &waiter.behind {
                Some(tenure) if tenure.is_valid() => waiter.due = Some(tenure.until()),
                // Whoever was to hand on has nothing to hand on any more.
                Some(_) => waiter.news = None,
                None => {
                    by_key.entry(waiter.key.clone()).or_default().push((*number, Arc::clone(&waiter.token)))
                }
            }
        }
        let mut beats = Vec::new();
        for (key, waiters) in by_key {
            for waiters in waiters.chunks(MOST_TOKENS) {
                beats.push(Arc::clone(&self).beat(key.clone(), waiters.to_vec()));
            }
        }
        Box::pin(async move {
            tokio::join!(renewals, join_all(beats));
        })
    }

    fn interrupted(&self) {
        self.renewals.interrupted();
        let now = Instant::now();
        for waiter in lock(&self.waiters).values_mut() {
            waiter.due = waiter.due.or(Some(now));
        }
    }

    fn relinked(&self) {
        let now = Instant::now();
        for waiter in lock(&self.waiters).values_mut() {
            waiter.due = waiter.due.map(|_| now);
        }
    }
}

/// One lease of a family.
struct Number<K: Kind> {
    admission: Arc<Admission<K>>,
    number: u64,
}

impl<K: Kind> Number<K> {
    /// Hands a lease on to the next in line in this process, if there is one and the lease is good for a while; else
    /// those in line ask anew.
    fn hand_on(&self, held: &Held) -> bool {
        let Some(mut line) = held.take_line() else { return false };
        let least = CLAIM.min(self.admission.terms.ttl) / 2;
        if !held.is_held() || held.until() < Instant::now() + least {
            return false;
        }
        let Some(next) = line.next() else { return false };
        held.end_here();
        let due = self.admission.renewals.hand_on(self.number);
        let keeper = Self { admission: Arc::clone(&self.admission), number: next.number };
        let lease = Lease::new(held.next(line), Arc::new(keeper));
        // If it goes away before it hears of it, the lease is dropped, and so handed on again or given back.
        next.wake(Woken::Handed(Box::new(Handed { lease, due })));
        true
    }
}

impl<K: Kind> Keeper for Number<K> {
    fn extend(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            if !held.is_held() {
                return Err(Error::lost());
            }
            self.admission.renew(&held).await
        })
    }

    fn release(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<bool, Error>> {
        if self.hand_on(&held) {
            return Box::pin(std::future::ready(Ok(true)));
        }
        self.admission.renewals.forget(self.number);
        Box::pin(async move {
            let was = self.admission.release(held.key.clone(), Arc::clone(&held.token), false).await?;
            held.end();
            Ok(was == Was::Held)
        })
    }

    fn release_detached(self: Arc<Self>, held: Arc<Held>) {
        if self.hand_on(&held) {
            return;
        }
        self.admission.renewals.forget(self.number);
        held.end();
        let until = held.until() + CLAIM;
        self.admission.release_detached(held.key.clone(), Arc::clone(&held.token), false, until);
    }
}

/// An answer to another question than was asked: decoding gives none.
fn unasked() -> Error {
    Error::unavailable(Cause::Unexpected, "the answer to another question")
}

/// Whole µs, rounded up.
fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX / 4)
}

impl<K: Kind> fmt::Debug for Admission<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("terms", &self.terms).finish_non_exhaustive()
    }
}
