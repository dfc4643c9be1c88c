//! The future of an operation. On Redis it is submitted, then queued in a batch, then done; in memory it is done at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use super::batch::Batch;
use super::client::RedisClient;
use crate::Error;
use crate::store::key::Key;
use crate::store::operation::Operation;

/// A submitted operation.
pub(crate) struct OperationFuture<O: Operation>(pub(in crate::store) Step<O>);

pub(in crate::store) enum Step<O: Operation> {
    /// Not polled yet; `None` after it was sent.
    Submitted(Option<(Arc<RedisClient<O>>, Key, O)>),
    Queued(Queued<O>),
    /// Done; `None` once the reply was taken.
    Done(Option<Result<O::Reply, Error>>),
}

/// An operation in a batch.
pub(in crate::store) struct Queued<O: Operation> {
    pub(super) batch: Arc<Batch<O>>,
    pub(super) index: usize,
    /// Whether the batch already has the waker of the task that polls next.
    pub(super) fresh: bool,
    /// The batch in flight from this task.
    pub(super) sending: Option<Sending>,
}

/// A batch in flight from the task of its caller. If the caller goes away, a spawned task completes it. So a grant
/// is known and can be taken back.
pub(super) struct Sending {
    sending: Option<BoxFuture<'static, ()>>,
    runtime: Handle,
}

impl<O: Operation> Unpin for OperationFuture<O> {}

impl<O: Operation> Future for OperationFuture<O> {
    type Output = Result<O::Reply, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(step) = self.get_mut();
        loop {
            match step {
                Step::Submitted(submitted) => {
                    let Some((client, key, operation)) = submitted.take() else {
                        return Poll::Pending;
                    };
                    let (here, waker) = (Handle::try_current().ok(), context.waker().clone());
                    *step = client.enqueue(here, key, operation, Some(waker), false);
                }
                Step::Queued(queued) => {
                    if let Some(sending) = &mut queued.sending {
                        ready!(sending.poll(context));
                        queued.sending = None;
                    }
                    // The batch has the waker already.
                    if std::mem::take(&mut queued.fresh) {
                        return Poll::Pending;
                    }
                    let reply = ready!(queued.batch.poll(queued.index, context));
                    *step = Step::Done(None);
                    return Poll::Ready(reply);
                }
                Step::Done(reply) => return reply.take().map_or(Poll::Pending, Poll::Ready),
            }
        }
    }
}

impl<O: Operation> Drop for OperationFuture<O> {
    fn drop(&mut self) {
        if let Step::Queued(Queued { batch, index, .. }) = &self.0
            && let Some((key, reply)) = batch.leave(*index)
        {
            batch.client.take_back(key, &[reply]);
        }
    }
}

impl Sending {
    pub(super) fn new(sending: BoxFuture<'static, ()>, runtime: Handle) -> Self {
        Self {
            sending: Some(sending),
            runtime,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(sending) = &mut self.sending {
            ready!(sending.as_mut().poll(context));
            self.sending = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // A future that has panicked cannot be polled again.
        if let Some(sending) = self.sending.take()
            && !std::thread::panicking()
        {
            self.runtime.spawn(sending);
        }
    }
}
