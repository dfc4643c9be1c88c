//! Operations that a store still has to run, although no caller waits for them: releases, confirmations and undo
//! operations.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the owed operations.
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

    /// Adds `more`, or, if that is negative, takes so many as done.
    pub(crate) fn change(&self, more: isize) {
        if more < 0 { self.done(more.unsigned_abs()) } else { self.add(more.unsigned_abs()) }
    }

    pub(crate) fn done(&self, count: usize) {
        if count > 0 && self.count.fetch_sub(count, Ordering::AcqRel) == count {
            self.none.notify_waiters();
        }
    }

    /// Counts one owed operation while the guard lives.
    pub(crate) fn guard(&self) -> Owing<'_> {
        self.add(1);
        Owing(self)
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until no operation is owed.
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

/// A guard that counts as one owed operation.
pub(crate) struct Owing<'a>(&'a Owed);

impl Drop for Owing<'_> {
    fn drop(&mut self) {
        self.0.done(1);
    }
}
