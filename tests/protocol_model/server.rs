//! The key on the server, and the scripts.
//!
//! Times are kept as what is left of them, and a tick takes away what has expired, so no script has to begin
//! with that. A tick grants nothing, though: only a script does.

use crate::rules::{Flaw, ROOM, Rules};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) tokens: [Token; ROOM],
    /// How far the last fence is ahead of the clock; −1: behind it.
    fence: i8,
    fence_fell: bool,
    overtaken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Token {
    pub(crate) weight: u8,
    pub(crate) place: Place,
    /// No acquire may bring it back.
    tombstone: bool,
    /// A release of it was executed, so it should have a tombstone.
    pub(crate) released: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Place {
    Nowhere,
    /// In the queue, where so many others have lower tickets.
    Waiting {
        before: u8,
        alive: u8,
    },
    Held {
        left: u8,
    },
}

/// What a script answers about a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Held {
        left: u8,
    },
    Queued,
    /// Withdrawn, dropped, or not held any more.
    Gone,
}

/// The tokens to which a script granted something.
pub(crate) type Granted = [bool; ROOM];

const NOBODY: Granted = [false; ROOM];

impl Key {
    pub(crate) fn new(rules: &Rules) -> Self {
        let token = |weight| Token { weight, place: Place::Nowhere, tombstone: false, released: false };
        Self { tokens: rules.weights.map(token), fence: -1, fence_fell: false, overtaken: false }
    }

    pub(crate) fn with(self, tokens: [Token; ROOM]) -> Self {
        Self { tokens, ..self }
    }

    /// The same call twice gives the same answer, to a holder and to a waiter.
    pub(crate) fn acquire(&mut self, rules: &Rules, token: usize) -> (Verdict, Granted) {
        if self.tokens[token].tombstone {
            return (Verdict::Gone, NOBODY);
        }
        let granted = self.grant(rules);
        if self.tokens[token].place == Place::Nowhere {
            if self.waiting() == 0 && self.fits(rules, token) {
                self.hold(rules, token, rules.times.lease);
            } else {
                self.tokens[token].place = Place::Waiting { before: self.waiting(), alive: rules.times.life };
            }
        }
        (self.verdict(token), granted)
    }

    pub(crate) fn release(&mut self, rules: &Rules, token: usize) -> Granted {
        self.tokens[token].tombstone |= match rules.flaw {
            Flaw::NoTombstone => false,
            Flaw::TombstoneOnlyForUnknown => self.tokens[token].place == Place::Nowhere,
            _ => true,
        };
        self.tokens[token].released = true;
        self.forget(token);
        self.grant(rules)
    }

    /// Never revives.
    pub(crate) fn renew(&mut self, rules: &Rules, token: usize) -> (Verdict, Granted) {
        if let Place::Held { left } = &mut self.tokens[token].place {
            *left = rules.times.lease;
        }
        (self.verdict(token), self.grant(rules))
    }

    /// A waiter that was granted something meanwhile, or is by this, gets the full lease.
    pub(crate) fn beat(&mut self, rules: &Rules, token: usize) -> (Verdict, Granted) {
        if let Place::Waiting { alive, .. } = &mut self.tokens[token].place {
            *alive = rules.times.life;
        }
        let granted = if rules.flaw == Flaw::BeatGrantsNothing { NOBODY } else { self.grant(rules) };
        if let Place::Held { left } = &mut self.tokens[token].place {
            *left = rules.times.lease;
        }
        (self.verdict(token), granted)
    }

    pub(crate) fn tick(&mut self) {
        self.fence = (self.fence - 1).max(-1);
        for token in 0..ROOM {
            if let Place::Held { left: rest } | Place::Waiting { alive: rest, .. } =
                &mut self.tokens[token].place
            {
                *rest -= 1;
                if *rest == 0 {
                    self.forget(token);
                }
            }
        }
    }

    /// Grants while the first in the queue fits.
    fn grant(&mut self, rules: &Rules) -> Granted {
        let mut granted = NOBODY;
        while let Some(next) = self.next(rules) {
            self.hold(rules, next, rules.times.claim);
            granted[next] = true;
        }
        granted
    }

    /// Who in the queue is served next, if there is room.
    fn next(&self, rules: &Rules) -> Option<usize> {
        let served = |token: &usize| {
            let before = self.before(*token);
            let turn = before == 0 || (rules.flaw == Flaw::SmallGoesFirst && before != u8::MAX);
            turn && self.fits(rules, *token)
        };
        (0..ROOM).find(served)
    }

    fn hold(&mut self, rules: &Rules, token: usize, left: u8) {
        let fence = if rules.flaw == Flaw::FenceIsTheClock { 0 } else { (self.fence + 1).max(0) };
        self.fence_fell |= fence <= self.fence;
        self.fence = fence;
        self.overtaken |= (0..ROOM).any(|other| self.before(other) < self.before(token));
        self.forget(token);
        self.tokens[token].place = Place::Held { left };
    }

    /// Takes a token away; those behind it move up.
    fn forget(&mut self, token: usize) {
        let gap = self.before(token);
        self.tokens[token].place = Place::Nowhere;
        for token in &mut self.tokens {
            if let Place::Waiting { before, .. } = &mut token.place {
                *before -= u8::from(*before > gap);
            }
        }
    }

    /// How many go before a token. Who does not wait comes after all who do.
    fn before(&self, token: usize) -> u8 {
        if let Place::Waiting { before, .. } = self.tokens[token].place { before } else { u8::MAX }
    }

    fn fits(&self, rules: &Rules, token: usize) -> bool {
        self.held() + self.tokens[token].weight <= rules.capacity
    }

    fn verdict(&self, token: usize) -> Verdict {
        match self.tokens[token].place {
            Place::Held { left } => Verdict::Held { left },
            Place::Waiting { .. } => Verdict::Queued,
            Place::Nowhere => Verdict::Gone,
        }
    }
}

/// What the properties look at.
impl Key {
    /// The weight of all holders.
    pub(crate) fn held(&self) -> u8 {
        let holders = self.tokens.iter().filter(|token| matches!(token.place, Place::Held { .. }));
        holders.map(|token| token.weight).sum()
    }

    pub(crate) fn waiting(&self) -> u8 {
        self.tokens.iter().map(|token| u8::from(matches!(token.place, Place::Waiting { .. }))).sum()
    }

    /// Whether a grant's fence was ever not above that of the grant before.
    pub(crate) fn fence_fell(&self) -> bool {
        self.fence_fell
    }

    /// Whether anybody was ever served while one with a lower ticket waited.
    pub(crate) fn overtaken(&self) -> bool {
        self.overtaken
    }
}
