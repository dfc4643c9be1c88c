//! Tokens that are held.

#[cfg(test)]
mod tests;

use super::operation::{HoldReply, HoldStep, Outcome, Verb};
use super::renewals::Validity;
use super::{OnEnd, Usage};
use crate::token_bucket::TokenBucket;
use crate::token_bucket::bucket_state::BucketState;
use crate::token_bucket::decision::Decision;
#[cfg(feature = "http")]
use crate::token_bucket::upstream::UpstreamEvents;
use crate::{Error, Key, clock};
use std::sync::Arc;

use tokio::time::Instant;

/// Tokens that are held, until [`capture`](Self::capture) charges what was used.
///
/// A hold is renewed in the background. If its process crashes, it ends after its
/// [ttl](TokenBucket::with_hold_ttl), as [`OnEnd`] says.
///
/// If a hold is dropped, the [usage](Self::usage) that was counted so far is captured in the background. If none was
/// counted, the hold ends at once as [`OnEnd`] says.
///
/// # While the store is away
///
/// A capture that fails, is dropped in the middle, or is made by a drop is sent again in the background, until the hold has
/// ended in the store by itself. At most 100 000 captures of a namespace are kept.
#[derive(Debug)]
#[must_use = "a hold that is dropped ends at once"]
pub struct Hold {
    pub(super) bucket: TokenBucket,
    pub(super) key: Key,
    pub(super) id: u128,
    pub(super) on_end: OnEnd,
    pub(super) amount: u32,
    pub(super) validity: Arc<Validity>,
    pub(super) usage: Usage,
    pub(super) state: BucketState,
    /// How it ends.
    pub(super) end: End,
    /// Whether its drop captures at least what is held.
    pub(super) at_least_held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By its drop.
    Unknown,
    /// A capture of so many tokens was sent, and not answered yet.
    Sent(u32),
    Done,
}

/// The result of a capture.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Captured {
    /// The tokens that were charged, by this call or when the hold had ended.
    pub charged: u32,
    /// How many of them were not held. If they were not available either, they are debt.
    pub excess: u32,
    /// Whether the hold had ended before: nothing was held any more.
    pub ended: bool,
    /// The state of the bucket after it, and after what other callers did in the same call of the store.
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
    /// * [`is_refused`](Error::is_refused) if the tokens are not available. The hold is as it was.
    /// * [`is_exceeds_limit`](Error::is_exceeds_limit) if more than the burst would be held.
    /// * [`is_lost`](Error::is_lost) if the hold has ended.
    /// * [`is_unavailable`](Error::is_unavailable): the tokens may be held. [`is_overloaded`](Error::is_overloaded).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the tokens may be held in addition, until this hold ends.
    pub async fn extend(&mut self, more: u32) -> Result<(), Error> {
        let (amount, most) = (
            self.amount.saturating_add(more),
            self.bucket.quotas.max_cost(),
        );
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

    /// Charges `n` tokens now, and releases the rest. If `n` is more than what is held, the excess is charged even if it is
    /// not available, as [`charge`](TokenBucket::charge) does.
    ///
    /// If the hold has [ended](Captured::ended), the tokens are charged that were not charged at its end. With
    /// [`OnEnd::Capture`], that is what `n` is above the amount of the hold. See also
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
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded): the capture is sent again in
    /// the background. The tokens are charged once. If the hold had ended, those that were not charged at its end may be lost.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the capture is sent in the background. If the hold had ended, the tokens that were not charged
    /// at its end may be lost.
    pub fn capture(self, n: u32) -> impl Future<Output = Result<Captured, Error>> + Send {
        let late = self.late(n);
        self.end(n, late)
    }

    /// As [`capture`](Self::capture), but charges nothing if the hold has ended before.
    ///
    /// # Errors
    ///
    /// The errors of [`capture`](Self::capture).
    pub fn capture_if_held(self, n: u32) -> impl Future<Output = Result<Captured, Error>> + Send {
        self.end(n, 0)
    }

    /// Releases what is held, and charges nothing. Returns whether it was still held.
    ///
    /// # Errors
    ///
    /// The errors of [`capture`](Self::capture).
    pub fn release(self) -> impl Future<Output = Result<bool, Error>> + Send {
        let released = self.end(0, 0);
        async move { Ok(!released.await?.ended) }
    }

    /// Waits until the hold has ended, as far as this process knows: a renewal found it gone, or none was answered in time.
    /// It completes before the hold can end in the store.
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

    /// Returns the number of tokens that are held.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.amount
    }

    /// Returns the usage so far, to count in. It is captured if the hold is dropped.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_hour(1000))?;
    /// let hold = bucket.authorize("ann", 600).await?;
    /// hold.usage().add(12);
    /// drop(hold); // the client went away
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

    /// The decision that admitted it.
    pub(crate) fn decision(&self) -> Decision {
        Decision {
            key: Some(self.key.clone()),
            ..Decision::new(self.amount.into(), true, self.state.clone())
        }
    }

    /// The tokens to charge for a usage of `n` if the hold has ended.
    pub(super) fn late(&self, n: u32) -> u32 {
        match self.on_end {
            // A client that repeats calls by itself would charge twice.
            _ if self.bucket.clients.holds.client.may_repeat() => 0,
            OnEnd::Capture => n.saturating_sub(self.amount),
            OnEnd::Release => n,
        }
    }

    pub(super) fn step(&self, verb: Verb) -> HoldStep {
        HoldStep {
            quotas: self.bucket.quotas.clone(),
            id: self.id,
            on_end: self.on_end,
            verb,
        }
    }

    async fn run(&self, verb: Verb) -> Result<HoldReply, Error> {
        self.bucket
            .clients
            .holds
            .client
            .run(self.key.clone(), self.step(verb))
            .await
    }

    /// Captures `n` tokens, also if the future is dropped before it was polled.
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

    /// Notes an extension, or a renewal, that was sent at `sent`.
    pub(super) fn extended(&mut self, amount: u32, sent: Instant, state: BucketState) {
        self.validity.renewed(sent, self.bucket.holding.ttl);
        (self.amount, self.state) = (amount, state);
    }

    /// Begins a capture, which the caller sends. If there is no answer, the drop sends it again.
    pub(super) fn ends(&mut self, n: u32) -> Verb {
        self.bucket.clients.holds.stop(self.id);
        self.end = End::Sent(n);
        Verb::Capture { amount: n, late: 0 }
    }

    /// Takes the answer to a capture.
    pub(super) fn ended(&mut self, n: u32, late: u32, reply: HoldReply) -> Captured {
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

    /// The capture of its drop, and the tokens to charge if that finds that the hold has ended. `None`: it has ended.
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

    /// Lets its drop capture at least what is held.
    pub(crate) fn capture_at_least_held(&mut self) {
        self.at_least_held = true;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end == End::Done
    }

    /// As its drop. The caller sends the capture that is returned.
    pub(super) fn dropped(&mut self) -> Option<HoldStep> {
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
