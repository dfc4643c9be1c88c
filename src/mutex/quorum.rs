//! A mutex on several independent servers (Redlock).

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _};
use tokio::task::unconstrained;
use tokio::time::Instant;

use super::builder::Settings;
use crate::error::{Busy, Cause, Subject, Why};
use crate::lease::holder::Exclusive;
use crate::lease::key_state::{Standing, Was};
use crate::lease::operations::What;
use crate::lease::tokens::{Effect, Event, Grant, Now, Party, Release, Renewed, Rules, Tokens};
use crate::lease::{Anchor, Ask, Holding, Keeper, Lease, LeaseHandle, Leases, Validity, micros, rules};
use crate::store::background::Background;
use crate::store::timer::within;
use crate::store::{Link, PeriodicTask, Scheduler, Signal, check_exact};
use crate::sync::lock;
use crate::{Error, Key, Store, clock, random};

pub(super) struct Quorum {
    /// The leases on each server. The first also provides the ids, the options and the `closed` flag of the quorum.
    pub(super) nodes: Vec<Leases<Exclusive>>,
    /// The timeout of a call to one node.
    patience: Duration,
    fail_fast: bool,
    shuffle: bool,
    scheduler: Arc<Scheduler>,
    /// The leases, which have no waiters here.
    tokens: Mutex<Tokens<Voters>>,
}

/// The leases of a quorum. Nobody waits for them in a queue.
#[derive(Debug)]
struct Voters;

impl Party for Voters {
    type Waiter = Infallible;
    type Lease = LeaseHandle;
    type Found = Infallible;

    fn options(waiter: &Infallible) -> &Arc<Holding> {
        match *waiter {}
    }

    fn outlasts(lease: &LeaseHandle) -> bool {
        lease.state.is_retained()
    }

    fn token(&mut self, waiter: &Infallible) -> (u64, Arc<str>) {
        match *waiter {}
    }

    fn lease(&mut self, waiter: &Infallible, _: Grant) -> LeaseHandle {
        match *waiter {}
    }
}

/// The answers of the nodes so far.
struct Votes {
    nodes: usize,
    yes: usize,
    no: usize,
    outage: Option<Error>,
}

impl Votes {
    fn of(nodes: usize) -> Self {
        Self { nodes, yes: 0, no: 0, outage: None }
    }

    fn add(&mut self, vote: Result<bool, Error>) {
        match vote {
            Ok(true) => self.yes += 1,
            Ok(false) => self.no += 1,
            Err(error) => self.outage = Some(error),
        }
    }

    /// The result, if the missing answers cannot change it.
    fn certain(&self) -> Option<bool> {
        let majority = self.nodes / 2 + 1;
        let (is_won, is_lost) = (self.yes >= majority, self.nodes - self.no < majority);
        (is_won || is_lost).then_some(is_won)
    }

    /// Returns whether a majority said yes. Fails if the nodes that failed could have made a difference.
    fn result(self) -> Result<bool, Error> {
        match (self.certain(), self.outage) {
            (None, Some(error)) => Err(error),
            (certain, _) => Ok(certain == Some(true)),
        }
    }
}

impl Quorum {
    pub(super) fn check_exact(&self, key: &Key) -> Result<(), Error> {
        self.nodes.iter().try_for_each(|node| check_exact(key, node.admission.store.prefix()))
    }

    /// The scheduler of `store` runs the renewals.
    pub(super) fn new(store: &Store, nodes: Vec<Leases<Exclusive>>, settings: &Settings) -> Arc<Self> {
        let ttl = nodes[0].options().ttl;
        // The nodes see to it that releases arrive.
        let rules = Rules { is_remote: false, ..rules(store, false) };
        let quorum = Arc::new(Self {
            nodes,
            patience: ttl.mul_f64(settings.timeout_factor).max(Duration::from_millis(1)),
            fail_fast: settings.fail_fast,
            shuffle: settings.shuffle_nodes,
            scheduler: Arc::clone(store.scheduler()),
            tokens: Mutex::new(Tokens::new(Voters, rules, clock::now())),
        });
        let task: std::sync::Weak<dyn PeriodicTask> = Arc::<Self>::downgrade(&quorum);
        store.scheduler().join(task);
        quorum
    }

    fn ttl(&self) -> Duration {
        self.nodes[0].options().ttl
    }

    /// Until when this process may count on a lease that calls sent at `sent` acquired or renewed on a majority.
    fn until(&self, sent: Instant) -> Instant {
        Anchor { sent, now: 0 }.until(micros(self.ttl()), self.ttl(), self.nodes[0].options().drift)
    }

    fn release_of(&self, key: &Key, token: &Arc<str>, withdrawn: bool) -> Release {
        Release::new(key, token, withdrawn, self.ttl(), self.ttl() + self.patience)
    }

    /// Releases on all nodes, in the background. An acquire may still run on the nodes that have not `answered`.
    fn release_all(&self, key: &Key, token: &Arc<str>, answered: &HashSet<usize>) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.admission.release_later(self.release_of(key, token, !answered.contains(&index)));
        }
    }

    /// Handles an event of a lease.
    fn handle(self: &Arc<Self>, event: Event<Voters>) {
        let mut tokens = lock(&self.tokens);
        let now = clock::now();
        let effects = tokens.step(event, Now { at: now, link: Link::Down });
        let due = tokens.due();
        drop(tokens);
        for effect in effects {
            match effect {
                Effect::Renew { lease } => self.renew_later(lease),
                Effect::Valid { lease, sent, until } => drop(lease.state.renewed(sent, until, now)),
                Effect::Lost { lease, .. } => lease.state.lose(),
                // It may have been renewed too late for this process, and is still on the nodes.
                Effect::Release { release, .. } => {
                    self.release_all(&release.key, &release.token, &HashSet::new())
                }
                Effect::Acquire { .. } | Effect::Subscribe | Effect::Heartbeat { .. } => {}
                Effect::Give { waiter, .. } | Effect::Tell { waiter, .. } => match waiter {},
            }
        }
        due.into_iter().for_each(|due| self.scheduler.schedule(clock::without_suspend(due)));
    }

    /// Renews a lease in the background.
    fn renew_later(self: &Arc<Self>, lease: LeaseHandle) {
        let (this, background) = (Arc::clone(self), self.background());
        let thread = background.clone();
        let renewal = async move {
            drop(this.renew(&lease, true).await);
            drop(thread);
        };
        let mut renewal = Box::pin(unconstrained(renewal));
        // In memory it is done at once.
        if renewal.as_mut().now_or_never().is_none() {
            background.spawn(renewal);
        }
    }

    fn background(&self) -> Background {
        let mut stores = self.nodes.iter().map(|node| &node.admission.store);
        stores.find_map(|store| store.background().cloned()).unwrap_or_else(Background::thread)
    }

    /// Counts the votes of all nodes.
    async fn poll<F: Future<Output = Result<bool, Error>>>(
        &self,
        calls: impl Iterator<Item = F>,
    ) -> Result<bool, Error> {
        let mut votes = Votes::of(self.nodes.len());
        join_all(calls).await.into_iter().for_each(|vote| votes.add(vote));
        votes.result()
    }

    /// Returns whether the lock is held on a majority of the nodes.
    pub(super) async fn is_locked(&self, key: Key) -> Result<bool, Error> {
        let looks = self.nodes.iter().map(|node| {
            let look = self.within(node.admission.in_use(key.clone()));
            look.map_ok(|in_use| in_use > 0)
        });
        self.poll(looks).await
    }

    /// Makes one attempt on all nodes.
    pub(super) async fn acquire(self: Arc<Self>, key: Key, suffix: &str) -> Result<Lease, Error> {
        let first = &self.nodes[0];
        let (id, token) = first.admission.token(&first.holding, suffix);
        let sent = clock::now();
        let mut ballot =
            Ballot { quorum: Arc::clone(&self), key, token, answered: HashSet::new(), won: false };
        let (votes, fence) = ballot.vote().await;
        if !votes.result()? {
            return Err(Busy { subject: Subject::Lock, why: Why::Taken, retry_after: None }.into());
        }
        // Each node counts its own fences. Once a majority stores the highest fence, every later majority contains a
        // node that issues a higher one.
        let raised = self.renew_all(&ballot.key, &ballot.token, fence).await;
        let validity = Validity::granted(self.until(sent), clock::now());
        let (Some(validity), Ok(true)) = (validity, raised) else {
            return Err(Error::unavailable(Cause::TimedOut, "a majority of the quorum answered too late"));
        };
        ballot.won = true;
        let answered = std::mem::take(&mut ballot.answered);
        let (key, token, options) =
            (ballot.key.clone(), Arc::clone(&ballot.token), Arc::clone(&first.holding));
        let (twice, at, offered) = (false, clock::now(), false);
        let grant = Grant { key, token, id, fence, twice, validity, at, offered };
        let lease = LeaseHandle::new(grant.clone(), &options);
        let left = grant.validity.until().saturating_duration_since(at);
        let renews = options.options.watchdog;
        let renew = renews.then(|| lock(&self.tokens).renewal(at, left, options.options.ttl));
        self.handle(Event::Holds { grant, lease: lease.clone(), options, renew });
        Ok(Lease::new(lease, Arc::new(Votees { quorum: Arc::clone(&self), answered })))
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        within(self.patience, call).await.unwrap_or_else(|| {
            let text = format!("a node of the quorum did not answer within {:?}", self.patience);
            Err(Error::unavailable(Cause::TimedOut, text))
        })
    }

    /// Renews the lease on all nodes, and raises their fences to `fence`. Returns whether a majority held it.
    async fn renew_all(&self, key: &Key, token: &Arc<str>, fence: i64) -> Result<bool, Error> {
        let renewals = self.nodes.iter().map(|node| {
            let renewal = node.admission.renewal(token, micros(self.ttl()), fence);
            let renewal = node.admission.renew.run(key.clone(), renewal);
            self.within(renewal).map_ok(|(_, expiry)| expiry.is_some())
        });
        self.poll(renewals).await
    }

    /// Renews the lease. If an outage leaves the result open, the lease stays as it was, and the caller may try again
    /// until the lease expires.
    async fn renew(self: &Arc<Self>, lease: &LeaseHandle, scheduled: bool) -> Result<(), Error> {
        let (sent, renewed) = (clock::now(), Renewed::Unknown);
        let mut result = Renewal { quorum: Arc::clone(self), id: lease.state.grant.id, renewed, scheduled };
        let is_held = self.renew_all(&lease.state.grant.key, &lease.state.grant.token, 0).await;
        result.renewed = match is_held {
            Ok(true) => Renewed::Valid { sent, until: self.until(sent) },
            // A majority can no longer hold the lease.
            Ok(false) => Renewed::Gone,
            Err(_) => Renewed::Unknown,
        };
        drop(result);
        if is_held? && lease.is_held() { Ok(()) } else { Err(Error::lost()) }
    }
}

/// The result of a renewal, which is handled when this is dropped, also if the renewal was not completed.
struct Renewal {
    quorum: Arc<Quorum>,
    id: u64,
    renewed: Renewed,
    scheduled: bool,
}

impl Drop for Renewal {
    fn drop(&mut self) {
        let Self { id, renewed, scheduled, .. } = *self;
        self.quorum.handle(Event::Renewed { id, renewed, scheduled });
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
    /// Asks the nodes for the lock. Returns their votes, and the highest fence.
    async fn vote(&mut self) -> (Votes, i64) {
        let quorum = Arc::clone(&self.quorum);
        let mut order: Vec<_> = (0..quorum.nodes.len()).collect();
        if quorum.shuffle {
            order.sort_by_cached_key(|_| random::bits());
        }
        let (key, token) = (&self.key, &self.token);
        let ask = Ask::new((), Subject::Lock, String::new(), 0, None);
        let mut calls: FuturesUnordered<_> = order
            .into_iter()
            .map(|index| {
                let Leases { admission, holding } = &quorum.nodes[index];
                let call = admission.ask(key.clone(), Arc::clone(token), holding, &ask);
                let call = quorum.within(call);
                async move { (index, call.await) }
            })
            .collect();
        let (mut votes, mut highest) = (Votes::of(quorum.nodes.len()), 0);
        while let Some((index, answer)) = calls.next().await {
            // If the call was sent twice, the second copy may arrive after the release.
            if answer.as_ref().map_or_else(Error::is_not_sent, |answer| !answer.twice) {
                self.answered.insert(index);
            }
            votes.add(answer.map(|answer| match answer.what {
                What::Acquired(Standing::Held { fence, .. }) => {
                    highest = highest.max(fence);
                    true
                }
                _ => false,
            }));
            if quorum.fail_fast && votes.certain().is_some() {
                break;
            }
        }
        (votes, highest)
    }
}

impl Drop for Ballot {
    fn drop(&mut self) {
        if !self.won {
            self.quorum.release_all(&self.key, &self.token, &self.answered);
        }
    }
}

impl PeriodicTask for Quorum {
    fn due(&self) -> Option<Instant> {
        lock(&self.tokens).due().map(clock::without_suspend)
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        self.handle(Event::Signal(signal));
    }
}

/// The nodes that granted a lease.
struct Votees {
    quorum: Arc<Quorum>,
    /// The nodes to which no acquire can still be on its way.
    answered: HashSet<usize>,
}

impl Votees {
    /// Ends the lease for its holder. Another holder can get the lock as soon as the release is sent.
    fn end(&self, lease: &LeaseHandle) {
        lease.state.give_up();
        self.quorum.handle(Event::Forgotten { id: lease.state.grant.id, fence: lease.state.grant.fence });
    }
}

impl Keeper for Votees {
    fn extend(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move { self.quorum.renew(&lease, false).await })
    }

    fn release(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<bool, Error>> {
        self.end(&lease);
        Box::pin(async move {
            let (quorum, Grant { key, token, .. }) = (&self.quorum, &lease.state.grant);
            let releases = quorum.nodes.iter().enumerate().map(|(index, node)| {
                let release = quorum.release_of(key, token, !self.answered.contains(&index));
                async move {
                    let released = quorum.within(node.admission.release_token(&release)).await;
                    let (was, _) = released.inspect_err(|_| node.admission.release_later(release))?;
                    Ok(was == Was::Held)
                }
            });
            quorum.poll(releases).await
        })
    }

    fn release_detached(self: Arc<Self>, lease: LeaseHandle) {
        self.end(&lease);
        self.quorum.release_all(&lease.state.grant.key, &lease.state.grant.token, &self.answered);
    }

    fn released(self: Arc<Self>, lease: &LeaseHandle) {
        self.end(lease);
    }

    fn background(&self) -> Background {
        self.quorum.background()
    }
}

debug!(Quorum, nodes);
