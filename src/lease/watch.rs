//! Runs work that ends when its lease is lost.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

use crate::error::Error;
use crate::lease::handle::LeaseHandle;

/// Watches a lease while work runs under it.
///
/// Work that is done in its first poll needs no timer. So the timer of the lease is set after that poll.
pub(crate) struct Watch {
    /// `None`: the work continues when its lease is lost.
    lease: Option<LeaseHandle>,
    /// Whether the lease was acquired in this poll: then it need not be checked.
    is_fresh: bool,
    lost: Option<BoxFuture<'static, ()>>,
}

impl Watch {
    /// `None`: watches nothing.
    pub(crate) fn new(lease: Option<LeaseHandle>) -> Self {
        Self {
            lease,
            is_fresh: false,
            lost: None,
        }
    }

    /// Sets whether the lease was acquired in this poll.
    pub(crate) fn fresh(self, is_fresh: bool) -> Self {
        Self { is_fresh, ..self }
    }

    /// Polls the work. Fails if the lease is lost before the work is done. It must not be polled again after that.
    pub(crate) fn poll<F: Future>(
        &mut self,
        work: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<Result<F::Output, Error>> {
        let Some(lease) = &self.lease else {
            return work.poll(context).map(Ok);
        };
        let is_fresh = std::mem::take(&mut self.is_fresh);
        let is_lost = match &mut self.lost {
            Some(lost) => lost.as_mut().poll(context).is_ready(),
            None => !is_fresh && !lease.is_held(),
        };
        if is_lost {
            return Poll::Ready(Err(Error::lost()));
        }
        if let Poll::Ready(output) = work.poll(context) {
            return Poll::Ready(Ok(output));
        }
        if self.lost.is_some() {
            return Poll::Pending;
        }
        let lost = self.lost.insert(Box::pin(lease.lost()));
        lost.as_mut().poll(context).map(|()| Err(Error::lost()))
    }

    /// Runs the work. Fails if the lease is lost before the work is done.
    pub(crate) async fn run<F: Future>(
        mut self,
        mut work: Pin<&mut F>,
    ) -> Result<F::Output, Error> {
        poll_fn(|context| self.poll(work.as_mut(), context)).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::mutex::Mutex;
    use crate::store::Store;

    #[tokio::test]
    async fn work_does_not_begin_without_its_lease() {
        let lock = Mutex::new(&Store::in_memory(), "watched")
            .unwrap()
            .lock("42")
            .await
            .unwrap();
        let watch = Watch::new(Some(lock.handle()));
        lock.unlock().await.unwrap();
        let work = async { unreachable!("the lease is lost") };
        assert!(
            watch
                .run(pin!(work))
                .await
                .is_err_and(|error: Error| error.is_lost())
        );
    }
}
