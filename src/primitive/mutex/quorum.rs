//! A mutex on several independent servers (Redlock).

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use super::holder::Exclusive;
use super::settings::Settings;
use crate::error::{Busy, Cause, Subject, Why};
use crate::primitive::clock;
use crate::primitive::lease::key_state::{Standing, Was};
use crate::primitive::lease::operations::What;
use crate::primitive::lease::{
    Anchor, Ask, Belief, GiveBack, Granted, Keeper, Lease, LeaseState, Leases, Renewals, Tenure, micros,
};
use crate::store::background::Background;
use crate::store::timer::within;
use crate::store::{PeriodicTask, check_exact};
use crate::{Error, Key, Store, random};

pub(super) struct Quorum {
    /// The leases on each server. The first also provides the ids, the options and the `closed` flag of the quorum.
    nodes: Vec<Leases<Exclusive>>,
    /// The timeout of a call to one node.
    patience: Duration,
    fail_fast: bool,
    shuffle: bool,
    renewals: Renewals,
}

/// The answers of the nodes so far.
#[derive(Default)]
struct Votes {
    yes: usize,
    no: usize,
    fence: i64,
    outage: Option<Error>,
}

impl Quorum {
    pub(super) fn check_exact(&self, key: &Key) -> Result<(), Error> {
        self.nodes.iter().try_for_each(|node| check_exact(key, node.admission.store.prefix()))
    }

    /// The scheduler of `store` runs the renewals.
    pub(super) fn new(store: &Store, nodes: Vec<Leases<Exclusive>>, settings: &Settings) -> Arc<Self> {
        let ttl = nodes[0].options().ttl;
        let quorum = Arc::new(Self {
            nodes,
            patience: ttl.mul_f64(settings.timeout_factor).max(Duration::from_millis(1)),
            fail_fast: settings.fail_fast,
            shuffle: settings.shuffle_nodes,
            renewals: Renewals::new(store),
        });
        let task: std::sync::Weak<dyn PeriodicTask> = Arc::<Self>::downgrade(&quorum);
        store.scheduler().join(task);
        quorum
    }

    /// The leases on the first server.
    pub(super) fn first(&self) -> &Leases<Exclusive> {
        &self.nodes[0]
    }

    pub(super) fn close(&self) {
        self.nodes[0].close();
    }

    pub(super) fn closed(&self) -> watch::Receiver<bool> {
        self.nodes[0].holding.closed.subscribe()
    }

    fn ttl(&self) -> Duration {
        self.nodes[0].options().ttl
    }

    /// Until when this process may count on a lease that calls sent at `sent` acquired or renewed on a majority.
    fn until(&self, sent: Instant) -> Instant {
        Anchor { sent, now: 0 }.until(micros(self.ttl()), self.ttl(), self.nodes[0].options().drift)
    }

    fn back(&self, key: Key, token: Arc<str>, withdrawn: bool) -> GiveBack {
        let (ttl, left) = (micros(self.ttl()), self.ttl() + self.patience);
        GiveBack { key, token, withdrawn, ttl, left }
    }

    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Returns whether the lock is held on a majority of the nodes.
    pub(super) async fn is_locked(&self, key: Key) -> Result<bool, Error> {
        let looks = self.nodes.iter().map(|node| self.within(node.admission.inspect(key.clone())));
        let (mut held, mut free, mut outage) = (0, 0, None);
        for look in join_all(looks).await {
            match look {
                Ok(at) if at.what.used > 0 => held += 1,
                Ok(_) => free += 1,
                Err(error) => outage = Some(error),
            }
        }
        match outage {
            // The missing answers cannot change the result.
            _ if held >= self.majority() => Ok(true),
            None => Ok(false),
            _ if free >= self.majority() => Ok(false),
            Some(error) => Err(error),
        }
    }

    /// Makes one attempt on all nodes.
    pub(super) async fn acquire(self: Arc<Self>, key: Key, suffix: &str) -> Result<Lease, Error> {
        let first = &self.nodes[0];
        let (id, token) = first.admission.token(first.options(), suffix);
        let sent = clock::now();
        let mut ballot =
            Ballot { quorum: Arc::clone(&self), key, token, answered: HashSet::new(), won: false };
        let votes = ballot.vote().await;
        if votes.yes < self.majority() {
            return Err(votes.failure(&self));
        }
        // Each node counts its own fences. Once a majority stores the highest fence, every later majority contains a
        // node that issues a higher one.
        let raised = ballot.raise(votes.fence).await;
        let belief = Belief::granted(self.until(sent), clock::now());
        let (Some(belief), true) = (belief, raised >= self.majority()) else {
            return Err(Error::unavailable(Cause::TimedOut, "a majority of the quorum answered too late"));
        };
        ballot.won = true;
        let answered = std::mem::take(&mut ballot.answered);
        let (key, token) = (ballot.key.clone(), Arc::clone(&ballot.token));
        let granted = Granted { key, token, id, ttl: self.ttl(), drift: first.options().drift, twice: false };
        let tenure = Tenure::new(granted, belief);
        let state = LeaseState::new(tenure, votes.fence, &first.holding);
        self.renewals.add(&state, false);
        Ok(Lease::new(state, Arc::new(Votees { quorum: Arc::clone(&self), answered })))
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        within(self.patience, call).await.unwrap_or_else(|| {
            let text = format!("a node of the quorum did not answer within {:?}", self.patience);
            Err(Error::unavailable(Cause::TimedOut, text))
        })
    }

    /// Renews the lease on all nodes, and raises their fences to `fence`.
    async fn renew_all(&self, key: &Key, token: &Arc<str>, fence: i64) -> Vec<Result<bool, Error>> {
        let renewals = self.nodes.iter().map(|node| {
            let renewal = node.admission.renew_token(key.clone(), Arc::clone(token), self.ttl(), fence);
            async move { Ok(self.within(renewal).await?.what.is_some()) }
        });
        join_all(renewals).await
    }

    /// Renews the lease. If an outage leaves the result open, the lease stays as it was, and the caller may try again
    /// until the lease expires.
    async fn renew(&self, state: &Arc<LeaseState>) -> Result<(), Error> {
        let (sent, tenure) = (clock::now(), &state.tenure);
        let (mut renewed, mut gone, mut outage) = (0, 0, None);
        for renewal in self.renew_all(&tenure.key, &tenure.token, 0).await {
            match renewal {
                Ok(true) => renewed += 1,
                Ok(false) => gone += 1,
                Err(error) => outage = Some(error),
            }
        }
        if renewed >= self.majority() {
            if tenure.renewed(sent, self.until(sent)) {
                state.counts.renewed();
                return Ok(());
            }
            state.lose();
            return Err(Error::lost());
        }
        match outage {
            Some(error) if self.nodes.len() - gone >= self.majority() => Err(error),
            // A majority can no longer hold the lease.
            _ => {
                state.lose();
                tenure.end();
                Err(Error::lost())
            }
        }
    }

    async fn watch_over(self: Arc<Self>, state: Arc<LeaseState>) {
        let renewed = self.renew(&state).await;
        self.renewals.renewed(&state, renewed.is_ok());
    }
}

/// One attempt. Dropping it withdraws the request on all nodes, unless the attempt was won.
struct Ballot {
    quorum: Arc<Quorum>,
    key: Key,
    token: Arc<str>,
    /// The nodes to which no call can still be on its way.
    answered: HashSet<usize>,
    won: bool,
}

impl Ballot {
    async fn vote(&mut self) -> Votes {
        let quorum = Arc::clone(&self.quorum);
        let mut order: Vec<_> = (0..quorum.nodes.len()).collect();
        if quorum.shuffle {
            order.sort_by_cached_key(|_| random::bits());
        }
        let (key, token) = (&self.key, &self.token);
        let ask = Ask::new(Subject::Lock, String::new(), 0, None);
        let mut calls: FuturesUnordered<_> = order
            .into_iter()
            .map(|index| {
                let Leases { admission, holding } = &quorum.nodes[index];
                let call = admission.ask(key.clone(), Arc::clone(token), holding, &ask);
                let call = quorum.within(call);
                async move { (index, call.await) }
            })
            .collect();
        let mut votes = Votes::default();
        while let Some((index, outcome)) = calls.next().await {
            match outcome {
                Ok(answer) => {
                    // If the call was sent twice, the second copy may arrive after the release.
                    if !answer.twice {
                        self.answered.insert(index);
                    }
                    match answer.what {
                        What::Acquired(Standing::Held { fence, .. }) => {
                            votes.yes += 1;
                            votes.fence = votes.fence.max(fence);
                        }
                        _ => votes.no += 1,
                    }
                }
                Err(error) => {
                    if error.is_not_sent() {
                        self.answered.insert(index);
                    }
                    votes.outage = Some(error);
                }
            }
            let certain = votes.yes >= quorum.majority() || quorum.nodes.len() - votes.no < quorum.majority();
            if quorum.fail_fast && certain {
                break;
            }
        }
        votes
    }

    /// Stores the fence on the nodes. Returns the number of nodes that stored it.
    async fn raise(&self, fence: i64) -> usize {
        let raises = self.quorum.renew_all(&self.key, &self.token, fence).await;
        raises.into_iter().filter(|raised| matches!(raised, Ok(true))).count()
    }
}

impl Drop for Ballot {
    fn drop(&mut self) {
        if !self.won {
            for (index, node) in self.quorum.nodes.iter().enumerate() {
                let (key, token) = (self.key.clone(), Arc::clone(&self.token));
                let withdrawn = !self.answered.contains(&index);
                node.admission.give_back(self.quorum.back(key, token, withdrawn));
            }
        }
    }
}

impl Votes {
    fn failure(self, quorum: &Quorum) -> Error {
        match self.outage {
            // With the nodes that failed, a majority might have granted the lock. So the outage is the reason.
            Some(error) if quorum.nodes.len() - self.no >= quorum.majority() => error,
            _ => Busy { subject: Subject::Lock, why: Why::Taken, retry_after: None }.into(),
        }
    }
}

impl PeriodicTask for Quorum {
    fn due(&self) -> Option<Instant> {
        self.renewals.due()
    }

    fn run(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let due = self.renewals.take_due(Instant::now()).into_iter();
        let renewals = join_all(due.map(|state| Arc::clone(&self).watch_over(state)));
        Box::pin(async move { drop(renewals.await) })
    }

    fn relinked(&self) {}

    fn interrupted(&self) {
        self.renewals.interrupted();
    }
}

/// The nodes that granted a lease.
struct Votees {
    quorum: Arc<Quorum>,
    /// The nodes to which no acquire can still be on its way.
    answered: HashSet<usize>,
}

impl Votees {
    /// The release for a node.
    fn back(&self, index: usize, tenure: &Tenure) -> GiveBack {
        let (key, token) = (tenure.key.clone(), Arc::clone(&tenure.token));
        self.quorum.back(key, token, !self.answered.contains(&index))
    }

    fn release_node(&self, index: usize, tenure: &Tenure) {
        self.quorum.nodes[index].admission.give_back(self.back(index, tenure));
    }
}

impl Keeper for Votees {
    fn extend(self: Arc<Self>, state: Arc<LeaseState>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            if !state.is_held() {
                return Err(Error::lost());
            }
            self.quorum.renew(&state).await
        })
    }

    fn release(self: Arc<Self>, state: Arc<LeaseState>) -> BoxFuture<'static, Result<bool, Error>> {
        let quorum = Arc::clone(&self.quorum);
        self.released(&state);
        // Another holder can get the lock as soon as the release is sent.
        state.tenure.end();
        Box::pin(async move {
            let tenure = &state.tenure;
            let releases = quorum.nodes.iter().enumerate().map(|(index, node)| {
                let back = self.back(index, tenure);
                let quorum = Arc::clone(&quorum);
                async move { quorum.within(node.admission.release_token(&back)).await }
            });
            let (mut was_held, mut was_gone, mut outage) = (0, 0, None);
            let outcomes = join_all(releases).await;
            for (index, release) in outcomes.into_iter().enumerate() {
                match release {
                    Ok(Was::Held) => was_held += 1,
                    Ok(_) => was_gone += 1,
                    Err(error) => {
                        outage = Some(error);
                        self.release_node(index, tenure);
                    }
                }
            }
            match outage {
                _ if was_held >= quorum.majority() => Ok(true),
                // The nodes that failed may have held it, so the result is unknown.
                Some(error) if quorum.nodes.len() - was_gone >= quorum.majority() => Err(error),
                _ => Ok(false),
            }
        })
    }

    fn release_detached(self: Arc<Self>, state: Arc<LeaseState>) {
        self.released(&state);
        state.tenure.end();
        (0..self.quorum.nodes.len()).for_each(|index| self.release_node(index, &state.tenure));
    }

    fn released(&self, state: &LeaseState) {
        state.give_up();
        self.quorum.renewals.forget(state.tenure.id);
    }

    fn background(&self) -> Background {
        let mut stores = self.quorum.nodes.iter().map(|node| &node.admission.store);
        stores.find_map(|store| store.background().cloned()).unwrap_or_else(Background::thread)
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
