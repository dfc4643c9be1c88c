//! How much a process has stored that is still kept: so that questions nobody asks twice do not fill the server.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::lock;

/// The answers of one flight that this process has stored.
#[derive(Debug)]
pub(super) struct Stored {
    most: u64,
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    bytes: u64,
    /// Until when each is kept, and how many bytes it is.
    kept: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Stored {
    /// Up to so many bytes.
    pub(super) fn new(most: u64) -> Self {
        Self { most, answers: Mutex::default() }
    }

    /// Whether there is room for one more; then it counts for as long as it is kept.
    pub(super) fn take(&self, bytes: u64, kept: Duration) -> bool {
        let now = Instant::now();
        let mut answers = lock(&self.answers);
        let answers = &mut *answers;
        while let Some(Reverse((until, bytes))) = answers.kept.peek()
            && *until <= now
        {
            answers.bytes -= bytes;
            answers.kept.pop();
        }
        let sum = answers.bytes.saturating_add(bytes);
        let Some(until) = now.checked_add(kept).filter(|_| sum <= self.most) else { return false };
        answers.bytes = sum;
        answers.kept.push(Reverse((until, bytes)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_over_makes_room() {
        let stored = Stored::new(100);
        let second = Duration::from_secs(1);
        assert!(stored.take(60, 2 * second) && stored.take(40, second));
        assert!(!stored.take(1, second), "it is full");
        tokio::time::advance(second).await;
        assert!(!stored.take(41, second) && stored.take(40, second), "what was refused takes no room");
        tokio::time::advance(second).await;
        assert!(stored.take(100, second));
        assert!(!stored.take(u64::MAX, second));
    }
}
