//! Decides a request for one bucket: immediately, or with a delay. The caller waits for the delay, or reserves the
//! tokens.

use std::borrow::Cow;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::bucket::Ask;
use crate::bucket::charge::{Charge, Charged};
use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::give_back::{GiveBack, Rule};
use crate::bucket::quotas::Quotas;
use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::store::redis::queue::OperationFuture;
use crate::store::timer::until;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::calls::counted;
use crate::token_bucket::local::Asked;

impl TokenBucket {
    /// Takes one token if it is available now.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded). A refusal is not an
    /// error, but a [`Decision`].
    pub async fn allow(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.decide(key.into(), 1, 0).await
    }

    /// Takes `n` tokens if they are available now.
    ///
    /// If `n` is 0, the request is admitted without a call to the store, with the state of an unused bucket. The
    /// same applies to [`reserve_n`](Self::reserve_n) and [`wait_n`](Self::wait_n).
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded);
    /// [`is_exceeds_limit`](Error::is_exceeds_limit) if `n` is above the burst.
    pub async fn allow_n(&self, key: impl Into<Key>, n: u32) -> Result<Decision, Error> {
        self.decide(key.into(), n, 0).await
    }

    /// Reserves one token, now or in the future.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve_n`](Self::reserve_n).
    pub async fn reserve(&self, key: impl Into<Key>) -> Result<Reservation, Error> {
        self.reserve_n(key, 1).await
    }

    /// Reserves `n` tokens, now or in the future. [`Reservation::delay`] is the time until the caller may act.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_second(1000))?;
    /// let first = bucket.reserve_n("ann", 1000).await?;
    /// let second = bucket.reserve_n("ann", 500).await?;
    /// assert!(first.delay().is_zero() && second.delay().as_millis() <= 500);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded).
    /// * [`is_exceeds_limit`](Error::is_exceeds_limit) if `n` is above the burst.
    /// * [`is_refused`](Error::is_refused) if the delay would exceed the [`max_wait`](Self::with_max_wait), or the
    ///   tokens are never refilled.
    pub async fn reserve_n(&self, key: impl Into<Key>, n: u32) -> Result<Reservation, Error> {
        let key: Key = key.into();
        let decision = self.decide(key.clone(), n, self.max_wait).await?;
        if decision.is_admitted() {
            Ok(Reservation::new(self.clone(), key, decision))
        } else {
            Err(decision.refused())
        }
    }

    /// Waits for one token.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(100).burst(1))?;
    /// for recipient in ["ann@example.com", "bob@example.com"] {
    ///     bucket.wait("smtp").await?;
    ///     println!("sent to {recipient}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`reserve_n`](Self::reserve_n).
    pub async fn wait(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.wait_n(key, 1).await
    }

    /// Waits for `n` tokens. Waiters are served in FIFO order.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_second(1000))?;
    /// let decision = bucket.wait_n("ann", 600).await?;
    /// assert_eq!((decision.cost, decision.remaining()), (600, 400));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`reserve_n`](Self::reserve_n). They are returned immediately: a request that will be refused
    /// does not wait.
    pub async fn wait_n(&self, key: impl Into<Key>, n: u32) -> Result<Decision, Error> {
        let decision = counted(self.decisions(), self.acquire(key.into(), n).await)?;
        if decision.is_admitted() {
            Ok(decision)
        } else {
            Err(decision.refused())
        }
    }
}

/// Decisions in progress, and their cancellation.
impl TokenBucket {
    /// Decides a request, and waits until it may act.
    pub(crate) async fn acquire(&self, key: Key, cost: u32) -> Result<Decision, Error> {
        let decision = Decide::begin(self, &self.quotas, &key, cost, self.max_wait).await?;
        if decision.delay().is_zero() {
            return Ok(decision);
        }
        Waiting::new(self, &self.quotas, &key, decision).end().await
    }

    pub(crate) async fn decide(&self, key: Key, cost: u32, wait: i64) -> Result<Decision, Error> {
        counted(
            self.decisions(),
            Decide::begin(self, &self.quotas, &key, cost, wait).await,
        )
    }

    pub(crate) fn cancel(&self, key: &Key, cancel: GiveBack) -> OperationFuture<GiveBack> {
        self.clients
            .give_back
            .run(key.clone(), self.returned(key, cancel))
    }

    pub(crate) fn cancel_detached(&self, key: &Key, cancel: GiveBack) {
        self.clients
            .give_back
            .detach(key.clone(), self.returned(key, cancel));
    }

    /// Takes back an admission whose request does not act. `sent` is when its call was sent.
    ///
    /// [`GiveBack::unused`] must run exactly once. If the client may repeat it, it gives back all tokens if nothing was
    /// charged after them, and otherwise none.
    pub(crate) fn take_back(&self, key: &Key, state: &BucketState, cost: i64, sent: i64) {
        let cancel = match self.clients.give_back.may_repeat() {
            true => GiveBack::safe_to_repeat(state, cost),
            false => GiveBack::unused(state, cost, clock::micros() - sent),
        };
        self.cancel_detached(key, cancel);
    }

    /// Registers a cancellation in the local state.
    pub(crate) fn returned(&self, key: &Key, cancel: GiveBack) -> GiveBack {
        self.local.forget_refusal(key, &self.quotas);
        GiveBack {
            _returning: Some(Arc::new(self.clients.returning.begin(key))),
            ..cancel
        }
    }
}

/// A decision, or the future of one. The call to the store is sent when this is first polled; in memory, no call is
/// sent.
pub(crate) enum Decide {
    /// Decided without a call to a server; `None` after it was returned.
    Decided(Option<Result<Decision, Error>>),
    /// Decides after tokens were given back, or after another future.
    Later(BoxFuture<'static, Result<Decision, Error>>),
    /// One limit, or several in one call.
    Calling(OperationFuture<Charge>, AskedOfEach),
}

/// Stores the answer of the store in the local state of each limit.
pub(crate) type AskedOfEach = SmallVec<[Option<Asked>; 1]>;

impl Decide {
    /// Starts to decide a request for one limit under `quotas`, with a delay of at most `wait` µs.
    pub(crate) fn begin(
        bucket: &TokenBucket,
        quotas: &Quotas,
        key: &Key,
        cost: u32,
        wait: i64,
    ) -> Self {
        if let Some(decided) = Decision::without_state(quotas, cost) {
            return decided.into();
        }
        let clients = &bucket.clients;
        let charge = || Charge::one(quotas.clone(), cost, wait);
        if let Some(charged) = clients.charge.step(key, charge) {
            return charged.map(Charged::decision).into();
        }
        let ask = Ask {
            cost: cost.into(),
            wait,
        };
        let key = Cow::Borrowed(key);
        match bucket
            .local
            .answer(clients, quotas, key.clone(), clock::micros, ask, true)
        {
            ControlFlow::Break(decision) => Ok(decision).into(),
            ControlFlow::Continue(asked) => {
                let end = clients.returning.end(&key);
                let call = clients.charge.run(key.into_owned(), charge());
                Self::Calling(call, SmallVec::from_buf([asked])).after(end)
            }
        }
    }

    /// Decides after these futures, which complete when tokens were given back.
    pub(crate) fn after<F>(self, ends: impl IntoIterator<Item = F>) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        ends.into_iter().fold(self, |deciding, end| {
            Self::Later(Box::pin(async move {
                end.await;
                deciding.await
            }))
        })
    }
}

impl From<Result<Decision, Error>> for Decide {
    fn from(decided: Result<Decision, Error>) -> Self {
        Self::Decided(Some(decided))
    }
}

impl Future for Decide {
    type Output = Result<Decision, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // The tokens are charged: if this waited and were dropped, no code would give them back.
            Self::Decided(decided) => decided.take().map_or(Poll::Pending, Poll::Ready),
            Self::Later(deciding) => deciding.as_mut().poll(context),
            Self::Calling(call, asked) => {
                let charged = ready!(Pin::new(call).poll(context))?;
                for (limit, asked) in asked.drain(..).enumerate() {
                    if let Some(asked) = asked {
                        let has = charged.admitted || charged.has(limit);
                        asked.answered(has, &charged.state(limit));
                    }
                }
                Poll::Ready(Ok(charged.decision()))
            }
        }
    }
}

/// Reserved tokens. Act after [`delay`](Self::delay), or [`cancel`](Self::cancel).
///
/// If a reservation is dropped, its tokens stay charged.
///
/// ```
/// # use tower_distributed::{Quota, Store, TokenBucket};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(20).burst(1))?;
/// let now = bucket.reserve("smtp").await?;
/// assert!(now.delay().is_zero());
///
/// let mut later = bucket.reserve("smtp").await?;
/// assert!(later.decision().is_admitted());
/// tokio::time::sleep(later.delay() / 2).await; // up to 25 ms
/// later.cancel().await?; // the mail is not sent after all
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the tokens are charged: wait for the delay and act, or cancel"]
pub struct Reservation {
    pub(crate) bucket: TokenBucket,
    pub(crate) key: Key,
    decision: Decision,
    /// The time of the reservation, by [`clock::micros`].
    made: i64,
    cancelled: bool,
}

impl Reservation {
    pub(crate) fn new(bucket: TokenBucket, key: Key, decision: Decision) -> Self {
        Self {
            bucket,
            key,
            decision,
            made: clock::micros(),
            cancelled: false,
        }
    }

    /// Returns how long to wait before acting, from the moment of the reservation.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.decision.delay()
    }

    /// Returns the decision, with the state of the bucket after it.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Gives the tokens back, like Go's `CancelAt`: tokens on which later reservations depend stay charged.
    ///
    /// Nothing is given back after the time to act, by a second call, or if the server's clock was set back since the
    /// reservation, for example by a failover to a server whose clock is behind. A set-back of less than 1 ms plus an
    /// eighth of the time since the reservation is not detected: then the tokens that refill during the set-back time
    /// may be given back in excess.
    ///
    /// # Cancel safety
    ///
    /// The cancellation is sent once. If the future is dropped, or the store is unavailable, the tokens may or may
    /// not have been given back. A second call does nothing.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded).
    pub async fn cancel(&mut self) -> Result<(), Error> {
        match self.take_cancel(self.age()) {
            Some(cancel) => self.bucket.cancel(&self.key, cancel).await.map(drop),
            None => Ok(()),
        }
    }

    /// The request acts, so its tokens stay charged.
    pub(crate) fn acts(&mut self) -> Decision {
        self.cancelled = true;
        self.decision.clone()
    }

    /// The minimum time since the reservation, µs. It is 0 in memory, where no clock is set back.
    pub(crate) fn age(&self) -> i64 {
        let is_in_memory = self.bucket.clients.namespace.cells().is_some();
        if is_in_memory {
            0
        } else {
            clock::micros() - self.made
        }
    }

    /// Returns the cancellation of the reservation, which was made at least `age` µs ago.
    pub(crate) fn take_cancel(&mut self, age: i64) -> Option<GiveBack> {
        // Prefetched tokens act at once, and are given back as a batch.
        if std::mem::replace(&mut self.cancelled, true) || self.decision.is_local {
            return None;
        }
        let decision = &self.decision;
        Some(GiveBack::new(
            &decision.state,
            decision.cost.into(),
            Rule::acts_at(decision, age),
        ))
    }
}

/// A reservation whose request waits. If this is dropped before the request may act, its tokens are given back.
pub(crate) struct Waiting(Reservation);

impl Waiting {
    /// The request waits if its decision has a delay.
    pub(crate) fn new(
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
    pub(crate) fn end(mut self) -> BoxFuture<'static, Result<Decision, Error>> {
        // The time counts from the decision, not from the first poll.
        let mut due = Instant::now().checked_add(self.0.delay());
        Box::pin(async move {
            loop {
                let delay = self.0.delay();
                let key = self.0.key.clone();
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

    use crate::bucket::quota::Quota;
    use crate::store::Store;
    use crate::token_bucket::TokenBucket;
    use crate::token_bucket::limits::TokenBuckets;

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
