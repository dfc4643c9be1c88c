//! Tokens: the name of a holder or a waiter in the store. A token is
//!
//! ```text
//! process-id.ttl~fence_ttl@signature then /… or :value
//! ```
//!
//! The process is 16 hexadecimal digits, the numbers are hexadecimal too: the ttl in µs, the fence_ttl in ms. All but
//! the process may be missing. Permits end in `/weight/limit`, or in `/idle` if they wait until none is held. Readers end
//! in `/r` and their group, writers in `/w` and how many writers in a row may pass waiting readers. A lock with a value of
//! the user ends in `:` and that value. The scripts read the same: see `lua/lib/lease.lua`.

use std::sync::Arc;

use smallvec::SmallVec;

use super::options::{LeaseOptions, micros};
use crate::store::hex;

/// The number of characters in the name of a process.
const PROCESS: usize = 16;

/// How long a fence is kept if the token does not say it, µs. At least 7 days are promised.
const FENCE_TTL: i64 = 8 * 86_400 * 1_000_000;

/// What a kind of lease adds to a token: text.
pub(crate) type Suffix = SmallVec<[u8; 24]>;

/// What the process of a waiter wrote into its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) process: &'a str,
    pub(crate) id: u64,
    /// µs
    pub(crate) ttl: Option<i64>,
    /// ms
    fence_ttl: Option<i64>,
}

impl<'a> Token<'a> {
    /// Reads a token. Returns `None` for one without an id, such as that of another library.
    pub(crate) fn parse(token: &'a str) -> Option<Self> {
        let (process, rest) = token.split_at_checked(PROCESS)?;
        let is_process = process.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (id, rest) = hex(rest.strip_prefix('-').filter(|_| is_process)?)?;
        let mut token = Self { process, id, ttl: None, fence_ttl: None };
        if let Some((ttl, rest)) = rest.strip_prefix('.').and_then(hex) {
            token.ttl = i64::try_from(ttl).ok();
            token.fence_ttl =
                rest.strip_prefix('~').and_then(hex).and_then(|(ttl, _)| i64::try_from(ttl).ok());
        }
        Some(token)
    }
}

/// The ttl in a token, µs.
pub(crate) fn ttl_of(token: &str) -> Option<i64> {
    Token::parse(token)?.ttl
}

/// Until when the fence of a holder is kept, µs: never less than its lease. `lib/lease.lua` does the same.
pub(crate) fn kept_until(token: &str, expiry: i64, now: i64) -> i64 {
    let left = (expiry - now + 999) / 1000 + 1;
    // Most tokens have none.
    let token = token.contains('~').then(|| Token::parse(token)).flatten();
    let fence_ttl = token.and_then(|token| token.fence_ttl);
    now + fence_ttl.map_or(FENCE_TTL, |ttl| ttl.max(left) * 1000)
}

/// What a kind of lease wrote behind the first `/`.
pub(crate) fn ending(token: &str) -> Option<&str> {
    // A loop beats the search of `str` in texts as short as these.
    let mark = token.bytes().position(|byte| byte == b'/')?;
    token.get(mark + 1..)
}

/// The value of the user behind the first `:`, which names the holder to others. Without one, this is the token.
pub(crate) fn name(token: &str) -> &str {
    token.split_once(':').map_or(token, |(_, value)| value)
}

/// Returns what a token says of the options: all between the id and the suffix.
pub(crate) fn marks(options: &LeaseOptions) -> String {
    let LeaseOptions { ttl, fence_ttl, signature, .. } = options;
    let fence_ttl = fence_ttl.map(|span| format!("~{:x}", span.as_nanos().div_ceil(1_000_000)));
    format!(".{:x}{}{signature}", micros(*ttl), fence_ttl.unwrap_or_default())
}

/// Writes a token. `suffix`: what the kind of lease adds.
pub(crate) fn write(process: &str, id: u64, marks: &str, suffix: impl AsRef<[u8]>) -> Arc<str> {
    // By hand: each acquire has a token.
    let mut digits = [0; 16];
    let (mut first, mut rest) = (digits.len(), id);
    while rest > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b"0123456789abcdef"[(rest & 0xf) as usize];
        rest >>= 4;
    }
    let parts = [process.as_bytes(), b"-", &digits[first..], marks.as_bytes(), suffix.as_ref()];
    let (mut token, mut end) = ([0; 128], 0);
    for part in parts {
        let Some(free) = token.get_mut(end..end + part.len()) else {
            return String::from_utf8(parts.concat()).unwrap_or_default().into();
        };
        free.copy_from_slice(part);
        end += part.len();
    }
    // All parts are text.
    std::str::from_utf8(&token[..end]).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_times_to_live_are_read_out_of_tokens() {
        let id_of = |token| Token::parse(token).map(|token| token.id);
        let fence_ttl_of = |token| Token::parse(token)?.fence_ttl;
        assert_eq!(id_of("0123456789abcdef-1f"), Some(0x1f));
        assert_eq!(id_of("0123456789abcdef-0.a/2/5"), Some(0));
        assert_eq!(id_of("0123456789abcdef-a:b"), Some(10));
        assert_eq!(ttl_of("0123456789abcdef-0.a/2/5"), Some(10));
        assert_eq!(ttl_of("0123456789abcdef-0.a~3e8@b/2/5"), Some(10));
        assert_eq!(fence_ttl_of("0123456789abcdef-0.a~3e8@b~1/2/5"), Some(1000));
        assert_eq!(fence_ttl_of("0123456789abcdef-0~3e8"), None);
        assert_eq!(fence_ttl_of("0123456789abcdef-0.a:0.a~3e8"), None);
        let nonsense =
            ["", "0123456789abcdef", "0123456789abcdef-", "0123456789abcdef-/1/1", "äääääääääääää"];
        for none in nonsense.into_iter().chain(["billing-service--1.5", "0123456789abcdef:1.5"]) {
            assert_eq!((id_of(none), ttl_of(none)), (None, None), "{none:?}");
        }
    }

    /// For at least 8 days, or as the token says, but never for less than the lease lasts, which Redis counts in whole ms.
    #[test]
    fn a_fence_is_kept_as_its_token_says() {
        const DAY: i64 = 86_400_000_000;
        let kept = |marks: &str, lasts| kept_until(&format!("0123456789abcdef-1{marks}"), 5 + lasts, 5);
        assert_eq!([".a", "", ".a@app"].map(|marks| kept(marks, 10 * DAY)), [5 + 8 * DAY; 3]);
        for (lasts, until) in
            [(0, 10_000), (9000, 10_000), (9001, 11_000), (10_000, 11_000), (10_001, 12_000)]
        {
            assert_eq!(kept(".a~a", lasts), 5 + until, "{lasts}");
        }
    }

    /// Also an id or a value that is longer than usual.
    #[test]
    fn a_token_of_any_length_is_written() {
        for (id, digits) in [(0, "0"), (0xf, "f"), (0x10, "10"), (u64::MAX, "ffffffffffffffff")] {
            assert_eq!(&*write("p", id, "", ""), format!("p-{digits}"));
        }
        for length in [123, 124, 125, 126, 500] {
            let value = "x".repeat(length);
            assert_eq!(&*write("p", 1, ".a", &value), format!("p-1.a{value}"));
        }
        assert_eq!([ending("a/b/c"), ending("a/"), ending("a")], [Some("b/c"), Some(""), None]);
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let fence_ttl = Some(std::time::Duration::from_micros(1_000_500));
        let options = LeaseOptions { fence_ttl, signature: "@app".into(), ..LeaseOptions::default() };
        let token = write("0123456789abcdef", 0x1f, &marks(&options), "/w4");
        assert_eq!(&*token, "0123456789abcdef-1f.1c9c380~3e9@app/w4");
        let (process, ttl) = ("0123456789abcdef", Some(30_000_000));
        let parsed = Token { process, id: 0x1f, ttl, fence_ttl: Some(1001) };
        assert_eq!((Token::parse(&token), ending(&token), name(&token)), (Some(parsed), Some("w4"), &*token));
        assert_eq!(name("0123456789abcdef-1f.1c9c380:host-7:a/b"), "host-7:a/b");
    }
}
