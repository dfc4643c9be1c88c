//! A mutex on several independent servers (Redlock).

mod attempt;
mod builder;
mod votes;

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt as _, TryFutureExt as _};
use tokio::task::unconstrained;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::Cause;
use crate::key::Key;
use crate::lease::handle::LeaseHandle;
use crate::lease::holders::Exclusive;
use crate::lease::namespace::{Leases, ProcessHost};
use crate::lease::operations::Release;
use crate::lease::options::{Rules, micros, rules};
use crate::lease::process::Tokens;
use crate::lease::process::event::{Effect, Event, Now, Renewed};
use crate::lease::token::Token;
use crate::mutex::QuorumSettings;
use crate::quorum::votes::Votes;
use crate::store::Store;
use crate::store::background::Background;
use crate::store::notifier::Link;
use crate::store::scheduler::{PeriodicTask, Scheduler, Signal};
use crate::store::timer::within;
use crate::store::validity::Anchor;
use crate::sync::lock;

/// A mutex on several servers.
pub(crate) struct Quorum {
    /// The leases on each server. The first also provides the ids, the options and the `closed` flag of the quorum.
    nodes: Vec<Leases<Exclusive>>,
    /// The maximum time of a call to one node.
    timeout: Duration,
    settings: QuorumSettings,
    scheduler: Arc<Scheduler>,
    /// The leases. No waiter is queued for them.
    tokens: Mutex<Tokens<ProcessHost<Exclusive>>>,
}

impl Quorum {
    /// Makes a quorum. Also returns the leases on the first node, whose scheduler runs the renewals.
    fn new(
        nodes: Vec<Leases<Exclusive>>,
        settings: QuorumSettings,
    ) -> (Leases<Exclusive>, Arc<Self>) {
        let first = nodes[0].clone();
        let store = &first.namespace.store;
        let timeout = first
            .options()
            .ttl
            .mul_f64(settings.timeout_factor)
            .max(Duration::from_millis(1));
        // Releases are retried by the nodes themselves.
        let rules = Rules {
            is_remote: false,
            ..rules(store, false)
        };
        let tokens = Mutex::new(Tokens::new(
            first.namespace.local.clone(),
            rules,
            first.namespace.began,
        ));
        let scheduler = Arc::clone(store.scheduler());
        let quorum = Arc::new(Self {
            nodes,
            timeout,
            settings,
            scheduler,
            tokens,
        });
        quorum.scheduler.join(&quorum);
        (first, quorum)
    }

    fn ttl(&self) -> Duration {
        self.nodes[0].options().ttl
    }

    /// Returns the time until which a lease is valid that calls sent at `sent` acquired or renewed on a majority.
    fn until(&self, sent: Instant) -> Instant {
        Anchor { sent, now: 0 }.until(
            micros(self.ttl()),
            self.ttl(),
            self.nodes[0].options().drift,
        )
    }

    fn release_of(&self, key: &Key, token: &Token, withdrawn: bool) -> Release {
        Release::new(key, token, withdrawn, self.ttl(), self.ttl() + self.timeout)
    }

    /// Releases on all nodes, in the background. An acquire may still run on the nodes that are not in `answered`.
    fn release_all(&self, key: &Key, token: &Token, answered: &HashSet<usize>) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.namespace
                .release_later(self.release_of(key, token, !answered.contains(&index)));
        }
    }

    /// Handles an event of a lease.
    fn handle(self: &Arc<Self>, event: Event<ProcessHost<Exclusive>>) {
        let mut tokens = lock(&self.tokens);
        let now = clock::now();
        let effects = tokens.step(
            event,
            Now {
                at: now,
                link: Link::Down,
            },
        );
        let due = tokens.due();
        drop(tokens);
        for effect in effects {
            match effect {
                Effect::Renew { lease, .. } => self.renew_later(lease),
                Effect::Valid { lease, sent, until } => drop(lease.state.renewed(sent, until, now)),
                Effect::Lost { lease, .. } => lease.state.lose(),
                // The lease may have been renewed too late for this process, and still be held on the nodes.
                Effect::Release { release, .. } => {
                    self.release_all(&release.key, &release.token, &HashSet::new())
                }
                // These effects are for waiters.
                Effect::Acquire { .. }
                | Effect::Subscribe
                | Effect::Heartbeat { .. }
                | Effect::Give { .. }
                | Effect::Tell { .. } => {}
            }
        }
        due.into_iter()
            .for_each(|due| self.scheduler.schedule(clock::without_suspend(due)));
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
        // In memory the renewal is done at once.
        if renewal.as_mut().now_or_never().is_none() {
            background.spawn(renewal);
        }
    }

    fn background(&self) -> Background {
        let mut stores = self.nodes.iter().map(|node| &node.namespace.store);
        let remote = stores
            .find(|store| !store.is_in_memory())
            .map(Store::background_for_a_task);
        remote.unwrap_or_else(Background::thread)
    }

    /// Counts the votes of all nodes.
    async fn poll<F: Future<Output = Result<bool, Error>>>(
        &self,
        calls: impl Iterator<Item = F>,
    ) -> Result<bool, Error> {
        let mut votes = Votes::of(self.nodes.len());
        join_all(calls)
            .await
            .into_iter()
            .for_each(|vote| votes.add(vote));
        votes.result()
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        within(self.timeout, call).await.unwrap_or_else(|| {
            let text = format!(
                "a node of the quorum did not answer within {:?}",
                self.timeout
            );
            Err(Error::unavailable(Cause::TimedOut, text))
        })
    }

    /// Renews the lease on all nodes, and raises their fences to `fence`. Returns whether a majority held it.
    async fn renew_all(&self, key: &Key, token: &Token, fence: i64) -> Result<bool, Error> {
        let renewals = self.nodes.iter().map(|node| {
            let renewal = node.namespace.renewal(token, micros(self.ttl()), fence);
            let renewal = node.namespace.renew.run(key.clone(), renewal);
            self.within(renewal).map_ok(|(_, expiry)| expiry.is_some())
        });
        self.poll(renewals).await
    }

    /// Renews the lease. If an outage leaves the result open, the lease stays unchanged, and the caller may try again
    /// until the lease expires.
    async fn renew(self: &Arc<Self>, lease: &LeaseHandle, scheduled: bool) -> Result<(), Error> {
        let (sent, renewed) = (clock::now(), Renewed::Unknown);
        let mut result = Renewal {
            quorum: Arc::clone(self),
            id: lease.state.grant.id,
            renewed,
            scheduled,
        };
        let is_held = self
            .renew_all(&lease.state.grant.key, &lease.state.grant.token, 0)
            .await;
        result.renewed = match is_held {
            Ok(true) => Renewed::Valid {
                sent,
                until: self.until(sent),
            },
            // A majority can no longer hold the lease.
            Ok(false) => Renewed::Gone,
            Err(_) => Renewed::Unknown,
        };
        drop(result);
        if is_held? && lease.is_held() {
            Ok(())
        } else {
            Err(Error::lost())
        }
    }
}

/// The result of a renewal, which is handled on drop, even if the renewal was not completed.
struct Renewal {
    quorum: Arc<Quorum>,
    id: u64,
    renewed: Renewed,
    scheduled: bool,
}

impl Drop for Renewal {
    fn drop(&mut self) {
        let Self {
            id,
            renewed,
            scheduled,
            ..
        } = *self;
        self.quorum.handle(Event::Renewed {
            id,
            renewed,
            scheduled,
        });
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

debug!(Quorum, nodes);
