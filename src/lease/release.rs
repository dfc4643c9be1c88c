//! The leases that this process holds: how they begin, and how their holders renew and release them.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::clock;
use crate::error::Error;
use crate::lease::handle::{LeaseHandle, LeaseOwner, LeaseState};
use crate::lease::key_state::TokenState;
use crate::lease::kind::Kind;
use crate::lease::namespace::{LeaseNamespace, Leased, ProcessHost, State};
use crate::lease::operations::{Answer, Release, ReplyKind, StateOf};
use crate::lease::options::{ALIVE, Holding, micros};
use crate::lease::process::Tokens;
use crate::lease::process::event::{Effect, Event, Grant, Now};
use crate::lease::process::wait::unexpected;
use crate::store::background::Background;
use crate::store::memory::cells::Cells;
use crate::sync::lock;

impl<K: Kind> LeaseNamespace<K> {
    /// Registers a lease that was acquired without waiting.
    pub(super) fn hold(self: &Arc<Self>, grant: Grant, holding: &Arc<Holding>) -> LeaseHandle {
        let at = grant.at;
        let lease = LeaseHandle::new(grant, holding);
        lease.state.belongs_to_current_work();
        if self.has_outages.load(Ordering::Relaxed) {
            let State { tokens, .. } = &mut *lock(&self.tokens);
            tokens.is_back(lease.key(), at);
            self.has_outages
                .store(tokens.has_outages(), Ordering::Relaxed);
        }
        let renew = holding
            .options
            .first_renewal(self.began, &lease.state.grant.validity, at);
        let due = lock(&self.new_leases[lease.state.stripe]).insert(lease.clone(), renew, at);
        if let Some(due) = due {
            self.store.scheduler().schedule(clock::without_suspend(due));
        }
        lease
    }

    /// Moves a lease that was acquired without waiting to the tokens.
    pub(super) fn move_to_process(&self, id: u64) {
        let State { tokens, .. } = &mut *lock(&self.tokens);
        if let Some(leased) = self
            .new_leases
            .iter()
            .find_map(|new_leases| lock(new_leases).remove(id))
        {
            holds(tokens, leased, self.now());
        }
    }

    fn remove_new(&self, lease: &LeaseState) -> bool {
        lock(&self.new_leases[lease.stripe])
            .remove(lease.grant.id)
            .is_some()
    }

    /// Ends a lease that was acquired without waiting. No waiter of this process is behind it, so it is released to the
    /// store.
    fn release_new(
        self: &Arc<Self>,
        lease: &LeaseHandle,
        detached: bool,
    ) -> (bool, Option<Release>) {
        if let Some(cells) = self.states.cells() {
            return (self.end_in_memory(cells, &lease.state), None);
        }
        let now = clock::now();
        let held = lease.state.stop(now);
        self.has_ended(&lease.state, held);
        let release = lease.state.release(ALIVE, now);
        if !detached {
            return (held.is_some(), Some(release));
        }
        self.handle(Event::Releases(release));
        (held.is_some(), None)
    }

    /// Ends it in memory. Returns whether it was still held.
    fn end_in_memory(&self, cells: &Cells<StateOf<K>>, lease: &LeaseState) -> bool {
        let mut held = None;
        let step = |state: &mut StateOf<K>, now| {
            held = lease.stop(cells.time_of_leases(now));
            state.release(&lease.grant.token, false, now, self.context.spans) == TokenState::Held
        };
        let was_held = cells
            .step(lease.grant.key.as_bytes(), step)
            .unwrap_or(false);
        self.has_ended(lease, held);
        was_held
    }

    fn has_ended(&self, lease: &LeaseState, held: Option<Duration>) {
        lease.notify(held.is_some());
        if let Some(held) = held {
            self.hold_time.note(held);
        }
    }

    /// Ends a lease for its holder, and hands it on or releases it. Returns whether it was held until now, and the
    /// release if it is not sent here. From then on this process must not treat the lease as held: other processes may
    /// hold it as soon as the release is sent.
    fn end(self: &Arc<Self>, lease: &LeaseHandle, detached: bool) -> (bool, Option<Release>) {
        if self.remove_new(&lease.state) {
            return self.release_new(lease, detached);
        }
        let mut held = None;
        let mut effects = self.step(|now| {
            let release = lease.state.release(ALIVE, now.at);
            held = lease.state.stop(now.at);
            Some(Event::Ends {
                release,
                id: lease.state.grant.id,
                fence: lease.state.grant.fence,
                detached,
            })
        });
        self.has_ended(&lease.state, held);
        let release = match effects.pop() {
            Some(Effect::Release {
                release,
                owed: None,
            }) if !detached && effects.is_empty() => Some(release),
            last => {
                effects.extend(last);
                self.run_effects(effects);
                None
            }
        };
        (held.is_some(), release)
    }

    /// Lets the waiter of an offered lease accept it. Returns `false` if the lease was withdrawn, or has ended.
    pub(super) fn accept(self: &Arc<Self>, lease: &LeaseHandle) -> bool {
        let Grant {
            id, fence, offered, ..
        } = lease.state.grant;
        lease.state.belongs_to_current_work();
        if offered {
            self.step(|_| {
                let accepts = lease.is_held();
                if !accepts {
                    lease.state.end(true);
                }
                accepts.then_some(Event::Accepted { id, fence })
            });
        }
        lease.is_held()
    }
}

/// Moves a lease that was acquired without waiting to the tokens.
pub(super) fn holds<K: Kind>(
    tokens: &mut Tokens<ProcessHost<K>>,
    (lease, renew): Leased,
    now: Now,
) {
    let grant = lease.state.grant.clone();
    let options = Arc::clone(&lease.state.holding);
    // The only effect is that the lease becomes due.
    tokens.step(
        Event::Holds {
            grant,
            lease,
            options,
            renew,
        },
        now,
    );
}

impl<K: Kind> LeaseOwner for LeaseNamespace<K> {
    fn extend(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<(), Error>> {
        self.move_to_process(lease.state.grant.id);
        Box::pin(async move {
            let sent = clock::now();
            let renewal = self.renewal(&lease.state.grant.token, micros(lease.state.ttl()), 0);
            let answer = self.renew.run(lease.state.grant.key.clone(), renewal).await;
            self.renewed(&lease, sent, answer, false)
        })
    }

    fn release(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<bool, Error>> {
        match self.end(&lease, false) {
            // The lease is handed on within the process.
            (was_held, None) => Box::pin(ready(Ok(was_held))),
            (was_held, Some(release)) => Box::pin(async move {
                let (was, twice) = self.release_token(&release).await?;
                // If the call was sent twice, its first copy may have released the lease.
                Ok(was == TokenState::Held || was == TokenState::Neither && twice && was_held)
            }),
        }
    }

    /// Sends the release in the next batch, and not from the task of the caller, so that other releases join the batch.
    fn release_together(
        self: Arc<Self>,
        lease: LeaseHandle,
    ) -> BoxFuture<'static, Result<bool, Error>> {
        let (was_held, release) = self.end(&lease, false);
        let Some(release) = release else {
            return Box::pin(ready(Ok(was_held)));
        };
        let (answered, answer) = oneshot::channel();
        let operation = self.release_operation(&release);
        let here = Handle::try_current().ok();
        self.acquire_release
            .send(here, release.key, operation, move |answer| {
                drop(answered.send(answer))
            });
        Box::pin(async move {
            let Answer { what, twice, .. } = answer.await.unwrap_or_else(|_| Err(unexpected()))?;
            let ReplyKind::Released(was) = what else {
                return Err(unexpected());
            };
            // If the call was sent twice, its first copy may have released the lease.
            Ok(was == TokenState::Held || was == TokenState::Neither && twice && was_held)
        })
    }

    fn release_at_once(&self, lease: &LeaseHandle) -> bool {
        let Some(cells) = self.states.cells() else {
            return false;
        };
        let is_new = self.remove_new(&lease.state);
        if is_new {
            self.end_in_memory(cells, &lease.state);
        }
        is_new
    }

    fn release_detached(self: Arc<Self>, lease: &LeaseHandle) {
        self.end(lease, true);
    }

    fn released(self: Arc<Self>, lease: &LeaseHandle) {
        if let Some(held) = lease.state.give_up() {
            self.hold_time.note(held);
        }
        if self.remove_new(&lease.state) {
            // A copy of its acquire may still run, and would hold a lease without a holder.
            if lease.state.grant.twice {
                self.handle(Event::Releases(lease.state.release(ALIVE, clock::now())));
            }
            return;
        }
        self.handle(Event::Forgotten {
            id: lease.state.grant.id,
            fence: lease.state.grant.fence,
        });
    }

    fn background(&self) -> Background {
        self.store.background_for_a_task()
    }

    /// Renews the lease once more for its full ttl.
    fn detach(self: Arc<Self>, lease: LeaseHandle) {
        let renewal = Release {
            renews: true,
            ..lease.state.release(Duration::ZERO, clock::now())
        };
        lease.state.give_up();
        let Grant { id, fence, .. } = lease.state.grant;
        self.move_to_process(id);
        self.handle(Event::Ends {
            release: renewal,
            id,
            fence,
            detached: true,
        });
    }
}
