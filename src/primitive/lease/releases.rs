//! Releases that nobody waits for: of leases that were dropped, and of waiters that went away.
//!
//! Each is begun at once where its caller is, so that it comes before what that caller asks for next. The scheduler looks
//! a little later whether it was done, since that runtime may stand still, and sends it again from the store's own
//! thread: releasing twice is releasing once.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::kind::Kind;
use super::operations::AcquireRelease;
use super::options::micros;
use super::state::Tenure;
use crate::Key;
use crate::store::{OperationFuture, lock};

/// How long the caller's runtime has to send a release; then it is tried again after twice as long each time.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long it is tried at most: what is not released by then runs out.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// For how long a waiter counts as alive after a heartbeat.
pub(super) const ALIVE: Duration = Duration::from_secs(7);

/// The releases of a namespace that are yet to be done.
pub(super) struct Releases<K: Kind>(pub(super) Mutex<Vec<Release<K>>>);

pub(super) struct Release<K: Kind> {
    /// The namespace, which is kept with its store until it is done.
    pub(super) _keep: Arc<dyn Any + Send + Sync>,
    pub(super) back: GiveBack,
    pub(super) until: Instant,
    pub(super) attempt: OperationFuture<AcquireRelease<K>>,
    /// When it is looked at, and sent again if it is not done.
    pub(super) due: Instant,
    pub(super) pause: Duration,
}

impl<K: Kind> Releases<K> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Has all looked at now.
    pub(super) fn hurry(&self) {
        let now = Instant::now();
        lock(&self.0).iter_mut().for_each(|release| release.due = now);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        lock(&self.0).iter().map(|release| release.due).min()
    }
}

/// What is given back.
#[derive(Clone)]
pub(crate) struct GiveBack {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    /// Whether the acquire may come after it.
    pub(crate) withdrawn: bool,
    /// Under which time to live it acquired, µs.
    pub(crate) ttl: i64,
    /// For how long the lease or the place may last.
    pub(crate) left: Duration,
}

impl GiveBack {
    /// What a holder gives back. Also what has run out: it would stay until somebody else comes.
    pub(super) fn of(tenure: &Tenure) -> Self {
        Self {
            key: tenure.key.clone(),
            token: Arc::clone(&tenure.token),
            withdrawn: tenure.twice,
            ttl: micros(tenure.ttl),
            left: tenure.lasts() + ALIVE,
        }
    }
}
