//! Locks, and the concurrent types for the tests that `tests/interleavings` runs in all interleavings: those of the
//! standard library, or with `cfg(interleavings)` those of loom, which exist only within a test.
//!
//! Statics have the types of the standard library: they outlive a test.

#[cfg(interleavings)]
mod modelled;

use std::ops::Index;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, TryLockError};

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

/// Locks a mutex and ignores poisoning: a step that panics leaves the guarded value consistent.
#[cfg(not(interleavings))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex unless it is locked already. Ignores poisoning.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The number of stripes. With more threads than this, several threads have the same one.
const STRIPES: usize = if cfg!(interleavings) { 1 } else { 8 };

/// Several values of one type, one for each of a few threads. A thread that uses its own value does not wait for other
/// threads, or for a cache line that another thread has written.
#[derive(Debug)]
pub(crate) struct Stripes<T>([Padded<T>; STRIPES]);

/// Puts a value into separate cache lines: two, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// The number of the stripe of this thread.
pub(crate) fn my_stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    // While the thread ends, it uses the first stripe.
    MINE.try_with(|mine| *mine).unwrap_or_default()
}

impl<T> Stripes<T> {
    pub(crate) fn new(mut make: impl FnMut() -> T) -> Self {
        Self(std::array::from_fn(|_| Padded(make())))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|Padded(stripe)| stripe)
    }
}

/// The index is the number of a stripe.
impl<T> Index<usize> for Stripes<T> {
    type Output = T;

    fn index(&self, stripe: usize) -> &T {
        &self.0[stripe % STRIPES].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_stripe() {
        let mine = my_stripe();
        let others: Vec<_> = (1..STRIPES)
            .map(|_| std::thread::spawn(my_stripe))
            .collect();
        let others: Vec<_> = others
            .into_iter()
            .map(|other| other.join().unwrap())
            .collect();
        assert!(
            others.iter().all(|other| *other < STRIPES) && my_stripe() == mine && mine < STRIPES
        );
        let mut next = 0;
        let stripes = Stripes::new(|| {
            next += 1;
            next
        });
        assert!(stripes.iter().copied().eq(1..=STRIPES) && stripes[mine] == mine + 1);
    }
}
