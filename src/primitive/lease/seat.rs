//! Where one future that waits hears what has come of it, whether or not it is polled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::handle::Lease;
use super::options::Holding;
use super::state::Offer;
use crate::Error;
use crate::store::lock;

/// What came of asking.
#[derive(Debug)]
pub(crate) enum Got<F> {
    /// A lease, and what came of those before.
    Lease(Lease, Option<F>),
    /// By what came of the leases before, nothing is left to do.
    Done(F),
}

/// What one who waits hears; `None`: its place is gone, and it is to ask anew.
pub(super) type Heard<F> = Result<Option<Got<F>>, Error>;

/// One who waits.
#[derive(Debug)]
pub(super) struct Seat<F> {
    pub(super) holding: Arc<Holding>,
    /// Whether it waits no longer when the store is away.
    pub(super) gives_up: bool,
    state: Mutex<State<F>>,
    /// Whether it was polled since it was nudged.
    polled: AtomicBool,
}

#[derive(Debug)]
enum State<F> {
    Waiting(Option<Waker>),
    Offered(Heard<F>),
    /// It has heard, or has gone away.
    Over,
}

impl<F> Seat<F> {
    pub(super) fn new(holding: &Arc<Holding>, gives_up: bool) -> Arc<Self> {
        let state = Mutex::new(State::Waiting(None));
        Arc::new(Self { holding: Arc::clone(holding), gives_up, state, polled: AtomicBool::new(true) })
    }

    /// Has it polled, if anybody polls it.
    pub(super) fn nudge(&self) {
        self.polled.store(false, Ordering::Release);
        if let State::Waiting(Some(waker)) = &*lock(&self.state) {
            waker.wake_by_ref();
        }
    }

    pub(super) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Acquire)
    }

    /// Says what there is to hear. It comes back where nobody is left to hear it, or something was said before.
    pub(super) fn offer(&self, heard: Heard<F>) -> Result<(), Heard<F>> {
        let mut state = lock(&self.state);
        let State::Waiting(waker) = &mut *state else { return Err(heard) };
        let waker = waker.take();
        *state = State::Offered(heard);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Takes what there is to hear.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Heard<F>> {
        self.polled.store(true, Ordering::Release);
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Over) {
            State::Offered(heard) => {
                drop(state);
                if let Ok(Some(Got::Lease(lease, _))) = &heard {
                    lease.state.tenure.taken_up();
                }
                Poll::Ready(heard)
            }
            State::Waiting(waker) => {
                let waker = waker.filter(|waker| waker.will_wake(context.waker()));
                *state = State::Waiting(Some(waker.unwrap_or_else(|| context.waker().clone())));
                Poll::Pending
            }
            State::Over => Poll::Pending,
        }
    }

    /// Goes away. What it was offered comes back.
    pub(super) fn leave(&self) -> Option<Heard<F>> {
        match std::mem::replace(&mut *lock(&self.state), State::Over) {
            State::Offered(heard) => Some(heard),
            State::Waiting(_) | State::Over => None,
        }
    }
}

impl<F: Send + std::fmt::Debug> Offer for Seat<F> {
    /// Its place is gone then: it asks anew when it is polled.
    fn take_back(&self) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Offered(Ok(Some(Got::Lease(..))))) {
            let offered = std::mem::replace(&mut *state, State::Offered(Ok(None)));
            drop(state);
            drop(offered);
        }
    }
}
