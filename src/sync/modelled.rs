//! What the types of loom need besides: locks of both kinds, since not all of the library is run in interleavings.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

macro_rules! per_thread {
    (static $name:ident: $type:ty = const { $value:expr };) => {
        loom::thread_local! { static $name: $type = $value; }
    };
}
pub(crate) use per_thread as thread_local;

pub(crate) trait Lock {
    type Guard<'a>: DerefMut
    where
        Self: 'a;
    fn guard(&self) -> Self::Guard<'_>;
}

impl<T> Lock for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        Self: 'a;

    fn guard(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Lock for loom::sync::Mutex<T> {
    type Guard<'a>
        = loom::sync::MutexGuard<'a, T>
    where
        Self: 'a;

    fn guard(&self) -> loom::sync::MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Lock> Lock for Arc<L> {
    type Guard<'a>
        = L::Guard<'a>
    where
        Self: 'a;

    fn guard(&self) -> L::Guard<'_> {
        self.deref().guard()
    }
}

pub(crate) fn lock<L: Lock>(mutex: &L) -> L::Guard<'_> {
    mutex.guard()
}

/// Runs a test in all interleavings in which the threads are preempted at most twice, and with all values that weak
/// memory lets them read.
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    builder.check(test);
}
