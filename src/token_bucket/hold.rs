//! Authorize and capture, for a cost that is known only at the end: [`Hold`] holds tokens of one bucket, and [`Usage`]
//! counts the used tokens.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::time::Instant;

use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::hold::{HoldReplies, HoldReply, HoldStep, HoldSteps, Outcome, Verb};
use crate::bucket::holds::OnEnd;
use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::renewals::Validity;
#[cfg(feature = "http")]
use crate::token_bucket::upstream::UpstreamEvents;

/// Held tokens of one bucket. [`capture`](Self::capture) charges the used ones.
///
/// A hold is renewed in the background. If its process crashes, it ends after its [ttl](TokenBucket::with_hold_ttl), as
/// set by [`OnEnd`].
///
/// If a hold is dropped, the [usage](Self::usage) counted so far is captured in the background. If nothing was counted,
/// the hold ends immediately, as set by [`OnEnd`].
///
/// # While the store is unavailable
///
/// A capture is sent again in the background if it fails, if its future is dropped, or if the drop of a hold made it,
/// until the hold has ended in the store by itself. At most 100 000 captures of a namespace are kept.
#[derive(Debug)]
#[must_use = "a hold that is dropped ends at once"]
pub struct Hold {
    pub(crate) bucket: TokenBucket,
    pub(crate) key: Key,
    pub(crate) id: u128,
    pub(crate) on_end: OnEnd,
    pub(crate) amount: u32,
    pub(crate) validity: Arc<Validity>,
    pub(crate) usage: Usage,
    pub(crate) state: BucketState,
    /// How the hold ends.
    pub(crate) end: End,
    /// Whether dropping it captures at least the held tokens.
    pub(crate) at_least_held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By dropping the hold.
    Unknown,
    /// A capture of this number of tokens was sent, and has no reply yet.
    Sent(u32),
    Done,
}

/// The result of a capture.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Captured {
    /// The number of tokens that were charged, by this call or when the hold ended.
    pub charged: u32,
    /// How many of them were not held. If they were not available either, they are debt.
    pub excess: u32,
    /// Whether the hold had ended before the capture.
    pub ended: bool,
    /// The state of the bucket after the capture, and after calls of other callers that ran in the same script.
    pub state: BucketState,
}

impl Hold {
    /// Holds `more` tokens in addition, if they are available now.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_minute(1000))?;
    /// let mut hold = bucket.authorize("ann", 600).await?;
    /// hold.extend(300).await?;
    /// assert_eq!(hold.held(), 900);
    /// assert!(hold.extend(300).await.is_err_and(|error| error.is_exceeds_limit()));
    /// let other = bucket.authorize("ann", 50).await?;
    /// assert!(hold.extend(100).await.is_err_and(|error| error.is_refused()));
    /// # hold.release().await?; other.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused) if the tokens are not available. The hold is unchanged.
    /// * [`is_exceeds_limit`](Error::is_exceeds_limit) if more than the burst would be held.
    /// * [`is_lost`](Error::is_lost) if the hold has ended.
    /// * [`is_unavailable`](Error::is_unavailable): the tokens may be held. [`is_overloaded`](Error::is_overloaded).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the tokens may be held in addition, until this hold ends.
    pub async fn extend(&mut self, more: u32) -> Result<(), Error> {
        let amount = self.amount.saturating_add(more);
        let most = self.bucket.quotas.max_cost();
        if amount > most {
            return Err(Error::exceeds_burst(amount, most));
        }
        let sent = clock::now();
        let reply = self
            .run(Verb::Extend {
                amount,
                ttl: self.bucket.holding.ttl,
            })
            .await?;
        match reply.outcome {
            Outcome::Held => {
                self.extended(amount, sent, reply.state);
                Ok(())
            }
            Outcome::Refused | Outcome::Full => {
                Err(Decision::new(more.into(), false, reply.state).refused())
            }
            Outcome::Ended => {
                self.validity.end();
                Err(Error::lost())
            }
        }
    }

    /// Charges `n` tokens now, and releases the rest. If `n` exceeds the held tokens, the excess is charged even if it
    /// is not available, like [`charge`](TokenBucket::charge).
    ///
    /// If the hold has [ended](Captured::ended), this charges the part of `n` that was not charged at its end. With
    /// [`OnEnd::Capture`], this is the excess of `n` over the amount of the hold. See also
    /// [`capture_if_held`](Self::capture_if_held).
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_hour(1000))?;
    /// let hold = bucket.authorize("ann", 600).await?;
    /// let captured = hold.capture(431).await?;
    /// assert_eq!((captured.charged, captured.excess, captured.ended), (431, 0, false));
    /// assert_eq!(captured.state.remaining(), 569);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded): the capture is sent again
    /// in the background. The tokens are charged once. If the hold had ended, tokens that were not charged at its end
    /// may be lost.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the capture is sent in the background. If the hold had ended, tokens that were not
    /// charged at its end may be lost.
    pub fn capture(self, n: u32) -> impl Future<Output = Result<Captured, Error>> + Send {
        let late = self.late(n);
        self.end(n, late)
    }

    /// Like [`capture`](Self::capture), but charges nothing if the hold has already ended.
    ///
    /// # Errors
    ///
    /// The errors of [`capture`](Self::capture).
    pub fn capture_if_held(self, n: u32) -> impl Future<Output = Result<Captured, Error>> + Send {
        self.end(n, 0)
    }

    /// Releases the held tokens, and charges nothing. Returns whether they were still held.
    ///
    /// # Errors
    ///
    /// The errors of [`capture`](Self::capture).
    pub fn release(self) -> impl Future<Output = Result<bool, Error>> + Send {
        let released = self.end(0, 0);
        async move { Ok(!released.await?.ended) }
    }

    /// Waits until this process knows that the hold has ended: a renewal found that it is gone, or no renewal was
    /// confirmed in time. It completes before the hold can end in the store.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time.
    pub async fn lost(&self) {
        self.validity.over().await;
    }

    /// Returns whether the hold is certainly held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.validity.is_held()
    }

    /// Returns the number of held tokens.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.amount
    }

    /// Returns the usage so far, which the caller adds to. It is captured if the hold is dropped.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_hour(1000))?;
    /// let hold = bucket.authorize("ann", 600).await?;
    /// hold.usage().add(12);
    /// drop(hold); // the client disconnected
    /// let state = bucket.peek("ann").await?;
    /// assert_eq!((state.held(), state.remaining()), (0, 988));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the state of the bucket after the last authorization or extension.
    #[must_use]
    pub fn state(&self) -> &BucketState {
        &self.state
    }

    #[cfg(feature = "http")]
    pub(crate) fn upstream(&self) -> &UpstreamEvents {
        &self.bucket.clients.upstream
    }

    /// The decision that admitted the hold.
    pub(crate) fn decision(&self) -> Decision {
        Decision {
            key: Some(self.key.clone()),
            ..Decision::new(self.amount.into(), true, self.state.clone())
        }
    }

    /// The tokens to charge for a usage of `n` if the hold has ended.
    pub(crate) fn late(&self, n: u32) -> u32 {
        match self.on_end {
            // A client that repeats calls on its own would charge twice.
            _ if self.bucket.clients.holds.client.may_repeat() => 0,
            OnEnd::Capture => n.saturating_sub(self.amount),
            OnEnd::Release => n,
        }
    }

    pub(crate) fn step(&self, verb: Verb) -> HoldStep {
        HoldStep {
            quotas: self.bucket.quotas.clone(),
            id: self.id,
            on_end: self.on_end,
            verb,
        }
    }

    async fn run(&self, verb: Verb) -> Result<HoldReply, Error> {
        let client = &self.bucket.clients.holds.client;
        let step = HoldSteps::one(self.step(verb));
        client
            .run(self.key.clone(), step)
            .await
            .map(HoldReplies::one)
    }

    /// Captures `n` tokens, even if the future is dropped before it is polled.
    fn end(mut self, n: u32, late: u32) -> impl Future<Output = Result<Captured, Error>> + Send {
        let verb = self.ends(n);
        async move {
            let mut reply = self.run(verb).await?;
            if late > 0 && reply.outcome == Outcome::Ended {
                reply = self.run(Verb::late(late)).await?;
            }
            Ok(self.ended(n, late, reply))
        }
    }

    /// Records an extension or a renewal that was sent at `sent`.
    pub(crate) fn extended(&mut self, amount: u32, sent: Instant, state: BucketState) {
        self.validity.renewed(sent, self.bucket.holding.ttl);
        (self.amount, self.state) = (amount, state);
    }

    /// Starts a capture, which the caller sends. If there is no reply, dropping the hold sends it again.
    pub(crate) fn ends(&mut self, n: u32) -> Verb {
        self.bucket.clients.holds.stop(self.id);
        self.end = End::Sent(n);
        Verb::Capture { amount: n, late: 0 }
    }

    /// Processes the reply to a capture.
    pub(crate) fn ended(&mut self, n: u32, late: u32, reply: HoldReply) -> Captured {
        self.end = End::Done;
        let ended = reply.outcome == Outcome::Ended;
        let held = u32::try_from(reply.amount).unwrap_or(u32::MAX);
        let (charged, excess) = match (ended, self.on_end) {
            (false, _) => (n, n.saturating_sub(held)),
            (true, OnEnd::Capture) => (self.amount.saturating_add(late), late),
            (true, OnEnd::Release) => (late, late),
        };
        Captured {
            charged,
            excess,
            ended,
            state: reply.state,
        }
    }

    /// The capture for a drop, and the tokens to charge if the capture finds that the hold has ended. `None`: the hold
    /// was already captured.
    fn capture_of_drop(&self) -> Option<(HoldStep, u32)> {
        let (amount, late) = match (self.end, self.usage.get()) {
            (End::Done, _) => return None,
            (End::Sent(n), _) => (n, 0),
            (End::Unknown, used) if self.at_least_held => {
                let used = used.unwrap_or(0).max(self.amount);
                (used, self.late(used))
            }
            (End::Unknown, Some(used)) => (used, self.late(used)),
            (End::Unknown, None) if self.on_end == OnEnd::Capture => (self.amount, 0),
            (End::Unknown, None) => (0, 0),
        };
        Some((self.step(Verb::Capture { amount, late: 0 }), late))
    }

    /// Makes the drop capture at least the held tokens.
    pub(crate) fn capture_at_least_held(&mut self) {
        self.at_least_held = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end == End::Done
    }

    /// Ends the hold like its drop, but the caller sends the returned capture.
    pub(crate) fn dropped(&mut self) -> Option<HoldStep> {
        let (step, late) = self.capture_of_drop()?;
        self.end = End::Done;
        self.bucket
            .clients
            .holds
            .owe(self.key.clone(), step.clone(), &self.validity, late);
        Some(step)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((step, late)) = self.capture_of_drop() {
            self.bucket
                .clients
                .holds
                .settle(self.key.clone(), step, &self.validity, late);
        }
    }
}

/// Awaits the reply to an authorization. Calls `release` if the authorization may have run without a reply, including
/// when the future is dropped.
pub(crate) async fn or_release<T>(
    authorized: impl Future<Output = Result<T, Error>>,
    release: impl FnOnce(),
) -> Result<T, Error> {
    let mut unsure = Unsure(Some(release));
    let answer = authorized.await;
    if !answer
        .as_ref()
        .is_err_and(|error| error.is_away() && !error.is_not_sent())
    {
        unsure.0 = None;
    }
    answer
}

/// Calls the function when it is dropped.
struct Unsure<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Unsure<F> {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

/// The number of tokens that were used under a [`Hold`] so far. Clones share one count, so that the work can count
/// while the hold is elsewhere.
///
/// ```
/// # use tower_distributed::token_bucket::Usage;
/// let usage = Usage::default();
/// assert_eq!(usage.get(), None);
/// usage.clone().add(12);
/// usage.add(20);
/// assert_eq!(usage.get(), Some(32));
/// usage.set(30); // from the last event
/// assert_eq!(usage.get(), Some(30));
/// ```
#[derive(Clone, Debug)]
pub struct Usage(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    tokens: AtomicI64,
    is_complete: AtomicBool,
}

/// Nothing was counted yet.
const UNKNOWN: i64 = -1;

impl Default for Usage {
    fn default() -> Self {
        Self::new(UNKNOWN)
    }
}

impl Usage {
    fn new(tokens: i64) -> Self {
        Self(Arc::new(Counted {
            tokens: tokens.into(),
            is_complete: false.into(),
        }))
    }

    /// A usage of this number of tokens.
    pub(crate) fn of(tokens: u32) -> Self {
        Self::new(tokens.into())
    }

    /// Sets the number of used tokens.
    pub fn set(&self, tokens: u32) {
        self.0.tokens.store(tokens.into(), Ordering::Relaxed);
    }

    /// Adds used tokens, up to `u32::MAX` in all.
    pub fn add(&self, tokens: u32) {
        let added = |used: i64| Some((used.max(0) + i64::from(tokens)).min(u32::MAX.into()));
        // The closure never declines.
        let _ = self
            .0
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, added);
    }

    /// Returns the number of used tokens; `None` if nothing was set or added.
    #[must_use]
    pub fn get(&self) -> Option<u32> {
        u32::try_from(self.0.tokens.load(Ordering::Relaxed)).ok()
    }

    /// Marks the usage as complete, for example after the last event of a stream. If the request breaks afterwards, it
    /// costs no more, even if [broken requests cost the estimate](crate::BudgetLayer::broken_costs_estimate).
    ///
    /// ```
    /// # use tower_distributed::token_bucket::Usage;
    /// let usage = Usage::default();
    /// usage.set(625);
    /// usage.complete();
    /// assert!(usage.is_complete());
    /// ```
    pub fn complete(&self) {
        self.0.is_complete.store(true, Ordering::Relaxed);
    }

    /// Returns whether the usage is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0.is_complete.load(Ordering::Relaxed)
    }
}
