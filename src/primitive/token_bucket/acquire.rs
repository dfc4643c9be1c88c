//! Futures under the methods of a bucket: a decision, and a decision whose delay is waited for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Sleep, sleep};

use super::decision::Decision;
use super::operations::Verdict;
use super::reservation::Reservation;
use super::state::Ask;
use super::{Key, TokenBucket};
use crate::Error;
use crate::store::Running;

/// A decision under way.
#[derive(Debug)]
pub(crate) struct Decide {
    bucket: TokenBucket,
    key: Key,
    ask: Ask,
    /// When it began, by the clock of the known refusals.
    since: Option<i64>,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    Known(Option<Decision>),
    Failed(Option<Error>),
    Asking(Running<Verdict>),
}

impl Decide {
    pub(super) fn new(bucket: &TokenBucket, key: Key, cost: u32, wait: i64) -> Self {
        let ask = Ask { cost: cost.into(), wait };
        let (since, progress) = begin(bucket, &key, cost, ask);
        Self { bucket: bucket.clone(), key, ask, since, progress }
    }
}

fn begin(bucket: &TokenBucket, key: &Key, cost: u32, ask: Ask) -> (Option<i64>, Progress) {
    let most = bucket.quotas.max_cost();
    if cost > most {
        return (None, Progress::Failed(Some(Error::exceeds_burst(cost, most))));
    }
    let since = match bucket.known.as_ref().map(|known| known.find(key, &bucket.quotas, ask)) {
        Some(Ok(refusal)) => return (None, Progress::Known(Some(refusal))),
        Some(Err(since)) => Some(since),
        None => None,
    };
    (since, Progress::Asking(bucket.ask(key.clone(), ask)))
}

impl Future for Decide {
    type Output = Result<Decision, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let verdict = match &mut this.progress {
            Progress::Asking(running) => ready!(Pin::new(running).poll(context))?,
            Progress::Known(decision) => {
                return decision.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it)));
            }
            Progress::Failed(error) => return error.take().map_or(Poll::Pending, |it| Poll::Ready(Err(it))),
        };
        // The cost came as a `u32`.
        let cost = u32::try_from(this.ask.cost).unwrap_or(u32::MAX);
        let quotas = this.bucket.quotas.clone();
        let decision = Decision::new(quotas, cost, verdict);
        if let (false, Some(known), Some(since)) = (decision.is_admitted(), &this.bucket.known, this.since) {
            known.learn(&this.key, &this.bucket.quotas, this.ask, &decision, since);
        }
        Poll::Ready(Ok(decision))
    }
}

/// A decision, and then its delay. What is dropped before it may act is given back.
#[derive(Debug)]
pub(crate) struct Acquire(Step);

#[derive(Debug)]
enum Step {
    Deciding(Decide),
    Waiting(Pin<Box<Sleep>>, Reservation),
    Done,
}

impl Acquire {
    pub(super) fn new(decide: Decide) -> Self {
        Self(Step::Deciding(decide))
    }
}

impl Future for Acquire {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                Step::Deciding(decide) => {
                    let decision = ready!(Pin::new(&mut *decide).poll(context))?;
                    let delay = decision.delay();
                    if delay.is_zero() {
                        self.0 = Step::Done;
                        return Poll::Ready(Ok(decision));
                    }
                    let reservation = Reservation::new(decide.bucket.clone(), decide.key.clone(), decision);
                    self.0 = Step::Waiting(Box::pin(sleep(delay)), reservation);
                }
                Step::Waiting(sleep, reservation) => {
                    ready!(sleep.as_mut().poll(context));
                    let decision = reservation.decision().clone();
                    self.0 = Step::Done;
                    return Poll::Ready(Ok(decision));
                }
                Step::Done => return Poll::Pending,
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Step::Waiting(_, reservation) = &mut self.0 {
            reservation.cancel_detached();
        }
    }
}
