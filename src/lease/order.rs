//! Fair shares and classes among the waiters of a key, and newest first: the Rust counterpart of `lua/flows.lua` and
//! `turns.lua`.
//!
//! Start-time fair queueing: P. Goyal, H. M. Vin and H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996. Each flow has
//! a tag: the virtual time at which it may be served next. The flow with the lowest tag is served first (of equal tags,
//! the flow whose first waiter has the lowest token), and its tag is the virtual time from then on. Each served waiter
//! raises the tag of its flow by its cost, even if the flow has no other waiter. So a flow whose callers come one after
//! the other loses nothing, as long as the next caller comes before the flow's tag is reached.
//!
//! A new flow pays for its first waiter in advance. This is not in the paper: without it, an endless series of new
//! flows would be served before all others. The tag of such a flow is fresh until it is served: if that waiter leaves,
//! the flow pays for its next waiter instead, or is forgotten. Virtual times count halves of a cost. A fresh tag is
//! odd, all others are even.
//!
//! The waiters without a flow form one flow together, with as many shares as there are other flows: processes without
//! flows, and processes with flows, get half of the permits each.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::lease::token::Token;

/// The number of ranks: the classes, and one for waiters that request no permit.
pub(super) const RANKS: usize = 9;

/// The number of classes.
pub(crate) const CLASSES: i64 = 8;

/// The highest cost.
const MOST: i64 = 1 << 42;

/// The cost of a permit of weight 1 for a flow with share 1.
const COST: i64 = 1024;

/// The ordering data in a token, besides its weight and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Its flow. `None`: it belongs to the one flow of all tokens without a flow.
    pub(crate) flow: Option<Flow>,
    /// The number of reserved permits, which are missing in its limit.
    pub(crate) reserve: i64,
    /// The limit that was chosen for this token alone.
    pub(crate) bound: Option<i64>,
}

impl Order {
    /// The order of arrival.
    pub(crate) const ARRIVAL: Self = Self {
        flow: None,
        reserve: 0,
        bound: None,
    };
}

/// The flow of a waiter, by a digest of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) name: u128,
    pub(crate) share: i64,
    /// The weight of the waiter.
    pub(crate) weight: i64,
}

impl Flow {
    /// The cost of a lease, in halves, if the flow has this share.
    fn cost(self, share: i64) -> i64 {
        cost(self.weight, share)
    }
}

fn cost(weight: i64, share: i64) -> i64 {
    2 * (weight.saturating_mul(COST) / share.max(1)).clamp(1, MOST)
}

/// The flows by rank and name. It contains flows with waiters, and flows whose tag is greater than the virtual time.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    lines: HashMap<(i64, u128), Line>,
    /// The rank, the tag and the first waiter of each flow with waiters.
    heads: BTreeSet<(i64, i64, Token)>,
    /// The rank, the tag and the name of each flow without waiters.
    idle: BTreeSet<(i64, i64, u128)>,
    /// The flows with two or more waiters: the rank, the negated number of waiters behind the first one, and the
    /// negated number of the flow.
    longest: BTreeSet<(i64, i64, i64)>,
    /// The number of flows with waiters, by rank.
    counts: [i64; RANKS],
    /// The number for the next new flow, by rank.
    numbers: [i64; RANKS],
    /// The virtual time of each rank: the tag that was served last.
    served: [Option<i64>; RANKS],
    /// The tag of the waiters without a flow, by rank.
    others: [i64; RANKS],
    /// When each rank was served last, or got its first waiter, µs.
    since: [Option<i64>; RANKS],
    /// Since when each rank has waiters without a flow, µs.
    waits: [Option<i64>; RANKS],
}

#[derive(Clone, Debug)]
struct Line {
    number: i64,
    tag: i64,
    waiters: i64,
    /// Its first waiter, if it has one.
    head: Option<Token>,
}

/// The position of a new waiter in its flow.
pub(super) struct Added {
    /// The number of its flow.
    pub(super) line: i64,
    /// The number of flows with waiters in its rank.
    pub(super) flows: i64,
    /// The number of waiters before it in its flow.
    pub(super) before: i64,
    /// Whether its flow is the only one with waiters in its rank.
    pub(super) begins: bool,
}

impl Flows {
    /// Adds a waiter.
    pub(super) fn add(&mut self, rank: i64, flow: Flow, token: &Token) -> Added {
        let of_rank = rank as usize;
        let begins = self.counts[of_rank] == 0;
        if begins {
            self.pass(rank, i64::MAX);
            (
                self.served[of_rank],
                self.others[of_rank],
                self.numbers[of_rank],
            ) = (None, 0, 0);
        }
        let time = self.served[of_rank].unwrap_or(0);
        let anew = time.saturating_add(flow.cost(flow.share) - 1);
        let next = &mut self.numbers[of_rank];
        let line = self.lines.entry((rank, flow.name)).or_insert_with(|| {
            let number = *next;
            *next += 1;
            Line {
                number,
                tag: anew,
                waiters: 0,
                head: None,
            }
        });
        let before = line.waiters;
        if before == 0 {
            self.idle.remove(&(rank, line.tag, flow.name));
            line.tag = match line.tag.cmp(&time) {
                Ordering::Less => anew,
                Ordering::Equal => time + 1,
                Ordering::Greater => line.tag,
            };
            line.head = Some(token.clone());
            self.heads.insert((rank, line.tag, token.clone()));
            self.counts[of_rank] += 1;
        }
        line.waiters += 1;
        let number = line.number;
        self.longest.remove(&(rank, 1 - before, -number));
        if before > 0 {
            self.longest.insert((rank, -before, -number));
        }
        Added {
            line: number,
            flows: self.counts[of_rank],
            before,
            begins,
        }
    }

    /// Removes a waiter that is granted a lease. `next`: the next first waiter of its flow. `share`: the share of the
    /// flow.
    pub(super) fn serve(&mut self, rank: i64, flow: Flow, next: Option<Token>, share: i64) {
        let Some(line) = self.lines.get(&(rank, flow.name)) else {
            return;
        };
        // No tag is below the virtual time, except a fresh one.
        let time = line.tag + line.tag % 2;
        debug_assert!(
            self.served[rank as usize].is_none_or(|served| served <= time),
            "virtual time ran back"
        );
        self.served[rank as usize] = Some(time);
        self.remove(rank, flow.name, next, |_| {
            Some(time.saturating_add(flow.cost(share)))
        });
    }

    /// Records that a waiter without a flow is granted a lease.
    pub(super) fn serve_other(&mut self, rank: i64, weight: i64) {
        let flows = self.counts[rank as usize];
        if flows > 0 {
            let tag = self.others(rank);
            let time = tag + tag % 2;
            self.served[rank as usize] = Some(time);
            self.others[rank as usize] = time.saturating_add(cost(weight, flows));
        }
    }

    /// Returns the tag of the waiters without a flow.
    fn others(&self, rank: i64) -> i64 {
        self.others[rank as usize].max(self.served[rank as usize].unwrap_or(0))
    }

    /// Removes a waiter that is not granted a lease. `next`: the next first waiter of its flow; and if the removed
    /// waiter was the first one, the flow in the token of `next`.
    pub(super) fn leave(&mut self, rank: i64, flow: Flow, next: Option<(Token, Option<Flow>)>) {
        let time = self.served[rank as usize].unwrap_or(0);
        let (next, of) = next.unzip();
        self.remove(rank, flow.name, next, |tag| match of {
            _ if tag % 2 == 0 => Some(tag),
            Some(Some(next)) => {
                Some((tag + next.cost(next.share) - flow.cost(flow.share)).max(time + 1))
            }
            Some(None) => Some(tag),
            None => None,
        });
    }

    /// Removes a waiter, and sets the first waiter and the tag of its flow. If that was the last waiter of the flow,
    /// and there is no tag, the flow is forgotten.
    fn remove(
        &mut self,
        rank: i64,
        name: u128,
        next: Option<Token>,
        tag: impl FnOnce(i64) -> Option<i64>,
    ) {
        let Some(line) = self.lines.get_mut(&(rank, name)) else {
            return;
        };
        line.waiters -= 1;
        self.longest.remove(&(rank, -line.waiters, -line.number));
        if line.waiters > 1 {
            self.longest.insert((rank, 1 - line.waiters, -line.number));
        }
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
            Some(tag) => drop(self.idle.insert((rank, tag, name))),
            None => drop(self.lines.remove(&(rank, name))),
        }
        self.pass(rank, self.served[rank as usize].unwrap_or(0));
    }

    /// Forgets the flows of a rank that have no waiters, and whose tag is below `time`.
    fn pass(&mut self, rank: i64, time: i64) {
        while let Some(&(of, tag, name)) = self.idle.range((rank, i64::MIN, 0)..).next()
            && of == rank
            && tag < time
        {
            self.idle.remove(&(of, tag, name));
            self.lines.remove(&(of, name));
        }
    }

    /// Returns the waiter with a flow that is served first in a rank.
    pub(super) fn first(&self, rank: i64) -> Option<&Token> {
        Some(&self.heads_of(rank).next()?.2)
    }

    /// Like [`first`](Self::first), if that waiter is served before the waiters without a flow.
    pub(super) fn first_of_all(&self, rank: i64) -> Option<&Token> {
        let (_, tag, token) = self.heads_of(rank).next()?;
        (*tag < self.others(rank)).then_some(token)
    }

    /// Returns whether a flow has waiters in a rank.
    pub(super) fn waits_for(&self, rank: i64, flow: Flow) -> bool {
        self.lines
            .get(&(rank, flow.name))
            .is_some_and(|line| line.waiters > 0)
    }

    /// Returns the number of waiters of the longest flow of a rank, and the number of that flow, if any flow has two
    /// waiters.
    pub(super) fn longest(&self, rank: i64) -> Option<(i64, i64)> {
        let (of, behind, number) = self.longest.range((rank, i64::MIN, i64::MIN)..).next()?;
        (*of == rank).then_some((1 - behind, -number))
    }

    /// Returns how many waiters of a rank are the first of their flows, and how many of these are served before
    /// `token`, if it is one of them.
    pub(super) fn place(&self, rank: i64, token: &Token) -> (usize, Option<usize>) {
        (
            self.counts[rank as usize] as usize,
            self.heads_of(rank).position(|(.., head)| head == token),
        )
    }

    fn heads_of(&self, rank: i64) -> impl Iterator<Item = &(i64, i64, Token)> {
        let before = |rank| (rank, i64::MIN, Token::Text(Arc::default()));
        self.heads.range(before(rank)..before(rank + 1))
    }

    /// Records that a rank got its first waiter.
    pub(super) fn starts(&mut self, rank: i64, now: i64) {
        self.since[rank as usize] = Some(now);
    }

    /// Records that a rank was served.
    pub(super) fn aged(&mut self, rank: i64, now: i64) {
        let since = &mut self.since[rank as usize];
        *since = since.map(|_| now);
    }

    /// Returns since when a rank has waited, if it is now served before lower ranks.
    pub(super) fn is_due(&self, rank: i64, aging: i64, now: i64) -> Option<i64> {
        // A time ahead of the clock is from before the clock was set back.
        self.since[rank as usize].filter(|since| *since > now || since.saturating_add(aging) <= now)
    }

    /// Records that a rank got its first waiter without a flow.
    pub(super) fn joins(&mut self, rank: i64, now: i64) {
        self.waits[rank as usize] = Some(now);
    }

    /// Returns since when a rank has waiters without a flow.
    pub(super) fn waits(&self, rank: i64) -> Option<i64> {
        self.waits[rank as usize]
    }

    /// Returns how far the tag of a flow is ahead of the virtual time.
    #[cfg(test)]
    pub(super) fn tag_ahead(&self, rank: i64, name: u128) -> i64 {
        let time = self.served[rank as usize].unwrap_or(0);
        self.lines
            .get(&(rank, name))
            .map_or(-2, |line| (line.tag - time).max(-2))
    }

    /// Returns how far the tag of the waiters without a flow is ahead of the virtual time.
    #[cfg(test)]
    pub(super) fn others_ahead(&self, rank: i64) -> i64 {
        self.others(rank) - self.served[rank as usize].unwrap_or(0)
    }

    /// Returns the number of known flows.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.lines.len()
    }
}

#[cfg(test)]
mod tests;
