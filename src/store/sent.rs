//! Calls whose answers no task awaits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt as _;

use super::namespace::OperationFuture;
use super::operation::Operation;
use crate::Error;
use crate::sync::lock;

/// A call that is polled when its answer comes, by whoever reads that.
pub(super) struct Sent<O: Operation, T>(Mutex<Option<(OperationFuture<O>, T)>>);

impl<O: Operation, T: FnOnce(Result<O::Reply, Error>) + Send + 'static> Sent<O, T> {
    /// Calls `then` with the answer.
    pub(super) fn then(call: OperationFuture<O>, then: T) {
        Arc::new(Self(Mutex::new(Some((call, then))))).wake();
    }
}

impl<O: Operation, T: FnOnce(Result<O::Reply, Error>) + Send + 'static> Wake for Sent<O, T> {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut sent = lock(&self.0);
        let Some((call, _)) = sent.as_mut() else {
            return;
        };
        let Poll::Ready(answer) = call.poll_unpin(&mut Context::from_waker(&waker)) else {
            return;
        };
        let done = sent.take();
        drop(sent);
        if let Some((_, then)) = done {
            // It may call code of the user, such as a recorder of metrics. A panic there must not reach whoever reads the
            // answer, and the other answers with it.
            drop(catch_unwind(AssertUnwindSafe(|| then(answer))));
        }
    }
}
