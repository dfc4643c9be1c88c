//! One attempt to lock on all nodes, and the lease that it wins.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, TryFutureExt as _};

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Cause, Subject, Why};
use crate::key::Key;
use crate::lease::handle::{Lease, LeaseHandle, LeaseOwner, Owner};
use crate::lease::key_state::{Position, TokenState};
use crate::lease::operations::ReplyKind;
use crate::lease::process::event::{Event, Grant};
use crate::lease::token::{Suffix, Token};
use crate::lease::waiter::AcquireRequest;
use crate::mutex::LockSource;
use crate::quorum::Quorum;
use crate::quorum::votes::Votes;
use crate::store::background::Background;
use crate::store::redis::names::check_exact;
use crate::store::validity::Validity;

impl LockSource for Quorum {
    fn acquire(
        self: Arc<Self>,
        key: Key,
        suffix: Suffix,
    ) -> BoxFuture<'static, Result<Lease, Error>> {
        Box::pin(async move { self.lock(key, &suffix).await })
    }

    fn is_locked(self: Arc<Self>, key: Key) -> BoxFuture<'static, Result<bool, Error>> {
        Box::pin(async move { self.is_held(key).await })
    }
}

impl Quorum {
    /// Makes one attempt on all nodes.
    async fn lock(self: &Arc<Self>, key: Key, suffix: &Suffix) -> Result<Lease, Error> {
        let first = &self.nodes[0];
        if first.options().foreign {
            self.nodes
                .iter()
                .try_for_each(|node| check_exact(&key, node.namespace.store.prefix()))?;
        }
        if first.holding().is_closed() {
            return Err(Error::interrupted());
        }
        let (id, token) = first.namespace.local.token(first.holding(), suffix);
        let sent = clock::now();
        let mut attempt = Attempt::new(Arc::clone(self), key, token);
        let (votes, fence) = attempt.vote().await;
        if !votes.result()? {
            return Err(Busy {
                subject: Subject::Lock,
                why: Why::Taken,
                retry_after: None,
            }
            .into());
        }
        // Each node counts its own fences. Once a majority stores the highest fence, every later majority contains a
        // node that issues a higher one.
        let raised = self.renew_all(&attempt.key, &attempt.token, fence).await;
        let at = clock::now();
        let validity = Validity::granted(self.until(sent), at);
        let (Some(validity), Ok(true)) = (validity, raised) else {
            return Err(Error::unavailable(
                Cause::TimedOut,
                "a majority of the quorum answered too late",
            ));
        };
        attempt.is_won = true;
        let (key, token) = (attempt.key.clone(), attempt.token.clone());
        let options = Arc::clone(first.holding());
        let grant = Grant {
            key,
            token,
            id,
            fence,
            twice: false,
            validity,
            at,
            offered: false,
        };
        let lease = LeaseHandle::new(grant.clone(), &options);
        lease.state.belongs_to_current_work();
        let renew = options
            .options
            .first_renewal(first.namespace.began, &grant.validity, grant.at);
        self.handle(Event::Holds {
            grant,
            lease: lease.clone(),
            options,
            renew,
        });
        Ok(Lease::new(lease, Owner::By(Arc::new(attempt))))
    }

    /// Returns whether the lock is held on a majority of the nodes.
    async fn is_held(&self, key: Key) -> Result<bool, Error> {
        let looks = self.nodes.iter().map(|node| {
            let look = self.within(node.namespace.in_use(key.clone()));
            look.map_ok(|in_use| in_use > 0)
        });
        self.poll(looks).await
    }
}

/// One attempt. Dropping it withdraws the acquire on all nodes, unless it is won: then its lease is kept.
pub(super) struct Attempt {
    quorum: Arc<Quorum>,
    pub(super) key: Key,
    pub(super) token: Token,
    /// The nodes on which no acquire can still run.
    answered: HashSet<usize>,
    pub(super) is_won: bool,
}

impl Attempt {
    pub(super) fn new(quorum: Arc<Quorum>, key: Key, token: Token) -> Self {
        Self {
            quorum,
            key,
            token,
            answered: HashSet::new(),
            is_won: false,
        }
    }

    /// Acquires on all nodes. Returns their votes, and the highest fence.
    pub(super) async fn vote(&mut self) -> (Votes, i64) {
        let quorum = Arc::clone(&self.quorum);
        let mut order: Vec<_> = (0..quorum.nodes.len()).collect();
        if quorum.settings.shuffle_nodes {
            order.sort_by_cached_key(|_| clock::bits());
        }
        let (key, token) = (&self.key, &self.token);
        let ask = AcquireRequest::new((), Subject::Lock, Default::default(), 0, None);
        let mut calls: FuturesUnordered<_> = order
            .into_iter()
            .map(|index| {
                let node = &quorum.nodes[index];
                let call = node
                    .namespace
                    .ask(key.clone(), token.clone(), node.holding(), &ask);
                let call = quorum.within(call);
                async move { (index, call.await) }
            })
            .collect();
        let (mut votes, mut highest) = (Votes::of(quorum.nodes.len()), 0);
        while let Some((index, answer)) = calls.next().await {
            // If the call was sent twice, the second copy may arrive after the release.
            if answer
                .as_ref()
                .map_or_else(Error::is_not_sent, |answer| !answer.twice)
            {
                self.answered.insert(index);
            }
            votes.add(answer.map(|answer| match answer.what {
                ReplyKind::Acquired(Position::Held { fence, .. }) => {
                    highest = highest.max(fence);
                    true
                }
                _ => false,
            }));
            if quorum.settings.fail_fast && votes.certain().is_some() {
                break;
            }
        }
        (votes, highest)
    }

    /// Ends the lease for its holder. Another holder can get the lock as soon as the release is sent.
    fn end(&self, lease: &LeaseHandle) {
        lease.state.give_up();
        self.quorum.handle(Event::Forgotten {
            id: lease.state.grant.id,
            fence: lease.state.grant.fence,
        });
    }

    fn release_all(&self) {
        self.quorum
            .release_all(&self.key, &self.token, &self.answered);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_won {
            self.release_all();
        }
    }
}

impl LeaseOwner for Attempt {
    fn extend(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move { self.quorum.renew(&lease, false).await })
    }

    fn release(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<bool, Error>> {
        self.end(&lease);
        Box::pin(async move {
            let quorum = &self.quorum;
            let releases = quorum.nodes.iter().enumerate().map(|(index, node)| {
                let release =
                    quorum.release_of(&self.key, &self.token, !self.answered.contains(&index));
                async move {
                    let released = quorum.within(node.namespace.release_token(&release)).await;
                    let (was, _) =
                        released.inspect_err(|_| node.namespace.release_later(release))?;
                    Ok(was == TokenState::Held)
                }
            });
            quorum.poll(releases).await
        })
    }

    fn release_detached(self: Arc<Self>, lease: &LeaseHandle) {
        self.end(lease);
        self.release_all();
    }

    fn released(self: Arc<Self>, lease: &LeaseHandle) {
        self.end(lease);
    }

    fn background(&self) -> Background {
        self.quorum.background()
    }
}
