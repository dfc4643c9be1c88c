//! The state of one key in process: who holds, who waits, and how what is free is granted. The twin of the scripts
//! in `lua/lease/`.

use std::collections::HashMap;
use std::sync::Arc;

use super::kind::Holders;
use super::operations::Take;
use super::queue::Queue;
use super::record::Entered;
use crate::store::{Cell, Push, number_of, span_of};

/// The state of one key.
#[derive(Clone, Debug)]
pub(crate) struct Room<H> {
    holders: H,
    queue: Queue,
    /// Withdrawn tokens, and until when that is remembered.
    gone: HashMap<Arc<str>, i64>,
    /// Until when queue and withdrawals are kept though nobody beats.
    kept_until: i64,
    pushes: Vec<Push>,
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
    /// By what is on record, nothing is left to do.
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
    /// For how long a grant stands until its waiter confirms it.
    pub(crate) claim: i64,
    /// For how long a waiter counts as alive after a beat.
    pub(crate) life: i64,
    /// For how long it is remembered that a token was withdrawn.
    pub(crate) mourning: i64,
}

impl<H: Holders> Room<H> {
    pub(crate) fn holders(&mut self) -> &mut H {
        &mut self.holders
    }

    pub(crate) fn take(
        &mut self,
        token: &Arc<str>,
        Take { ttl, most, rank }: Take,
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
        if self.gone.get(token).is_some_and(|until| *until > now) {
            return Standing::Withdrawn;
        }
        let waited = self.queue.contains(token);
        self.grant(now, spans, None);
        if let (true, Some((expiry, fence))) = (waited, self.holders.held(token, now)) {
            return Standing::Held { expiry, fence };
        }
        let soonest = |room: &Self| room.holders.soonest(now);
        if self.queue.contains(token) {
            return Standing::Queued { soonest: soonest(self), before: self.queue.position(token) };
        }
        let mut before = self.queue.ahead(rank);
        if H::counted(&self.queue) > 0 && H::counted(&self.queue) >= most {
            self.queue.drop_dead(now);
            self.grant(now, spans, None);
            before = self.queue.ahead(rank);
        }
        if before == 0 && self.holders.fits(token) {
            let fence = self.holders.hold(token, now + ttl, now, &self.queue);
            return Standing::Held { expiry: now + ttl, fence };
        }
        if done.is_some() {
            return Standing::Done;
        }
        if H::counted(&self.queue) >= most {
            return Standing::Refused { soonest: soonest(self), before };
        }
        if self.queue.line_up(Arc::clone(token), rank, now + spans.life) == 1 {
            self.keep(now, spans);
        }
        Standing::Queued { soonest: soonest(self), before }
    }

    pub(crate) fn give(&mut self, token: &Arc<str>, withdrawn: bool, now: i64, spans: Spans) -> Was {
        self.sweep(now);
        let was = if self.holders.held(token, now).is_some() {
            self.holders.forget(token);
            Was::Held
        } else if self.queue.leave(token).is_some() {
            Was::Waiting
        } else {
            Was::Neither
        };
        if was == Was::Neither && withdrawn {
            self.gone.retain(|_, until| *until > now);
            self.gone.insert(Arc::clone(token), now + spans.mourning);
            self.keep(now, spans);
        }
        self.grant(now, spans, None);
        was
    }

    /// Gives a lease back after something was entered, and sends those who wait to ask anew. Whether it was held, or what
    /// keeps it from being entered.
    pub(crate) fn settle<F>(
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
            Entered::Something => self.pushes.extend(self.queue.dismiss(None)),
            Entered::Told(told) => self.pushes.extend(self.queue.dismiss(Some(told))),
        }
        Ok(holding)
    }

    pub(crate) fn renew(&mut self, token: &str, ttl: i64, now: i64) -> Option<i64> {
        self.sweep(now);
        self.prolong(token, ttl, now).map(|(expiry, _)| expiry)
    }

    /// Makes a lease last for `ttl` from now on, if it ends earlier; until when it lasts, and its fence.
    fn prolong(&mut self, token: &str, ttl: i64, now: i64) -> Option<(i64, i64)> {
        let (expiry, fence) = self.holders.held(token, now)?;
        if expiry >= now + ttl {
            return Some((expiry, fence));
        }
        self.holders.extend(token, now + ttl, now);
        Some((now + ttl, fence))
    }

    /// Returns when the next lease ends, and what each token has come to.
    pub(crate) fn beat(
        &mut self,
        tokens: &[Arc<str>],
        ttl: i64,
        now: i64,
        spans: Spans,
    ) -> (i64, Vec<Standing>) {
        self.sweep(now);
        for token in tokens {
            if self.queue.beat(token, now + spans.life) {
                self.keep(now, spans);
            }
        }
        let mut asking: HashMap<_, _> = tokens
            .iter()
            .filter(|token| self.queue.contains(token))
            .map(|token| (Arc::clone(token), Standing::Queued { soonest: 0, before: 0 }))
            .collect();
        self.grant(now, spans, Some((&mut asking, ttl)));
        let standing = |token: &Arc<str>| match asking.get(token) {
            Some(standing) => *standing,
            None => match self.prolong(token, ttl, now) {
                Some((expiry, fence)) => Standing::Held { expiry, fence },
                None => Standing::Refused { soonest: 0, before: 0 },
            },
        };
        let standings = tokens.iter().map(standing).collect();
        (self.holders.soonest(now), standings)
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
            self.gone.clear();
        }
    }

    /// Keeps the queue while anybody in it may be alive, and what was withdrawn.
    fn keep(&mut self, now: i64, spans: Spans) {
        self.kept_until = now + spans.mourning;
    }

    /// Grants while the first in the queue fits. Those among `asking` get a full lease and hear of it there.
    fn grant(&mut self, now: i64, spans: Spans, mut asking: Option<(&mut HashMap<Arc<str>, Standing>, i64)>) {
        let mut turn = false;
        while !self.holders.is_full()
            && let Some(token) = self.holders.head(&self.queue, &mut turn)
        {
            let asks = asking.as_ref().is_some_and(|(asking, _)| asking.contains_key(&token));
            let alive = asks || self.queue.is_alive(&token, now);
            if alive && !self.holders.fits(&token) {
                return;
            }
            self.queue.leave(&token);
            let asks = asking.as_mut().and_then(|(asking, ttl)| Some((asking.get_mut(&token)?, *ttl)));
            if asks.is_none() && !alive {
                continue;
            }
            let stands = || span_of(&token).map_or(spans.claim, |span| span.min(spans.claim));
            let expiry = now + asks.as_ref().map_or_else(stands, |(_, ttl)| *ttl);
            let fence = self.holders.hold(&token, expiry, now, &self.queue);
            match asks {
                Some((standing, _)) => *standing = Standing::Held { expiry, fence },
                None => {
                    let followers = self.holders.follow(&token, &mut self.queue);
                    let followers = followers.iter().filter_map(|token| number_of(token)).collect();
                    let push =
                        number_of(&token).map(|number| Push { number, expiry, fence, followers, told: None });
                    self.pushes.extend(push);
                }
            }
        }
    }
}

impl<H: Holders> Default for Room<H> {
    fn default() -> Self {
        Self {
            holders: H::default(),
            queue: Queue::default(),
            gone: HashMap::new(),
            kept_until: 0,
            pushes: Vec::new(),
        }
    }
}

impl<H: Holders> Cell for Room<H> {
    fn is_idle(&self, now: i64) -> bool {
        let forgotten = self.gone.values().all(|until| *until <= now);
        forgotten && self.queue.is_empty() && self.holders.is_idle(now)
    }

    fn pushes(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.pushes)
    }
}
