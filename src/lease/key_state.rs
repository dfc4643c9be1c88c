//! The state of one key (its holders and waiters), and the operations on it, including how free leases are granted.
//!
//! This is the specification. The in-memory store runs this code. The library in `lua/` does the same on Redis,
//! and the agreement tests compare the two. The model in `model/` checks this code.

use hashbrown::HashMap;

use crate::lease::kind::{At, Completing, Entered, Holders};
use crate::lease::order::Order;
use crate::lease::queue::{BEHIND, Queue};
use crate::lease::settings::{CallerSettings, KeyLimit, Settings};
use crate::lease::token::Token;
use crate::store::notifier::{Push, PushKind, Refusal};
use crate::store::operation::Cell;

/// The state of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyState<H> {
    pub(crate) holders: H,
    pub(super) queue: Queue,
    /// Tombstones: each withdrawn token, and the time until which its tombstone is kept, µs.
    pub(super) tombstones: HashMap<Token, i64>,
    /// The time until which the queue and the tombstones are kept if no waiter sends a heartbeat, µs.
    pub(super) kept_until: i64,
    pub(super) pushes: Vec<Push>,
}

/// The options of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AcquireTerms {
    /// The time to live, µs.
    pub(crate) ttl: i64,
    /// An acquire is refused if this many waiters are in the queue. 0: do not wait.
    pub(crate) max_waiters: i64,
    /// Waiters of lower ranks are served first.
    pub(crate) rank: i64,
    /// Whether the reply has the place in the order in which waiters are served. Otherwise it has the place in the
    /// order of arrival.
    pub(crate) placed: bool,
}

impl AcquireTerms {
    /// A number that is unique to these terms.
    pub(super) fn number(self) -> u128 {
        let [ttl, _, waiting] = self.written();
        u128::from(ttl.unsigned_abs()) << 48 | u128::from(waiting.unsigned_abs())
    }

    /// The arguments for `lua/leases.lua`.
    pub(super) fn written(self) -> [i64; 3] {
        let rank = self.rank + if self.placed { 16 } else { 0 };
        [
            self.ttl,
            (self.ttl + 999) / 1000,
            32 * self.max_waiters + rank,
        ]
    }

    /// The terms that most acquires use.
    pub(crate) fn usual(ttl: i64) -> Self {
        Self {
            ttl,
            max_waiters: u32::MAX.into(),
            rank: 0,
            placed: false,
        }
    }
}

/// The state of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The token holds a lease until `expiry`.
    Held { expiry: i64, fence: i64 },
    /// The token waits. `before` waiters are ahead of it, and the next lease ends at `soonest` (0: unknown).
    Queued { soonest: i64, before: i64 },
    /// The token neither holds nor waits.
    Refused { soonest: i64, before: i64 },
    /// The token was withdrawn before this acquire.
    Withdrawn,
    /// An earlier lease has an outcome, so there is nothing to do.
    Done,
}

/// The state of a token before its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenState {
    Held,
    Waiting,
    Neither,
}

/// A holder: its token, the end of its lease (µs), and its fence.
pub(crate) type Held = (Token, i64, i64);

/// The time spans of all operations on a key, µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    /// How long a grant to a waiter lasts, or its ttl if that is shorter. The waiter must renew it within that time.
    pub(crate) grant: i64,
    /// How long a waiter counts as alive after a heartbeat.
    pub(crate) alive: i64,
    /// How long a tombstone is kept.
    pub(crate) tombstone: i64,
}

impl<H: Holders> KeyState<H> {
    /// Returns whether there is a holder or a waiter.
    pub(crate) fn is_in_use(&self, now: i64) -> bool {
        let mut state = self.clone();
        state.sweep(now);
        state.holders.used() > 0 || state.queue.has_places()
    }

    /// Acquires a lease, or a place in the queue. `told`: the settings that the caller sends. `done`: whether an
    /// outcome makes the acquire unnecessary. `Some(true)`: for any caller; `Some(false)`: for callers that would have
    /// to wait; `None`: for no caller.
    pub(crate) fn acquire(
        &mut self,
        token: &Token,
        terms: AcquireTerms,
        told: Option<&CallerSettings>,
        done: Option<bool>,
        now: i64,
        spans: Spans,
    ) -> Position {
        self.sweep(now);
        if let Some((expiry, fence)) = self.holders.held(token, now) {
            return Position::Held { expiry, fence };
        }
        if done == Some(true) {
            return Position::Done;
        }
        let settings = self.settings_for(told, now);
        if self.tombstones.get(token).is_some_and(|until| *until > now) {
            return Position::Withdrawn;
        }
        if let Some(position) = self.position_of_waiter(token, now, spans) {
            return position;
        }
        let rank = terms.rank;
        let length = H::counted(&self.queue, rank);
        if length > 0 && length >= terms.max_waiters {
            self.queue.drop_dead(now);
            self.grant(now, spans);
        }
        let mut before = self.queue.ahead(rank);
        let of = At {
            rank,
            settings: &settings,
            now,
        };
        if before == 0
            && let Some(held) = self.hold_at_once(token, terms, of)
        {
            return held;
        }
        if done.is_some() {
            return Position::Done;
        }
        if H::is_closed(token, of) {
            return Position::Refused { soonest: 0, before };
        }
        let order = H::ORDERED.then(|| H::order(token));
        if H::counted(&self.queue, rank) >= terms.max_waiters {
            if !self.make_room(terms, order) {
                return Position::Refused {
                    soonest: self.holders.soonest(now),
                    before,
                };
            }
            before -= 1;
        }
        self.replace_old_settings(told, now);
        self.wait(token, terms, order, before, now, spans)
    }

    /// Gives a lease to a token at once, if there is room for it and no waiter of a higher rank has waited for too long.
    fn hold_at_once(&mut self, token: &Token, terms: AcquireTerms, of: At<'_>) -> Option<Position> {
        if self.queue.due(of.rank, of.now).is_some() {
            return None;
        }
        let expiry = of.now + terms.ttl;
        if !self.holders.fits(token, of) {
            return None;
        }
        let fence = self.holders.hold(token, expiry, of.now, &self.queue);
        Some(Position::Held { expiry, fence })
    }

    /// Grants what is free to the waiters. Returns the position of a token that waits, if it still has a place: a waiter
    /// without a place, after an eviction, joins the queue again.
    fn position_of_waiter(&mut self, token: &Token, now: i64, spans: Spans) -> Option<Position> {
        let waited = self.queue.contains(token);
        self.grant(now, spans);
        if !waited {
            return None;
        }
        if let Some((expiry, fence)) = self.holders.held(token, now) {
            return Some(Position::Held { expiry, fence });
        }
        self.queue.has_place(token).then(|| Position::Queued {
            soonest: self.holders.soonest(now),
            before: self.queue.position(token),
        })
    }

    /// Stores the settings of a caller if there are waiters. Returns the settings for its acquire: the defaults if
    /// there are no waiters, since then the token's own settings apply.
    fn settings_for(&mut self, told: Option<&CallerSettings>, now: i64) -> Settings {
        if let Some(told) = told
            && self.queue.has_places()
        {
            self.queue.settings.take_over(told, now);
            return self.queue.settings.clone();
        }
        Settings::default()
    }

    /// Replaces the settings of an earlier queue by those of the first waiter.
    fn replace_old_settings(&mut self, told: Option<&CallerSettings>, now: i64) {
        if self.queue.has_places() {
            return;
        }
        self.queue.settings = Settings::default();
        if let Some(told) = told {
            self.queue.settings.take_over(told, now);
        }
    }

    /// Makes room for a token whose flow has no waiter: refuses the last waiter of the flow with the most waiters.
    /// Returns whether there was such a waiter.
    fn make_room(&mut self, terms: AcquireTerms, order: Option<Order>) -> bool {
        let last = order
            .filter(|_| terms.max_waiters > 0)
            .and_then(|order| self.queue.longest(terms.rank, &order));
        if let Some(last) = &last {
            self.refuse(last, Refusal::QueueFull);
        }
        last.is_some()
    }

    /// Adds a token to the queue. `before`: the number of waiters ahead of it in the order of arrival.
    fn wait(
        &mut self,
        token: &Token,
        terms: AcquireTerms,
        order: Option<Order>,
        before: i64,
        now: i64,
        spans: Spans,
    ) -> Position {
        let rank = terms.rank;
        // An old tombstone is out of date, even if the clock was set back.
        self.tombstones.remove(token);
        let (is_new, place) =
            self.queue
                .line_up(token.clone(), (rank, order), now + spans.alive, now);
        // Waiters may leave before their first heartbeat. So a queue that is never empty is kept for longer by this,
        // once half of its time is over: half of its time is longer than a waiter counts as alive.
        if is_new || (self.kept_until - now) / 1000 < spans.tombstone / 2000 {
            self.keep(now, spans);
        }
        let soonest = self.holders.soonest(now);
        // The waiter may come before one of another flow or of a lower class that does not fit.
        if H::ORDERED && self.fits(token, rank, now) {
            self.grant(now, spans);
            if let Some((expiry, fence)) = self.holders.held(token, now) {
                return Position::Held { expiry, fence };
            }
        }
        Position::Queued {
            soonest,
            before: place.filter(|_| terms.placed).unwrap_or(before),
        }
    }

    /// Returns whether a waiter can become a holder.
    fn fits(&self, token: &Token, rank: i64, now: i64) -> bool {
        self.holders.fits(
            token,
            At {
                rank,
                settings: &self.queue.settings,
                now,
            },
        )
    }

    /// Removes a waiter, and sends it a refusal.
    fn refuse(&mut self, token: &Token, why: Refusal) {
        self.queue.leave(token);
        if let Some((_, id)) = token.waiter() {
            self.pushes.push(Push {
                ids: vec![id],
                news: PushKind::Refused(why),
            });
        }
    }

    /// Releases the lease of a token, or its place in the queue. `withdrawn`: an acquire of the token that runs later
    /// is refused, even if it is a second copy of one that ran.
    pub(crate) fn release(
        &mut self,
        token: &Token,
        withdrawn: bool,
        now: i64,
        spans: Spans,
    ) -> TokenState {
        self.sweep(now);
        let was = if self.holders.forget(token) {
            TokenState::Held
        } else if self.queue.leave(token).is_some() {
            TokenState::Waiting
        } else {
            TokenState::Neither
        };
        if withdrawn {
            // A waiter may have the same user value as the holder.
            self.queue.leave(token);
            self.tombstones.retain(|_, until| *until > now);
            self.queue.forget_lapsed(spans.alive, now);
            self.tombstones.insert(token.clone(), now + spans.tombstone);
            self.keep(now, spans);
        }
        self.grant(now, spans);
        was
    }

    /// Stores an outcome, releases the lease, and makes the waiters acquire again. Returns whether the lease was still
    /// held, and how full the filter is now; or why the outcome was not stored, in which case nothing changes.
    pub(crate) fn complete<F>(
        &mut self,
        token: &Token,
        now: i64,
        enter: impl FnOnce(&mut H, Completing) -> Result<Entered, F>,
    ) -> Result<(bool, u64), F> {
        self.sweep(now);
        let is_held = self.holders.held(token, now).is_some();
        let has_waiters = self.queue.has_places();
        let entered = enter(
            &mut self.holders,
            Completing {
                is_held,
                has_waiters,
            },
        )?;
        if is_held {
            self.holders.forget(token);
        }
        let (told, level) = match entered {
            Entered::Nothing => return Ok((is_held, 0)),
            Entered::Something => (None, 0),
            Entered::Filled(level) => (None, level),
            Entered::Message(told) => (Some(told), 0),
        };
        self.pushes.extend(self.queue.dismiss(told));
        Ok((is_held, level))
    }

    /// Renews a lease to at least `ttl` from now, and makes the next fence higher than `fence`. Returns its expiry.
    /// Returns `None` if the lease has ended: it never revives.
    pub(crate) fn renew(&mut self, token: &Token, ttl: i64, fence: i64, now: i64) -> Option<i64> {
        // Expired grants concern only the waiters, which a renewal does not read.
        self.drop_expired(now);
        let (expiry, _) = self.holders.held(token, now)?;
        self.holders.raise(fence, now);
        if expiry >= now + ttl {
            self.holders.confirm(token);
            return Some(expiry);
        }
        self.holders.extend(token, now + ttl, now);
        Some(now + ttl)
    }

    /// Marks waiters as alive. `limit`: the limit that their process knows. Returns when the next lease ends, and the
    /// state of each token.
    pub(crate) fn heartbeat(
        &mut self,
        tokens: &[Token],
        limit: Option<KeyLimit>,
        now: i64,
        spans: Spans,
    ) -> (i64, Vec<Position>) {
        self.sweep(now);
        let evicted = self.queue.is_evicted();
        for token in tokens {
            if evicted && !self.queue.has_place(token) {
                // The waiter must acquire again.
                self.queue.leave(token);
            } else if self.queue.heartbeat(token, now + spans.alive) {
                self.keep(now, spans);
            }
        }
        for token in tokens {
            if let Some(rank) = self.queue.take_back(token) {
                let order = H::ORDERED.then(|| H::order(token));
                self.queue
                    .line_up(token.clone(), (rank, order), now + spans.alive, now);
            }
        }
        self.queue.drop_behind(spans.alive, now);
        if self.queue.has_places() {
            self.queue.settings.hear(limit, now);
        }
        self.grant(now, spans);
        let standing = |token: &Token| match self.holders.held(token, now) {
            Some((expiry, fence)) => Position::Held { expiry, fence },
            None if self.queue.contains(token) => Position::Queued {
                soonest: 0,
                before: 0,
            },
            None => Position::Refused {
                soonest: 0,
                before: 0,
            },
        };
        let standings = tokens.iter().map(standing).collect();
        (self.holders.soonest(now), standings)
    }

    /// Returns the sum of the held weights, the number of waiters, and the holders, ordered by the end of their leases.
    /// Changes nothing.
    pub(crate) fn look(&self, now: i64) -> (i64, i64, Vec<Held>) {
        let mut state = self.clone();
        state.sweep(now);
        let held = |token: Token| {
            let (expiry, fence) = state.holders.held(&token, now)?;
            Some((token, expiry, fence))
        };
        let mut holders: Vec<_> = state
            .holders
            .tokens()
            .into_iter()
            .filter_map(held)
            .collect();
        holders.sort_by_cached_key(|(token, expiry, _)| {
            (*expiry, state.holders.is_granted(token), token.clone())
        });
        (
            state.holders.used(),
            H::counted(&state.queue, i64::MAX),
            holders,
        )
    }

    /// Drops expired holders, and the queue and the tombstones once they have expired.
    pub(super) fn sweep(&mut self, now: i64) {
        self.drop_expired(now);
        for (token, expiry) in self.holders.lapsed() {
            if let Some((process, _)) = token.waiter() {
                self.queue.lapse(process, expiry);
            }
        }
    }

    fn drop_expired(&mut self, now: i64) {
        self.holders.sweep(now);
        if self.kept_until <= now && self.kept_until > 0 {
            self.queue = Queue::default();
            self.tombstones.clear();
            self.kept_until = 0;
        }
    }

    /// Extends how long the queue and the tombstones are kept.
    fn keep(&mut self, now: i64, spans: Spans) {
        self.kept_until = now + spans.tombstone;
    }

    /// Grants leases while the first waiter in the queue fits. A waiter that stopped sending heartbeats loses its place
    /// when it reaches the front. A waiter whose process let a grant expire since the waiter's last heartbeat is put
    /// behind all others until its next heartbeat. If the limit is 0, waiters are refused.
    pub(super) fn grant(&mut self, now: i64, spans: Spans) {
        if self.queue.has_places() && self.serve(now, spans) {
            self.keep(now, spans);
            self.queue.drop_behind(spans.alive, now);
        }
    }

    /// Grants leases. Returns whether it put any waiter behind all others.
    fn serve(&mut self, now: i64, spans: Spans) -> bool {
        let mut have_lapsed = false;
        let mut turn = false;
        while !self.holders.is_full()
            && let Some(token) = self.holders.head(&mut self.queue, &mut turn, now)
        {
            let rank = self.queue.rank_of(&token).unwrap_or(0);
            if !self.queue.is_alive(&token, now) {
                self.queue.leave(&token);
                continue;
            }
            if rank == BEHIND {
                break;
            }
            if self.queue.has_lapsed(&token, spans.alive, now) {
                self.queue.put_behind(&token, now);
                have_lapsed = true;
                continue;
            }
            if H::is_closed(
                &token,
                At {
                    rank,
                    settings: &self.queue.settings,
                    now,
                },
            ) {
                self.refuse(&token, Refusal::Closed);
                continue;
            }
            if !self.fits(&token, rank, now) {
                break;
            }
            self.queue.serve(&token, H::weight(&token), now);
            let expiry = now + token.ttl().map_or(spans.grant, |ttl| ttl.min(spans.grant));
            let fence = self.holders.hold(&token, expiry, now, &self.queue);
            self.holders.granted(&token);
            if let Some((_, id)) = token.waiter() {
                self.pushes.push(Push {
                    ids: vec![id],
                    news: PushKind::Granted { expiry, fence },
                });
            }
        }
        have_lapsed
    }
}

impl<H: Holders> Cell for KeyState<H> {
    fn is_idle(&self, now: i64) -> bool {
        let forgotten = self.tombstones.values().all(|until| *until <= now);
        forgotten && self.queue.is_empty() && self.holders.is_idle(now)
    }

    fn clear(&mut self) {
        self.holders.clear();
        if self.kept_until > 0 {
            *self = Self {
                holders: std::mem::take(&mut self.holders),
                ..Self::default()
            };
        }
    }

    fn heap_bytes(&self) -> usize {
        let tombstones = self.tombstones.capacity() * size_of::<(Token, i64)>();
        self.holders.heap_bytes() + self.queue.heap_bytes() + tombstones
    }

    fn pushes(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.pushes)
    }
}

#[cfg(test)]
mod tests;
