//! The state of one key, and the steps on it: who holds, who waits, and how what is free is granted.
//!
//! This is the specification. The in-memory store runs it, the scripts in `lua/lease/` do the same on Redis (the agreement
//! tests compare them), and the model in `model/` checks it.

use std::collections::HashMap;
use std::sync::Arc;

use super::kind::Holders;
use super::outcome::Entered;
use super::queue::Queue;
use crate::store::{Cell, News, Push, id_of, ttl_of};

/// The state of one key.
#[derive(Clone, Debug)]
pub(crate) struct KeyState<H> {
    pub(super) holders: H,
    pub(super) queue: Queue,
    /// Tokens that were withdrawn, and until when that is remembered.
    pub(super) tombstones: HashMap<Arc<str>, i64>,
    /// Until when queue and tombstones are kept though nobody beats.
    pub(super) kept_until: i64,
    pub(super) pushes: Vec<Push>,
}

/// How to acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    /// µs.
    pub(crate) ttl: i64,
    /// A queue of so many takes no more; 0: do not wait.
    pub(crate) max_waiters: i64,
    /// Lower ones go first.
    pub(crate) rank: i64,
}

impl Terms {
    /// On which most acquire.
    pub(crate) fn usual(ttl: i64) -> Self {
        Self { ttl, max_waiters: u32::MAX.into(), rank: 0 }
    }
}

/// What a token has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Held {
        expiry: i64,
        fence: i64,
    },
    /// It waits: so many are before it, and then the next lease ends (0: unknown).
    Queued {
        soonest: i64,
        before: i64,
    },
    Refused {
        soonest: i64,
        before: i64,
    },
    /// It was withdrawn before it came.
    Withdrawn,
    /// By what came of the leases before, nothing is left to do.
    Done,
}

/// What a token was when it was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Was {
    Held,
    Waiting,
    Neither,
}

/// The spans that all steps on a key go by, µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    /// For how long a grant to a waiter stands, if its time to live is no shorter: by then it is to be renewed.
    pub(crate) grant: i64,
    /// For how long a waiter counts as alive after a heartbeat.
    pub(crate) alive: i64,
    /// For how long it is remembered that a token was withdrawn.
    pub(crate) tombstone: i64,
}

impl<H: Holders> KeyState<H> {
    pub(crate) fn holders(&mut self) -> &mut H {
        &mut self.holders
    }

    /// Takes a lease, or a place in the queue for one. `done`: whether nothing is left to do (`Some(false)`: only for those
    /// who would have to wait).
    pub(crate) fn acquire(
        &mut self,
        token: &Arc<str>,
        Terms { ttl, max_waiters, rank }: Terms,
        done: Option<bool>,
        now: i64,
        spans: Spans,
    ) -> Standing {
        self.sweep(now);
        if let Some((expiry, fence)) = self.holders.held(token, now) {
            return Standing::Held { expiry, fence };
        }
        if done == Some(true) {
            return Standing::Done;
        }
        if self.tombstones.get(token).is_some_and(|until| *until > now) {
            return Standing::Withdrawn;
        }
        let waited = self.queue.contains(token);
        self.grant(now, spans);
        if let (true, Some((expiry, fence))) = (waited, self.holders.held(token, now)) {
            return Standing::Held { expiry, fence };
        }
        if self.queue.contains(token) {
            return Standing::Queued {
                soonest: self.holders.soonest(now),
                before: self.queue.position(token),
            };
        }
        let mut before = self.queue.ahead(rank);
        if H::counted(&self.queue) > 0 && H::counted(&self.queue) >= max_waiters {
            self.queue.drop_dead(now);
            self.grant(now, spans);
            before = self.queue.ahead(rank);
        }
        if before == 0 && self.holders.fits(token) {
            let fence = self.holders.hold(token, now + ttl, now, &self.queue);
            return Standing::Held { expiry: now + ttl, fence };
        }
        if done.is_some() {
            return Standing::Done;
        }
        if H::counted(&self.queue) >= max_waiters {
            return Standing::Refused { soonest: self.holders.soonest(now), before };
        }
        // A tombstone that it had is out of date, also where the clock is set back.
        self.tombstones.remove(token);
        if self.queue.line_up(Arc::clone(token), rank, now + spans.alive) == 1 {
            self.keep(now, spans);
        }
        Standing::Queued { soonest: self.holders.soonest(now), before }
    }

    /// Gives back what a token holds, or its place. `withdrawn`: an acquire of the token that comes later is refused, also a
    /// second copy of one that has come.
    pub(crate) fn release(&mut self, token: &Arc<str>, withdrawn: bool, now: i64, spans: Spans) -> Was {
        self.sweep(now);
        let was = if self.holders.held(token, now).is_some() {
            self.holders.forget(token);
            Was::Held
        } else if self.queue.leave(token).is_some() {
            Was::Waiting
        } else {
            Was::Neither
        };
        if withdrawn {
            // One with the value of who held may wait.
            self.queue.leave(token);
            self.tombstones.retain(|_, until| *until > now);
            self.tombstones.insert(Arc::clone(token), now + spans.tombstone);
            self.keep(now, spans);
        }
        self.grant(now, spans);
        was
    }

    /// Gives a lease back after something was entered, and sends those who wait to ask anew. Whether it was held, or what
    /// keeps it from being entered.
    pub(crate) fn complete<F>(
        &mut self,
        token: &str,
        now: i64,
        enter: impl FnOnce(&mut H, bool) -> Result<Entered, F>,
    ) -> Result<bool, F> {
        self.sweep(now);
        let holding = self.holders.held(token, now).is_some();
        let entered = enter(&mut self.holders, holding)?;
        if holding {
            self.holders.forget(token);
        }
        match entered {
            Entered::Nothing => {}
            Entered::Something | Entered::Filled(_) => self.pushes.extend(self.queue.dismiss(None)),
            Entered::Told(told) => self.pushes.extend(self.queue.dismiss(Some(told))),
        }
        Ok(holding)
    }

    /// Makes a lease last for `ttl` from now on, if it ends earlier, and the next fence rise above `fence`. Until when it
    /// lasts; `None` where it is over: it never revives.
    pub(crate) fn renew(&mut self, token: &str, ttl: i64, fence: i64, now: i64) -> Option<i64> {
        self.sweep(now);
        let (expiry, _) = self.holders.held(token, now)?;
        self.holders.raise(fence);
        if expiry >= now + ttl {
            return Some(expiry);
        }
        self.holders.extend(token, now + ttl, now);
        Some(now + ttl)
    }

    /// Notes that waiters are alive. Returns when the next lease ends, and what each of them has come to.
    pub(crate) fn heartbeat(&mut self, tokens: &[Arc<str>], now: i64, spans: Spans) -> (i64, Vec<Standing>) {
        self.sweep(now);
        let evicted = self.queue.is_evicted();
        for token in tokens {
            if evicted && !self.queue.has_place(token) {
                // It is to ask anew.
                self.queue.leave(token);
            } else if self.queue.beat(token, now + spans.alive) {
                self.keep(now, spans);
            }
        }
        self.grant(now, spans);
        let standing = |token: &Arc<str>| match self.holders.held(token, now) {
            Some((expiry, fence)) => Standing::Held { expiry, fence },
            None if self.queue.contains(token) => Standing::Queued { soonest: 0, before: 0 },
            None => Standing::Refused { soonest: 0, before: 0 },
        };
        let standings = tokens.iter().map(standing).collect();
        (self.holders.soonest(now), standings)
    }

    /// Whether anybody stands in the queue.
    pub(crate) fn has_queue(&self) -> bool {
        self.queue.has_places()
    }

    /// How much is held, how many wait, and when the next lease ends.
    pub(crate) fn inspect(&mut self, now: i64) -> (i64, i64, i64) {
        self.sweep(now);
        (self.holders.used(), H::counted(&self.queue), self.holders.soonest(now))
    }

    /// Drops what has expired.
    fn sweep(&mut self, now: i64) {
        self.holders.sweep(now);
        if self.kept_until <= now {
            self.queue = Queue::default();
            self.tombstones.clear();
        }
    }

    /// Keeps the queue while anybody in it may be alive, and what was withdrawn.
    fn keep(&mut self, now: i64, spans: Spans) {
        self.kept_until = now + spans.tombstone;
    }

    /// Grants while the first in the queue fits. Whoever no longer beats has lost its place.
    fn grant(&mut self, now: i64, spans: Spans) {
        let mut turn = false;
        while !self.holders.is_full()
            && let Some(token) = self.holders.head(&self.queue, &mut turn)
        {
            let alive = self.queue.is_alive(&token, now);
            if alive && !self.holders.fits(&token) {
                return;
            }
            self.queue.leave(&token);
            if !alive {
                continue;
            }
            let expiry = now + ttl_of(&token).map_or(spans.grant, |ttl| ttl.min(spans.grant));
            let fence = self.holders.hold(&token, expiry, now, &self.queue);
            if let Some(id) = id_of(&token) {
                self.pushes.push(Push { ids: vec![id], news: News::Granted { expiry, fence } });
            }
        }
    }
}

impl<H: Holders> Default for KeyState<H> {
    fn default() -> Self {
        Self {
            holders: H::default(),
            queue: Queue::default(),
            tombstones: HashMap::new(),
            kept_until: 0,
            pushes: Vec::new(),
        }
    }
}

impl<H: Holders> Cell for KeyState<H> {
    fn is_idle(&self, now: i64) -> bool {
        let forgotten = self.tombstones.values().all(|until| *until <= now);
        forgotten && self.queue.is_empty() && self.holders.is_idle(now)
    }

    fn pushes(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.pushes)
    }
}
