//! Lists of counted keys: combining, sorting, writing and parsing them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::fleet::version::{END, number};
use crate::key::{bytes_of, is_digest, text_of};

/// How many keys of a process are stored.
pub(super) const STORED: usize = 32;

/// The maximum length of a list that is read, in bytes: a key has at most 256 bytes, each of which may be escaped.
pub(super) const MOST_BYTES: usize = 32 * 1024;

/// The bounds of a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) at_least: u64,
    pub(crate) at_most: u64,
}

/// Counts of keys as text, and a bound for all other keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    /// In any order, each key once.
    pub(crate) keys: Vec<(String, Counted)>,
    /// The maximum number of refusals of a key that is not in the list.
    pub(crate) others: u64,
    pub(crate) total: u64,
}

impl List {
    /// Adds up lists of different refusals. A key that is missing in a list may have had up to the number of refusals
    /// that the list allows for other keys.
    pub(crate) fn combined(lists: impl IntoIterator<Item = Self>) -> Self {
        let (mut keys, mut sum) = (HashMap::<String, (Counted, u64)>::new(), Self::default());
        for list in lists {
            sum.others = sum.others.saturating_add(list.others);
            sum.total = sum.total.saturating_add(list.total);
            for (key, counted) in list.keys {
                let (known, others) = match keys.entry(key) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => entry.insert(Default::default()),
                };
                known.at_least = known.at_least.saturating_add(counted.at_least);
                known.at_most = known.at_most.saturating_add(counted.at_most);
                *others = others.saturating_add(list.others);
            }
        }
        let all = |(key, (counted, others)): (String, (Counted, u64))| {
            let elsewhere = sum.others.saturating_sub(others);
            (
                key,
                Counted {
                    at_most: counted.at_most.saturating_add(elsewhere),
                    ..counted
                },
            )
        };
        Self {
            keys: keys.into_iter().map(all).collect(),
            ..sum
        }
    }

    /// Sorts the list, the highest lower bounds first, and keeps the first `n` keys.
    pub(crate) fn top(mut self, n: usize) -> Self {
        let order = |(key, counted): &(String, Counted)| {
            (
                Reverse(counted.at_least),
                Reverse(counted.at_most),
                key.clone(),
            )
        };
        self.keys.sort_by_cached_key(order);
        let cut = self
            .keys
            .get(n..)
            .into_iter()
            .flatten()
            .map(|(_, counted)| counted.at_most);
        self.others = cut.max().unwrap_or(0).max(self.others);
        self.keys.truncate(n);
        self
    }

    /// Writes `total others`, and a line `at-least at-most key` for each key.
    pub(super) fn text(&self) -> String {
        let line = |(key, Counted { at_least, at_most }): &(String, Counted)| {
            format!(
                "\n{} {} {key}",
                at_least.min(&(END - 1)),
                at_most.min(&(END - 1))
            )
        };
        let head = format!("{} {}", self.total.min(END - 1), self.others.min(END - 1));
        head + &self.keys.iter().map(line).collect::<String>()
    }

    /// Reads a stored list. `None`: it is in another form.
    pub(super) fn parse(stored: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(stored).ok()?.split('\n');
        let (total, others) = lines.next()?.split_once(' ')?;
        let mut list = Self {
            keys: Vec::new(),
            total: number(total)?,
            others: number(others)?,
        };
        for line in lines {
            let mut words = line.splitn(3, ' ');
            let counted = Counted {
                at_least: number(words.next()?)?,
                at_most: number(words.next()?)?,
            };
            let key = words.next()?;
            let is_new = list.keys.iter().all(|(other, _)| other != key);
            if counted.at_least > counted.at_most
                || !is_text(key)
                || !is_new
                || list.keys.len() == STORED
            {
                return None;
            }
            list.keys.push((key.to_owned(), counted));
        }
        Some(list)
    }
}

/// Whether a text is the printable form of a key.
fn is_text(text: &str) -> bool {
    match text.strip_prefix("%#") {
        Some(digest) => is_digest(digest),
        None => bytes_of(text).is_some_and(|bytes| text_of(&bytes) == text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(keys: &[(&str, u64, u64)], others: u64) -> List {
        let key = |(key, at_least, at_most): &(&str, u64, u64)| {
            (
                (*key).to_owned(),
                Counted {
                    at_least: *at_least,
                    at_most: *at_most,
                },
            )
        };
        List {
            keys: keys.iter().map(key).collect(),
            others,
            total: 100,
        }
    }

    #[test]
    fn lists_are_added_up_with_their_bounds() {
        let lists = [
            list(&[("a", 10, 12), ("b", 7, 7)], 3),
            list(&[("a", 1, 2), ("c", 20, 20)], 1),
            list(&[], 0),
        ];
        let sum = List::combined(lists).top(2);
        // `c` may have had 3 refusals in the list where it is missing, and `b`, which was cut off, 8.
        assert_eq!(
            sum,
            List {
                total: 300,
                ..list(&[("c", 20, 23), ("a", 11, 14)], 8)
            }
        );
        assert_eq!(
            List::combined([list(&[("a", 1, u64::MAX)], u64::MAX), list(&[], 5)]).keys[0]
                .1
                .at_most,
            u64::MAX
        );
    }

    #[test]
    fn only_lists_are_read() {
        let digest = format!("%#{}", "0a".repeat(32));
        let stored = list(
            &[("a b", 1, 2), ("%1b[2J", 0, 9), (&digest, 3, 3), ("", 1, 1)],
            4,
        );
        assert_eq!(List::parse(stored.text().as_bytes()), Some(stored));
        assert_eq!(List::parse(b"0 0"), Some(List::default()));
        let many: String = (0..=STORED).map(|key| format!("\n1 1 {key}")).collect();
        let forged = "|1|1 2 3|1 -2|1 2\n|1 2\n1 2|1 2\n3 2 a|1 2\n1 2 \u{1b}[2J|1 2\n1 2 %41|1 2\n1 2 %#0a|\
             1 2\n1 2 a\u{202e}|1 2\n1 2 a\n1 2 a|1 9007199254740992|+1 2";
        for forged in forged.split('|').chain([&*format!("1 2{many}")]) {
            assert_eq!(List::parse(forged.as_bytes()), None, "{forged:?}");
        }
        assert_eq!(List::parse(b"1 2\n1 2 \xff"), None);
        let longest = list(&vec![("x", END, END); STORED], END);
        assert!(longest.text().len() + STORED * (256 * 3 - 1) <= MOST_BYTES);
    }
}
