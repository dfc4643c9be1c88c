//! The usage of a hold, counted while the work goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

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
pub struct Usage(Arc<AtomicI64>);

/// Nothing was counted yet.
const UNKNOWN: i64 = -1;

impl Default for Usage {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(UNKNOWN)))
    }
}

impl Usage {
    /// A usage of so many tokens.
    pub(in crate::token_bucket) fn of(tokens: u32) -> Self {
        Self(Arc::new(AtomicI64::new(tokens.into())))
    }

    /// Sets the number of used tokens.
    pub fn set(&self, tokens: u32) {
        self.0.store(tokens.into(), Ordering::Relaxed);
    }

    /// Adds used tokens, up to `u32::MAX` in all.
    pub fn add(&self, tokens: u32) {
        let added = |used: i64| Some((used.max(0) + i64::from(tokens)).min(u32::MAX.into()));
        // The closure never declines.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added);
    }

    /// Returns the number of used tokens; `None` if nothing was set or added.
    #[must_use]
    pub fn get(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}
