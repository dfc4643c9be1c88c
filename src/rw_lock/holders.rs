//! The readers or the writer of a lock in the in-memory store. It does the same as `lua/rw_lock.lua`.

use crate::lease::holders::Ends;
use crate::lease::kind::{At, Holders, Kind};
use crate::lease::queue::Queue;
use crate::lease::token::{Ending, Token};

/// The kind of lease that is held by readers of one group, or by one writer.
#[derive(Clone, Debug)]
pub(crate) enum ReadWrite {}

impl Kind for ReadWrite {
    type Holders = RwHolders;
    type Outcome = ();
    const PARTS: &'static [&'static str] = &["rw:holders", "rw:fence", "rw:waiters", "rw:beats"];
    const NAME: &'static str = "rw_lock";
    const PIECES: &'static [&'static str] = &["rw_lock"];

    fn is_exclusive(token: &Token) -> bool {
        writes(token).is_some()
    }
}

/// How many writers in a row may pass waiting readers. `None` if the token belongs to a reader.
fn writes(token: &Token) -> Option<i64> {
    match token.ending() {
        Ok(Ending::Writer { row }) => Some(row.into()),
        Ok(_) => None,
        Err(ending) => ending.strip_prefix('w')?.parse().ok(),
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RwHolders {
    ends: Ends,
    fence: i64,
    /// Until when the fence and `row` are kept, µs.
    fence_until: i64,
    /// How many writers in a row have passed waiting readers.
    pub(crate) row: i64,
}

impl Holders for RwHolders {
    fn heap_bytes(&self) -> usize {
        self.ends.heap_bytes()
    }

    fn sweep(&mut self, now: i64) {
        self.ends.sweep(now);
        if self.fence_until <= now {
            self.fence = 0;
            self.row = 0;
        }
    }

    fn used(&self) -> i64 {
        self.ends.used()
    }

    fn tokens(&self) -> Vec<Token> {
        self.ends.tokens()
    }

    fn held(&self, token: &Token, _: i64) -> Option<(i64, i64)> {
        Some((self.ends.get(token)?, self.fence))
    }

    fn fits(&self, token: &Token, _: At<'_>) -> bool {
        let holder = self.ends.any();
        holder.is_none_or(|holder| writes(token).is_none() && holder.ending() == token.ending())
    }

    fn hold(&mut self, token: &Token, expiry: i64, now: i64, queue: &Queue) -> i64 {
        self.ends.insert(token, expiry, 1);
        let writes = writes(token).is_some();
        if writes || self.row > 0 {
            self.fence_until = token.kept_until(expiry, now);
        }
        if !writes {
            self.row = 0;
            return self.fence;
        }
        self.fence = now.max(self.fence + 1);
        self.row = if queue.first_of(1).is_some() {
            self.row + 1
        } else {
            0
        };
        self.fence
    }

    fn granted(&mut self, token: &Token) {
        self.ends.granted(token);
    }

    fn is_granted(&self, token: &Token) -> bool {
        self.ends.is_granted(token)
    }

    fn confirm(&mut self, token: &Token) {
        self.ends.confirm(token);
    }

    fn lapsed(&mut self) -> Vec<(Token, i64)> {
        self.ends.lapsed()
    }

    fn extend(&mut self, token: &Token, expiry: i64, now: i64) {
        if writes(token).is_some() {
            self.fence_until = token.kept_until(expiry, now);
        }
        self.ends.extend(token, expiry);
    }

    fn forget(&mut self, token: &Token) -> bool {
        self.ends.remove(token)
    }

    fn soonest(&mut self, now: i64) -> i64 {
        self.ends.soonest(now)
    }

    fn head(&self, queue: &mut Queue, turn: &mut bool, now: i64) -> Option<Token> {
        let (Some(first), Some(second)) = (queue.first_of(0), queue.first_of(1)) else {
            return queue.first(now);
        };
        let Some(most) = writes(first) else {
            return Some(first.clone());
        };
        *turn |= self.row >= most;
        Some(if *turn { second } else { first }.clone())
    }

    #[cfg(test)]
    fn fence_until(&self) -> i64 {
        if self.fence > 0 { self.fence_until } else { 0 }
    }

    fn is_idle(&self, now: i64) -> bool {
        // Without waiters, `row` has no effect: the next holder resets it. Readers read the fence for as long as
        // Redis keeps it.
        (self.fence == 0 || self.fence_until <= now) && self.ends.have_ended(now)
    }
}
