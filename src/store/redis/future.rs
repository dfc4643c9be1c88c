//! The future of an operation on Redis.

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

/// The future of an operation.
pub(crate) struct RedisFuture<O: Operation>(pub(super) Step<O>);

pub(super) enum Step<O: Operation> {
    /// Not polled yet; `None` after it was sent.
    Asked(Option<(Arc<RedisClient<O>>, Key, O)>),
    /// In flight from this task.
    Sending(Sending, Queued<O>),
    Queued(Queued<O>),
    Failed(Error),
    Done,
}

/// An operation in a batch.
pub(super) struct Queued<O: Operation> {
    pub(super) batch: Arc<Batch<O>>,
    pub(super) index: usize,
    /// Whether the batch already has the waker of the task that polls next.
    pub(super) fresh: bool,
}

/// A batch in flight from the task of its caller. If the caller goes away, a spawned task completes it. So a grant
/// is known and can be taken back.
pub(super) struct Sending {
    sending: Option<BoxFuture<'static, ()>>,
    runtime: Handle,
}

impl<O: Operation> Unpin for RedisFuture<O> {}

impl<O: Operation> Future for RedisFuture<O> {
    type Output = Result<O::Reply, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(step) = self.get_mut();
        loop {
            match step {
                Step::Asked(asked) => {
                    let Some((client, key, operation)) = asked.take() else { return Poll::Pending };
                    *step = client.enqueue(
                        Handle::try_current().ok(),
                        key,
                        operation,
                        Some(context.waker().clone()),
                        false,
                    );
                }
                Step::Sending(sending, _) => {
                    ready!(sending.poll(context));
                    let Step::Sending(_, queued) = std::mem::replace(step, Step::Done) else {
                        return Poll::Pending;
                    };
                    *step = Step::Queued(queued);
                }
                Step::Queued(queued) => {
                    // The batch has the waker already.
                    if std::mem::take(&mut queued.fresh) {
                        return Poll::Pending;
                    }
                    let reply = ready!(queued.batch.poll(queued.index, context));
                    *step = Step::Done;
                    return Poll::Ready(reply);
                }
                Step::Failed(_) => {
                    let Step::Failed(error) = std::mem::replace(step, Step::Done) else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(Err(error));
                }
                Step::Done => return Poll::Pending,
            }
        }
    }
}

impl<O: Operation> Drop for RedisFuture<O> {
    fn drop(&mut self) {
        if let Step::Queued(Queued { batch, index, .. }) | Step::Sending(_, Queued { batch, index, .. }) =
            &self.0
            && let Some((key, reply)) = batch.leave(*index)
        {
            batch.client.take_back(key, &[reply]);
        }
    }
}

impl Sending {
    pub(super) fn new(sending: BoxFuture<'static, ()>, runtime: Handle) -> Self {
        Self { sending: Some(sending), runtime }
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
