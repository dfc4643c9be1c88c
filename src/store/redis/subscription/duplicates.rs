//! Grants that arrive over several connections, once from each node of a Cluster.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// How long a grant is remembered, at least. It is more than a grant to a waiter lasts: a copy that comes later is of a
/// lease that has ended.
const WINDOW: Duration = Duration::from_secs(10);

/// How many grants are remembered, at most twice.
const MOST: usize = 1 << 18;

/// The grants of late. No two of them have the same text: it has the waiter, the expiry in µs, and the fence.
#[derive(Debug)]
pub(super) struct Duplicates {
    hasher: RandomState,
    current: HashSet<u64>,
    previous: HashSet<u64>,
    since: Instant,
}

impl Default for Duplicates {
    fn default() -> Self {
        let (current, previous) = (HashSet::new(), HashSet::new());
        Self {
            hasher: RandomState::new(),
            current,
            previous,
            since: Instant::now(),
        }
    }
}

impl Duplicates {
    /// Remembers a grant. Returns whether it has not arrived before.
    pub(super) fn is_new(&mut self, grant: &[u8]) -> bool {
        if self.since.elapsed() > WINDOW || self.current.len() >= MOST {
            self.previous = std::mem::take(&mut self.current);
            self.since = Instant::now();
        }
        let grant = self.hasher.hash_one(grant);
        !self.previous.contains(&grant) && self.current.insert(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_grant_is_passed_on_once_for_a_while() {
        let mut seen = Duplicates::default();
        assert!(seen.is_new(b"a") && seen.is_new(b"b"));
        assert!(!seen.is_new(b"a") && !seen.is_new(b"b"));
        tokio::time::advance(WINDOW + Duration::from_millis(1)).await;
        assert!(!seen.is_new(b"a"), "within the window");
        tokio::time::advance(WINDOW + Duration::from_millis(1)).await;
        assert!(seen.is_new(b"c"));
        assert_eq!((seen.current.len(), seen.previous.len()), (1, 0));
        assert!(seen.is_new(b"a"));
    }
}
