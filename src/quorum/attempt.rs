//! One attempt to lock on all nodes, and the lease that it wins.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::Subject;
use crate::key::Key;
use crate::lease::handle::{LeaseHandle, LeaseOwner};
use crate::lease::key_state::{Position, TokenState};
use crate::lease::operations::ReplyKind;
use crate::lease::process::event::Event;
use crate::lease::token::Token;
use crate::lease::waiter::AcquireRequest;
use crate::quorum::Quorum;
use crate::quorum::votes::Votes;
use crate::store::background::Background;

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
