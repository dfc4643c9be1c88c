//! A bounded map with data about keys.

use std::collections::{HashMap, VecDeque};

use crate::key::Key;

/// The data that a process has about keys, up to a maximum number of keys. Beyond that, unused keys are evicted, a few
/// at a time: a new key costs [`EXAMINED`] steps, whatever the number of keys.
#[derive(Debug)]
pub(crate) struct KnownKeys<V> {
    most: usize,
    all: HashMap<Key, V>,
    /// All keys. The first one is examined next.
    order: VecDeque<Key>,
}

/// How many keys are examined for a new key.
pub(crate) const EXAMINED: usize = 8;

impl<V> KnownKeys<V> {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            all: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    #[cfg(any(test, feature = "rate-limit"))]
    pub(crate) fn get(&self, key: &Key) -> Option<&V> {
        self.all.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &Key) -> Option<&mut V> {
        self.all.get_mut(key)
    }

    /// Returns the data of a key, which is `new` for a new key. `None`: the map is full, and none of the examined keys
    /// is unused.
    pub(crate) fn entry(
        &mut self,
        key: &Key,
        new: impl FnOnce() -> V,
        is_unused: impl Fn(&V) -> bool,
    ) -> Option<&mut V> {
        if !self.all.contains_key(key) {
            if self.all.len() >= self.most {
                self.make_room(is_unused);
            }
            if self.all.len() >= self.most {
                return None;
            }
            self.order.push_back(key.clone());
        }
        Some(self.all.entry(key.clone()).or_insert_with(new))
    }

    fn make_room(&mut self, is_unused: impl Fn(&V) -> bool) {
        for _ in 0..EXAMINED.min(self.order.len()) {
            let Some(key) = self.order.pop_front() else {
                return;
            };
            if self.all.get(&key).is_some_and(&is_unused) {
                self.all.remove(&key);
            } else {
                self.order.push_back(key);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The steps for new keys, with a full table in which all keys are unused, or none is.
    #[test]
    fn an_unknown_key_costs_a_few_steps() {
        for is_unused in [false, true] {
            let (mut known, steps) = (KnownKeys::new(4096), Cell::new(0));
            for key in 0..20_000_u64 {
                let before = steps.get();
                let entry = known.entry(
                    &Key::from(key),
                    || key,
                    |_| {
                        steps.set(steps.get() + 1);
                        is_unused
                    },
                );
                assert_eq!(entry.copied(), (key < 4096 || is_unused).then_some(key));
                assert!(steps.get() - before <= EXAMINED);
            }
            assert!(known.len() <= 4096 && known.order.len() == known.len());
        }
    }

    /// Keys in use stay, whatever their position. All others are examined in turn.
    #[test]
    fn keys_that_are_in_use_stay() {
        let mut known = KnownKeys::new(100);
        for key in 0..100_u64 {
            assert!(
                known
                    .entry(&Key::from(key), || key < 90, |_| true)
                    .is_some()
            );
        }
        let mut admitted = 0;
        for key in 100..300_u64 {
            admitted += usize::from(
                known
                    .entry(&Key::from(key), || false, |in_use| !in_use)
                    .is_some(),
            );
        }
        assert!(admitted >= 10, "{admitted}");
        assert!((0..90_u64).all(|key| known.get(&Key::from(key)) == Some(&true)));
        assert!(known.get_mut(&Key::from(99_u64)).is_none() && known.len() <= 100);
    }
}
