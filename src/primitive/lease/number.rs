//! The lease of a namespace in the hands of its holder: renewed, handed on and given back by its number.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::admission::{Admission, CLAIM, LIFE};
use super::held::Held;
use super::kind::Kind;
use super::room::Was;
use super::waiting::Handed;
use super::{Keeper, Lease};
use crate::Error;
use crate::store::Woken;

/// One lease of a namespace.
pub(super) struct Number<K: Kind> {
    pub(super) admission: Arc<Admission<K>>,
    pub(super) number: u64,
}

impl<K: Kind> Number<K> {
    /// Hands a lease on to the next in line in this process, if there is one and the lease is good for a while; else
    /// those in line ask anew.
    fn hand_on(&self, held: &Held) -> bool {
        let Some(mut line) = held.take_line() else { return false };
        let least = CLAIM.min(self.admission.terms.ttl) / 2;
        if !held.is_held() || held.until() < Instant::now() + least {
            return false;
        }
        let Some(next) = line.next() else { return false };
        held.end_here();
        let due = self.admission.renewals.hand_on(self.number);
        let keeper = Self { admission: Arc::clone(&self.admission), number: next.number };
        let lease = Lease::new(held.next(line), Arc::new(keeper));
        // If it goes away before it hears of it, the lease is dropped, and so handed on again or given back.
        next.wake(Woken::Handed(Box::new(Handed { lease, due })));
        true
    }
}

impl<K: Kind> Keeper for Number<K> {
    fn extend(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            if !held.is_held() {
                return Err(Error::lost());
            }
            self.admission.renew(&held).await
        })
    }

    fn release(self: Arc<Self>, held: Arc<Held>) -> BoxFuture<'static, Result<bool, Error>> {
        if self.hand_on(&held) {
            return Box::pin(std::future::ready(Ok(true)));
        }
        self.forget();
        Box::pin(async move {
            let was = self.admission.release(held.key.clone(), Arc::clone(&held.token), false).await?;
            held.end();
            Ok(was == Was::Held)
        })
    }

    fn release_detached(self: Arc<Self>, held: Arc<Held>) {
        if self.hand_on(&held) {
            return;
        }
        self.forget();
        held.end();
        // Also what has run out: it would stay until somebody else comes.
        let until = held.until().max(Instant::now()) + LIFE;
        self.admission.release_detached(held.key.clone(), Arc::clone(&held.token), false, until);
    }

    fn forget(&self) {
        self.admission.renewals.forget(self.number);
    }
}
