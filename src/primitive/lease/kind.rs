//! The kinds of leases: what it takes to hold, and where that is kept.

use std::fmt;
use std::sync::Arc;

use super::queue::Queue;
use super::record::Record;
use crate::store::Script;

/// One kind of lease: the rules of its scripts, and the same in Rust.
pub(crate) trait Kind: fmt::Debug + Send + Sync + 'static {
    /// Who holds, in process.
    type Holders: Holders;
    /// What is on record of a key besides who holds it; `()` for most.
    type Record: Record<Self::Holders>;
    /// The last parts of the names of the keys, apart from those of other kinds; see `lua/lib/lease.lua`.
    const PARTS: &'static [&'static str];
    const SCRIPTS: Scripts;
}

pub(crate) type Scope<K> = <<K as Kind>::Record as Record<<K as Kind>::Holders>>::Scope;
pub(crate) type Query<K> = <<K as Kind>::Record as Record<<K as Kind>::Holders>>::Query;
pub(crate) type Found<K> = <<K as Kind>::Record as Record<<K as Kind>::Holders>>::Found;
pub(crate) type Entry<K> = <<K as Kind>::Record as Record<<K as Kind>::Holders>>::Entry;

/// The scripts of a kind.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) turn: Script,
    pub(crate) renew: Script,
    pub(crate) beat: Script,
    pub(crate) inspect: Script,
    /// For kinds that have something on record.
    pub(crate) settle: Script,
}

/// Joins the scripts of a kind: `scripts!("lib/permits")`, with the pieces that have its rules.
macro_rules! scripts {
    ($($rules:literal),+) => {
        $crate::primitive::lease::kind::Scripts {
            turn: $crate::store::script!("lease/turn", "lib/lease", $($rules,)+ "lib/queue"),
            renew: $crate::store::script!("lease/renew", "lib/lease", $($rules),+),
            beat: $crate::store::script!("lease/beat", "lib/lease", $($rules,)+ "lib/queue"),
            inspect: $crate::store::script!("lease/inspect", "lib/lease", $($rules),+),
            settle: $crate::store::script!("lease/settle", "lib/lease", $($rules,)+ "lib/queue"),
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
    /// Makes a holder none.
    fn forget(&mut self, token: &str);
    /// When the next lease ends; 0: unknown.
    fn soonest(&self, now: i64) -> i64;
    /// Who is to go first of those who wait. Once it is the `turn` of those in the second rank, it is that of them
    /// all.
    fn head(&self, queue: &Queue, turn: &mut bool) -> Option<Arc<str>>;
    /// Takes out of the queue those to whom a token's process hands on by itself, and counts on them for fences.
    fn follow(&mut self, _token: &str, _queue: &mut Queue) -> Vec<Arc<str>> {
        Vec::new()
    }
    /// Whether forgetting it all changes nothing.
    fn is_idle(&self, now: i64) -> bool;
}
