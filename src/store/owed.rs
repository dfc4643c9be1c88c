//! Operations that a store still has to run, although no caller waits for them: releases, confirmations and undo
//! operations.

use std::sync::Arc;

use crate::sync::Notify;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Counts pending operations, and wakes the tasks that wait until there are none.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    count: AtomicUsize,
    none: Notify,
}

impl Owed {
    pub(crate) fn add(&self, count: usize) {
        if count > 0 {
            self.count.fetch_add(count, Ordering::AcqRel);
        }
    }

    /// Adds `more` pending operations; if it is negative, removes completed ones.
    pub(crate) fn change(&self, more: isize) {
        if more < 0 {
            self.done(more.unsigned_abs())
        } else {
            self.add(more.unsigned_abs())
        }
    }

    pub(crate) fn done(&self, count: usize) {
        if count > 0 && self.count.fetch_sub(count, Ordering::AcqRel) == count {
            self.none.notify_waiters();
        }
    }

    /// Counts one operation as pending until the returned guard is dropped.
    pub(crate) fn one(self: &Arc<Self>) -> PendingGuard {
        self.add(1);
        PendingGuard(Arc::clone(self))
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until no operation is pending.
    pub(crate) async fn none(&self) {
        loop {
            let none = self.none.notified();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }
}

/// A guard that counts one operation as pending until it is dropped.
#[derive(Debug)]
pub(crate) struct PendingGuard(Arc<Owed>);

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.0.done(1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn whoever_waits_is_woken_by_the_last() {
        let owed = Arc::new(Owed::default());
        assert!(owed.none().now_or_never().is_some());
        owed.add(2);
        owed.change(3);
        owed.change(-1);
        let one = owed.one();
        assert_eq!(owed.count(), 5);
        let mut none = tokio_test::task::spawn(owed.none());
        assert!(none.poll().is_pending());
        owed.done(4);
        assert!(!none.is_woken(), "one is left");
        drop(one);
        assert!(none.is_woken() && none.poll().is_ready());
        assert_eq!(owed.count(), 0);
    }
}
