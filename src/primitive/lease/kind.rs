//! The kinds of leases: what it takes to hold, and where that is kept.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::outcome::Outcome;
use super::queue::Queue;
use crate::store::{Script, ttl_of};

/// One kind of lease: the rules of its scripts, and the same in Rust.
pub(crate) trait Kind: fmt::Debug + Send + Sync + 'static {
    /// Who holds.
    type Holders: Holders;
    /// What came of the leases of a key before; `()` for most kinds.
    type Outcome: Outcome<Self::Holders>;
    /// The last parts of the names of the keys, apart from those of other kinds; see `lua/lib/lease.lua`.
    const PARTS: &'static [&'static str];
    const SCRIPTS: Scripts;
}

pub(crate) type Scope<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Scope;
pub(crate) type Query<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Query;
pub(crate) type Found<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Found;
pub(crate) type Entry<K> = <<K as Kind>::Outcome as Outcome<<K as Kind>::Holders>>::Entry;

/// The scripts of a kind.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire_release: Script,
    pub(crate) renew: Script,
    pub(crate) heartbeat: Script,
    pub(crate) inspect: Script,
    /// For kinds that keep outcomes.
    pub(crate) complete: Script,
}

/// Joins the scripts of a kind: `scripts!("lib/permits")`, with the pieces that have its rules.
macro_rules! scripts {
    ($($rules:literal),+) => {
        $crate::primitive::lease::kind::Scripts {
            acquire_release: $crate::store::script!(
                "lease/acquire_release", "lib/lease", $($rules,)+ "lib/queue", "lib/acquire", "lib/release"
            ),
            renew: $crate::store::script!("lease/renew", "lib/lease", $($rules),+),
            heartbeat: $crate::store::script!("lease/heartbeat", "lib/lease", $($rules,)+ "lib/queue"),
            inspect: $crate::store::script!("lease/inspect", "lib/lease", $($rules),+),
            complete: $crate::store::script!("lease/complete", "lib/lease", $($rules,)+ "lib/queue"),
        }
    };
}
pub(crate) use scripts;

/// Who holds the leases of one key. Each step begins with [`sweep`](Self::sweep); times are in µs.
pub(crate) trait Holders: Clone + fmt::Debug + Default + Send + 'static {
    /// Drops those whose leases are over.
    fn sweep(&mut self, now: i64);
    /// How much is held.
    fn used(&self) -> i64;
    /// Until when a token holds, and its fence.
    fn held(&self, token: &str, now: i64) -> Option<(i64, i64)>;
    /// Whether a token can hold beside those who do.
    fn fits(&self, token: &str) -> bool;
    /// Whether nothing is free, for anybody.
    fn is_full(&self) -> bool {
        false
    }
    /// How many of those who wait are to hold something.
    fn counted(queue: &Queue) -> i64 {
        queue.ahead(1)
    }
    /// Makes a token a holder; returns its fence.
    fn hold(&mut self, token: &Arc<str>, expiry: i64, now: i64, queue: &Queue) -> i64;
    /// Moves the end of a holder's lease.
    fn extend(&mut self, token: &str, expiry: i64, now: i64);
    /// Sees to it that the next fence is above one that was given out elsewhere.
    fn raise(&mut self, _fence: i64) {}
    /// Makes a holder none.
    fn forget(&mut self, token: &str);
    /// When the next lease ends; 0: unknown. None lasts for longer than the time to live in its token: what is longer
    /// is from before the server's clock was set back, and is cut to that.
    fn soonest(&mut self, now: i64) -> i64;
    /// Who is to go first of those who wait. Once it is the `turn` of those in the second rank, it is that of them
    /// all.
    fn head(&self, queue: &Queue, turn: &mut bool) -> Option<Arc<str>>;
    /// Whether forgetting it all changes nothing.
    fn is_idle(&self, now: i64) -> bool;
}

/// [`Holders::soonest`] where tokens hold until some time each.
pub(crate) fn soonest(until: &mut HashMap<Arc<str>, i64>, now: i64) -> i64 {
    let longest = |token: &str| ttl_of(token).map_or(i64::MAX, |ttl| now + ttl);
    let by_end = |(token, expiry): &(&Arc<str>, &i64)| (**expiry, Arc::clone(token));
    let ends = [until.iter().min_by_key(by_end), until.iter().max_by_key(by_end)];
    if ends.into_iter().flatten().any(|(token, expiry)| *expiry > longest(token)) {
        until.iter_mut().for_each(|(token, expiry)| *expiry = (*expiry).min(longest(token)));
    }
    until.values().copied().min().unwrap_or(0)
}
