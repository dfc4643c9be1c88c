//! Who holds permits, in process: the twin of `lua/lib/permits.lua`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::primitive::lease::kind::{Holders, Kind, Scripts, scripts, soonest};
use crate::primitive::lease::queue::Queue;

/// So many permits at once.
#[derive(Clone, Debug)]
pub(crate) enum Permits {}

impl Kind for Permits {
    type Holders = PermitHolders;
    type Outcome = ();
    const PARTS: &'static [&'static str] =
        &["permits:holders", "permits:second", "permits:queue", "permits:beats"];
    const SCRIPTS: Scripts = scripts!("lib/permits");
}

/// What a token adds that asks for permits.
pub(super) fn suffix(weight: u32, limit: u32) -> String {
    format!("/{weight}/{limit}")
}

/// What a token adds that waits until nobody holds, and holds nothing.
pub(super) const IDLE: &str = "/idle";

/// The weight and the limit of a token; `None` where it waits until nobody holds.
pub(super) fn size(token: &str) -> Option<(i64, i64)> {
    let mut parts = token.split('/').skip(1).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PermitHolders {
    until: HashMap<Arc<str>, i64>,
    used: i64,
}

impl Holders for PermitHolders {
    fn sweep(&mut self, now: i64) {
        let used = &mut self.used;
        self.until.retain(|token, expiry| {
            let stays = *expiry > now;
            if !stays {
                *used -= size(token).map_or(0, |(weight, _)| weight);
            }
            stays
        });
    }

    fn used(&self) -> i64 {
        self.used
    }

    fn held(&self, token: &str, _: i64) -> Option<(i64, i64)> {
        self.until.get(token).map(|expiry| (*expiry, 0))
    }

    fn fits(&self, token: &str) -> bool {
        size(token).map_or(self.used == 0, |(weight, limit)| self.used + weight <= limit)
    }

    fn counted(queue: &Queue) -> i64 {
        // Those in the second rank wait until nobody holds, and hold nothing.
        queue.ahead(0)
    }

    fn hold(&mut self, token: &Arc<str>, expiry: i64, _: i64, _: &Queue) -> i64 {
        if let Some((weight, _)) = size(token) {
            self.until.insert(Arc::clone(token), expiry);
            self.used += weight;
        }
        0
    }

    fn extend(&mut self, token: &str, expiry: i64, _: i64) {
        if let Some(until) = self.until.get_mut(token) {
            *until = expiry;
        }
    }

    fn forget(&mut self, token: &str) {
        if self.until.remove(token).is_some() {
            self.used -= size(token).map_or(0, |(weight, _)| weight);
        }
    }

    fn soonest(&mut self, now: i64) -> i64 {
        soonest(&mut self.until, now)
    }

    fn head(&self, queue: &Queue, _: &mut bool) -> Option<Arc<str>> {
        queue.first().or(queue.second()).cloned()
    }

    fn is_idle(&self, now: i64) -> bool {
        self.until.values().all(|expiry| *expiry <= now)
    }
}
