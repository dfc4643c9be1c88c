//! The holder's view of a lease. Its validity is counted by the clock of this process.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::options::{Holding, micros};
use super::token;
use super::tokens::{Grant, Release};
use super::validity::Validity;
use crate::primitive::clock;
use crate::store::lock;
use crate::store::timer::sleep_until;
use crate::telemetry::LeaseCounts;

/// How often [`LeaseState::lost`] checks whether the host was suspended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The state of a lease in this process, shared by its guard and all its handles.
pub(crate) struct LeaseState {
    pub(crate) grant: Grant,
    pub(crate) holding: Arc<Holding>,
    pub(crate) counts: LeaseCounts,
    state: Mutex<(Validity, Phase)>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The holder has it, or it is offered to its waiter.
    Held,
    /// The holder is done with the lease, but the store keeps it for a while.
    Retained,
    /// The holder has given it up, or its waiter has not accepted it.
    Ended,
}

impl LeaseState {
    pub(crate) fn new(grant: Grant, holding: &Arc<Holding>) -> Arc<Self> {
        let (counts, holding) = (holding.leases.lease(), Arc::clone(holding));
        let state = Mutex::new((grant.validity.clone(), Phase::Held));
        Arc::new(Self { grant, holding, counts, state, changed: Notify::new() })
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.holding.options.ttl
    }

    /// Returns the name of the holder: the token, or the value in it that the user's function returned.
    pub(crate) fn name(&self) -> &str {
        token::name(&self.grant.token)
    }

    /// Returns until when the lease is valid, by the clock of timers and users.
    pub(crate) fn until(&self) -> Instant {
        clock::without_suspend(lock(&self.state).0.until())
    }

    /// Returns whether the holder has the lease.
    pub(crate) fn is_held(&self) -> bool {
        !self.time_left().is_zero()
    }

    /// Returns how long the holder has the lease if it is not renewed.
    pub(crate) fn time_left(&self) -> Duration {
        let now = clock::now();
        let mut state = lock(&self.state);
        let (validity, Phase::Held) = &mut *state else { return Duration::ZERO };
        if validity.holds(now) { validity.until() - now } else { Duration::ZERO }
    }

    pub(crate) fn is_retained(&self) -> bool {
        lock(&self.state).1 == Phase::Retained
    }

    /// Records that a call sent at `sent` made the lease valid until then. Returns whether it is still valid.
    pub(crate) fn renewed(&self, sent: Instant, until: Instant, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let before = state.0.until();
        let holds = state.0.renewed(sent, until, now);
        let earlier = state.0.until() < before;
        drop(state);
        if earlier {
            self.changed.notify_waiters();
        }
        if holds {
            self.counts.renewed();
        }
        holds
    }

    /// Ends the lease. Its tasks learn of that by [`notify`](Self::notify).
    pub(super) fn end(&self, taken_back: bool) {
        let (validity, phase) = &mut *lock(&self.state);
        validity.end();
        if taken_back {
            *phase = Phase::Ended;
        }
    }

    /// Notifies all tasks that wait for the end of the lease, and counts its loss, if it is lost.
    pub(super) fn notify(&self) {
        self.changed.notify_waiters();
        if lock(&self.state).1 != Phase::Ended {
            self.counts.lost();
        }
    }

    /// Ends the lease, which is lost.
    pub(crate) fn lose(&self) {
        self.end(false);
        self.notify();
    }

    /// Ends the lease for its holder. No other holder gets it yet.
    pub(super) fn retain(&self) {
        lock(&self.state).1 = Phase::Retained;
        self.changed.notify_waiters();
    }

    /// Ends the lease for this holder. Returns for how long it was held, if that was until now.
    pub(crate) fn give_up(&self) -> Option<Duration> {
        let held = self.stop(clock::now());
        self.notify();
        held
    }

    /// Ends the lease for this holder. Returns for how long it was held, if that was until now. Its tasks learn of that by
    /// [`notify`](Self::notify).
    pub(super) fn stop(&self, now: Instant) -> Option<Duration> {
        let (validity, phase) = &mut *lock(&self.state);
        let was_held = validity.holds(now);
        validity.end();
        if was_held {
            *phase = Phase::Ended;
        }
        was_held.then(|| now - self.grant.at)
    }

    /// Returns what to release.
    pub(super) fn release(&self, alive: Duration, now: Instant) -> Release {
        let lasts = lock(&self.state).0.until().saturating_duration_since(now);
        let Grant { key, token, twice, .. } = self.grant.clone();
        let ttl = micros(self.ttl());
        Release { key, token, withdrawn: twice, renews: false, ttl, left: lasts + alive }
    }

    /// Completes when the lease ends. It has its own timer, so it does not depend on renewals.
    pub(crate) async fn lost(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            if !self.is_held() {
                return;
            }
            tokio::select! {
                () = sleep_until(self.until().min(Instant::now() + LOOK_EVERY)) => {}
                () = changed => {}
            }
        }
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseState").field("token", &self.grant.token).finish_non_exhaustive()
    }
}
