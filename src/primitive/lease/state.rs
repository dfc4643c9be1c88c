//! A lease as its holder sees it: until when it is valid, by this process's own clock.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::belief::Belief;
use super::clock;
use super::options::Holding;
use crate::Key;
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
    belief: Mutex<Belief>,
    changed: Notify,
    /// Whether its acquire was sent twice, so that one may come after the release.
    pub(crate) twice: bool,
    /// To whom it was offered and who has not taken it up, and since when.
    offered: Mutex<Option<(Arc<dyn Offer>, Instant)>>,
    /// What is let go of when the store has it back.
    pledge: Mutex<Option<Arc<dyn Pledge>>>,
}

/// What was granted under which token.
pub(crate) struct Granted {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    pub(crate) id: u64,
    pub(crate) ttl: Duration,
    pub(crate) twice: bool,
}

/// What is kept until the store is known to have something back.
pub(crate) trait Pledge: Send + Sync {
    /// It is being given back.
    fn releasing(&self);
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
    /// Handed on or given back.
    ended: AtomicBool,
    pub(crate) holding: Arc<Holding>,
    pub(crate) counts: LeaseCounts,
}

impl Tenure {
    pub(crate) fn new(granted: Granted, belief: Belief, pledge: Option<Arc<dyn Pledge>>) -> Arc<Self> {
        let Granted { key, token, id, ttl, twice } = granted;
        let (belief, changed) = (Mutex::new(belief), Notify::new());
        let (offered, pledge) = (Mutex::new(None), Mutex::new(pledge));
        Arc::new(Self { key, token, id, ttl, belief, changed, twice, offered, pledge })
    }

    /// By the clock of timers and users.
    pub(crate) fn until(&self) -> Instant {
        clock::without_suspend(lock(&self.belief).until())
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

    /// It is being given back: what is to be kept until that is done.
    pub(crate) fn take_pledge(&self) -> Option<Arc<dyn Pledge>> {
        lock(&self.pledge).take().inspect(|pledge| pledge.releasing())
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
        !self.ended.load(Ordering::Acquire) && self.tenure.is_valid()
    }

    /// It is over for this holder, and may go on for the next.
    pub(crate) fn end_here(&self) {
        self.ended.store(true, Ordering::Release);
        self.tenure.changed.notify_waiters();
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
