//! How leases and places in the queue are released to the store.

use std::future::ready;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::admission::Admission;
use super::handle::Keeper;
use super::key_state::Was;
use super::kind::Kind;
use super::operations::AcquireRelease;
use super::releases::{GiveBack, LONGEST, LONGEST_PAUSE, PATIENCE, Release};
use super::state::LeaseState;
use crate::Error;
use crate::store::background::Background;
use crate::store::timer::sleep;
use crate::store::{OperationFuture, lock};

impl<K: Kind> Keeper for Admission<K> {
    fn extend(self: Arc<Self>, state: Arc<LeaseState>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            if !state.is_held() {
                return Err(Error::lost());
            }
            self.renew(&state).await
        })
    }

    fn release(self: Arc<Self>, state: Arc<LeaseState>) -> BoxFuture<'static, Result<bool, Error>> {
        let is_believed = state.is_held();
        match self.end(&state) {
            Ok(was_held) => Box::pin(ready(Ok(was_held))),
            Err(back) => Box::pin(async move {
                let (was, twice) = self.release_answer(&back).await?;
                // Of a call that was sent twice, the first copy may have released the lease.
                Ok(was == Was::Held || was == Was::Neither && twice && is_believed)
            }),
        }
    }

    fn release_detached(self: Arc<Self>, state: Arc<LeaseState>) {
        if let Err(back) = self.end(&state) {
            self.give_back(back);
        }
    }

    fn released(&self, state: &LeaseState) {
        self.give_up(state);
        self.renewals.forget(state.tenure.id);
    }

    fn background(&self) -> Background {
        self.store.background().cloned().unwrap_or_else(Background::thread)
    }

    /// Renews the lease once more for its full ttl. That counts as unfinished work of the store.
    fn let_go(self: Arc<Self>, state: Arc<LeaseState>) {
        state.give_up();
        self.renewals.forget(state.tenure.id);
        let Some(background) = self.store.background() else {
            return drop(self.renew(&state).now_or_never());
        };
        let keep = Arc::clone(&self);
        if let Some(owed) = self.store.owed() {
            owed.add(1);
        }
        background.spawn(async move {
            while let Err(error) = keep.renew(&state).await {
                if !error.is_away() || !state.tenure.is_valid() {
                    break;
                }
                sleep(state.holding.options.ask_every).await;
            }
            if let Some(owed) = keep.store.owed() {
                owed.done(1);
            }
        });
    }
}

impl<K: Kind> Admission<K> {
    /// Ends the lease for its holder. Returns whether it was held until now, and the holder had not given it up
    /// before.
    fn give_up(&self, state: &LeaseState) -> bool {
        let was_held = state.give_up();
        if was_held.is_some() && state.tenure.offered().is_none() {
            self.note_hold_time(state.began.elapsed());
        }
        was_held.unwrap_or(false)
    }

    /// Hands a lease on, and returns whether it was still held. If there is no waiter here, returns what to release
    /// to the store. The lease is not believed in from then on: others may hold it as soon as the release is sent.
    fn end(self: &Arc<Self>, state: &Arc<LeaseState>) -> Result<bool, GiveBack> {
        let was_held = self.give_up(state);
        if self.hand_over(state, was_held) {
            return Ok(was_held);
        }
        self.renewals.forget(state.tenure.id);
        let back = GiveBack::of(&state.tenure);
        state.tenure.end();
        Err(back)
    }

    /// Checks the releases that are due, and sends unfinished ones again.
    pub(super) fn run_releases(&self, now: Instant) {
        let due: Vec<_> = lock(&self.releases.0).extract_if(.., |release| release.due <= now).collect();
        for mut release in due {
            let outcome = release.attempt.outcome();
            let is_done = match &outcome {
                Some(Ok(())) => true,
                Some(Err(error)) => !error.is_away() || error.is_denied() || now >= release.until,
                None => now >= release.until,
            };
            if is_done {
                if let Some(owed) = self.store.owed() {
                    owed.done(1);
                }
                continue;
            }
            // What waits to be sent from the background runtime is sent in its turn. To send it again would only make
            // the queue longer.
            if outcome.is_some() || !release.in_background {
                release.attempt = self.begin_release(&release.back);
                release.in_background = true;
            }
            release.pause = (2 * release.pause).min(LONGEST_PAUSE);
            release.due = now + release.pause;
            lock(&self.releases.0).push(release);
        }
    }

    fn begin_release(&self, back: &GiveBack) -> OperationFuture<AcquireRelease<K>> {
        self.client().begin(back.key.clone(), self.release_operation(back))
    }

    /// Releases without a caller. It retries while the store is unavailable, until the lease or the place would
    /// have expired.
    pub(crate) fn give_back(self: &Arc<Self>, back: GiveBack) {
        // Without a runtime of the caller, the background runtime sends it.
        let in_background = Handle::try_current().is_err();
        let attempt = self.begin_release(&back);
        // In memory it is done already.
        let Some(owed) = self.store.owed() else { return };
        owed.add(1);
        let now = Instant::now();
        let (until, due) = (now + back.left.min(LONGEST), now + PATIENCE);
        let keep = Arc::<Self>::clone(self);
        let release = Release { _keep: keep, back, until, attempt, in_background, due, pause: PATIENCE };
        lock(&self.releases.0).push(release);
        self.store.scheduler().schedule(due);
    }
}
