//! How long the store remembers the last fence of a key that is not locked.

use std::time::Duration;

use crate::Error;
use crate::store::fence_ttl_of;

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// How long a fence is kept if the token does not say it, µs. At least 7 days are promised.
const USUAL: i64 = 8 * 86_400 * 1_000_000;

/// Checks the value that a user can set.
pub(super) fn check(fence_ttl: Option<Duration>, ttl: Duration) -> Result<(), Error> {
    let Some(span) = fence_ttl else { return Ok(()) };
    if !(SHORTEST..=LONGEST).contains(&span) {
        return Err(Error::invalid(format!("fence_ttl must be 1 s to 365 days, is {span:?}")));
    }
    if span < ttl {
        return Err(Error::invalid(format!("fence_ttl must be at least the ttl ({ttl:?}), is {span:?}")));
    }
    Ok(())
}

/// The part of a token that sets the fence_ttl, in whole ms, rounded up. Empty: the default.
pub(super) fn in_token(fence_ttl: Option<Duration>) -> String {
    fence_ttl.map_or(String::new(), |span| format!("~{:x}", span.as_nanos().div_ceil(1_000_000)))
}

/// Until when the fence of a holder is kept, µs: never less than its lease. `lib/lease.lua` does the same.
pub(crate) fn kept_until(token: &str, expiry: i64, now: i64) -> i64 {
    let left = (expiry - now + 999) / 1000 + 1;
    now + fence_ttl_of(token).map_or(USUAL, |ttl| ttl.max(left) * 1000)
}
