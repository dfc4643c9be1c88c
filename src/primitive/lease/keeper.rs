//! How leases and places are given back to the store.

use std::future::ready;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::admission::Admission;
use super::handle::Keeper;
use super::key_state::Was;
use super::kind::Kind;
use super::operations::AcquireRelease;
use super::releases::{GiveBack, LONGEST, LONGEST_PAUSE, PATIENCE, Release};
use super::state::LeaseState;
use crate::Error;
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
        self.note_hold_time(state.began.elapsed());
        if let Some(was_held) = self.hand_over(&state) {
            return Box::pin(ready(Ok(was_held)));
        }
        self.renewals.forget(state.tenure.id);
        Box::pin(async move {
            let tenure = &state.tenure;
            let was = self.release_token(&GiveBack::without_pledge(tenure)).await?;
            tenure.end();
            drop(tenure.take_pledge());
            Ok(was == Was::Held)
        })
    }

    fn release_detached(self: Arc<Self>, state: Arc<LeaseState>) {
        self.note_hold_time(state.began.elapsed());
        if self.hand_over(&state).is_none() {
            self.renewals.forget(state.tenure.id);
            let back = GiveBack::of(&state.tenure);
            state.tenure.end();
            self.give_back(back);
        }
    }

    fn released(&self, state: &LeaseState) {
        self.note_hold_time(state.began.elapsed());
        self.renewals.forget(state.tenure.id);
    }
}

impl<K: Kind> Admission<K> {
    /// Looks at the releases that are due, and sends again what has not been done.
    pub(super) fn run_releases(&self, now: Instant) {
        let due: Vec<_> = lock(&self.releases.0).extract_if(.., |release| release.due <= now).collect();
        for mut release in due {
            let is_over = now >= release.until;
            let (is_done, may_run_yet) = match release.attempt.outcome() {
                Some(Ok(())) => (true, false),
                Some(Err(error)) => (!error.is_away() || is_over, !error.is_not_sent()),
                None => (is_over, true),
            };
            if is_done {
                if let Some(owed) = self.store.owed().filter(|_| !release.done) {
                    owed.done(1);
                }
                // A copy that was sent before may run yet, and must not free what was acquired with the same value.
                if release.uncertain && release.back.pledge.is_some() && !is_over {
                    (release.done, release.due) = (true, release.until);
                    lock(&self.releases.0).push(release);
                }
                continue;
            }
            if now >= release.again {
                release.uncertain |= may_run_yet;
                release.attempt = self.begin_release(&release.back);
                release.pause = (2 * release.pause).min(LONGEST_PAUSE);
                release.again = now + release.pause;
            }
            release.due = release.again.min(now + release.look_every());
            lock(&self.releases.0).push(release);
        }
    }

    fn begin_release(&self, back: &GiveBack) -> OperationFuture<AcquireRelease<K>> {
        self.client().begin(back.key.clone(), self.release_operation(back))
    }

    /// Releases without a caller, again and again while the store is away, until the lease or the place would have run
    /// out.
    pub(crate) fn give_back(self: &Arc<Self>, back: GiveBack) {
        let attempt = self.begin_release(&back);
        // In memory it is done.
        let Some(owed) = self.store.owed() else { return };
        owed.add(1);
        let now = Instant::now();
        let (until, again) = (now + back.left.min(LONGEST), now + PATIENCE);
        let keep = Arc::<Self>::clone(self);
        let mut release = Release {
            _keep: keep,
            back,
            until,
            attempt,
            uncertain: false,
            done: false,
            due: again,
            again,
            pause: PATIENCE,
        };
        release.due = again.min(now + release.look_every());
        let due = release.due;
        lock(&self.releases.0).push(release);
        self.store.scheduler().schedule(due);
    }
}
