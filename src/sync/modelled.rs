//! Additions to the types of loom: locks of both kinds, because not all of the library is run in interleavings.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::atomic::{Ordering, fence};
use loom::thread::JoinHandle;
use tokio::sync::futures::Notified;

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

/// Runs a test in all interleavings in which the threads are preempted at most three times, and with all values that
/// weak memory lets them read.
pub(crate) fn check(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    let test = Arc::new(test);
    // In a separate thread, whose stack is large enough.
    builder.check(move || {
        let test = test.clone();
        spawn(move || test()).join().unwrap();
    });
}

/// Runs a future, and fails if no waker is left that can wake it. Unlike loom's `block_on`, it may be woken several
/// times.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let woken = Arc::<Woken>::default();
    let mut future = pin!(future);
    let waker = Waker::from(woken.clone());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut is_woken = lock(&woken.is_woken);
        while !std::mem::take(&mut *is_woken) {
            is_woken = woken
                .condvar
                .wait(is_woken)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[derive(Default)]
struct Woken {
    is_woken: loom::sync::Mutex<bool>,
    condvar: loom::sync::Condvar,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *lock(&self.is_woken) = true;
        self.condvar.notify_one();
    }
}

/// tokio's `Notify`, with its memory ordering, which loom cannot detect.
#[derive(Debug, Default)]
pub(crate) struct Notify(tokio::sync::Notify);

impl Notify {
    pub(crate) fn notified(&self) -> Notified<'_> {
        let notified = self.0.notified();
        fence(Ordering::SeqCst);
        notified
    }

    pub(crate) fn notify_waiters(&self) {
        fence(Ordering::SeqCst);
        self.0.notify_waiters();
    }
}

/// Starts a thread with a stack that is large enough for a tokio runtime.
pub(crate) fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    loom::thread::Builder::new()
        .stack_size(1 << 17)
        .spawn(run)
        .unwrap()
}
