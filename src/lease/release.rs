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
use crate::lease::handle::{Keeper, LeaseHandle, LeaseState};
use crate::lease::key_state::Was;
use crate::lease::kind::Kind;
use crate::lease::namespace::{Admission, Leased, Local, State};
use crate::lease::operations::{Answer, StateOf, What};
use crate::lease::options::{ALIVE, Holding, micros};
use crate::lease::process::Tokens;
use crate::lease::process::event::{Effect, Event, Grant, Now, Release};
use crate::lease::process::hold::first_renewal;
use crate::lease::process::wait::unexpected;
use crate::store::background::Background;
use crate::store::memory::cells::Cells;
use crate::sync::lock;

impl<K: Kind> Admission<K> {
    /// Takes in a lease that was acquired at once.
    pub(super) fn hold(self: &Arc<Self>, grant: Grant, holding: &Arc<Holding>) -> LeaseHandle {
        let id = grant.id;
        let at = grant.at;
        let lease = LeaseHandle::new(grant, holding);
        lease.state.belongs_to_current_work();
        if self.has_outages.load(Ordering::Relaxed) {
            let State { tokens, .. } = &mut *lock(&self.tokens);
            tokens.is_back(lease.key(), at);
            self.has_outages
                .store(tokens.has_outages(), Ordering::Relaxed);
        }
        let renew = first_renewal(self.began, &lease.state.grant, &holding.options);
        let mut young = lock(&self.young[lease.state.stripe]);
        let earlier = young.due();
        young.insert(id, (lease.clone(), renew));
        drop(young);
        if let Some(due) =
            renew.filter(|due| earlier.is_none_or(|earlier| *due < earlier || earlier <= at))
        {
            self.store.scheduler().schedule(clock::without_suspend(due));
        }
        lease
    }

    /// Lets the tokens have a lease that was acquired at once.
    pub(super) fn grow_up(&self, id: u64) {
        let State { tokens, .. } = &mut *lock(&self.tokens);
        if let Some(leased) = self.young.iter().find_map(|young| lock(young).remove(id)) {
            holds(tokens, leased, self.now());
        }
    }

    fn remove_young(&self, lease: &LeaseState) -> bool {
        lock(&self.young[lease.stripe])
            .remove(lease.grant.id)
            .is_some()
    }

    /// Ends a lease that was acquired at once. No waiter of this process is behind it, so it is released to the store.
    fn end_young(self: &Arc<Self>, lease: &LeaseHandle, detached: bool) -> (bool, Option<Release>) {
        if let Some(cells) = self.namespace.cells() {
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

    /// The same in memory. Returns whether it was still held.
    fn end_in_memory(&self, cells: &Cells<StateOf<K>>, lease: &LeaseState) -> bool {
        let mut held = None;
        let step = |state: &mut StateOf<K>, now| {
            held = lease.stop(cells.time_of_leases(now));
            state.release(&lease.grant.token, false, now, self.scene.spans) == Was::Held
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

    /// Ends a lease for its holder, and hands it on or releases it. Returns whether it was held until now, and the release
    /// if it is not sent here. No process counts on the lease from then on: others may hold it as soon as the release is
    /// sent.
    fn end(self: &Arc<Self>, lease: &LeaseHandle, detached: bool) -> (bool, Option<Release>) {
        if self.remove_young(&lease.state) {
            return self.end_young(lease, detached);
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
                self.perform(effects);
                None
            }
        };
        (held.is_some(), release)
    }

    /// Lets the waiter of an offered lease accept it. Returns `false` if the lease was taken back, or has ended.
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

/// Lets the tokens have a lease that was acquired at once.
pub(super) fn holds<K: Kind>(tokens: &mut Tokens<Local<K>>, (lease, renew): Leased, now: Now) {
    let grant = lease.state.grant.clone();
    let options = Arc::clone(&lease.state.holding);
    // Nothing follows but that it becomes due.
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

impl<K: Kind> Keeper for Admission<K> {
    fn extend(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<(), Error>> {
        self.grow_up(lease.state.grant.id);
        Box::pin(async move {
            let sent = clock::now();
            let renewal = self.renewal(&lease.state.grant.token, micros(lease.state.ttl()), 0);
            let answer = self.renew.run(lease.state.grant.key.clone(), renewal).await;
            self.renewed(&lease, sent, answer, false)
        })
    }

    fn release(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<bool, Error>> {
        match self.end(&lease, false) {
            // It is handed on within the process.
            (was_held, None) => Box::pin(ready(Ok(was_held))),
            (was_held, Some(release)) => Box::pin(async move {
                let (was, twice) = self.release_token(&release).await?;
                // Of a call that was sent twice, the first copy may have released the lease.
                Ok(was == Was::Held || was == Was::Neither && twice && was_held)
            }),
        }
    }

    /// It leaves in the next batch, and not from the task of the caller, so that the others leave with it.
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
            let What::Released(was) = what else {
                return Err(unexpected());
            };
            // Of a call that was sent twice, the first copy may have released the lease.
            Ok(was == Was::Held || was == Was::Neither && twice && was_held)
        })
    }

    fn release_at_once(&self, lease: &LeaseHandle) -> bool {
        let Some(cells) = self.namespace.cells() else {
            return false;
        };
        let is_young = self.remove_young(&lease.state);
        if is_young {
            self.end_in_memory(cells, &lease.state);
        }
        is_young
    }

    fn release_detached(self: Arc<Self>, lease: &LeaseHandle) {
        self.end(lease, true);
    }

    fn released(self: Arc<Self>, lease: &LeaseHandle) {
        if let Some(held) = lease.state.give_up() {
            self.hold_time.note(held);
        }
        if self.remove_young(&lease.state) {
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
    fn let_go(self: Arc<Self>, lease: LeaseHandle) {
        let renewal = Release {
            renews: true,
            ..lease.state.release(Duration::ZERO, clock::now())
        };
        lease.state.give_up();
        let Grant { id, fence, .. } = lease.state.grant;
        self.grow_up(id);
        self.handle(Event::Ends {
            release: renewal,
            id,
            fence,
            detached: true,
        });
    }
}
