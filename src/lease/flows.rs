//! Fair shares and classes among the waiters of a key, and newest first: the Rust twin of `lua/lib/flows.lua` and
//! `turns.lua`.
//!
//! Start-time fair queueing: P. Goyal, H. M. Vin and H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996. Each flow has a
//! tag: the virtual time at which it may be served next. The lowest tag is served first (of equal ones, the flow whose first
//! waiter has the lowest token), and is the virtual time from then on. What was served raises the tag of its flow by its
//! cost, also if nobody else of the flow waits: so a flow whose callers come one after the other loses nothing, as long as the
//! next one comes before its turn.
//!
//! A flow that comes anew pays for its first waiter in advance, which the source does not say: otherwise an endless row of
//! new flows would be served before all others. Its tag is fresh until it is served: if that waiter goes away, the flow pays
//! for the next one instead, or is forgotten. Virtual times count halves of a cost. A fresh tag is odd, all others are even.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use super::token::Token;

/// The number of ranks: the classes, and one for waiters that want no permit.
pub(super) const RANKS: usize = 9;

/// The number of classes.
pub(super) const CLASSES: i64 = 8;

/// What a token says of its place among the waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// Its flow. `None`: it is served before all flows of its rank, in the order of arrival.
    pub(crate) flow: Option<Flow>,
    /// How long waiters of lower ranks may be served before its rank is, µs. `None`: for any time.
    pub(crate) aging: Option<i64>,
    /// For how long its rank must have had waiters without a flow, so that the newest of these is served first while this
    /// is the first of them, µs. `None`: in the order of arrival.
    pub(crate) newest: Option<i64>,
}

/// The number of a flow, and the cost of one lease to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) number: i64,
    pub(crate) cost: i64,
}

/// The flows that have waiters, or whose turn has not come since they were served, by rank and number.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    lines: HashMap<(i64, i64), Line>,
    /// The rank, the tag and the first waiter of those that have waiters.
    heads: BTreeSet<(i64, i64, Token)>,
    /// Those that have none.
    idle: BTreeSet<(i64, i64, i64)>,
    /// How many flows of each rank have waiters.
    counts: [i64; RANKS],
    /// The virtual time of each rank: the tag that was served last.
    served: [Option<i64>; RANKS],
    /// When each rank was served last, or got its first waiter, µs.
    since: [Option<i64>; RANKS],
    /// Since when each rank has waiters without a flow, µs. Only valid while one of these may be served newest first.
    waits: [Option<i64>; RANKS],
}

#[derive(Clone, Debug)]
struct Line {
    tag: i64,
    waiters: i64,
    /// Its first waiter, if it has one.
    head: Option<Token>,
}

impl Flows {
    /// Adds a waiter. Returns how many flows with waiters its rank has, how many waiters are before it in its own, and
    /// whether it is the only one in a flow of its rank.
    pub(super) fn add(&mut self, rank: i64, flow: Flow, token: &Token) -> (i64, i64, bool) {
        let begins = self.counts[rank as usize] == 0;
        if begins {
            self.pass(rank, i64::MAX);
            self.served[rank as usize] = None;
        }
        let time = self.served[rank as usize].unwrap_or(0);
        let anew = time.saturating_add(2 * flow.cost - 1);
        let line =
            self.lines.entry((rank, flow.number)).or_insert(Line { tag: anew, waiters: 0, head: None });
        let before = line.waiters;
        if before == 0 {
            self.idle.remove(&(rank, line.tag, flow.number));
            line.tag = match line.tag.cmp(&time) {
                Ordering::Less => anew,
                Ordering::Equal => time + 1,
                Ordering::Greater => line.tag,
            };
            line.head = Some(token.clone());
            self.heads.insert((rank, line.tag, token.clone()));
            self.counts[rank as usize] += 1;
        }
        line.waiters += 1;
        (self.counts[rank as usize], before, begins)
    }

    /// Removes a waiter that is granted a lease. `next`: who is the first of its flow then.
    pub(super) fn serve(&mut self, rank: i64, flow: Flow, next: Option<Token>) {
        let Some(line) = self.lines.get(&(rank, flow.number)) else { return };
        // No tag is below the virtual time, but for a fresh one.
        let time = line.tag + line.tag % 2;
        debug_assert!(
            self.served[rank as usize].is_none_or(|served| served <= time),
            "virtual time ran back"
        );
        self.served[rank as usize] = Some(time);
        self.remove(rank, flow.number, next, |_| Some(time.saturating_add(2 * flow.cost)));
    }

    /// Removes a waiter that is not granted a lease. `next`: who is the first of its flow then, and if that was the waiter that
    /// is removed, what it costs.
    pub(super) fn leave(&mut self, rank: i64, flow: Flow, next: Option<(Token, Option<i64>)>) {
        let time = self.served[rank as usize].unwrap_or(0);
        let (next, cost) = next.unzip();
        self.remove(rank, flow.number, next, |tag| match cost {
            _ if tag % 2 == 0 => Some(tag),
            Some(Some(next)) => Some((tag + 2 * (next - flow.cost)).max(time + 1)),
            Some(None) => Some(tag),
            None => None,
        });
    }

    /// Removes a waiter, and sets the first one and the tag of its flow. Without a tag the flow is forgotten, if that was its
    /// last waiter.
    fn remove(&mut self, rank: i64, number: i64, next: Option<Token>, tag: impl FnOnce(i64) -> Option<i64>) {
        let Some(line) = self.lines.get_mut(&(rank, number)) else { return };
        line.waiters -= 1;
        if let Some(head) = line.head.take() {
            self.heads.remove(&(rank, line.tag, head));
        }
        let tag = tag(line.tag);
        line.tag = tag.unwrap_or(line.tag);
        if let Some(next) = next {
            line.head = Some(next.clone());
            self.heads.insert((rank, line.tag, next));
            return;
        }
        self.counts[rank as usize] -= 1;
        match tag {
            Some(tag) => drop(self.idle.insert((rank, tag, number))),
            None => drop(self.lines.remove(&(rank, number))),
        }
        self.pass(rank, self.served[rank as usize].unwrap_or(0));
    }

    /// Forgets the flows of a rank that have no waiters, and whose turn was before `time`.
    fn pass(&mut self, rank: i64, time: i64) {
        while let Some(&(of, tag, number)) = self.idle.range((rank, i64::MIN, 0)..).next()
            && of == rank
            && tag < time
        {
            self.idle.remove(&(of, tag, number));
            self.lines.remove(&(of, number));
        }
    }

    /// Returns the waiter with a flow that is served first in a rank.
    pub(super) fn first(&self, rank: i64) -> Option<&Token> {
        Some(&self.heads_of(rank).next()?.2)
    }

    /// Returns how many waiters of a rank are the first of their flows, and how many of these are served before this one, if it
    /// is one of them.
    pub(super) fn place(&self, rank: i64, token: &Token) -> (usize, Option<usize>) {
        (self.counts[rank as usize] as usize, self.heads_of(rank).position(|(.., head)| head == token))
    }

    fn heads_of(&self, rank: i64) -> impl Iterator<Item = &(i64, i64, Token)> {
        let before = |rank| (rank, i64::MIN, Token::Text(Arc::default()));
        self.heads.range(before(rank)..before(rank + 1))
    }

    /// Records that a rank was served, or got a waiter while it had none (`starts`). Returns whether nothing was known of
    /// it before.
    pub(super) fn aged(&mut self, rank: i64, starts: bool, now: i64) -> bool {
        if rank == 0 || rank >= CLASSES {
            return false;
        }
        let since = &mut self.since[rank as usize];
        let is_new = since.is_none();
        if is_new || starts {
            *since = Some(now);
        }
        is_new
    }

    /// Returns since when a rank waits, if it has its turn before lower ranks.
    pub(super) fn is_due(&self, rank: i64, aging: i64, now: i64) -> Option<i64> {
        // A time ahead of the clock is from before the clock was set back.
        self.since[rank as usize].filter(|since| *since > now || since.saturating_add(aging) <= now)
    }

    /// Records since when a rank has waiters without a flow, before one joins them that may be served newest first.
    /// `goes_on`: whether what is known holds. Returns whether nothing was known.
    pub(super) fn joins(&mut self, rank: i64, goes_on: bool, now: i64) -> bool {
        let waits = &mut self.waits[rank as usize];
        // A time ahead of the clock is from before the clock was set back.
        let begins = !goes_on || waits.is_none_or(|since| since > now);
        if begins {
            *waits = Some(now);
        }
        begins
    }

    /// Returns since when a rank has waiters without a flow, if that is known.
    pub(super) fn waits(&self, rank: i64) -> Option<i64> {
        self.waits[rank as usize]
    }

    /// Returns how far the tag of a flow is ahead of the virtual time.
    #[cfg(test)]
    pub(super) fn tag_ahead(&self, rank: i64, number: i64) -> i64 {
        let time = self.served[rank as usize].unwrap_or(0);
        self.lines.get(&(rank, number)).map_or(-2, |line| (line.tag - time).max(-2))
    }

    /// Returns how many flows are known.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.lines.len()
    }
}

#[cfg(test)]
mod tests;
