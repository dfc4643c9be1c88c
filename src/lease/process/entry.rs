//! One token of this process, and the line of waiters behind it. One place in the store's queue stands for the whole
//! line.
//!
//! The process hands on a granted lease to its own waiters, in the order of arrival, for a bounded time (lock
//! cohorting: Dice, Marathe, Shavit, "Lock Cohorting", PPoPP 2012). After that, the process that has waited longest is
//! served.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::key::Key;
use crate::lease::operations::Release;
use crate::lease::options::{Holding, LeaseOptions};
use crate::lease::process::event::{Grant, GrantedBy, Host};
use crate::lease::token::Token;
use crate::store::validity::{Anchor, Validity};

/// How long a waiter has to accept an offered lease, or half the ttl if that is shorter.
const ACCEPT: Duration = Duration::from_secs(1);

/// The state of one token. Its lease goes to the first waiter in its line.
#[derive(Clone, Debug)]
pub(crate) struct Entry<P: Host> {
    id: u64,
    pub(super) key: Key,
    pub(crate) token: Token,
    /// The options of its acquire.
    pub(super) holding: Arc<Holding>,
    pub(crate) stage: Stage<P>,
    /// The waiters in line, without the waiter that holds the lease.
    pub(crate) line: Line<P::Waiter>,
    /// Whether other waiters may join the line.
    pub(super) cohort: bool,
    /// Whether its acquire was sent twice. Then one copy may run after the release.
    pub(crate) twice: bool,
    /// When it is due; `None` while a call is pending.
    pub(super) due: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(crate) enum Stage<P: Host> {
    /// The acquire was sent, and has no reply yet.
    Acquiring {
        /// Whether the call is sent in the background. Then it is repeated as long as the store is unavailable.
        in_background: bool,
        /// Whether the call failed, and is to be sent again.
        failed: bool,
        /// Whether a message announced a grant before the reply.
        early: bool,
    },
    /// It has a place in the queue. The anchor is the call whose reply last confirmed that.
    Queued {
        anchor: Anchor,
        /// The place is gone, but a message with the outcome may still arrive.
        gone: bool,
    },
    Held(Held<P>),
}

/// A lease that is held, or offered to a waiter.
#[derive(Clone, Debug)]
pub(crate) struct Held<P: Host> {
    pub(crate) lease: P::Lease,
    pub(super) validity: Validity,
    pub(crate) fence: i64,
    /// Since when the lease is offered to a waiter that has not accepted it yet.
    pub(crate) offered: Option<Instant>,
    /// When the maximum hold time of its holder is over.
    pub(super) ends: Option<Instant>,
    /// When it is renewed.
    pub(super) renew: Option<Instant>,
    pub(super) is_renewing: bool,
    /// How a message that the lease is gone is verified. The message may be forged or late: only the store ends a
    /// lease.
    pub(super) verification: Verification,
}

/// The state of the verification after a message that a lease is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Verification {
    /// There was no such message, or a pending renewal verifies it.
    #[default]
    None,
    /// The lease is looked up in the store without a renewal, since no renewal is planned.
    Asks,
    /// The pending renewal may have run before the message was sent: another one follows.
    Again,
}

impl<P: Host> Entry<P> {
    pub(super) fn new(
        id: u64,
        key: Key,
        token: Token,
        holding: Arc<Holding>,
        stage: Stage<P>,
    ) -> Self {
        Self {
            id,
            key,
            token,
            holding,
            stage,
            line: Line::default(),
            cohort: false,
            twice: false,
            due: None,
        }
    }

    pub(super) fn options(&self) -> &LeaseOptions {
        &self.holding.options
    }

    /// Returns when the entry is due, from its stage and the time that was planned before.
    pub(super) fn stage_due(&self, planned: Option<Instant>) -> Option<Instant> {
        let Stage::Held(held) = &self.stage else {
            return planned;
        };
        // The waiters behind a lease wait only until it expires. Its holder may keep it for longer.
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

    /// Returns the lease with this fence, if it is the current one.
    pub(super) fn held_mut(&mut self, fence: i64) -> Option<&mut Held<P>> {
        match &mut self.stage {
            Stage::Held(held) if held.fence == fence => Some(held),
            _ => None,
        }
    }

    /// Returns whether a waiter can get the lease of this token: its ttl and its drift must be the same.
    pub(super) fn same_settings(&self, waiter: &P::Waiter) -> bool {
        let own = self.options();
        let other = &P::options(waiter).options;
        (own.ttl, own.drift) == (other.ttl, other.drift)
    }

    /// Returns the grant for a waiter. `offered`: the waiter has to accept it first.
    pub(super) fn grant(
        &self,
        fence: i64,
        validity: &Validity,
        at: Instant,
        offered: bool,
    ) -> Grant {
        Grant {
            key: self.key.clone(),
            token: self.token.clone(),
            id: self.id,
            fence,
            twice: self.twice,
            validity: validity.clone(),
            at,
            offered,
        }
    }

    /// Returns until when a lease counts that the store granted, with this expiry. `None`: a push without a time, for a
    /// token that does not wait. The validity of a pushed grant is counted from the server's time in the last reply,
    /// never from its arrival. `longest`: how long a grant to a waiter lasts.
    pub(super) fn granted_until(
        &self,
        by: GrantedBy,
        expiry: i64,
        longest: Duration,
        at: Instant,
    ) -> Option<Instant> {
        let ttl = self.options().ttl;
        let drift = self.options().drift;
        match (by, &self.stage) {
            (GrantedBy::Grant(None), Stage::Queued { anchor, .. }) => {
                Some(anchor.until_granted(expiry, longest.min(ttl), at, drift))
            }
            (GrantedBy::Grant(None), _) => None,
            (GrantedBy::Answer(anchor) | GrantedBy::Grant(Some(anchor)), _) => {
                Some(anchor.until(expiry, ttl, drift))
            }
        }
    }

    /// Returns the release of this token. `pending`: the acquire may reach the store after the release.
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

impl<P: Host> Held<P> {
    /// Makes the next renewal due, since a message reported that the lease is gone.
    pub(super) fn is_doubted(&mut self, now: Instant) {
        if !self.validity.holds(now) {
            return;
        }
        if self.is_renewing {
            self.verification = Verification::Again;
            return;
        }
        // A planned renewal is kept: it may be the one that makes a grant a full lease.
        if self.renew.is_none() {
            self.verification = Verification::Asks;
        }
        self.renew = Some(self.renew.map_or(now, |renew| renew.min(now)));
    }
}

pub(super) fn accept_within(ttl: Duration) -> Duration {
    ACCEPT.min(ttl / 2)
}

/// How often a process may hand on one grant. Each holder has its own fence.
pub(crate) const MOST_HANDOVERS: u32 = 31;

/// How long a process may hand on one grant.
pub(crate) const LONGEST_TURN: Duration = Duration::from_millis(2);

/// The waiters, and the number of hand-overs since the last grant.
#[derive(Clone, Debug)]
pub(crate) struct Line<S> {
    waiters: VecDeque<S>,
    handed: u32,
    since: Option<Instant>,
}

impl<S> Default for Line<S> {
    fn default() -> Self {
        Self {
            waiters: VecDeque::new(),
            handed: 0,
            since: None,
        }
    }
}

impl<S> Line<S> {
    pub(crate) fn new(first: S) -> Self {
        Self {
            waiters: VecDeque::from([first]),
            handed: 0,
            since: None,
        }
    }

    pub(crate) fn join(&mut self, waiter: S) {
        self.waiters.push_back(waiter);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&S> {
        self.waiters.front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        self.waiters.iter()
    }

    pub(crate) fn leave(&mut self, waiter: &S)
    where
        S: PartialEq,
    {
        // The waiter is usually at the front.
        if let Some(at) = self.waiters.iter().position(|other| other == waiter) {
            self.waiters.remove(at);
        }
    }

    /// Removes and returns the first waiter, which gets the lease that was granted now.
    pub(crate) fn granted(&mut self, now: Instant) -> Option<S> {
        self.handed = 0;
        self.since = Some(now);
        self.waiters.pop_front()
    }

    /// Removes and returns the next waiter, after the previous one did not accept the lease. The time limit starts
    /// again, since the previous waiter did not use it.
    pub(crate) fn passed_over(&mut self, now: Instant) -> Option<S> {
        self.since = Some(now);
        self.hand_over(now)
    }

    /// Removes and returns the waiter that the lease is handed on to. Returns `None` if another process is to be
    /// served, or if no waiter is in line.
    pub(crate) fn hand_over(&mut self, now: Instant) -> Option<S> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= LONGEST_TURN;
        if self.handed >= MOST_HANDOVERS || self.since.is_none_or(is_over) {
            return None;
        }
        self.handed += 1;
        self.waiters.pop_front()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = S> {
        self.waiters.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line<u32> {
        let mut line = Line::new(0);
        (1..50).for_each(|waiter| line.join(waiter));
        line
    }

    /// A grant is handed on at most 31 times, in less than 2 ms. After that another process is served.
    #[test]
    fn a_grant_is_handed_on_for_a_bounded_time() {
        let (mut line, now) = (line(), Instant::now());
        assert_eq!(line.hand_over(now), None, "nothing was granted");
        for first in [0, 32] {
            assert_eq!(line.granted(now), Some(first));
            let soon = now + LONGEST_TURN - Duration::from_nanos(1);
            let handed: Vec<_> = std::iter::from_fn(|| line.hand_over(soon)).collect();
            assert_eq!(handed, (first + 1..50.min(first + 32)).collect::<Vec<_>>());
        }
        assert!(line.is_empty() && line.granted(now).is_none());
        let mut line = self::line();
        line.granted(now);
        assert_eq!(line.hand_over(now + LONGEST_TURN), None);
        // A waiter that does not accept the lease uses none of that time.
        assert_eq!(line.passed_over(now + LONGEST_TURN), Some(1));
        assert_eq!(line.hand_over(now + LONGEST_TURN), Some(2));
        assert_eq!(line.hand_over(now + 2 * LONGEST_TURN), None);
    }

    #[test]
    fn who_leaves_the_line_is_passed() {
        let mut line = line();
        [2, 0, 2, 99].iter().for_each(|waiter| line.leave(waiter));
        assert_eq!((line.front(), line.iter().count()), (Some(&1), 48));
        assert_eq!(
            line.drain().collect::<Vec<_>>(),
            [1].into_iter().chain(3..50).collect::<Vec<_>>()
        );
    }
}
