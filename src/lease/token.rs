//! Tokens: the name of a holder or a waiter in the store. A token is
//!
//! ```text
//! process-id.ttl~fence_ttl@signature then /… or :value
//! ```
//!
//! The process is 16 hexadecimal digits. The numbers are hexadecimal too: the ttl in µs, the fence_ttl in ms. All parts
//! except the process may be missing. Permits end in `/weight/limit`, or in `/idle` if they wait until no permit is
//! held. Readers end in `/r` and their group, writers in `/w` and how many writers in a row may pass waiting readers. A
//! lock with a value of the user ends in `:` and that value. The scripts parse tokens in the same way: see
//! `lua/token.lua`.
//!
//! Most tokens have only an id, a ttl and an [`Ending`]. These are stored as numbers until their text is needed, which
//! never happens in the in-memory store.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::store::notifier::hex;

/// The number of characters in the name of a process.
const PROCESS: usize = 16;

/// How long a fence is kept if the token has no `fence_ttl`, µs. At least 7 days are promised.
const FENCE_TTL: i64 = 8 * 86_400 * 1_000_000;

/// Long enough for the text of any token of numbers.
type Text = SmallVec<[u8; 80]>;

/// The name of a holder or a waiter. Two tokens are equal if their texts are: a text that can be stored as numbers
/// always is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// `ttl` in µs
    Numbers {
        process: u64,
        id: u64,
        ttl: u64,
        ending: Ending,
    },
    Text(Arc<str>),
}

/// The suffix that a kind of lease adds to a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    #[default]
    Nothing,
    /// `/weight/limit`
    Permit { weight: u32, limit: u32 },
    /// `/r`
    Reader,
    /// `/w` and how many writers in a row may pass waiting readers.
    Writer { row: u32 },
}

/// An [`Ending`], or any other text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suffix {
    Ending(Ending),
    Text(String),
}

/// The common part of all tokens of one value, from its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// µs
    ttl: u64,
    /// The fence_ttl and the signature, if there are any.
    rest: String,
}

/// The parts of a token that the process of a waiter wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parsed<'a> {
    process: u64,
    id: u64,
    /// µs
    ttl: Option<u64>,
    /// ms
    fence_ttl: Option<i64>,
    /// The text after the ttl.
    rest: &'a str,
}

impl<'a> Parsed<'a> {
    /// Reads a token. Returns `None` for one without an id, such as that of another library.
    fn new(token: &'a str) -> Option<Self> {
        let (process, rest) = token.split_at_checked(PROCESS)?;
        let is_process = process.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (id, rest) = hex(rest.strip_prefix('-').filter(|_| is_process)?)?;
        let process = u64::from_str_radix(process, 16).ok()?;
        let mut parsed = Self {
            process,
            id,
            ttl: None,
            fence_ttl: None,
            rest,
        };
        if let Some((ttl, rest)) = rest.strip_prefix('.').and_then(hex) {
            parsed.ttl = Some(ttl).filter(|ttl| i64::try_from(*ttl).is_ok());
            parsed.rest = rest;
            parsed.fence_ttl = rest
                .strip_prefix('~')
                .and_then(hex)
                .and_then(|(ttl, _)| i64::try_from(ttl).ok());
        }
        Some(parsed)
    }
}

impl Marks {
    /// `ttl` in µs.
    pub(super) fn new(ttl: i64, fence_ttl: Option<Duration>, signature: &str) -> Self {
        let fence_ttl = fence_ttl.map(|span| format!("~{:x}", span.as_nanos().div_ceil(1_000_000)));
        Self {
            ttl: ttl.unsigned_abs(),
            rest: format!("{}{signature}", fence_ttl.unwrap_or_default()),
        }
    }
}

impl Token {
    pub(crate) fn new(process: u64, id: u64, marks: &Marks, suffix: &Suffix) -> Self {
        let Marks { ttl, rest } = marks;
        debug_assert!(
            i64::try_from(*ttl).is_ok(),
            "no text of it would be numbers"
        );
        if let (Suffix::Ending(ending), "") = (suffix, &**rest) {
            return Self::Numbers {
                process,
                id,
                ttl: *ttl,
                ending: *ending,
            };
        }
        format!("{process:016x}-{id:x}.{ttl:x}{rest}{suffix}").into()
    }

    /// Returns the text of numbers.
    fn written(process: u64, id: u64, ttl: u64, ending: Ending) -> Text {
        let mut text = Text::new();
        push_hex(&mut text, process, PROCESS);
        text.push(b'-');
        push_hex(&mut text, id, 1);
        text.push(b'.');
        push_hex(&mut text, ttl, 1);
        ending.write(&mut text);
        text
    }

    /// Calls `with` with the text of the token.
    pub(crate) fn with_text<R>(&self, with: impl FnOnce(&str) -> R) -> R {
        match self {
            Self::Text(text) => with(text),
            // The text is ASCII.
            Self::Numbers {
                process,
                id,
                ttl,
                ending,
            } => with(
                std::str::from_utf8(&Self::written(*process, *id, *ttl, *ending))
                    .unwrap_or_default(),
            ),
        }
    }

    /// Returns the text of the token.
    pub(crate) fn text(&self) -> Arc<str> {
        match self {
            Self::Text(text) => Arc::clone(text),
            Self::Numbers { .. } => self.with_text(|text| text.into()),
        }
    }

    /// Returns the process and the id in the token. `None` for a token without an id, such as one of another library.
    pub(crate) fn waiter(&self) -> Option<(u64, u64)> {
        match self {
            Self::Numbers { process, id, .. } => Some((*process, *id)),
            Self::Text(text) => Parsed::new(text).map(|Parsed { process, id, .. }| (process, id)),
        }
    }

    /// Returns the ttl in the token, µs.
    pub(crate) fn ttl(&self) -> Option<i64> {
        let ttl = match self {
            Self::Numbers { ttl, .. } => Some(*ttl),
            Self::Text(text) => Parsed::new(text)?.ttl,
        };
        i64::try_from(ttl?).ok()
    }

    /// Whether the token carries a value of the user, which is the name of the holder.
    pub(crate) fn has_value(&self) -> bool {
        matches!(self, Self::Text(text) if text.contains(':'))
    }

    /// Returns the time until which the fence of a holder is kept, µs: never less than its lease. `lua/token.lua` does
    /// the same.
    pub(crate) fn kept_until(&self, expiry: i64, now: i64) -> i64 {
        let left = (expiry - now + 999) / 1000 + 1;
        let fence_ttl = match self {
            Self::Numbers { .. } => None,
            Self::Text(text) => Parsed::new(text).and_then(|parsed| parsed.fence_ttl),
        };
        now + fence_ttl.map_or(FENCE_TTL, |ttl| ttl.max(left) * 1000)
    }

    /// Returns the suffix that a kind of lease added to the token. If it is not an [`Ending`], fails with the text
    /// after the first `/`.
    pub(crate) fn ending(&self) -> Result<Ending, &str> {
        let text = match self {
            Self::Numbers { ending, .. } => return Ok(*ending),
            Self::Text(text) => text,
        };
        // A loop is faster than the search of `str` in texts as short as these.
        let Some(mark) = text.bytes().position(|byte| byte == b'/') else {
            return Ok(Ending::Nothing);
        };
        Ending::parse(&text[mark..]).ok_or(&text[mark + 1..])
    }
}

/// Returns the value of the user after the first `:`, which is the name of the holder. Without one, returns the token.
pub(crate) fn name(token: &str) -> &str {
    token.split_once(':').map_or(token, |(_, value)| value)
}

fn push_hex(text: &mut Text, number: u64, least: usize) {
    let digits = least.max((67 - number.leading_zeros() as usize) / 4);
    for place in (0..digits).rev() {
        text.push(b"0123456789abcdef"[(number >> (4 * place) & 0xf) as usize]);
    }
}

impl Ending {
    fn write(self, text: &mut Text) {
        let mut digits = itoa::Buffer::new();
        match self {
            Self::Nothing => {}
            Self::Permit { weight, limit } => {
                for number in [weight, limit] {
                    text.push(b'/');
                    text.extend_from_slice(digits.format(number).as_bytes());
                }
            }
            Self::Reader => text.extend_from_slice(b"/r"),
            Self::Writer { row } => {
                text.extend_from_slice(b"/w");
                text.extend_from_slice(digits.format(row).as_bytes());
            }
        }
    }

    /// Parses exactly the texts that [`write`](Self::write) writes.
    fn parse(text: &str) -> Option<Self> {
        let parse = |number: &str| number.parse().ok();
        let ending = match text.strip_prefix('/') {
            None => Self::Nothing,
            Some("r") => Self::Reader,
            Some(rest) => match rest.split_once('/') {
                None => Self::Writer {
                    row: parse(rest.strip_prefix('w')?)?,
                },
                Some((weight, limit)) => Self::Permit {
                    weight: parse(weight)?,
                    limit: parse(limit)?,
                },
            },
        };
        let mut written = Text::new();
        ending.write(&mut written);
        (*written == *text.as_bytes()).then_some(ending)
    }
}

impl From<&str> for Token {
    fn from(token: &str) -> Self {
        let numbers = || {
            let Parsed {
                process,
                id,
                ttl,
                rest,
                ..
            } = Parsed::new(token)?;
            let ttl = ttl?;
            let ending = Ending::parse(rest)?;
            let is_all = *Self::written(process, id, ttl, ending) == *token.as_bytes();
            is_all.then_some(Self::Numbers {
                process,
                id,
                ttl,
                ending,
            })
        };
        numbers().unwrap_or_else(|| Self::Text(token.into()))
    }
}

impl From<String> for Token {
    fn from(token: String) -> Self {
        (*token).into()
    }
}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            // There are few processes, and each uses an id once.
            Self::Numbers { id, .. } => id.hash(state),
            Self::Text(text) => text.hash(state),
        }
    }
}

/// Ordered by their texts, as in the store.
impl Ord for Token {
    fn cmp(&self, other: &Self) -> Ordering {
        self.with_text(|text| other.with_text(|other| text.cmp(other)))
    }
}

impl PartialOrd for Token {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.write_str(text))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| fmt::Debug::fmt(text, f))
    }
}

impl Default for Suffix {
    fn default() -> Self {
        Self::Ending(Ending::Nothing)
    }
}

impl From<Ending> for Suffix {
    fn from(ending: Ending) -> Self {
        Self::Ending(ending)
    }
}

impl From<String> for Suffix {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Ending(ending) => {
                let mut text = Text::new();
                ending.write(&mut text);
                f.write_str(std::str::from_utf8(&text).unwrap_or_default())
            }
        }
    }
}

/// Percent-encoding (RFC 3986, section 2.1), which encodes arbitrary bytes in a restricted alphabet.
pub(crate) mod percent {
    /// Writes each byte outside of `A-Z a-z 0-9 - _ .` as `%` and two hexadecimal digits.
    pub(crate) fn encode(bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for byte in bytes {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                    text.push(char::from(*byte))
                }
                _ => text.push_str(&format!("%{byte:02x}")),
            }
        }
        text
    }

    /// Returns the bytes that [`encode`] writes as `text`; `None` if there are none.
    pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'%' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                byte => byte,
            });
        }
        (encode(&bytes) == text).then_some(bytes)
    }
}

#[cfg(test)]
mod tests;
