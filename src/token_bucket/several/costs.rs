//! What a request costs of each limit.

/// The cost of a request for each of `N` limits, in their order: a `u32` for all of them, or `[u32; N]`.
///
/// ```
/// use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limits = TokenBuckets::new([
///     TokenBucket::new(&store, "requests", Quota::per_minute(60))?,
///     TokenBucket::new(&store, "bytes", Quota::per_minute(1_000_000))?,
/// ])?;
/// let decision = limits.allow_n(["ann", "ann"], [1, 20_000]).await?;
/// let left: Vec<_> = decision.state.balances().map(|balance| balance.remaining).collect();
/// assert_eq!(left, [59, 980_000]);
/// # Ok(()) }
/// ```
pub trait Costs<const N: usize> {
    /// Returns the cost for each limit, in tokens.
    fn each(self) -> [u32; N];
}

impl<const N: usize> Costs<N> for u32 {
    fn each(self) -> [u32; N] {
        [self; N]
    }
}

impl<const N: usize> Costs<N> for [u32; N] {
    fn each(self) -> [u32; N] {
        self
    }
}

/// The maximum number of limits.
pub(crate) const MOST_LIMITS: usize = 8;

/// The costs of a request, in the order of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Price {
    Same(u32),
    Each([u32; MOST_LIMITS]),
}

impl Price {
    pub(crate) fn new(costs: impl IntoIterator<Item = u32>) -> Self {
        let (mut each, mut count) = ([0; MOST_LIMITS], 0);
        for (place, cost) in each.iter_mut().zip(costs) {
            *place = cost;
            count += 1;
        }
        match each[..count].iter().all(|cost| *cost == each[0]) {
            true => Self::Same(each[0]),
            false => Self::Each(each),
        }
    }

    /// The cost for the limit at this position.
    pub(crate) fn of(self, limit: usize) -> u32 {
        match self {
            Self::Same(cost) => cost,
            Self::Each(costs) => costs.get(limit).copied().unwrap_or(0),
        }
    }

    /// The largest cost.
    pub(super) fn most(self) -> u32 {
        match self {
            Self::Same(cost) => cost,
            Self::Each(costs) => costs.into_iter().fold(0, u32::max),
        }
    }

    /// How many costs there are for so many limits.
    pub(super) fn count(self, limits: usize) -> usize {
        if matches!(self, Self::Same(_)) {
            1
        } else {
            limits
        }
    }
}
