//! The leases of a namespace: how they are renewed and released on behalf of their holders.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::admission::{ALIVE, Admission};
use super::handle::Keeper;
use super::key_state::Was;
use super::kind::Kind;
use super::state::LeaseHandle;
use super::tokens::{Effect, Event, Grant, Release};
use crate::Error;
use crate::primitive::clock;
use crate::store::background::Background;

impl<K: Kind> Keeper for Admission<K> {
    fn extend(self: Arc<Self>, lease: LeaseHandle) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move { self.renew(&lease).await })
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

    fn release_detached(self: Arc<Self>, lease: LeaseHandle) {
        self.end(&lease, true);
    }

    fn released(self: Arc<Self>, lease: &LeaseHandle) {
        self.note_hold_time(lease.state.give_up());
        self.handle(Event::Forgotten { id: lease.state.grant.id, fence: lease.state.grant.fence });
    }

    fn background(&self) -> Background {
        self.store.background_or_thread()
    }

    /// Renews the lease once more for its full ttl.
    fn let_go(self: Arc<Self>, lease: LeaseHandle) {
        let renewal = Release { renews: true, ..lease.state.release(Duration::ZERO, clock::now()) };
        lease.state.give_up();
        let Grant { id, fence, .. } = lease.state.grant;
        self.handle(Event::Ends { release: renewal, id, fence, detached: true });
    }
}

impl<K: Kind> Admission<K> {
    /// Ends a lease for its holder, and hands it on or releases it. Returns whether it was held until now, and the release
    /// if it is not sent here. No process counts on the lease from then on: others may hold it as soon as the release is
    /// sent.
    fn end(self: &Arc<Self>, lease: &LeaseHandle, detached: bool) -> (bool, Option<Release>) {
        let mut held = None;
        let mut effects = self.step(|_, now| {
            let release = lease.state.release(ALIVE, now.at);
            held = lease.state.stop(now.at);
            Some(Event::Ends { release, id: lease.state.grant.id, fence: lease.state.grant.fence, detached })
        });
        lease.state.notify();
        self.note_hold_time(held);
        let release = match effects.pop() {
            Some(Effect::Release { release, owed: None }) if !detached && effects.is_empty() => Some(release),
            last => {
                effects.extend(last);
                self.perform(effects);
                None
            }
        };
        (held.is_some(), release)
    }
}
