//! Tokens of several limits that are held together.

use std::array;
use std::sync::Arc;

use tokio::task::coop::consume_budget;

use super::Usage;
use super::hold::Captured;
use super::set::HoldSet;
use crate::token_bucket::bucket_state::BucketState;
use crate::token_bucket::several::extracted;
use crate::token_bucket::state::Bucket;
use crate::token_bucket::{Costs, Decision, TokenBuckets};
use crate::{Error, IntoKey};

/// Tokens of several limits that are held together, until [`capture`](Self::capture) charges what was used. As
/// [`Hold`](super::Hold).
///
/// If it is dropped, the [usage](Self::usage) of each limit that was counted so far is captured in the background. A limit of
/// which none was counted ends as [`OnEnd`](super::OnEnd) says.
#[derive(Debug)]
#[must_use = "what is held ends at once if it is dropped"]
pub struct HoldAll<const N: usize> {
    set: HoldSet,
    usage: [Usage; N],
}

impl<const N: usize> TokenBuckets<N> {
    /// Holds `n` tokens of each bucket, or as many of each as an array says, if all buckets have as many now. As
    /// [`TokenBucket::authorize`](crate::TokenBucket::authorize).
    ///
    /// A limit whose key is `None` is not asked. What is captured of it later is not charged.
    /// Each key has at most 1024 holds at a time, so a limit for all requests has at most as many in flight.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let requests = TokenBucket::new(&store, "requests", Quota::per_hour(60))?;
    /// let tokens = TokenBucket::new(&store, "tokens", Quota::per_hour(2000))?;
    /// let limits = TokenBuckets::new([requests.clone(), tokens.clone()])?;
    ///
    /// let hold = limits.authorize(["acme", "acme"], [1, 1200]).await?;
    /// let refused = limits.authorize(["acme", "acme"], [1, 1200]).await.unwrap_err();
    /// assert_eq!(refused.decision().and_then(|decision| decision.refused_by()), Some("tokens"));
    /// let [_, captured] = hold.capture([1, 831]).await?;
    /// assert_eq!((captured.charged, captured.state.remaining()), (831, 1169));
    /// assert_eq!(requests.peek("acme").await?.remaining(), 59);
    /// # Ok(()) }
    /// ```
    ///
    /// # One operation, or one after the other
    ///
    /// As for [decisions](TokenBuckets#one-operation-or-one-after-the-other): in one store that is not a Cluster, all limits are
    /// authorized in one call, and captured in one. Otherwise one limit is authorized after the other, and what is held is
    /// released if one refuses. Then a hold whose process crashes is released, whatever [`OnEnd`](super::OnEnd) says, so that
    /// none is charged for a request that was refused; and a capture after the end of a hold charges nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`TokenBucket::authorize`](crate::TokenBucket::authorize). The [decision](Error::decision) on a refusal says
    /// which limit refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it held is released in the background.
    pub async fn authorize<K: IntoKey>(
        &self,
        keys: [K; N],
        n: impl Costs<N>,
    ) -> Result<HoldAll<N>, Error> {
        let (keys, usage) = (extracted(keys)?, array::from_fn(|_| Usage::default()));
        // Yields to other tasks now and then, before anything is held: in memory, nothing else waits.
        consume_budget().await;
        let set = HoldSet::authorize(self.several(), keys, &n.each(), &usage).await;
        self.several()
            .decisions()
            .admitted(set)
            .map(|set| HoldAll { set, usage })
    }
}

impl<const N: usize> HoldAll<N> {
    /// Holds `more` tokens of each limit in addition, or as many of each as an array says, if all are available now. On a
    /// Cluster, and if the limits are in several stores, each call takes one more of the 1024 holds of each key.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let tenants = TokenBucket::new(&store, "tenants", Quota::per_hour(2000))?;
    /// let all = TokenBucket::new(&store, "all", Quota::per_hour(5000))?;
    /// let mut hold = TokenBuckets::new([tenants, all])?.authorize(["acme", "-"], 1200).await?;
    /// hold.extend(500).await?;
    /// assert_eq!(hold.held(), [1700, 1700]);
    /// assert!(hold.extend([0, 3301]).await.is_err_and(|error| error.is_exceeds_limit()));
    /// # hold.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Hold::extend`](super::Hold::extend). If one limit refuses, all are held as they were.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the tokens may be held in addition, until this hold ends.
    pub async fn extend(&mut self, more: impl Costs<N>) -> Result<(), Error> {
        self.set.extend(&more.each()).await
    }

    /// Charges `n` tokens of each limit now, or as many of each as an array says, and releases the rest. As
    /// [`Hold::capture`](super::Hold::capture), for each limit.
    ///
    /// # Errors
    ///
    /// The errors of [`Hold::capture`](super::Hold::capture).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the captures are sent in the background.
    pub fn capture(
        self,
        n: impl Costs<N>,
    ) -> impl Future<Output = Result<[Captured; N], Error>> + Send {
        let limits = Arc::clone(&self.set.quotas);
        let captured = self.set.capture(&n.each());
        async move {
            let captured = captured.await?;
            Ok(array::from_fn(|limit| {
                match captured.iter().find(|(of, _)| *of == limit) {
                    Some((_, captured)) => captured.clone(),
                    // It has no key.
                    None => {
                        let quotas = limits[limit].clone();
                        let state = BucketState {
                            bucket: Bucket::full(&quotas),
                            quotas,
                            now: 0,
                        };
                        Captured {
                            charged: 0,
                            excess: 0,
                            ended: false,
                            state,
                        }
                    }
                }
            }))
        }
    }

    /// Releases what is held of all limits, and charges nothing. Returns whether all was still held.
    ///
    /// # Errors
    ///
    /// The errors of [`capture`](Self::capture).
    pub fn release(self) -> impl Future<Output = Result<bool, Error>> + Send {
        let released = self.set.capture(&[0; N]);
        async move { Ok(released.await?.iter().all(|(_, captured)| !captured.ended)) }
    }

    /// Waits until one of the limits is not held any more, as far as this process knows. As [`Hold::lost`](super::Hold::lost).
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time.
    pub async fn lost(&self) {
        self.set.lost().await;
    }

    /// Returns whether all limits are certainly held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.set.is_held()
    }

    /// Returns the number of tokens that are held of each limit; 0 of a limit without a key.
    #[must_use]
    pub fn held(&self) -> [u32; N] {
        array::from_fn(|limit| self.set.amount_of(limit))
    }

    /// Returns the usage of each limit so far, to count in. It is captured if the hold is dropped.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let requests = TokenBucket::new(&store, "requests", Quota::per_hour(60))?;
    /// let tokens = TokenBucket::new(&store, "tokens", Quota::per_hour(2000))?;
    /// let hold = TokenBuckets::new([requests, tokens.clone()])?.authorize(["acme", "acme"], [1, 1200]).await?;
    /// let [_, used] = hold.usage();
    /// used.add(12);
    /// drop(hold); // the client went away
    /// assert_eq!(tokens.peek("acme").await?.remaining(), 1988);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn usage(&self) -> &[Usage; N] {
        &self.usage
    }

    /// Returns the decision that admitted it, with the quotas of all limits that have a key.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.set.decision()
    }
}
