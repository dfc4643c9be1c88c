//! Those who wait in this process: what they hear by asking, and when they ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::admission::{Admission, BEAT, micros};
use super::held::{Held, Tenure};
use super::kind::Kind;
use super::operations::{At, Beat, Standings};
use super::room::Standing;
use crate::store::{PeriodicTask, lock};
use crate::{Error, Key};

/// How many waiters of a key beat in one call.
const MOST_TOKENS: usize = 256;

/// One who waits.
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
    pub(super) news: Option<oneshot::Sender<Result<Granted, Error>>>,
    /// Whether it waits no longer when the store is away.
    pub(super) gives_up: bool,
    /// Why the store gave no answer, when it was last asked.
    pub(super) outage: Option<Error>,
}

/// What a waiter learns by asking.
pub(super) struct Granted {
    pub(super) until: Instant,
    pub(super) fence: i64,
}

impl<K: Kind> Admission<K> {
    pub(super) fn wait(&self, number: u64, mut waiter: Waiter, soonest: i64) {
        let due = self.next_beat(waiter.anchor, soonest);
        waiter.due = Some(due);
        lock(&self.waiters).insert(number, waiter);
        self.store.scheduler().schedule(due);
    }

    pub(super) fn stop_waiting(&self, number: u64) -> Option<Waiter> {
        lock(&self.waiters).remove(&number)
    }

    /// Why the store gave no answer to those who wait for a key, if it gave none.
    pub(crate) fn outage(&self, key: &Key) -> Option<Error> {
        lock(&self.waiters)
            .values()
            .filter(|waiter| waiter.key == *key)
            .find_map(|waiter| waiter.outage.clone())
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

    async fn beat(self: Arc<Self>, key: Key, waiters: Vec<(u64, Arc<str>)>) {
        let sent = Instant::now();
        let beat = Beat {
            scene: Arc::clone(&self.scene),
            tokens: waiters.iter().map(|(_, token)| Arc::clone(token)).collect(),
            ttl: micros(self.terms.ttl),
        };
        match self.clients.beat.run(key, beat).await {
            Ok(At { now, what: Standings { soonest, each } }) => {
                for ((number, _), standing) in waiters.iter().zip(each) {
                    self.stands(*number, standing, (sent, now), soonest);
                }
            }
            Err(error) => {
                let again = Instant::now() + self.terms.ask_every.min(BEAT);
                let mut table = lock(&self.waiters);
                for (number, _) in &waiters {
                    if let Some(waiter) = table.get_mut(number) {
                        waiter.due = Some(again);
                        waiter.outage = Some(error.clone()).filter(Error::is_away);
                        if let (true, Some(outage)) = (waiter.gives_up, &waiter.outage)
                            && let Some(news) = waiter.news.take()
                        {
                            // If it has gone away by now, it has withdrawn.
                            let _ = news.send(Err(outage.clone()));
                        }
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
                    (waiter.anchor, waiter.due, waiter.outage) = (anchor, Some(due), None);
                }
                return;
            }
            Standing::Refused { .. } | Standing::Withdrawn | Standing::Done => None,
        };
        if let Some(Waiter { news: Some(news), .. }) = self.stop_waiting(number)
            && let Some(granted) = granted
        {
            // If it has gone away by now, it has seen to what it was granted.
            let _ = news.send(Ok(granted));
        }
    }

    async fn watch_over(self: Arc<Self>, number: u64, held: Arc<Held>) {
        let renewed = self.renew(&held).await;
        self.renewals.settle(number, &held, renewed.is_ok());
    }
}

impl<K: Kind> PeriodicTask for Admission<K> {
    fn due(&self) -> Option<Instant> {
        let beat = lock(&self.waiters).values().filter_map(|waiter| waiter.due).min();
        [beat, self.renewals.due(), self.releases.due()].into_iter().flatten().min()
    }

    fn run(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let now = Instant::now();
        self.run_releases(now);
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

    fn hurry(&self) {
        self.releases.hurry();
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
