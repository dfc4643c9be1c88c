//! The calls of a bucket that begin a hold, and the settings of holds.

use std::time::Duration;

use tokio::time::Instant;

use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::hold::{HoldStep, HoldSteps, Outcome, Verb};
use crate::bucket::holds::{HoldOptions, MOST, OnEnd};
use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::macros::in_range;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::calls::to_micros;
use crate::token_bucket::hold::{End, Hold, Usage, or_release};
use crate::token_bucket::renewals::Validity;

/// The shortest and the longest ttl of a hold.
const TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(86_400);

impl TokenBucket {
    /// Holds `n` tokens if they are available now, for a request whose true cost is known only at the end.
    ///
    /// Nothing is charged, but the tokens are not available to other requests. [`Hold::capture`] charges the used
    /// tokens at that moment, and releases the rest. So as long as no capture exceeds its hold, the captured tokens in
    /// any time `t` are at most `burst + rate · t`, without refunds.
    ///
    /// A key has at most 1024 holds at a time.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let tokens = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_minute(2000))?;
    /// let mut hold = tokens.authorize("tenant-7", 1200).await?;
    /// assert!(!tokens.allow_n("tenant-7", 1000).await?.is_admitted(), "800 are left");
    /// hold.extend(500).await?;
    /// let captured = hold.capture(831).await?;
    /// assert_eq!(captured.state.remaining(), 1169);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused) if the tokens are not available now, with the
    ///   [decision](Error::decision).
    /// * [`is_invalid`](Error::is_invalid) if `n` is 0; [`is_exceeds_limit`](Error::is_exceeds_limit) if it is above
    ///   the burst.
    /// * [`is_overloaded`](Error::is_overloaded), also if the key has too many holds.
    /// * [`is_unavailable`](Error::is_unavailable): if the tokens were held, they are released in the background. If
    ///   the store stays unavailable for the [ttl](Self::with_hold_ttl), or if the delayed call arrives after the
    ///   release, the hold ends by itself, as set by [`OnEnd`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a hold that it authorized is released in the background.
    pub async fn authorize(&self, key: impl Into<Key>, n: u32) -> Result<Hold, Error> {
        self.decisions().admitted(self.hold(key.into(), n).await)
    }

    /// Like [`authorize`](Self::authorize). The caller counts the decision.
    pub(crate) async fn hold(&self, key: Key, n: u32) -> Result<Hold, Error> {
        self.check_amount(n)?;
        let id = self.clients.holds.next_id();
        let sent = clock::recent();
        let step = HoldSteps::one(self.authorizing(id, n));
        let authorized = self.clients.holds.client.run(key.clone(), step);
        let replies = or_release(authorized, || self.release_unsure(&key, id, sent)).await?;
        let reply = replies.one();
        match reply.outcome {
            Outcome::Held => Ok(self.held(key, (id, n), Usage::default(), sent, reply.state)),
            Outcome::Full => Err(Error::overloaded(format!(
                "the key has {MOST} holds, and can have no more"
            ))),
            Outcome::Refused | Outcome::Ended => {
                Err(Decision::new(n.into(), false, reply.state).refused())
            }
        }
    }

    /// The step that authorizes a hold of `amount` tokens.
    pub(crate) fn authorizing(&self, id: u128, amount: u32) -> HoldStep {
        self.hold_step(
            id,
            Verb::Authorize {
                amount,
                ttl: self.holding.ttl,
            },
        )
    }

    /// Releases a hold whose authorization, sent at `sent`, may have run.
    pub(crate) fn release_unsure(&self, key: &Key, id: u128, sent: Instant) {
        let release = self.hold_step(id, Verb::RELEASE);
        let validity = Validity::new(sent, self.holding.ttl);
        self.clients
            .holds
            .settle(key.clone(), release, &validity, 0);
    }

    fn hold_step(&self, id: u128, verb: Verb) -> HoldStep {
        HoldStep {
            quotas: self.quotas.clone(),
            id,
            on_end: self.holding.on_end(&self.quotas),
            verb,
        }
    }

    /// Refuses amounts that can never be held.
    pub(crate) fn check_amount(&self, n: u32) -> Result<(), Error> {
        match self.quotas.max_cost() {
            0 => Err(Decision::closed(&self.quotas, n).refused()),
            most if n == 0 => Err(Error::invalid(format!(
                "the number of tokens to authorize must be 1 to {most}, the burst; it is 0"
            ))),
            most if n > most => Err(Error::exceeds_burst(n, most)),
            _ => Ok(()),
        }
    }

    /// The hold that a call sent at `sent` has authorized.
    pub(crate) fn held(
        &self,
        key: Key,
        (id, amount): (u128, u32),
        usage: Usage,
        sent: Instant,
        state: BucketState,
    ) -> Hold {
        let ttl = self.holding.ttl;
        let on_end = self.holding.on_end(&self.quotas);
        let bucket = self.clone();
        let validity = Validity::new(sent, ttl);
        let hold = Hold {
            bucket,
            key,
            id,
            on_end,
            amount,
            validity,
            usage,
            state,
            end: End::Unknown,
            at_least_held: false,
        };
        let renewal = hold.step(Verb::Extend { amount: 0, ttl });
        self.clients
            .holds
            .hold(&hold.key, renewal, &hold.validity, sent);
        hold
    }

    /// Returns a handle to the same buckets whose [holds](Self::authorize) end after this time without a renewal, for
    /// example after a crash. They are renewed every third of it. Default: 30 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_minute(2000))?;
    /// let bucket = bucket.with_hold_ttl(Duration::from_secs(5))?;
    /// assert!(bucket.with_hold_ttl(Duration::ZERO).is_err_and(|error| error.is_invalid()));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the time is not 100 ms to 24 h.
    pub fn with_hold_ttl(&self, ttl: Duration) -> Result<Self, Error> {
        in_range("the ttl of a hold", TTL, "100 ms to 24 h", ttl)?;
        let holding = HoldOptions {
            ttl: to_micros(ttl),
            ..self.holding
        };
        Ok(Self {
            holding,
            ..self.clone()
        })
    }

    /// Returns a handle to the same buckets with a rule for [holds](Self::authorize) that end by themselves.
    ///
    /// Default: [`OnEnd::Capture`], but [`OnEnd::Release`] if a quota [never refills](crate::Quota::non_refilling), so
    /// that a crash does not use up a credit.
    ///
    /// ```
    /// # use tower_distributed::token_bucket::OnEnd;
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_hour(1000))?;
    /// drop(bucket.authorize("ann", 400).await?);
    /// assert_eq!(bucket.peek("ann").await?.remaining(), 600);
    /// let bucket = bucket.with_on_end(OnEnd::Release);
    /// drop(bucket.authorize("ann", 400).await?);
    /// assert_eq!(bucket.peek("ann").await?.remaining(), 600);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_on_end(&self, on_end: OnEnd) -> Self {
        Self {
            holding: HoldOptions {
                on_end: Some(on_end),
                ..self.holding
            },
            ..self.clone()
        }
    }
}
