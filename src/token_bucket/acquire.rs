//! The futures behind the methods of a bucket: a decision, and a decision followed by its delay.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use futures_util::future::BoxFuture;
use tokio::task::coop::consume_budget;

use super::TokenBucket;
use super::decision::Decision;
use super::local::{Answer, Asked};
use super::operations::Reserve;
use super::reservation::Reservation;
use super::state::Ask;
use crate::store::timer::sleep;
use crate::store::{Operation, OperationFuture};
use crate::{Error, Key};

/// A decision in progress.
pub(crate) enum Decide<O: Decides> {
    /// Decided without a call to the store.
    Clear(Option<Result<Decision, Error>>),
    /// Waits for tokens that are being given back, or for another reason, then asks.
    Later(BoxFuture<'static, Result<Decision, Error>>),
    Asking(OperationFuture<O>, O::Asked),
}

/// An operation that decides a request.
pub(crate) trait Decides: Operation {
    /// Stores the answer of the store in the local state.
    type Asked: Unpin;

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
    /// Starts a decision for the task of `waker`, which polls it immediately.
    pub(super) fn new(bucket: &TokenBucket, key: Key, cost: u32, wait: i64, waker: Waker) -> Self {
        let most = bucket.quotas.max_cost();
        if cost > most {
            return Self::Clear(Some(Err(Error::exceeds_burst(cost, most))));
        }
        if cost == 0 {
            return Self::Clear(Some(Ok(Decision::free(bucket.quotas.clone()))));
        }
        let ask = Ask { cost: cost.into(), wait };
        match bucket.clients.returning.end(&key) {
            Some(end) => {
                let bucket = bucket.clone();
                Self::Later(Box::pin(async move {
                    end.await;
                    let waker = current_waker().await;
                    Self::ask(&bucket, key, ask, waker).await
                }))
            }
            None => Self::ask(bucket, key, ask, waker),
        }
    }

    fn ask(bucket: &TokenBucket, key: Key, ask: Ask, waker: Waker) -> Self {
        let asked = match bucket.answer(&key, ask) {
            Some(Answer::Known(decision)) => return Self::Clear(Some(Ok(decision))),
            Some(Answer::Ask(asked)) => Some(asked),
            None => None,
        };
        let quotas = bucket.quotas.clone();
        Self::Asking(bucket.clients.reserve.start(key, Reserve { quotas, ask }, waker), asked)
    }
}

/// The waker of the task.
pub(super) async fn current_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

impl<O: Decides> Future for Decide<O> {
    type Output = Result<Decision, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Clear(outcome) => {
                // Yields to other tasks now and then, because this path never waits.
                ready!(pin!(consume_budget()).poll(context));
                outcome.take().map_or(Poll::Pending, Poll::Ready)
            }
            Self::Later(deciding) => deciding.as_mut().poll(context),
            Self::Asking(running, asked) => {
                let reply = ready!(Pin::new(running).poll(context))?;
                Poll::Ready(Ok(O::decision(reply, asked)))
            }
        }
    }
}

/// A decision, followed by its delay. If it is dropped before it may act, it gives its tokens back.
pub(crate) struct Acquire {
    bucket: TokenBucket,
    key: Key,
    cost: u32,
    step: Step,
}

#[expect(clippy::large_enum_variant, reason = "it is polled where it is made")]
enum Step {
    /// Not polled yet: nothing is charged.
    Asked,
    Deciding(Decide<Reserve>),
    Waiting(BoxFuture<'static, Result<Decision, Error>>),
    Done,
}

impl Acquire {
    pub(super) fn new(bucket: TokenBucket, key: Key, cost: u32) -> Self {
        Self { bucket, key, cost, step: Step::Asked }
    }

    /// The same request on another bucket.
    pub(crate) fn again(&self, bucket: impl FnOnce(&TokenBucket) -> TokenBucket) -> Self {
        bucket(&self.bucket).acquire(self.key.clone(), self.cost)
    }

    /// Takes the key, after completion.
    pub(crate) fn take_key(&mut self) -> Key {
        self.key.take()
    }
}

impl Future for Acquire {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.step {
                Step::Asked => {
                    let (bucket, key, waker) = (&self.bucket, self.key.clone(), context.waker().clone());
                    let decide = Decide::new(bucket, key, self.cost, bucket.max_wait, waker);
                    self.step = Step::Deciding(decide);
                }
                Step::Deciding(decide) => {
                    let decision = ready!(Pin::new(&mut *decide).poll(context))?;
                    if decision.delay().is_zero() {
                        self.step = Step::Done;
                        return Poll::Ready(Ok(decision));
                    }
                    let (bucket, key) = (self.bucket.clone(), self.key.clone());
                    self.step = Step::Waiting(Box::pin(wait_to_act(bucket, key, self.cost, decision)));
                }
                Step::Waiting(waiting) => {
                    let decided = ready!(waiting.as_mut().poll(context));
                    self.step = Step::Done;
                    return Poll::Ready(decided);
                }
                Step::Done => return Poll::Pending,
            }
        }
    }
}

debug!(Acquire, bucket, cost);

/// Waits until an admitted request may act.
async fn wait_to_act(
    mut bucket: TokenBucket,
    key: Key,
    cost: u32,
    mut decision: Decision,
) -> Result<Decision, Error> {
    loop {
        let delay = decision.delay();
        if delay.is_zero() {
            return Ok(decision);
        }
        let mut waiting = Waiting(Reservation::new(bucket.clone(), key.clone(), decision));
        sleep(delay).await;
        decision = waiting.0.acts();
        // An outage at this point changes nothing: the tokens are granted.
        if !bucket.peek(key.clone()).await.is_ok_and(|state| !state.blocked_for().is_zero()) {
            return Ok(decision);
        }
        // Queues again at the end, for the rest of `max_wait`. So the requests that waited during the block are
        // admitted at the usual rate after it.
        bucket = bucket.with_less_wait(delay);
        let waker = current_waker().await;
        decision = Decide::new(&bucket, key.clone(), cost, bucket.max_wait, waker).await?;
    }
}

/// A reservation whose request waits. If this is dropped, the tokens are given back.
struct Waiting(Reservation);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take_cancel() {
            self.0.bucket.cancel_detached(&self.0.key, cancel);
        }
    }
}
