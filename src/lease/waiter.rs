//! A waiter of this process, and what it is offered.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::acquire::{Ask, Got, Received};
use super::kind::{Found, Kind, Query};
use super::options::Holding;
use crate::sync::lock;

/// A waiter. Two are equal if they are the same.
#[derive(Debug)]
pub(crate) struct Waiter<K: Kind> {
    pub(super) holding: Arc<Holding>,
    pub(super) ask: Ask<Query<K>>,
    /// `None` once it has a result.
    result: Mutex<Option<oneshot::Sender<Received<Found<K>>>>>,
}

impl<K: Kind> Waiter<K> {
    /// Creates a waiter, and what receives its result.
    pub(super) fn new(
        holding: &Arc<Holding>,
        ask: Ask<Query<K>>,
    ) -> (Arc<Self>, oneshot::Receiver<Received<Found<K>>>) {
        let (sender, receiver) = oneshot::channel();
        let (holding, result) = (Arc::clone(holding), Mutex::new(Some(sender)));
        (
            Arc::new(Self {
                holding,
                ask,
                result,
            }),
            receiver,
        )
    }

    /// Offers a result. Drops it if the waiter has gone away, or was offered another one before.
    pub(super) fn offer(&self, result: Received<Found<K>>) {
        let sender = lock(&self.result).take();
        if let Some(Err(result)) = sender.map(|sender| sender.send(result)) {
            decline(result);
        }
    }
}

/// Drops a result that its waiter has not accepted.
pub(super) fn decline<F>(result: Received<F>) {
    if let Ok(Some(Got::Lease(lease, _))) = result {
        lease.decline();
    }
}

impl<K: Kind> PartialEq for Waiter<K> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
