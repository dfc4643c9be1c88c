//! What a bucket answered, and where it stood.

use std::fmt;
use std::time::Duration;

use super::state::{Bucket, Level, Moment};
use crate::Error;
use crate::primitive::quota::{Limit, Quotas};

/// The answer to a request, with the state of the bucket after it.
///
/// All times are spans from the moment of the decision, so no clocks are compared.
#[derive(Clone)]
pub struct Decision {
    /// In tokens: a `u32`.
    pub(super) cost: i64,
    pub(super) admitted: bool,
    /// Whether it was made without asking the store.
    pub(super) is_local: bool,
    /// By which of several limits it was refused.
    pub(super) by: Option<Refuser>,
    pub(super) state: BucketState,
}

/// The place of what refused a request: among the limits, and among the quotas of the decision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refuser {
    pub(crate) limit: u8,
    pub(crate) quota: u8,
    /// Whether that limit's bucket is blocked.
    pub(crate) is_blocked: bool,
}

impl Decision {
    /// For what costs nothing: nobody was asked, so the state is that of a bucket which nobody has touched.
    pub(super) fn free(quotas: Quotas) -> Self {
        let bucket = Bucket::full(&quotas);
        Self {
            cost: 0,
            admitted: true,
            is_local: false,
            by: None,
            state: BucketState { quotas, now: 0, bucket },
        }
    }

    /// The refusal as an error.
    pub(crate) fn refused(self) -> Error {
        let retry_after = self.retry_after();
        Error::refused_by(self, retry_after)
    }

    /// Whether the request may go on, after [`delay`](Self::delay).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// How many tokens were asked for.
    #[must_use]
    pub fn cost(&self) -> u32 {
        u32::try_from(self.cost).unwrap_or(u32::MAX)
    }

    /// How long to wait before acting: zero unless tokens were reserved ahead of time, and for refusals.
    #[must_use]
    pub fn delay(&self) -> Duration {
        if self.admitted { micros(self.act() - self.state.now) } else { Duration::ZERO }
    }

    /// For a refusal, when the same request may be admitted without a wait if nobody else comes: never
    /// zero; `None` if never, and for what was admitted.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.admitted { None } else { self.state.available_after(self.cost()) }
    }

    /// The name of the quota that refused the request; of several, the first. `None` for what was admitted. Of
    /// [several limits](crate::TokenBuckets) it is the name of the limit, and of the quota after a dot if that has one.
    #[must_use]
    pub fn refused_by(&self) -> Option<&str> {
        if self.admitted {
            return None;
        }
        let quota = self.by.map_or_else(|| self.state.lacking(self.cost).unwrap_or(0), |by| by.quota.into());
        self.state.quotas.limits().get(quota).map(|limit| &*limit.name)
    }

    /// By which of several limits it was refused.
    pub(crate) fn refuser(&self) -> Option<Refuser> {
        self.by
    }

    /// The state of the bucket after the decision.
    #[must_use]
    pub fn state(&self) -> &BucketState {
        &self.state
    }

    /// The burst of the quota that is nearest to its end.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.state.tightest().limit()
    }

    /// The tokens left at once.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.state.remaining()
    }

    /// When the bucket is full again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.state.reset_after()
    }

    /// When this admitted request may act, in the time of the store.
    pub(super) fn act(&self) -> i64 {
        self.state.bucket.act(&self.state.quotas, self.state.now)
    }

    /// Whether it was made without asking the store: by tokens that were [charged ahead](crate::TokenBucket::prefetch), or as
    /// a [known refusal](crate::TokenBucket::cache_refusals). `false` where the state is in process anyway.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is_local
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("admitted", &self.admitted)
            .field("cost", &self.cost)
            .field("delay", &self.delay())
            .field("retry_after", &self.retry_after())
            .field("state", &self.state)
            .finish()
    }
}

/// Where a bucket stands.
#[derive(Clone)]
pub struct BucketState {
    pub(super) quotas: Quotas,
    pub(super) now: i64,
    pub(super) bucket: Bucket,
}

impl BucketState {
    /// The quotas that were asked.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// The tokens left at once: the least of all quotas, none while blocked.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.tightest().remaining()
    }

    /// When the bucket is full and unblocked again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.balances()
            .map(|balance| balance.reset_after())
            .try_fold(self.blocked_for(), |longest, reset| reset.map(|reset| reset.max(longest)))
    }

    /// How long the bucket is blocked (see [`TokenBucket::block_for`](crate::TokenBucket::block_for));
    /// zero if it is not.
    #[must_use]
    pub fn blocked_for(&self) -> Duration {
        micros(self.blocked())
    }

    fn blocked(&self) -> i64 {
        self.bucket.blocked_until - self.now
    }

    /// When `cost` tokens are to be had if nobody else takes any; `None` if never.
    #[must_use]
    pub fn available_after(&self, cost: u32) -> Option<Duration> {
        let mut after = self.bucket.clone();
        after.charge(&self.quotas, self.now, cost.into());
        let never = |(level, limit): (&Level, &Limit)| {
            i64::from(cost) > limit.burst || (limit.num == 0 && level.tokens(limit, self.now) < 0)
        };
        if after.pairs(&self.quotas).any(never) {
            return None;
        }
        Some(micros(after.act(&self.quotas, self.now) - self.now))
    }

    /// The first quota that has fewer tokens than so many.
    pub(super) fn lacking(&self, cost: i64) -> Option<usize> {
        self.bucket.pairs(&self.quotas).position(|(level, limit)| level.tokens(limit, self.now) < cost)
    }

    /// The standing of each quota, in their order.
    pub fn balances(&self) -> impl Iterator<Item = Balance<'_>> {
        let (now, blocked) = (self.now, self.blocked());
        self.bucket.pairs(&self.quotas).map(move |(level, limit)| Balance { level, limit, now, blocked })
    }

    /// The quota that is nearest to its end: the fewest tokens left, of those the slowest to fill.
    #[must_use]
    pub fn tightest(&self) -> Balance<'_> {
        let slowest =
            |balance: &Balance<'_>| std::cmp::Reverse(balance.reset_after().unwrap_or(Duration::MAX));
        let first = Balance {
            level: &self.bucket.levels[0],
            limit: &self.quotas.limits()[0],
            now: self.now,
            blocked: self.blocked(),
        };
        if self.quotas.limits().len() == 1 {
            return first;
        }
        self.balances().min_by_key(|balance| (balance.remaining(), slowest(balance))).unwrap_or(first)
    }
}

impl fmt::Debug for BucketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketState")
            .field("blocked_for", &self.blocked_for())
            .field("balances", &self.balances().collect::<Vec<_>>())
            .finish()
    }
}

/// Where a bucket stands with one of its quotas.
#[derive(Clone, Copy)]
pub struct Balance<'a> {
    level: &'a Level,
    limit: &'a Limit,
    now: i64,
    /// For how long, µs.
    blocked: i64,
}

impl<'a> Balance<'a> {
    /// The [name](crate::Quota::named) of the quota.
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.limit.name
    }

    /// The burst of the quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit.burst).unwrap_or(u32::MAX)
    }

    /// The tokens left at once.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        if self.blocked > 0 {
            return 0;
        }
        u32::try_from(self.level.tokens(self.limit, self.now).max(0)).unwrap_or(u32::MAX)
    }

    /// How long an empty bucket takes to fill; `None` if it never does.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        (self.limit.num != 0).then(|| micros(self.limit.span))
    }

    /// In what time as many tokens come back as are [left](Self::remaining), so that a client that spreads them over it is
    /// not refused; where none are left, when the next is to be had. `None` if never.
    #[must_use]
    pub fn effective_window(&self) -> Option<Duration> {
        if self.limit.num == 0 {
            return None;
        }
        let window = match i64::from(self.remaining()) {
            0 => self.level.next(self.limit, self.now) - self.now,
            left => Moment::default().advance(self.limit, left).ceil(),
        };
        Some(micros(window.max(self.blocked)))
    }

    /// When the quota is full again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        if self.limit.num == 0 {
            return (self.level.tat.whole == 0).then_some(Duration::ZERO);
        }
        Some(micros(self.level.tat.ceil() - self.now))
    }
}

impl Error {
    /// The decision of the token bucket behind a refusal.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.refused_with()
    }
}

impl fmt::Debug for Balance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balance")
            .field("name", &self.name())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}

fn micros(span: i64) -> Duration {
    Duration::from_micros(u64::try_from(span).unwrap_or(0))
}
