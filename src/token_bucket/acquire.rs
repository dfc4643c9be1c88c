//! A decision in progress, and a decision followed by its delay.

use std::borrow::Cow;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::TokenBucket;
use super::decision::Decision;
use super::local::Asked;
use super::operations::Reserve;
use super::quota::Quotas;
use super::reservation::Reservation;
use super::state::Ask;
use crate::store::timer::until;
use crate::store::{Operation, OperationFuture};
use crate::{Error, Key, clock};

/// A decision, or one in progress. The store is asked when this is first polled, except in memory.
pub(crate) enum Decide<O: Decides> {
    /// Decided without a call to a server; `None` after it was returned.
    Decided(Option<Result<Decision, Error>>),
    /// Waits for tokens that are being given back, or for another reason, then asks.
    Later(BoxFuture<'static, Result<Decision, Error>>),
    Asking(OperationFuture<O>, O::Asked),
}

/// An operation that decides a request.
pub(crate) trait Decides: Operation {
    /// Stores the answer of the store in the local state.
    type Asked: Unpin + Send;

    fn decision(reply: Self::Reply, asked: &mut Self::Asked) -> Decision;
}

impl Decides for Reserve {
    type Asked = Option<Asked>;

    fn decision(decision: Decision, asked: &mut Option<Asked>) -> Decision {
        if let Some(asked) = asked.take() {
            asked.answered(decision.admitted, &decision.state);
        }
        decision
    }
}

impl Decide<Reserve> {
    /// Begins to decide a request under `quotas`, within `wait` µs.
    pub(super) fn begin(
        bucket: &TokenBucket,
        quotas: &Quotas,
        key: &Key,
        cost: u32,
        wait: i64,
    ) -> Self {
        if let Some(decided) = Decision::without_state(quotas, cost) {
            return decided.into();
        }
        let (clients, ask) = (
            &bucket.clients,
            Ask {
                cost: cost.into(),
                wait,
            },
        );
        let reserve = || Reserve {
            quotas: quotas.clone(),
            ask,
        };
        if let Some(decided) = clients.reserve.step(key, reserve) {
            return decided.into();
        }
        let key = Cow::Borrowed(key);
        match bucket
            .local
            .answer(clients, quotas, key.clone(), clock::micros, ask, true)
        {
            ControlFlow::Break(decision) => Ok(decision).into(),
            ControlFlow::Continue(asked) => {
                let end = clients.returning.end(&key);
                Self::Asking(clients.reserve.run(key.into_owned(), reserve()), asked).after(end)
            }
        }
    }
}

impl<O: Decides> Decide<O> {
    /// Asks when the tokens that are being given back are back.
    pub(super) fn after<F>(self, ends: impl IntoIterator<Item = F>) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        ends.into_iter().fold(self, |asking, end| {
            Self::Later(Box::pin(async move {
                end.await;
                asking.await
            }))
        })
    }
}

impl<O: Decides> From<Result<Decision, Error>> for Decide<O> {
    fn from(decided: Result<Decision, Error>) -> Self {
        Self::Decided(Some(decided))
    }
}

impl<O: Decides> Future for Decide<O> {
    type Output = Result<Decision, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // Not later: the tokens are charged, and nobody would give them back.
            Self::Decided(decided) => decided.take().map_or(Poll::Pending, Poll::Ready),
            Self::Later(deciding) => deciding.as_mut().poll(context),
            Self::Asking(running, asked) => {
                let reply = ready!(Pin::new(running).poll(context))?;
                Poll::Ready(Ok(O::decision(reply, asked)))
            }
        }
    }
}

/// A reservation whose request waits. If this is dropped before the request may act, the tokens are given back.
pub(super) struct Waiting(Reservation);

impl Waiting {
    /// The request waits if its decision has a delay.
    pub(super) fn new(
        bucket: &TokenBucket,
        quotas: &Quotas,
        key: &Key,
        decision: Decision,
    ) -> Self {
        Self(Reservation::new(
            bucket.with_quotas(quotas),
            key.clone(),
            decision,
        ))
    }

    /// Waits until the request may act.
    pub(super) fn end(mut self) -> BoxFuture<'static, Result<Decision, Error>> {
        // From the decision on, not from the first poll.
        let mut due = Instant::now().checked_add(self.0.delay());
        Box::pin(async move {
            loop {
                let (delay, key) = (self.0.delay(), self.0.key.clone());
                until(due).await;
                let decision = self.0.acts();
                // An outage at this point changes nothing: the tokens are granted.
                let state = self.0.bucket.peek(key.clone()).await;
                if !state.is_ok_and(|state| !state.blocked_for().is_zero()) {
                    return Ok(decision);
                }
                // Queues again at the end, for the rest of `max_wait`. So the requests that waited during the block
                // are admitted at the usual rate after it.
                let bucket = self.0.bucket.with_less_wait(delay).under_learned(&key);
                let decide = Decide::begin(
                    &bucket,
                    &bucket.quotas,
                    &key,
                    decision.cost,
                    bucket.max_wait,
                );
                let decision = decide.await?;
                if decision.delay().is_zero() {
                    return Ok(decision);
                }
                self = Self(Reservation::new(bucket, key, decision));
                due = Instant::now().checked_add(self.0.delay());
            }
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take_cancel(self.0.age()) {
            self.0.bucket.cancel_detached(&self.0.key, cancel);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::coop::{consume_budget, has_budget_remaining};

    use crate::{Quota, Store, TokenBucket, TokenBuckets};

    #[tokio::test]
    async fn a_task_without_budget_is_not_charged_for_a_decision_that_it_does_not_get() {
        let bucket =
            TokenBucket::new(&Store::in_memory(), "test", Quota::non_refilling(10)).unwrap();
        let several = TokenBuckets::new([bucket.clone()]).unwrap();
        while has_budget_remaining() {
            consume_budget().await;
        }
        assert!(bucket.allow("k").now_or_never().is_some());
        assert!(bucket.wait("k").now_or_never().is_some());
        assert!(several.allow(["k"]).now_or_never().is_none(), "it yields");
        assert_eq!(bucket.peek("k").await.unwrap().remaining(), 8);
    }
}
