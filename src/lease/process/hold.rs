//! Tokens that hold a lease: how the lease is given to a waiter, renewed, handed on within the process, and released.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::lease::operations::Release;
use crate::lease::options::{Holding, renewal};
use crate::lease::process::Tokens;
use crate::lease::process::entry::{Entry, Held, Stage, Verification, accept_within};
use crate::lease::process::event::{Effect, Grant, GrantedBy, Host, Renewed, WaiterOutcome};
use crate::store::validity::Validity;

/// A failed renewal is repeated after the ttl divided by this, or after [`SHORTEST_RETRY`] if that is longer.
const RETRIES_PER_TTL: u32 = 12;
const SHORTEST_RETRY: Duration = Duration::from_millis(20);

impl<P: Host> Tokens<P> {
    /// Handles a lease that the store granted to a token, with its expiry and fence.
    pub(super) fn granted(
        &mut self,
        id: u64,
        by: GrantedBy,
        (expiry, fence): (i64, i64),
        found: Option<P::Found>,
        polled: Option<P::Waiter>,
    ) {
        let at = self.now.at;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let ttl = entry.options().ttl;
        let Some(until) = entry.granted_until(by, expiry, self.rules.grant, at) else {
            return;
        };
        let release = entry.release(false, self.rules.alive, at);
        let Some(validity) = Validity::granted(until, at) else {
            return self.too_late(id, by, release);
        };
        let waiter = match entry.line.front() {
            Some(front) if entry.same_settings(front) => entry.line.granted(at),
            _ => None,
        };
        let Some(waiter) = waiter else {
            let left = until - at + self.rules.alive;
            return self.acquire_again(id, Some(Release { left, ..release }));
        };
        // Not offered if the waiter receives the reply itself: its future is being polled.
        let offered = polled.as_ref() != Some(&waiter);
        let lease = self
            .party
            .lease(&waiter, entry.grant(fence, &validity, at, offered));
        // A grant lasts for a short time: the first renewal makes it a full lease.
        let renews = P::options(&waiter).options.watchdog || matches!(by, GrantedBy::Grant(_));
        let ends = P::options(&waiter).options.hold_ends(at);
        let renew = renews.then(|| renewal(self.began, at, until - at, ttl));
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.stage = Stage::Held(Held {
                lease: lease.clone(),
                validity,
                fence,
                offered: offered.then_some(at),
                ends,
                renew,
                is_renewing: false,
                verification: Verification::None,
            });
        }
        self.plan(id);
        self.set_outage(id, None);
        self.effects.push(Effect::Give {
            waiter,
            lease,
            found,
        });
    }

    /// Takes over a lease that was acquired without an entry here. It is renewed at `renew`.
    pub(super) fn holds(
        &mut self,
        grant: Grant,
        lease: P::Lease,
        options: Arc<Holding>,
        renew: Option<Instant>,
    ) {
        let held = Held {
            lease,
            validity: grant.validity,
            fence: grant.fence,
            offered: None,
            ends: options.options.hold_ends(grant.at),
            renew,
            is_renewing: false,
            verification: Verification::None,
        };
        let id = grant.id;
        let stage = Stage::Held(held);
        let mut entry = Entry::new(id, grant.key, grant.token, options, stage);
        entry.twice = grant.twice;
        self.insert(id, entry);
        self.plan(id);
    }

    /// Handles a lease that expired before its grant arrived.
    fn too_late(&mut self, id: u64, by: GrantedBy, release: Release) {
        if self.entries.get(&id).is_some_and(|entry| entry.cohort) {
            return self.acquire_again(id, Some(release));
        }
        let text = "the lease was granted, but expired before the reply arrived";
        let outcome = match by {
            GrantedBy::Answer(_) => {
                WaiterOutcome::Failed(Error::unavailable(Cause::TimedOut, text))
            }
            GrantedBy::Grant(_) => WaiterOutcome::Again,
        };
        self.tell(id, &outcome);
        self.release(release);
    }

    pub(super) fn accepted(&mut self, id: u64, fence: i64) {
        if let Some(held) = self
            .entries
            .get_mut(&id)
            .and_then(|entry| entry.held_mut(fence))
        {
            held.offered = None;
            self.plan(id);
        }
    }

    /// Handles the release of a lease by its holder: hands the lease on, or releases it to the store.
    pub(super) fn ends(&mut self, release: Release, id: u64, fence: i64, detached: bool) {
        if let Some(entry) = self.entries.get_mut(&id) {
            let has_line = !entry.line.is_empty();
            match entry.held_mut(fence) {
                // The lease was withdrawn, and the token serves another waiter.
                None => return,
                // The lease stays held, so its line waits for another one.
                Some(_) if release.renews => return self.acquire_again(id, Some(release)),
                Some(_) if has_line => return self.hand_over(id, release),
                Some(_) => drop(self.remove(id)),
            }
        }
        // A lease that has ended is released too: otherwise it stays in the store until the next acquire for the key.
        match detached {
            true => self.release(release),
            false => self.effects.push(Effect::Release {
                release,
                owed: None,
            }),
        }
    }

    /// Hands on a lease to the next waiter in the line. If another process is to be served, or the lease is about to
    /// end, the line acquires again.
    fn hand_over(&mut self, id: u64, release: Release) {
        let at = self.now.at;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let ttl = entry.options().ttl;
        let ends = entry.options().hold_ends(at);
        let same_settings = entry
            .line
            .front()
            .is_some_and(|front| entry.same_settings(front));
        let Entry {
            stage: Stage::Held(held),
            line,
            ..
        } = entry
        else {
            return;
        };
        let enough = self.rules.grant.min(ttl) / 2;
        let lasts = held.validity.holds(at) && held.validity.until() - at >= enough;
        let next = match (same_settings && lasts, held.offered) {
            (false, _) => None,
            (true, None) => line.hand_over(at),
            (true, Some(_)) => line.passed_over(at),
        };
        let Some(waiter) = next else {
            return self.acquire_again(id, Some(release));
        };
        // Each holder has a fence of its own.
        held.fence += 1;
        held.ends = ends;
        let soon = at + accept_within(ttl) / 4;
        held.offered = Some(at);
        held.renew = Some(held.renew.map_or(soon, |renew| renew.min(soon)));
        let fence = held.fence;
        let validity = held.validity.clone();
        let lease = self
            .party
            .lease(&waiter, entry.grant(fence, &validity, at, true));
        if let Some(held) = entry.held_mut(fence) {
            held.lease = lease.clone();
        }
        self.effects.push(Effect::Give {
            waiter,
            lease,
            found: None,
        });
        self.plan(id);
    }

    /// Handles a lease that the store no longer holds, or that it keeps without this process.
    pub(super) fn forgotten(&mut self, id: u64, fence: i64) {
        if self
            .entries
            .get_mut(&id)
            .is_some_and(|entry| entry.held_mut(fence).is_some())
        {
            self.acquire_again(id, None);
        }
    }

    /// Handles the reply to a renewal. The lease may have been handed on meanwhile.
    pub(super) fn renewed(&mut self, id: u64, renewed: Renewed, scheduled: bool) {
        let at = self.now.at;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let ttl = entry.options().ttl;
        let watchdog = entry.options().watchdog;
        let Stage::Held(held) = &mut entry.stage else {
            return;
        };
        held.is_renewing &= !scheduled;
        let fence = held.fence;
        let again = scheduled && held.verification == Verification::Again;
        let due = match renewed {
            Renewed::Valid { sent, until } => {
                if !held.validity.renewed(sent, until, at) {
                    return self.lost(id, fence, true);
                }
                self.effects.push(Effect::Valid {
                    lease: held.lease.clone(),
                    sent,
                    until,
                });
                watchdog.then(|| renewal(self.began, at, ttl, ttl))
            }
            Renewed::Gone => return self.lost(id, fence, false),
            Renewed::Unknown => held
                .validity
                .holds(at)
                .then(|| at + (ttl / RETRIES_PER_TTL).max(SHORTEST_RETRY)),
        };
        if scheduled
            && let Some(held) = self
                .entries
                .get_mut(&id)
                .and_then(|entry| entry.held_mut(fence))
        {
            held.renew = due;
            // After a failure, the next attempt is sent after the message, so it verifies the message.
            if again || renewed != Renewed::Unknown {
                held.verification = Verification::None;
            }
            if again && renewed != Renewed::Unknown {
                held.is_doubted(at);
            }
        }
        self.plan(id);
    }

    /// Ends a lease. The waiters behind it no longer wait for it. `releases`: the store may still hold it.
    pub(super) fn lost(&mut self, id: u64, fence: i64, releases: bool) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let release = entry.release(false, self.rules.alive, self.now.at);
        let Some(held) = entry.held_mut(fence) else {
            return;
        };
        self.effects.push(Effect::Lost {
            lease: held.lease.clone(),
            taken_back: false,
        });
        self.acquire_again(id, releases.then_some(release));
    }

    pub(super) fn lease_is_due(&mut self, id: u64) {
        let at = self.now.at;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let release = entry.release(false, self.rules.alive, at);
        let has_line = !entry.line.is_empty();
        let ttl = entry.options().ttl;
        let Stage::Held(held) = &mut entry.stage else {
            return;
        };
        let fence = held.fence;
        let is_over = !held.validity.holds(at);
        if let Some(since) = held.offered {
            if is_over || at >= since + accept_within(ttl) {
                // The waiter acquires again when it is polled.
                self.effects.push(Effect::Lost {
                    lease: held.lease.clone(),
                    taken_back: true,
                });
                return self.ends(release, id, fence, true);
            }
        } else if is_over && has_line {
            return self.lost(id, fence, false);
        } else if held.ends.is_some_and(|ends| ends <= at) {
            return self.lost(id, fence, true);
        } else if !held.is_renewing && held.renew.is_some_and(|renew| renew <= at) {
            held.renew = None;
            held.is_renewing = true;
            let extends = held.verification != Verification::Asks;
            self.effects.push(Effect::Renew {
                lease: held.lease.clone(),
                extends,
            });
        }
        self.plan(id);
    }

    /// Ends the leases of this process, except those that must outlast it.
    pub(super) fn shut_down(&mut self) {
        let held = self
            .entries
            .iter()
            .filter_map(|(id, entry)| Some((*id, entry.held()?)));
        let held = held
            .filter(|(_, held)| !P::outlasts(&held.lease))
            .map(|(id, held)| (id, held.fence));
        for (id, fence) in held.collect::<Vec<_>>() {
            self.lost(id, fence, true);
        }
    }
}
