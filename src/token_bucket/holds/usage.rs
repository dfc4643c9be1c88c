//! The usage of a hold, counted while the work goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The tokens that were used under a [`Hold`](super::Hold) so far. Clones count together, so the work can count while
/// another place has the hold.
///
/// ```
/// # use tower_distributed::token_bucket::Usage;
/// let usage = Usage::default();
/// assert_eq!(usage.get(), None);
/// usage.clone().add(12);
/// usage.add(20);
/// assert_eq!(usage.get(), Some(32));
/// usage.set(30); // what the last event says
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

    /// A usage of so many tokens.
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

    /// Says that the usage is complete, as after the last event of a stream: a request that breaks after that costs no more, also
    /// [if others cost the estimate](crate::BudgetLayer::broken_costs_estimate).
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
