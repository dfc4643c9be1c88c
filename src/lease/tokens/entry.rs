//! The state of one token.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::options::{Holding, LeaseOptions};
use super::super::token::Token;
use super::super::validity::{Anchor, Validity};
use super::{Grant, Line, Party, Release};
use crate::Key;

/// How long a waiter has to accept an offered lease, or half the ttl if that is shorter.
const ACCEPT: Duration = Duration::from_secs(1);

/// The state of one token. The lease that it gets is for the first waiter in its line.
#[derive(Clone, Debug)]
pub(crate) struct Entry<P: Party> {
    id: u64,
    pub(super) key: Key,
    pub(crate) token: Token,
    /// The options that it acquires with.
    pub(super) holding: Arc<Holding>,
    pub(crate) stage: Stage<P>,
    /// The waiters, without the one that holds the lease.
    pub(crate) line: Line<P::Waiter>,
    /// Whether other waiters may join the line.
    pub(super) cohort: bool,
    /// Whether its acquire was sent twice. Then one copy may run after the release.
    pub(crate) twice: bool,
    /// When it is due; `None` while a call is under way.
    pub(super) due: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(crate) enum Stage<P: Party> {
    /// The acquire was sent, and not answered yet.
    Acquiring {
        /// Whether the call is sent in the background. Then it is sent again as long as the store is unavailable.
        in_background: bool,
        /// Whether the call failed, and is to be sent again.
        failed: bool,
        /// Whether a grant was announced before the answer.
        early: bool,
    },
    /// It has a place in the queue. The anchor is the call whose answer said so last.
    Queued {
        anchor: Anchor,
        /// Its place is gone, but the message with the outcome may still be on its way.
        gone: bool,
    },
    Held(Held<P>),
}

/// A lease that is held, or offered to a waiter.
#[derive(Clone, Debug)]
pub(crate) struct Held<P: Party> {
    pub(crate) lease: P::Lease,
    pub(super) validity: Validity,
    pub(crate) fence: i64,
    /// Since when it is offered to a waiter that has not accepted it.
    pub(crate) offered: Option<Instant>,
    /// When its holder has held it for the longest time.
    pub(super) ends: Option<Instant>,
    /// When it is renewed.
    pub(super) renew: Option<Instant>,
    pub(super) is_renewing: bool,
    /// What is done about a message that the lease is gone. It may be forged, or late: only the store ends a lease.
    pub(super) doubt: Doubt,
}

/// Whether a message said that a lease is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Doubt {
    /// None did, or its renewal answers that.
    #[default]
    None,
    /// The store is asked, without a renewal: none is planned.
    Asks,
    /// The renewal under way may have run before the message was sent: another one follows.
    Again,
}

impl<P: Party> Entry<P> {
    pub(super) fn new(
        id: u64,
        key: Key,
        token: Token,
        holding: Arc<Holding>,
        stage: Stage<P>,
    ) -> Self {
        let (line, cohort, twice, due) = (Line::default(), false, false, None);
        Self {
            id,
            key,
            token,
            holding,
            stage,
            line,
            cohort,
            twice,
            due,
        }
    }

    pub(super) fn options(&self) -> &LeaseOptions {
        &self.holding.options
    }

    /// Returns when the entry is due, given its stage and the time that was planned before.
    pub(super) fn stage_due(&self, planned: Option<Instant>) -> Option<Instant> {
        let Stage::Held(held) = &self.stage else {
            return planned;
        };
        // The waiters behind a lease do not wait longer than it lasts. Its holder may keep it after its end.
        let ends = (!self.line.is_empty()).then_some(held.validity.until());
        let next = match held.offered {
            Some(since) => Some(
                held.validity
                    .until()
                    .min(since + accept_within(self.options().ttl)),
            ),
            None => [held.renew.filter(|_| !held.is_renewing), held.ends]
                .into_iter()
                .flatten()
                .min(),
        };
        [ends, next].into_iter().flatten().min()
    }

    pub(super) fn held(&self) -> Option<&Held<P>> {
        match &self.stage {
            Stage::Held(held) => Some(held),
            Stage::Acquiring { .. } | Stage::Queued { .. } => None,
        }
    }

    /// Returns the lease with a fence, if it is the current one.
    pub(super) fn held_mut(&mut self, fence: i64) -> Option<&mut Held<P>> {
        match &mut self.stage {
            Stage::Held(held) if held.fence == fence => Some(held),
            _ => None,
        }
    }

    /// Returns whether a waiter can get the lease of this token: it must want the same validity.
    pub(super) fn suits(&self, waiter: &P::Waiter) -> bool {
        let (own, other) = (self.options(), &P::options(waiter).options);
        (own.ttl, own.drift) == (other.ttl, other.drift)
    }

    /// Returns what a waiter gets. `offered`: it has to accept it first.
    pub(super) fn grant(
        &self,
        fence: i64,
        validity: &Validity,
        at: Instant,
        offered: bool,
    ) -> Grant {
        let (key, token, validity) = (self.key.clone(), self.token.clone(), validity.clone());
        Grant {
            key,
            token,
            id: self.id,
            fence,
            twice: self.twice,
            validity,
            at,
            offered,
        }
    }

    /// Returns what to release. `pending`: the acquire may reach the store after the release.
    pub(super) fn release(&self, pending: bool, alive: Duration, now: Instant) -> Release {
        let ttl = self.options().ttl;
        let lasts = self.held().map_or(ttl, |held| {
            held.validity.until().saturating_duration_since(now)
        });
        Release::new(
            &self.key,
            &self.token,
            pending || self.twice,
            ttl,
            lasts + alive,
        )
    }
}

impl<P: Party> Held<P> {
    /// Makes the next renewal due, since a message says that the lease is gone.
    pub(super) fn is_doubted(&mut self, now: Instant) {
        if !self.validity.holds(now) {
            return;
        }
        if self.is_renewing {
            self.doubt = Doubt::Again;
            return;
        }
        // A renewal that is planned is not left out: it may be the one that makes a grant a full lease.
        if self.renew.is_none() {
            self.doubt = Doubt::Asks;
        }
        self.renew = Some(self.renew.map_or(now, |renew| renew.min(now)));
    }
}

pub(super) fn accept_within(ttl: Duration) -> Duration {
    ACCEPT.min(ttl / 2)
}
