//! Acquiring a lease without waiting.
//!
//! Such a call has no place in a queue: nothing but its answer concerns it. So it is not among the
//! [tokens](super::tokens) of this process before it holds a lease, and needs no waiter.

use std::sync::Arc;

use super::acquire::Ask;
use super::admission::{ALIVE, Admission, Leases};
use super::handle::{Keeper, Lease};
use super::key_state::Standing;
use super::kind::{Found, Kind, Query};
use super::operations::{Answer, What};
use super::options::LeaseOptions;
use super::state::LeaseHandle;
use super::tokens::{Event, Grant, Release, unexpected};
use super::validity::{Anchor, Validity};
use super::waiter::Got;
use crate::error::Cause;
use crate::primitive::clock;
use crate::{Error, Key};

impl<K: Kind> Leases<K> {
    /// Acquires a lease, or finds an outcome of an earlier lease, without waiting.
    pub(super) async fn ask_at_once(&self, key: &Key, ask: &Ask<Query<K>>) -> Result<Got<Found<K>>, Error> {
        let is_closed = || *self.holding.closed.borrow();
        if is_closed() {
            return Err(Error::interrupted());
        }
        let (admission, options) = (&self.admission, self.options());
        let (id, token) = admission.token(options, &ask.suffix);
        let mut undo = Undo { admission, options, key, token: &token, is_armed: true };
        let sent = clock::now();
        let answer = admission.ask(key.clone(), Arc::clone(&token), &self.holding, ask).await;
        // Without an answer, the acquire may still run. With one, a copy may, if there was one.
        undo.is_armed = answer.as_ref().map_or_else(|error| !error.is_not_sent(), |answer| answer.twice);
        let Answer { now, what, found, twice, .. } = answer?;
        let refusal = match what {
            _ if is_closed() => {
                undo.is_armed = true;
                return Err(Error::interrupted());
            }
            What::Acquired(Standing::Held { expiry, fence }) => {
                undo.is_armed = false;
                let until = Anchor { sent, now }.until(expiry, options.ttl, options.drift);
                let mut held = None;
                admission.perform(admission.step(|_, now| {
                    let validity = Validity::granted(until, now.at)?;
                    let (key, token, at) = (key.clone(), Arc::clone(&token), now.at);
                    let grant = Grant { key, token, id, fence, twice, validity, at, offered: false };
                    let lease = held.insert(LeaseHandle::new(grant.clone(), &self.holding));
                    let (lease, options) = (lease.clone(), Arc::clone(&self.holding));
                    Some(Event::Holds { grant, lease, options })
                }));
                let Some(lease) = held else {
                    admission.release_later(undo.release(twice));
                    let text = "the lease was granted, but expired before the reply arrived";
                    return Err(Error::unavailable(Cause::TimedOut, text));
                };
                let keeper = Arc::clone(admission) as Arc<dyn Keeper>;
                return Ok(Got::Lease(Lease::new(lease, keeper), found));
            }
            What::Acquired(Standing::Done) => return found.map(Got::Done).ok_or_else(unexpected),
            What::Acquired(Standing::Refused { soonest, before }) => {
                admission.refusal(ask, soonest - now, before)
            }
            What::Acquired(Standing::Queued { .. } | Standing::Withdrawn)
            | What::Released(_)
            | What::Completed(..) => {
                undo.is_armed = true;
                return Err(unexpected());
            }
        };
        Err(refusal)
    }
}

/// Withdraws an acquire whose answer nobody receives, when it is dropped.
struct Undo<'a, K: Kind> {
    admission: &'a Arc<Admission<K>>,
    options: &'a LeaseOptions,
    key: &'a Key,
    token: &'a Arc<str>,
    is_armed: bool,
}

impl<K: Kind> Undo<'_, K> {
    fn release(&self, withdrawn: bool) -> Release {
        let ttl = self.options.ttl;
        Release::new(self.key, self.token, withdrawn, ttl, ttl + ALIVE)
    }
}

impl<K: Kind> Drop for Undo<'_, K> {
    fn drop(&mut self) {
        if self.is_armed {
            self.admission.handle(Event::Withdraws(self.release(true)));
        }
    }
}
