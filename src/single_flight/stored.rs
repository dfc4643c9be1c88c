//! Counts the bytes of unexpired answers that a process has stored, so that requests with ever new keys do not fill
//! the server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::Mutex;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap};
use tokio::time::Instant;

use crate::Key;
use crate::sync::lock;

/// The answers of one `SingleFlight` that this process has stored.
#[derive(Debug)]
pub(super) struct Stored {
    most: u64,
    hasher: DefaultHashBuilder,
    answers: Mutex<Answers>,
}

/// Keys are identified by their hashes. If two keys have the same hash, the count is too low.
#[derive(Debug, Default)]
struct Answers {
    bytes: u64,
    /// When the answer to a key expires, and how many bytes it counts.
    by_key: HashMap<u64, (Instant, u64)>,
    /// The ends that came in order, as they do where all answers are kept for as long.
    in_order: VecDeque<(Instant, u64)>,
    /// All others.
    ends: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Stored {
    /// Creates a counter with a bound of `most` bytes.
    pub(super) fn new(most: u64) -> Self {
        Self {
            most,
            hasher: DefaultHashBuilder::default(),
            answers: Mutex::default(),
        }
    }

    /// Counts the answer to a key until it expires, in place of the key's previous answer. Returns `false` and
    /// counts nothing if the bound would be exceeded.
    pub(super) fn take(&self, key: &Key, bytes: u64, kept: Duration) -> bool {
        if self.most == u64::MAX {
            return true;
        }
        let (now, key) = (Instant::now(), self.hasher.hash_one(key));
        let mut answers = lock(&self.answers);
        answers.forget_ended(now);
        let before = answers.by_key.get(&key).map_or(0, |(_, bytes)| *bytes);
        let sum = (answers.bytes - before).saturating_add(bytes);
        let Some(until) = now.checked_add(kept).filter(|_| sum <= self.most) else {
            return false;
        };
        answers.bytes = sum;
        answers.by_key.insert(key, (until, bytes));
        if answers
            .in_order
            .back()
            .is_none_or(|(last, _)| *last <= until)
        {
            answers.in_order.push_back((until, key));
        } else {
            answers.ends.push(Reverse((until, key)));
        }
        true
    }

    /// Stops counting the answer to a key, because it was not stored.
    pub(super) fn give_back(&self, key: &Key) {
        let key = self.hasher.hash_one(key);
        let mut answers = lock(&self.answers);
        if let Some((_, bytes)) = answers.by_key.remove(&key) {
            answers.bytes -= bytes;
        }
    }
}

impl Answers {
    /// Removes the first end until `now`.
    fn next_end(&mut self, now: Instant) -> Option<(Instant, u64)> {
        let is_over = |(until, _): &(Instant, u64)| *until <= now;
        let other = self.ends.peek().map(|Reverse(end)| *end).filter(is_over);
        match self.in_order.front().copied().filter(is_over) {
            Some(end) if other.is_none_or(|other| end <= other) => self.in_order.pop_front(),
            _ => other.and_then(|_| self.ends.pop()).map(|Reverse(end)| end),
        }
    }

    fn forget_ended(&mut self, now: Instant) {
        while let Some((until, key)) = self.next_end(now) {
            // If the answer was replaced, its entry in `by_key` has another end.
            if let Some((end, bytes)) = self.by_key.get(&key).copied()
                && end == until
            {
                self.bytes -= bytes;
                self.by_key.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_over_makes_room() {
        let stored = Stored::new(100);
        let take = |key: &str, bytes, kept| stored.take(&key.into(), bytes, kept);
        assert!(take("a", 60, 2 * SECOND) && take("b", 40, SECOND));
        assert!(!take("c", 1, SECOND), "it is full");
        tokio::time::advance(SECOND).await;
        assert!(
            !take("c", 41, SECOND) && take("c", 40, SECOND),
            "what was refused takes no room"
        );
        tokio::time::advance(SECOND).await;
        assert!(take("d", 100, SECOND) && !take("e", u64::MAX, SECOND));
        stored.give_back(&"d".into());
        assert!(take("e", 100, SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_takes_the_place_of_the_one_before() {
        let stored = Stored::new(100);
        for _ in 0..50 {
            assert!(stored.take(&"a".into(), 60, 100 * SECOND));
            tokio::time::advance(SECOND).await;
        }
        tokio::time::advance(60 * SECOND).await;
        assert!(
            !stored.take(&"b".into(), 60, SECOND),
            "it ends with the last of them"
        );
        tokio::time::advance(40 * SECOND).await;
        assert!(stored.take(&"b".into(), 60, SECOND));
    }
}
