//! A mutex on several independent servers (Redlock).

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use super::builder::{Settings, random};
use super::holder::{Exclusive, Raise};
use crate::error::{Busy, Cause, Subject, Why};
use crate::primitive::lease::room::{Standing, Was};
use crate::primitive::lease::{Admission, Ask, Drift, Held, Keeper, Lease, Renewals, Terms};
use crate::store::timer::within;
use crate::store::{Client, OperationFuture, PeriodicTask, check_exact};
use crate::telemetry::Leases;
use crate::{Error, Key, Store};

/// One of the servers.
struct Node {
    admission: Arc<Admission<Exclusive>>,
    raise: Client<Raise>,
}

impl Node {
    fn raise(&self, key: Key, token: Arc<str>, fence: i64) -> OperationFuture<Raise> {
        self.raise.run(key, Raise { token, fence })
    }
}

impl Deref for Node {
    type Target = Arc<Admission<Exclusive>>;

    fn deref(&self) -> &Self::Target {
        &self.admission
    }
}

pub(super) struct Quorum {
    nodes: Vec<Node>,
    ttl: Duration,
    drift: Drift,
    /// How long a node may take to answer.
    patience: Duration,
    fail_fast: bool,
    shuffle: bool,
    renewals: Renewals,
    leases: Leases,
    closed: watch::Sender<bool>,
}

/// What the nodes said, so far.
#[derive(Default)]
struct Votes {
    yes: usize,
    no: usize,
    fence: i64,
    outage: Option<Error>,
}

impl Quorum {
    pub(super) fn check_exact(&self, key: &Key) -> Result<(), Error> {
        self.nodes.iter().try_for_each(|node| check_exact(key, node.store.prefix()))
    }

    /// Its renewals are seen to with those of `store`.
    pub(super) fn new(
        store: &Store,
        nodes: Vec<Arc<Admission<Exclusive>>>,
        terms: &Terms,
        settings: &Settings,
        leases: Leases,
    ) -> Arc<Self> {
        let node = |admission: Arc<Admission<_>>| Node { raise: admission.namespace.client(), admission };
        let quorum = Arc::new(Self {
            nodes: nodes.into_iter().map(node).collect(),
            ttl: terms.ttl,
            drift: terms.drift,
            patience: terms.ttl.mul_f64(settings.timeout_factor).max(Duration::from_millis(1)),
            fail_fast: settings.fail_fast,
            shuffle: settings.shuffle_nodes,
            renewals: Renewals::new(store, terms.ttl, terms.watchdog),
            leases,
            closed: watch::Sender::new(false),
        });
        let task: std::sync::Weak<dyn PeriodicTask> = Arc::<Self>::downgrade(&quorum);
        store.scheduler().join(task);
        quorum
    }

    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(super) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// How many of the nodes are a majority.
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Whether a majority says that somebody holds it.
    pub(super) async fn is_locked(&self, key: Key) -> Result<bool, Error> {
        let looks = self.nodes.iter().map(|node| self.within(node.inspect(key.clone())));
        let (mut held, mut free, mut outage) = (0, 0, None);
        for look in join_all(looks).await {
            match look {
                Ok(at) if at.what.used > 0 => held += 1,
                Ok(_) => free += 1,
                Err(error) => outage = Some(error),
            }
        }
        match outage {
            // What the others would have said makes no difference.
            _ if held >= self.majority() => Ok(true),
            None => Ok(false),
            _ if free >= self.majority() => Ok(false),
            Some(error) => Err(error),
        }
    }

    /// One attempt on all nodes.
    pub(super) async fn acquire(self: Arc<Self>, key: Key, suffix: &str) -> Result<Lease, Error> {
        let (number, token) = self.nodes[0].token(suffix);
        let sent = Instant::now();
        let mut ballot =
            Ballot { quorum: Arc::clone(&self), key, token, answered: HashSet::new(), won: false };
        let votes = ballot.vote().await;
        let until = self.drift.until(sent, 0, micros(self.ttl));
        if votes.yes < self.majority() {
            return Err(votes.failure(&self));
        }
        // The fences of different nodes know nothing of each other. Once a majority has the highest, every later
        // majority has a node that goes above it.
        let raised = ballot.raise(votes.fence).await;
        if raised < self.majority() || Instant::now() >= until {
            return Err(Error::unavailable(Cause::TimedOut, "a majority answered too late"));
        }
        ballot.won = true;
        let answered = std::mem::take(&mut ballot.answered);
        let (key, token) = (ballot.key.clone(), Arc::clone(&ballot.token));
        let held = Held::new(key, token, votes.fence, until, None, &self.leases);
        self.renewals.add(number, &held, None);
        Ok(Lease::new(held, Arc::new(Number { quorum: Arc::clone(&self), number, answered })))
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        within(self.patience, call).await.unwrap_or_else(|| {
            let text = format!("a node gave no answer within {:?}", self.patience);
            Err(Error::unavailable(Cause::TimedOut, text))
        })
    }

    /// Renews on all nodes. Where fewer than a majority do, it is left as it was: whoever works goes on until the
    /// time is up, and may try again.
    async fn renew(&self, held: &Arc<Held>) -> Result<(), Error> {
        let sent = Instant::now();
        let renewals = self
            .nodes
            .iter()
            .map(|node| self.within(node.renew_token(held.key.clone(), Arc::clone(&held.token))));
        let (mut renewed, mut gone, mut outage) = (0, 0, None);
        for renewal in join_all(renewals).await {
            match renewal {
                Ok(at) if at.what.is_some() => renewed += 1,
                Ok(_) => gone += 1,
                Err(error) => outage = Some(error),
            }
        }
        if renewed >= self.majority() {
            let until = self.drift.until(sent, 0, micros(self.ttl));
            if held.renewed(sent, until) {
                held.counts.renewed();
                return Ok(());
            }
            held.counts.lost();
            return Err(Error::lost());
        }
        match outage {
            Some(error) if self.nodes.len() - gone >= self.majority() => Err(error),
            // No majority can have it any more.
            _ => {
                held.counts.lost();
                held.end();
                Err(Error::lost())
            }
        }
    }

    async fn watch_over(self: Arc<Self>, number: u64, held: Arc<Held>) {
        let renewed = self.renew(&held).await;
        self.renewals.settle(number, &held, renewed.is_ok());
    }
}

/// One attempt: what was asked for is taken back on all nodes unless it is won, whatever they have answered.
struct Ballot {
    quorum: Arc<Quorum>,
    key: Key,
    token: Arc<str>,
    /// The nodes of which it is known that nothing is on its way to them.
    answered: HashSet<usize>,
    won: bool,
}

impl Ballot {
    async fn vote(&mut self) -> Votes {
        let quorum = Arc::clone(&self.quorum);
        let mut order: Vec<_> = (0..quorum.nodes.len()).collect();
        if quorum.shuffle {
            order.sort_by_cached_key(|_| (random() * 1e9) as u64);
        }
        let (key, token) = (&self.key, &self.token);
        let ask = Ask::new(Subject::Lock, String::new(), 0, None);
        let mut calls: FuturesUnordered<_> = order
            .into_iter()
            .map(|index| {
                let call = quorum.nodes[index].ask(key.clone(), Arc::clone(token), &ask);
                let call = quorum.within(call);
                async move { (index, call.await) }
            })
            .collect();
        let mut votes = Votes::default();
        while let Some((index, outcome)) = calls.next().await {
            match outcome {
                Ok((at, _)) => {
                    self.answered.insert(index);
                    match at.what {
                        Standing::Held { fence, .. } => {
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

    /// Lets the nodes know the fence; how many do.
    async fn raise(&self, fence: i64) -> usize {
        let quorum = &self.quorum;
        let raises = quorum
            .nodes
            .iter()
            .map(|node| quorum.within(node.raise(self.key.clone(), Arc::clone(&self.token), fence)));
        join_all(raises).await.into_iter().filter(|raised| matches!(raised, Ok(true))).count()
    }
}

impl Drop for Ballot {
    fn drop(&mut self) {
        if !self.won {
            for (index, node) in self.quorum.nodes.iter().enumerate() {
                let mourned = !self.answered.contains(&index);
                node.release_detached(self.key.clone(), self.token.clone(), mourned, node.place_until());
            }
        }
    }
}

impl Votes {
    fn failure(self, quorum: &Quorum) -> Error {
        match self.outage {
            // Too few said no to be the reason: with the others it might have been a majority.
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
        let renewals = join_all(due.map(|(number, held)| Arc::clone(&self).watch_over(number, held)));
        Box::pin(async move { drop(renewals.await) })
    }

    fn relinked(&self) {}

    fn interrupted(&self) {
        self.renewals.interrupted();
    }
}

/// One lease of a quorum.
struct Number {
    quorum: Arc<Quorum>,
    number: u64,
    /// The nodes that have voted. To others the acquire may still be on its way when it is released.
    answered: HashSet<usize>,
}

impl Number {
    fn release_node(&self, index: usize, held: &Held) {
        let (node, mourned) = (&self.quorum.nodes[index], !self.answered.contains(&index));
        let until = if mourned { node.place_until() } else { held.until() + self.quorum.patience };
        node.release_detached(held.key.clone(), held.token.clone(), mourned, until);
    }
}

impl Keeper for Number {
    fn extend(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            if !held.is_held() {
                return Err(Error::lost());
            }
            self.quorum.renew(&held).await
        })
    }

    fn release(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<bool, Error>> {
        let quorum = Arc::clone(&self.quorum);
        self.forget();
        Box::pin(async move {
            let releases = quorum.nodes.iter().enumerate().map(|(index, node)| {
                let mourned = !self.answered.contains(&index);
                quorum.within(node.release(held.key.clone(), Arc::clone(&held.token), mourned))
            });
            let (mut was_held, mut was_gone, mut outage) = (0, 0, None);
            for (index, release) in join_all(releases).await.into_iter().enumerate() {
                match release {
                    Ok(Was::Held) => was_held += 1,
                    Ok(_) => was_gone += 1,
                    Err(error) => {
                        outage = Some(error);
                        self.release_node(index, &held);
                    }
                }
            }
            held.end();
            match outage {
                _ if was_held >= quorum.majority() => Ok(true),
                // The others may have had it: it is not known.
                Some(error) if quorum.nodes.len() - was_gone >= quorum.majority() => Err(error),
                _ => Ok(false),
            }
        })
    }

    fn forget(&self) {
        self.quorum.renewals.forget(self.number);
    }

    fn release_detached(self: Arc<Self>, held: Arc<Held>) {
        self.forget();
        held.end();
        (0..self.quorum.nodes.len()).for_each(|index| self.release_node(index, &held));
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
