//! Who holds a mutex, in process: the twin of `lua/lib/mutex.lua`.

use std::sync::Arc;

use crate::primitive::lease::kind::{Holders, Kind, Scripts, scripts};
use crate::primitive::lease::queue::Queue;
use crate::primitive::lease::room::Room;
use crate::store::{Arguments, Fields, Garbled, Never, Operation, Script, process_of, script};

/// One at a time.
#[derive(Clone, Debug)]
pub(crate) enum Exclusive {}

impl Kind for Exclusive {
    type Holders = Holder;
    type Record = ();
    const PARTS: &'static [&'static str] = &["lock", "fence", "queue", "beats"];
    const SCRIPTS: Scripts = scripts!("lib/mutex");
}

/// What a token adds whose lock holds a value of the user's.
pub(super) fn suffix(value: &str) -> String {
    format!(":{value}")
}

/// What the lock holds for a token.
fn value(token: &str) -> &str {
    token.split_once(':').map_or(token, |(_, value)| value)
}

/// To how many a process hands on by itself before others get their turn to be asked.
const MOST_FOLLOWERS: usize = 31;

/// Who holds; with fences that outlive their holders, or are the times of the grants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder<const KEPT: bool = true, A = ()> {
    holder: Option<(Box<str>, i64)>,
    fence: i64,
    /// What else there is to a key.
    pub(crate) aside: A,
}

/// What is kept beside a lock.
pub(crate) trait Aside: Clone + std::fmt::Debug + Default + Send + 'static {
    /// Whether forgetting it changes nothing.
    fn is_idle(&self, now: i64) -> bool;
}

impl Aside for () {
    fn is_idle(&self, _: i64) -> bool {
        true
    }
}

/// When a lock ends that is set until `expiry`: Redis counts in whole ms.
fn end(expiry: i64, now: i64) -> i64 {
    now + (expiry - now + 999) / 1000 * 1000
}

impl<const KEPT: bool, A: Aside> Holders for Holder<KEPT, A> {
    fn sweep(&mut self, now: i64) {
        self.holder.take_if(|(_, expiry)| *expiry <= now);
    }

    fn used(&self) -> i64 {
        self.holder.is_some().into()
    }

    fn held(&self, token: &str, now: i64) -> Option<(i64, i64)> {
        let (holder, _) = self.holder.as_ref()?;
        (**holder == *value(token)).then(|| (self.soonest(now), if KEPT { self.fence } else { now }))
    }

    fn fits(&self, _: &str) -> bool {
        self.holder.is_none()
    }

    fn is_full(&self) -> bool {
        self.holder.is_some()
    }

    fn hold(&mut self, token: &Arc<str>, expiry: i64, now: i64, _: &Queue) -> i64 {
        self.holder = Some((value(token).into(), end(expiry, now)));
        self.fence = now.max(if KEPT { self.fence + 1 } else { 0 });
        self.fence
    }

    fn extend(&mut self, _: &str, expiry: i64, now: i64) {
        if let Some((_, until)) = &mut self.holder {
            *until = end(expiry, now);
        }
    }

    fn forget(&mut self, _: &str) {
        self.holder = None;
    }

    fn soonest(&self, now: i64) -> i64 {
        self.holder.as_ref().map_or(0, |(_, expiry)| now + ((expiry - now) / 1000).max(1) * 1000)
    }

    fn head(&self, queue: &Queue, _: &mut bool) -> Option<Arc<str>> {
        queue.first().cloned()
    }

    fn follow(&mut self, token: &str, queue: &mut Queue) -> Vec<Arc<str>> {
        let follows = |other: &str| process_of(other) == process_of(token) && !other.contains(':');
        let mut followers = Vec::new();
        while followers.len() < MOST_FOLLOWERS
            && !token.contains(':')
            && let Some(other) = queue.first().filter(|other| follows(other)).cloned()
        {
            queue.leave(&other);
            followers.push(other);
        }
        self.fence += followers.len() as i64;
        followers
    }

    fn is_idle(&self, now: i64) -> bool {
        let is_free = self.holder.as_ref().is_none_or(|(_, expiry)| *expiry <= now);
        is_free && (!KEPT || self.fence < now) && self.aside.is_idle(now)
    }
}

/// Sees to it that the next fencing token is above one that was given out elsewhere.
#[derive(Debug)]
pub(crate) struct Raise {
    pub(crate) token: Arc<str>,
    pub(crate) fence: i64,
}

impl Operation for Raise {
    type Cell = Room<Holder>;
    /// Whether the token still holds.
    type Reply = bool;
    type Undo = Never<Room<Holder>>;
    const SCRIPT: Script = script!("lease/raise", "lib/lease", "lib/mutex");
    const PARTS: &'static [&'static str] = Exclusive::PARTS;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.token));
        call.integer(self.fence);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<bool, Garbled> {
        Ok(fields.integer()? == 1)
    }

    fn apply(self, room: &mut Room<Holder>, now: i64) -> bool {
        let holder = room.holders();
        holder.sweep(now);
        let holds = holder.held(&self.token, now).is_some();
        if holds {
            holder.fence = holder.fence.max(self.fence);
        }
        holds
    }
}
