//! A lease as its holder sees it: until when it is valid, by this process's own clock.

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

/// How often it is looked whether the host was suspended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the store has granted to this process, under one token: for one holder, or for several after each other.
pub(crate) struct Tenure {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    /// The id in the token.
    pub(crate) id: u64,
    pub(crate) ttl: Duration,
    drift: Drift,
    belief: Mutex<Belief>,
    changed: Notify,
    /// Whether its acquire was sent twice, so that one may come after the release.
    pub(crate) twice: bool,
    /// To whom it was offered and who has not taken it up, and since when.
    offered: Mutex<Option<(Arc<dyn Offer>, Instant)>>,
}

/// What was granted under which token.
pub(crate) struct Granted {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    pub(crate) id: u64,
    pub(crate) ttl: Duration,
    /// By how much its belief allows clocks to differ.
    pub(crate) drift: Drift,
    pub(crate) twice: bool,
}

/// Somebody to whom a lease was offered.
pub(crate) trait Offer: Send + Sync {
    /// Takes it back and gives it away, unless it was taken up.
    fn take_back(&self);
}

/// What is known of a lease in this process, shared by all who look at it.
#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) fence: i64,
    pub(crate) began: Instant,
    /// Handed on or given back, or let go of for others to give back.
    ended: AtomicBool,
    pub(crate) holding: Arc<Holding>,
    pub(crate) counts: LeaseCounts,
}

impl Tenure {
    pub(crate) fn new(granted: Granted, belief: Belief) -> Arc<Self> {
        let Granted { key, token, id, ttl, drift, twice } = granted;
        let (belief, changed) = (Mutex::new(belief), Notify::new());
        Arc::new(Self { key, token, id, ttl, drift, belief, changed, twice, offered: Mutex::new(None) })
    }

    /// Whether it is what is asked for under these options.
    pub(super) fn suits(&self, options: &LeaseOptions) -> bool {
        (options.ttl, options.drift) == (self.ttl, self.drift)
    }

    /// By the clock of timers and users.
    pub(crate) fn until(&self) -> Instant {
        clock::without_suspend(lock(&self.belief).until())
    }

    /// For how long the store may have it, whether or not it is believed in here.
    pub(super) fn lasts(&self) -> Duration {
        lock(&self.belief).until().saturating_duration_since(clock::now())
    }

    /// How much is left of it.
    pub(crate) fn left(&self) -> Duration {
        let now = clock::now();
        let mut belief = lock(&self.belief);
        if belief.holds(now) { belief.until() - now } else { Duration::ZERO }
    }

    pub(crate) fn is_valid(&self) -> bool {
        lock(&self.belief).holds(clock::now())
    }

    /// The store has said until when it is valid, in answer to a call sent at `sent`. Whether it still is.
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

    /// It is over, and all who wait for that are told.
    pub(crate) fn end(&self) {
        lock(&self.belief).end();
        self.changed.notify_waiters();
    }

    pub(super) fn offer(&self, to: Arc<dyn Offer>) {
        *lock(&self.offered) = Some((to, Instant::now()));
    }

    /// It was taken up, or is not offered any more.
    pub(super) fn taken_up(&self) {
        lock(&self.offered).take();
    }

    /// Since when it is offered to somebody who has not taken it up.
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
            holding: Arc::clone(holding),
            counts: holding.leases.lease(),
        })
    }

    /// What names the holder: the token, or the value in it that the user's function gave.
    pub(crate) fn name(&self) -> &str {
        self.tenure.token.split_once(':').map_or(&*self.tenure.token, |(_, value)| value)
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.is_given_up() && self.tenure.is_valid()
    }

    /// It is over for this holder, and may go on for the next. Whether it was held until now; `None`: it was over before.
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

    /// It is over, before its holder has given it up: that is told.
    pub(crate) fn lose(&self) {
        if !self.is_given_up() {
            self.counts.lost();
        }
    }

    /// Ends when it is over: by its own timer, whether or not anybody renews it.
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
