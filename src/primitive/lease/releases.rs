//! Releases that no caller awaits: of leases that were dropped, and of waiters that went away.
//!
//! Each release begins at once where its caller is, so that it is sent before the caller's next operation. The
//! caller's runtime may stop. So the scheduler checks a little later whether the release is done, and if not, sends
//! it again from the background runtime. To release twice has the same effect as once. A release that waits to be sent
//! from the background runtime is not sent again, so that many releases at once do not make each other late.

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

/// How long the caller's runtime has to send a release. After that it is retried, each time after twice the pause.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest time to retry. After that, the lease or the place expires.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// How long a waiter counts as alive after a heartbeat.
pub(super) const ALIVE: Duration = Duration::from_secs(7);

/// The unfinished releases of a namespace.
pub(super) struct Releases<K: Kind>(pub(super) Mutex<Vec<Release<K>>>);

pub(super) struct Release<K: Kind> {
    /// The namespace. This keeps it and its store alive until the release is done.
    pub(super) _keep: Arc<dyn Any + Send + Sync>,
    pub(super) back: GiveBack,
    pub(super) until: Instant,
    pub(super) attempt: OperationFuture<AcquireRelease<K>>,
    /// Whether the attempt is sent from the background runtime.
    pub(super) in_background: bool,
    /// When it is checked, and sent again if it failed or its runtime has not sent it.
    pub(super) due: Instant,
    pub(super) pause: Duration,
}

impl<K: Kind> Releases<K> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Makes all releases due now.
    pub(super) fn hurry(&self) {
        let now = Instant::now();
        lock(&self.0).iter_mut().for_each(|release| release.due = now);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        lock(&self.0).iter().map(|release| release.due).min()
    }
}

/// What to release.
#[derive(Clone)]
pub(crate) struct GiveBack {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    /// Whether the acquire may run after the release.
    pub(crate) withdrawn: bool,
    /// The ttl of its acquire, µs.
    pub(crate) ttl: i64,
    /// How long the lease or the place may last.
    pub(crate) left: Duration,
}

impl GiveBack {
    /// What a holder releases. An expired lease is released too: it would stay in the store until another token
    /// comes.
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
