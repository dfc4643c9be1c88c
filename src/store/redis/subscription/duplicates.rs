//! Messages that arrive over several connections, once from each node of a Cluster.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

/// How long a message is remembered, at least. It is more than a grant to a waiter lasts: a copy that comes later is of a
/// lease that has ended.
const WINDOW: Duration = Duration::from_secs(10);

/// How many messages are remembered, at most twice.
const MOST: usize = 1 << 18;

/// How often each connection has received each message. The first connection that receives it once more than all others
/// brings news. So a message that is sent twice is passed on twice.
#[derive(Debug)]
pub(super) struct Duplicates {
    hasher: RandomState,
    current: HashMap<u64, Counts>,
    previous: HashMap<u64, Counts>,
    since: Instant,
}

/// By the number of the connection.
type Counts = SmallVec<[u16; 8]>;

impl Default for Duplicates {
    fn default() -> Self {
        let (current, previous) = (HashMap::new(), HashMap::new());
        Self { hasher: RandomState::new(), current, previous, since: Instant::now() }
    }
}

impl Duplicates {
    /// Counts a message, and returns whether no other connection has received it before.
    pub(super) fn is_new(&mut self, connection: usize, message: &[u8]) -> bool {
        if self.since.elapsed() > WINDOW || self.current.len() >= MOST {
            self.previous = std::mem::take(&mut self.current);
            self.since = Instant::now();
        }
        let message = self.hasher.hash_one(message);
        let counts = self.current.entry(message);
        let counts = counts.or_insert_with(|| self.previous.remove(&message).unwrap_or_default());
        let most = counts.iter().max().copied().unwrap_or(0);
        if counts.len() <= connection {
            counts.resize(connection + 1, 0);
        }
        counts[connection] = counts[connection].saturating_add(1);
        counts[connection] > most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_message_is_passed_on_once_whoever_brings_it_first() {
        let mut seen = Duplicates::default();
        assert!(seen.is_new(0, b"a") && seen.is_new(1, b"b"));
        assert!(!seen.is_new(1, b"a") && !seen.is_new(0, b"b") && !seen.is_new(2, b"a"));
        // The same once more.
        assert!(seen.is_new(2, b"a"));
        assert!(!seen.is_new(0, b"a") && !seen.is_new(1, b"a"));
        // A connection that missed messages is not the first again for those.
        assert!(
            seen.is_new(0, b"c") && seen.is_new(0, b"c") && !seen.is_new(9, b"c") && seen.is_new(0, b"c")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_old_is_forgotten() {
        let mut seen = Duplicates::default();
        assert!(seen.is_new(0, b"a"));
        tokio::time::advance(WINDOW).await;
        assert!(!seen.is_new(1, b"a"), "within the window");
        tokio::time::advance(WINDOW + Duration::from_millis(1)).await;
        assert!(seen.is_new(0, b"b"));
        tokio::time::advance(WINDOW + Duration::from_millis(1)).await;
        assert!(seen.is_new(0, b"c"));
        assert_eq!((seen.current.len(), seen.previous.len()), (1, 1));
    }
}
