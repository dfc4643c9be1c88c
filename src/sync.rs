//! Locks, and the types of concurrent code that `tests/interleavings` runs in all interleavings: those of the standard
//! library, or with `cfg(interleavings)` those of loom, which exist only within a test.
//!
//! Statics have the types of the standard library: they outlive a test.

#[cfg(interleavings)]
mod modelled;
mod stripes;

use std::sync::{PoisonError, TryLockError};

pub(crate) use self::stripes::{Padded, Stripes, my_stripe};

#[cfg(interleavings)]
pub(crate) use self::modelled::{Notify, block_on, check, lock, spawn, thread_local};
#[cfg(interleavings)]
pub(crate) use loom::sync::{Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(interleavings))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(interleavings))]
pub(crate) use std::thread_local;
#[cfg(not(interleavings))]
pub(crate) use tokio::sync::Notify;

/// Locks a mutex and ignores poisoning: a step that panics leaves what it guards consistent.
#[cfg(not(interleavings))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex that is not locked. Ignores poisoning.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
