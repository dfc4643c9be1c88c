//! Releases that nobody waits for: of leases that were dropped, and of waiters that went away.
//!
//! Each is begun at once where its caller is, so that it comes before what that caller asks for next. The scheduler looks
//! a little later whether it was done, since that runtime may stand still, and sends it again from the store's own
//! thread: releasing twice is releasing once.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::admission::Admission;
use super::kind::Kind;
use super::operations::{Turn, Verb};
use crate::Key;
use crate::store::{OperationFuture, lock};

/// How long the caller's runtime has to send a release; then it is tried again after twice as long each time.
const PATIENCE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long it is tried at most: what is not released by then runs out.
const LONGEST: Duration = Duration::from_secs(60);

/// The releases of a namespace that are yet to be done.
pub(super) struct Releases<K: Kind>(Mutex<Vec<Release<K>>>);

struct Release<K: Kind> {
    /// The namespace, which is kept with its store until it is done.
    _keep: Arc<dyn Any + Send + Sync>,
    key: Key,
    token: Arc<str>,
    withdrawn: bool,
    until: Instant,
    attempt: OperationFuture<Turn<K>>,
    due: Instant,
    pause: Duration,
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

impl<K: Kind> Admission<K> {
    /// Looks at the releases that are due, and sends again what has not been done.
    pub(super) fn run_releases(&self, now: Instant) {
        let due: Vec<_> = lock(&self.releases.0).extract_if(.., |release| release.due <= now).collect();
        for mut release in due {
            let is_done = match release.attempt.outcome() {
                Some(Err(error)) => !error.is_away() || now >= release.until,
                Some(Ok(())) => true,
                None => now >= release.until,
            };
            if is_done {
                if let Some(owed) = self.store.owed() {
                    owed.done(1);
                }
                continue;
            }
            let (key, token) = (release.key.clone(), Arc::clone(&release.token));
            release.attempt = self.send_release(key, token, release.withdrawn);
            release.pause = (2 * release.pause).min(LONGEST_PAUSE);
            release.due = now + release.pause;
            lock(&self.releases.0).push(release);
        }
    }

    fn send_release(&self, key: Key, token: Arc<str>, withdrawn: bool) -> OperationFuture<Turn<K>> {
        self.clients.turn.begin(key, self.turn(token, Verb::Give { withdrawn }))
    }

    /// Releases without a caller, again and again while the store is away, until the lease or the place would have run
    /// out.
    pub(crate) fn release_detached(
        self: &Arc<Self>,
        key: Key,
        token: Arc<str>,
        withdrawn: bool,
        until: Instant,
    ) {
        let attempt = self.send_release(key.clone(), Arc::clone(&token), withdrawn);
        // In memory it is done.
        let Some(owed) = self.store.owed() else { return };
        owed.add(1);
        let now = Instant::now();
        let due = now + PATIENCE;
        lock(&self.releases.0).push(Release {
            _keep: Arc::<Self>::clone(self),
            key,
            token,
            withdrawn,
            until: until.min(now + LONGEST),
            attempt,
            due,
            pause: PATIENCE,
        });
        self.store.scheduler().schedule(due);
    }
}
