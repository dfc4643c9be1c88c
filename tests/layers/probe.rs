//! A service that takes the contract at its word.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio_test::task;
use tower::Service;

use crate::stores::SOON;
use support::eventually;

/// Echoes requests. It must be called on an instance that was polled ready, once for each time; a clone is not ready.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    ready: bool,
    yields: usize,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    polled_ready: AtomicUsize,
    calls: AtomicUsize,
    running: AtomicUsize,
}

impl Probe {
    /// Whose futures are pending so many times.
    pub(crate) fn yielding(yields: usize) -> Self {
        Self {
            yields,
            ..Self::default()
        }
    }

    /// Whose futures never end.
    pub(crate) fn hanging() -> Self {
        Self::yielding(usize::MAX)
    }

    /// How often any clone said that it is ready.
    pub(crate) fn polled_ready(&self) -> usize {
        self.counts.polled_ready.load(Ordering::SeqCst)
    }

    /// How often any clone was called.
    pub(crate) fn calls(&self) -> usize {
        self.counts.calls.load(Ordering::SeqCst)
    }

    /// Polls a call until so many futures run.
    pub(crate) async fn runs<F: Future>(&self, running: usize, call: &mut task::Spawn<F>) {
        eventually(&format!("{running} to run"), SOON, async || {
            assert!(call.poll().is_pending());
            self.running() == running
        })
        .await;
    }

    /// How many futures there are.
    pub(crate) fn running(&self) -> usize {
        self.counts.running.load(Ordering::SeqCst)
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            yields: self.yields,
            counts: Arc::clone(&self.counts),
        }
    }
}

impl<T> Service<T> for Probe {
    type Response = T;
    type Error = Infallible;
    type Future = Echo<T>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        self.counts.polled_ready.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: T) -> Echo<T> {
        assert!(
            std::mem::take(&mut self.ready),
            "called without having been polled ready"
        );
        self.counts.calls.fetch_add(1, Ordering::SeqCst);
        self.counts.running.fetch_add(1, Ordering::SeqCst);
        Echo {
            yields: self.yields,
            request: Some(request),
            counts: Arc::clone(&self.counts),
        }
    }
}

pub(crate) struct Echo<T> {
    yields: usize,
    request: Option<T>,
    counts: Arc<Counts>,
}

impl<T> Unpin for Echo<T> {}

impl<T> Future for Echo<T> {
    type Output = Result<T, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.yields == 0 {
            return Poll::Ready(Ok(self.request.take().expect("polled after it was ready")));
        }
        if self.yields != usize::MAX {
            self.yields -= 1;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<T> Drop for Echo<T> {
    fn drop(&mut self) {
        self.counts.running.fetch_sub(1, Ordering::SeqCst);
    }
}
