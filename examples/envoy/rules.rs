//! The rules, and which of them limits a descriptor.

use std::collections::HashMap;
use std::fmt;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tower_distributed::{Error, Key, QuotaTable, Quotas};

/// The rules of a domain: a tree by the keys and values of descriptors.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    pub(crate) name: String,
    pub(crate) root: Level,
    pub(crate) rules: Vec<Rule>,
}

/// A limit.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The keys and values that lead to it, such as `tenant=acme, path`. The row of its quotas in the fleet's table.
    pub(crate) path: String,
    /// The name of its buckets in the store.
    pub(crate) bucket: String,
    /// `None`: unlimited.
    pub(crate) quotas: Option<Quotas>,
    /// The tokens of a hit.
    pub(crate) cost: u32,
    pub(crate) is_shadow: bool,
}

/// The descriptors at one depth.
#[derive(Debug, Default)]
pub(crate) struct Level {
    /// By key and value.
    pub(crate) exact: HashMap<String, HashMap<String, Node>>,
    /// Those with wildcards or without a value, in the order of the file.
    pub(crate) others: Vec<Node>,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) key: String,
    /// Each `*` matches any text. Empty: any value.
    pub(crate) value: String,
    /// Whether all values that match the wildcard share a bucket.
    pub(crate) is_shared: bool,
    /// The position of its rule in [`Domain::rules`].
    pub(crate) rule: Option<usize>,
    pub(crate) next: Level,
}

impl Domain {
    /// Returns the rule that limits a descriptor, and the key of its bucket: the value of the only entry, or
    /// [`Key::of`] the values of several. An exact value goes before a wildcard, and a wildcard before a key alone.
    pub(crate) fn find(&self, entries: &[Entry]) -> Option<(usize, Key)> {
        let mut level = &self.root;
        let mut rule = None;
        let mut key = Vec::with_capacity(entries.len());
        for Entry { key: name, value } in entries {
            let exact = level.exact.get(name).and_then(|values| values.get(value));
            let others = level.others.iter().filter(|node| node.key == *name);
            let matching =
                others.filter(|node| node.value.is_empty() || matches(&node.value, value));
            let node = exact.or_else(|| matching.min_by_key(|node| node.value.is_empty()))?;
            key.push(if node.is_shared { &node.value } else { value });
            rule = node.rule;
            level = &node.next;
        }
        let key = match *key {
            [value] => Key::from(value),
            _ => Key::of(&key),
        };
        Some((rule?, key))
    }

    /// The quotas of all limits, by path.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&str, &Quotas)> {
        let rules = self.rules.iter();
        rules.filter_map(|rule| Some((&*rule.path, rule.quotas.as_ref()?)))
    }

    pub(crate) fn table(&self) -> Result<QuotaTable, Error> {
        QuotaTable::new(self.rows().map(|(path, quotas)| (path, quotas.clone())))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, bucket {}: ", self.path, self.bucket)?;
        match &self.quotas {
            Some(quotas) => write!(f, "{quotas}")?,
            None => write!(f, "unlimited")?,
        }
        f.write_str(if self.is_shadow { ", shadow mode" } else { "" })
    }
}

fn matches(pattern: &str, value: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let last = parts.next_back().unwrap_or_default();
    let middle = value.strip_prefix(first);
    let middle = middle.and_then(|rest| rest.strip_suffix(last));
    middle.is_some_and(|mut rest| {
        parts.all(|part| {
            let found = rest.split_once(part);
            found.inspect(|(_, after)| rest = after).is_some()
        })
    })
}
