//! The holder's view of a lease. Its validity is counted by the clock of this process.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::belief::{Belief, Drift};
use super::options::{Holding, LeaseOptions};
use crate::Key;
use crate::primitive::clock;
use crate::store::lock;
use crate::store::timer::sleep_until;
use crate::telemetry::LeaseCounts;

/// How often [`LeaseState::lost`] checks whether the host was suspended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A lease that the store granted to this process under one token. It serves one holder, or several one after the
/// other.
pub(crate) struct Tenure {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    /// The id in the token.
    pub(crate) id: u64,
    pub(crate) ttl: Duration,
    drift: Drift,
    belief: Mutex<Belief>,
    changed: Notify,
    /// Whether the acquire was sent twice. Then one copy may run after the release.
    pub(crate) twice: bool,
    /// The waiter that the lease is offered to and that has not accepted it yet, and since when.
    offered: Mutex<Option<(Arc<dyn Offer>, Instant)>>,
}

/// The parts of a new [`Tenure`].
pub(crate) struct Granted {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    pub(crate) id: u64,
    pub(crate) ttl: Duration,
    /// How far clocks may drift apart.
    pub(crate) drift: Drift,
    pub(crate) twice: bool,
}

/// A waiter that a lease is offered to.
pub(crate) trait Offer: Send + Sync {
    /// Takes the lease back, and hands it on or releases it, unless the waiter has accepted it.
    fn take_back(&self);
}

/// The state of a lease in this process, shared by its guard and all its handles.
#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) fence: i64,
    pub(crate) began: Instant,
    /// Whether the lease was handed on, released, or left for others to release.
    ended: AtomicBool,
    /// Whether the holder is done with the lease, but the store keeps it for a while.
    retained: AtomicBool,
    pub(crate) holding: Arc<Holding>,
    pub(crate) counts: LeaseCounts,
}

/// The name of the holder in a token: the token, or the value in it that the user's function returned.
pub(super) fn name_in(token: &str) -> &str {
    token.split_once(':').map_or(token, |(_, value)| value)
}

impl Tenure {
    pub(crate) fn new(granted: Granted, belief: Belief) -> Arc<Self> {
        let Granted { key, token, id, ttl, drift, twice } = granted;
        let (belief, changed) = (Mutex::new(belief), Notify::new());
        Arc::new(Self { key, token, id, ttl, drift, belief, changed, twice, offered: Mutex::new(None) })
    }

    /// Returns whether the ttl and the drift are the same as in the options.
    pub(super) fn suits(&self, options: &LeaseOptions) -> bool {
        (options.ttl, options.drift) == (self.ttl, self.drift)
    }

    /// Returns until when the lease is valid, by the clock of timers and users.
    pub(crate) fn until(&self) -> Instant {
        clock::without_suspend(lock(&self.belief).until())
    }

    /// Returns how long the store may keep the lease, whether or not this process believes in it.
    pub(super) fn lasts(&self) -> Duration {
        lock(&self.belief).until().saturating_duration_since(clock::now())
    }

    /// Returns how long the lease is still valid.
    pub(crate) fn left(&self) -> Duration {
        let now = clock::now();
        let mut belief = lock(&self.belief);
        if belief.holds(now) { belief.until() - now } else { Duration::ZERO }
    }

    pub(crate) fn is_valid(&self) -> bool {
        lock(&self.belief).holds(clock::now())
    }

    /// Records the validity that the store returned for a call sent at `sent`. Returns whether the lease is still
    /// valid.
    pub(crate) fn renewed(&self, sent: Instant, until: Instant) -> bool {
        let mut belief = lock(&self.belief);
        let before = belief.until();
        let holds = belief.renewed(sent, until, clock::now());
        let earlier = belief.until() < before;
        drop(belief);
        if earlier {
            self.changed.notify_waiters();
        }
        holds
    }

    /// Ends the lease, and notifies all tasks that wait for its end.
    pub(crate) fn end(&self) {
        lock(&self.belief).end();
        self.changed.notify_waiters();
    }

    pub(super) fn offer(&self, to: Arc<dyn Offer>) {
        *lock(&self.offered) = Some((to, Instant::now()));
    }

    /// Records that the lease was accepted, or is no longer offered.
    pub(super) fn taken_up(&self) {
        lock(&self.offered).take();
    }

    /// Returns the waiter that the lease is offered to and that has not accepted it, and since when.
    pub(super) fn offered(&self) -> Option<(Arc<dyn Offer>, Instant)> {
        lock(&self.offered).clone()
    }
}

impl LeaseState {
    pub(crate) fn new(tenure: Arc<Tenure>, fence: i64, holding: &Arc<Holding>) -> Arc<Self> {
        Arc::new(Self {
            tenure,
            fence,
            began: Instant::now(),
            ended: AtomicBool::new(false),
            retained: AtomicBool::new(false),
            holding: Arc::clone(holding),
            counts: holding.leases.lease(),
        })
    }

    /// Returns the name of the holder: the token, or the value in it that the user's function returned.
    pub(crate) fn name(&self) -> &str {
        name_in(&self.tenure.token)
    }

    /// Returns whether the holder has the lease.
    pub(crate) fn is_held(&self) -> bool {
        !self.retained.load(Ordering::Acquire) && self.is_kept()
    }

    /// Returns how long the holder has the lease if it is not renewed.
    pub(crate) fn time_left(&self) -> Duration {
        if self.is_held() { self.tenure.left() } else { Duration::ZERO }
    }

    /// Returns whether the lease lasts: for its holder, or because it is [retained](Self::retain).
    pub(super) fn is_kept(&self) -> bool {
        !self.is_given_up() && self.tenure.is_valid()
    }

    /// Ends the lease for its holder. No other holder gets it yet.
    pub(super) fn retain(&self) {
        self.retained.store(true, Ordering::Release);
        self.tenure.changed.notify_waiters();
    }

    /// Ends the lease for this holder; the next holder may have it. Returns whether it was held until now, or
    /// `None` if it had ended before.
    pub(crate) fn give_up(&self) -> Option<bool> {
        let was_held = self.tenure.is_valid();
        if self.ended.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.tenure.changed.notify_waiters();
        if !was_held {
            self.counts.lost();
        }
        Some(was_held)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Counts the lease as lost, unless its holder has given it up.
    pub(crate) fn lose(&self) {
        if !self.is_given_up() {
            self.counts.lost();
        }
    }

    /// Completes when the lease ends. It has its own timer, so it does not depend on renewals.
    pub(crate) async fn lost(self: Arc<Self>) {
        loop {
            let changed = self.tenure.changed.notified();
            if !self.is_held() {
                return;
            }
            tokio::select! {
                () = sleep_until(self.tenure.until().min(Instant::now() + LOOK_EVERY)) => {}
                () = changed => {}
            }
        }
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("token", &self.token).finish_non_exhaustive()
    }
}
