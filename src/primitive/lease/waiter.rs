//! A waiter: where one waiting future receives its result, whether or not it is polled.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::handle::Lease;
use super::options::Holding;
use crate::Error;
use crate::error::Subject;
use crate::store::lock;

/// The result of an acquire.
#[derive(Debug)]
pub(crate) enum Got<F> {
    /// A lease, and the outcome of an earlier one, if any.
    Lease(Lease, Option<F>),
    /// An earlier lease has an outcome that leaves nothing to do.
    Done(F),
}

/// The result that a waiter receives; `None`: its place is lost, and it must acquire again.
pub(super) type Received<F> = Result<Option<Got<F>>, Error>;

/// A waiter. Two are equal if they are the same.
#[derive(Debug)]
pub(crate) struct Waiter<F> {
    pub(super) holding: Arc<Holding>,
    pub(super) subject: Subject,
    /// Whether it waits if it does not get the lease at once.
    pub(super) waits: bool,
    /// Whether it stops waiting when the store is unavailable.
    pub(super) gives_up: bool,
    /// The suffix of its token.
    pub(super) suffix: String,
    state: Mutex<State<F>>,
}

#[derive(Debug)]
enum State<F> {
    Waiting(Option<Waker>),
    Offered(Received<F>),
    /// It has received its result, or has gone away.
    Over,
}

impl<F> Waiter<F> {
    pub(super) fn new(
        holding: &Arc<Holding>,
        (subject, suffix): (Subject, String),
        waits: bool,
        gives_up: bool,
    ) -> Arc<Self> {
        let (holding, state) = (Arc::clone(holding), Mutex::new(State::Waiting(None)));
        Arc::new(Self { holding, subject, waits, gives_up, suffix, state })
    }

    /// Offers a result. Returns the result if the waiter has gone away, or was offered another one before.
    pub(super) fn offer(&self, result: Received<F>) -> Result<(), Received<F>> {
        let mut state = lock(&self.state);
        let State::Waiting(waker) = &mut *state else { return Err(result) };
        let waker = waker.take();
        *state = State::Offered(result);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Takes the result.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Received<F>> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Over) {
            State::Offered(result) => Poll::Ready(result),
            State::Waiting(waker) => {
                let waker = waker.filter(|waker| waker.will_wake(context.waker()));
                *state = State::Waiting(Some(waker.unwrap_or_else(|| context.waker().clone())));
                Poll::Pending
            }
            State::Over => Poll::Pending,
        }
    }

    /// Goes away. Returns a result that was offered and not taken.
    pub(super) fn leave(&self) -> Option<Received<F>> {
        match std::mem::replace(&mut *lock(&self.state), State::Over) {
            State::Offered(result) => Some(result),
            State::Waiting(_) | State::Over => None,
        }
    }
}

impl<F> PartialEq for Waiter<F> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
