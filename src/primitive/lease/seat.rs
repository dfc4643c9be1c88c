//! A seat: the place where one waiting future receives its result, whether or not it is polled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::handle::Lease;
use super::options::Holding;
use super::state::Offer;
use crate::Error;
use crate::store::lock;

/// The result of an acquire.
#[derive(Debug)]
pub(crate) enum Got<F> {
    /// A lease, and the outcome of an earlier one, if any.
    Lease(Lease, Option<F>),
    /// An earlier lease has an outcome that leaves nothing to do.
    Done(F),
}

/// The result that a waiter receives; `None`: its place is lost, and it must ask again.
pub(super) type Heard<F> = Result<Option<Got<F>>, Error>;

/// A waiter.
#[derive(Debug)]
pub(super) struct Seat<F> {
    pub(super) holding: Arc<Holding>,
    /// Whether it stops waiting when the store is unavailable.
    pub(super) gives_up: bool,
    state: Mutex<State<F>>,
    /// Whether it was polled since the last nudge.
    polled: AtomicBool,
}

#[derive(Debug)]
enum State<F> {
    Waiting(Option<Waker>),
    Offered(Heard<F>),
    /// It has received its result, or has gone away.
    Over,
}

impl<F> Seat<F> {
    pub(super) fn new(holding: &Arc<Holding>, gives_up: bool) -> Arc<Self> {
        let state = Mutex::new(State::Waiting(None));
        Arc::new(Self { holding: Arc::clone(holding), gives_up, state, polled: AtomicBool::new(true) })
    }

    /// Wakes its task, to find out whether it is polled.
    pub(super) fn nudge(&self) {
        self.polled.store(false, Ordering::Release);
        if let State::Waiting(Some(waker)) = &*lock(&self.state) {
            waker.wake_by_ref();
        }
    }

    pub(super) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Acquire)
    }

    /// Offers a result. Returns the result if the waiter has gone away, or was offered another one before.
    pub(super) fn offer(&self, heard: Heard<F>) -> Result<(), Heard<F>> {
        let mut state = lock(&self.state);
        let State::Waiting(waker) = &mut *state else { return Err(heard) };
        let waker = waker.take();
        *state = State::Offered(heard);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Takes the result.
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

    /// Goes away. Returns a result that was offered and not taken.
    pub(super) fn leave(&self) -> Option<Heard<F>> {
        match std::mem::replace(&mut *lock(&self.state), State::Over) {
            State::Offered(heard) => Some(heard),
            State::Waiting(_) | State::Over => None,
        }
    }
}

impl<F: Send + std::fmt::Debug> Offer for Seat<F> {
    /// The waiter's place is lost then. It asks again when it is polled.
    fn take_back(&self) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Offered(Ok(Some(Got::Lease(..))))) {
            let offered = std::mem::replace(&mut *state, State::Offered(Ok(None)));
            drop(state);
            drop(offered);
        }
    }
}
