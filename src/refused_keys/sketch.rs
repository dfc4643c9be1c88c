//! Counts the most frequent keys in bounded memory.
//!
//! The algorithm is Space-Saving: A. Metwally, D. Agrawal and A. El Abbadi, "Efficient Computation of Frequent and
//! Top-k Elements in Data Streams", ICDT 2005. A key without a counter takes over the lowest counter, whose count
//! becomes the possible error of the key. So each count is at least the true number, and exceeds it by at most its
//! error, which is at most the total divided by the number of counters. Every key with more refusals than that has a
//! counter.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

use crate::refused_keys::list::{Counted, List};
use crate::store::redis::names::Stem;

/// The number of counters.
const COUNTERS: usize = 256;

/// The counts of one window.
#[derive(Clone, Debug, Default)]
pub(super) struct Sketch {
    /// The highest count first.
    counters: Vec<Counter>,
    /// The positions of the counters, by the hash of their keys. Clients choose keys, but do not know the hasher's
    /// seed.
    places: HashTable<usize>,
    hasher: RandomState,
    pub(super) total: u64,
}

#[derive(Clone, Debug)]
struct Counter {
    key: Stem,
    hash: u64,
    count: u64,
    error: u64,
}

impl Sketch {
    /// Counts a key once, in O(log n).
    pub(super) fn add(&mut self, key: Stem) {
        let hash = self.hasher.hash_one(&key);
        let at = match self.places.find(hash, |at| self.counters[*at].key == key) {
            Some(at) => *at,
            None => self.counter(key, hash),
        };
        // The first counter with the same count: incrementing it keeps the order.
        let count = self.counters[at].count;
        let first = self
            .counters
            .partition_point(|counter| counter.count > count);
        self.swap(first, at);
        self.counters[first].count = count.saturating_add(1);
        self.total = self.total.saturating_add(1);
    }

    /// Returns the position of a counter for a new key: a new counter, or the lowest one.
    fn counter(&mut self, key: Stem, hash: u64) -> usize {
        let mut lowest = 0;
        if self.counters.len() == COUNTERS
            && let Some(counter) = self.counters.pop()
        {
            lowest = counter.count;
            let last = self.counters.len();
            if let Ok(place) = self.places.find_entry(counter.hash, |at| *at == last) {
                place.remove();
            }
        }
        let at = self.counters.len();
        self.counters.push(Counter {
            key,
            hash,
            count: lowest,
            error: lowest,
        });
        self.places
            .insert_unique(hash, at, |at| self.counters[*at].hash);
        at
    }

    fn swap(&mut self, first: usize, at: usize) {
        if first == at {
            return;
        }
        let hashes = [self.counters[first].hash, self.counters[at].hash];
        for (hash, from, to) in [
            (hashes[0], first, usize::MAX),
            (hashes[1], at, first),
            (hashes[0], usize::MAX, at),
        ] {
            if let Some(place) = self.places.find_mut(hash, |place| *place == from) {
                *place = to;
            }
        }
        self.counters.swap(first, at);
    }

    /// The counts, with the keys as text.
    pub(super) fn list(&self, text: impl Fn(&Stem) -> String) -> List {
        let counted = |counter: &Counter| {
            let bounds = Counted {
                at_least: counter.count - counter.error,
                at_most: counter.count,
            };
            (text(&counter.key), bounds)
        };
        let is_full = self.counters.len() == COUNTERS;
        let others = self
            .counters
            .last()
            .filter(|_| is_full)
            .map_or(0, |lowest| lowest.count);
        List {
            keys: self.counters.iter().map(counted).collect(),
            others,
            total: self.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::key::Key;

    fn listed(sketch: &Sketch) -> List {
        sketch.list(|stem| match stem {
            Stem::Key(key) | Stem::Digest(key) => {
                String::from_utf8_lossy(key.as_bytes()).into_owned()
            }
        })
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut sketch = Sketch::default();
        for key in 0..COUNTERS {
            (0..=key).for_each(|_| sketch.add(Stem::Key(Key::from(key))));
        }
        let list = listed(&sketch);
        assert_eq!(list.keys.len(), COUNTERS);
        for (at, (key, counted)) in list.keys.iter().enumerate() {
            let count = (COUNTERS - at) as u64;
            assert_eq!(
                (key.as_str(), counted.at_least),
                (&*(count - 1).to_string(), count)
            );
            assert_eq!(counted.at_most, count);
        }
        assert_eq!(list.others, 1, "another key has no more than the lowest");
    }

    /// Against exact counts, also with a flood of keys that come once.
    #[test]
    fn counts_are_within_their_bounds() {
        let seed = support::seed();
        let mut rng = StdRng::seed_from_u64(seed);
        for round in 0..20 {
            let (mut sketch, mut exact) = (Sketch::default(), HashMap::<String, u64>::new());
            for number in 0..20_000_u32 {
                let skewed = f64::from(1 + number % 50) * rng.random_range(0.0..1.0_f64).powi(2);
                let key = match rng.random_range(0..4) {
                    0 if round % 2 == 0 => format!("once {number}"),
                    0 => format!("{}", rng.random_range(0..1000)),
                    _ => format!("often {}", skewed as u32),
                };
                *exact.entry(key.clone()).or_default() += 1;
                sketch.add(Stem::Key(Key::from(key)));
            }
            let list = listed(&sketch);
            assert_eq!((list.keys.len(), list.total), (COUNTERS, 20_000));
            assert!(
                list.keys
                    .is_sorted_by_key(|(_, counted)| std::cmp::Reverse(counted.at_most))
            );
            assert_eq!(sketch.places.len(), COUNTERS, "SEED={seed}");
            let bound = list.total / COUNTERS as u64;
            let mut found = HashMap::new();
            for (key, counted) in &list.keys {
                let count = exact[key];
                assert!(
                    (counted.at_least..=counted.at_most).contains(&count),
                    "{key} SEED={seed}"
                );
                assert!(
                    counted.at_most - counted.at_least <= bound,
                    "{key} SEED={seed}"
                );
                assert!(found.insert(key, ()).is_none(), "{key} twice, SEED={seed}");
            }
            for (key, count) in exact.iter().filter(|(key, _)| !found.contains_key(key)) {
                assert!(
                    *count <= list.others && list.others <= bound,
                    "{key} SEED={seed}"
                );
            }
        }
    }
}
