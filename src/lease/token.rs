//! Tokens: the name of a holder or a waiter in the store. A token is
//!
//! ```text
//! process-id.ttl~fence_ttl@signature then /… or :value
//! ```
//!
//! The process is 16 hexadecimal digits, the numbers are hexadecimal too: the ttl in µs, the fence_ttl in ms. All but
//! the process may be missing. Permits end in `/weight/limit`, or in `/idle` if they wait until none is held. Readers end
//! in `/r` and their group, writers in `/w` and how many writers in a row may pass waiting readers. A lock with a value of
//! the user ends in `:` and that value. The scripts read the same: see `lua/token.lua`.
//!
//! Most tokens have no more than an id, a ttl and an [`Ending`]. They stay numbers until somebody needs their text: the
//! in-memory store never does.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::options::{LeaseOptions, micros};
use crate::store::hex;

/// The number of characters in the name of a process.
const PROCESS: usize = 16;

/// How long a fence is kept if the token does not say it, µs. At least 7 days are promised.
const FENCE_TTL: i64 = 8 * 86_400 * 1_000_000;

/// The longest text of numbers is shorter.
type Text = SmallVec<[u8; 80]>;

/// The name of a holder or a waiter. Two are equal if their texts are: a text that numbers can say is kept as numbers.
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

/// What a kind of lease adds to a token.
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

/// The same, or any other text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suffix {
    Ending(Ending),
    Text(String),
}

/// What all tokens of one value have in common: what its options say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// µs
    ttl: u64,
    /// The fence_ttl and the signature, if there are any.
    rest: String,
}

/// What the process of a waiter wrote into its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parsed<'a> {
    process: u64,
    id: u64,
    /// µs
    ttl: Option<u64>,
    /// ms
    fence_ttl: Option<i64>,
    /// What follows the ttl.
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
            (parsed.ttl, parsed.rest) = (Some(ttl).filter(|ttl| i64::try_from(*ttl).is_ok()), rest);
            parsed.fence_ttl = rest
                .strip_prefix('~')
                .and_then(hex)
                .and_then(|(ttl, _)| i64::try_from(ttl).ok());
        }
        Some(parsed)
    }
}

impl Marks {
    pub(crate) fn new(options: &LeaseOptions) -> Self {
        let LeaseOptions {
            ttl,
            fence_ttl,
            signature,
            ..
        } = options;
        let fence_ttl = fence_ttl.map(|span| format!("~{:x}", span.as_nanos().div_ceil(1_000_000)));
        let ttl = micros(*ttl).unsigned_abs();
        Self {
            ttl,
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

    /// The text of numbers.
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
            // All of it is ASCII.
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

    /// Returns the process and the id in the token. `None` for one without an id, such as that of another library.
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

    /// Whether the token carries a value of the user, which names the holder to others.
    pub(crate) fn has_value(&self) -> bool {
        matches!(self, Self::Text(text) if text.contains(':'))
    }

    /// Until when the fence of a holder is kept, µs: never less than its lease. `lua/token.lua` does the same.
    pub(crate) fn kept_until(&self, expiry: i64, now: i64) -> i64 {
        let left = (expiry - now + 999) / 1000 + 1;
        let fence_ttl = match self {
            Self::Numbers { .. } => None,
            Self::Text(text) => Parsed::new(text).and_then(|parsed| parsed.fence_ttl),
        };
        now + fence_ttl.map_or(FENCE_TTL, |ttl| ttl.max(left) * 1000)
    }

    /// Returns what a kind of lease added to the token. Fails with what is behind the first `/` if that is not an
    /// [`Ending`].
    pub(crate) fn ending(&self) -> Result<Ending, &str> {
        let text = match self {
            Self::Numbers { ending, .. } => return Ok(*ending),
            Self::Text(text) => text,
        };
        // A loop beats the search of `str` in texts as short as these.
        let Some(mark) = text.bytes().position(|byte| byte == b'/') else {
            return Ok(Ending::Nothing);
        };
        Ending::parse(&text[mark..]).ok_or(&text[mark + 1..])
    }
}

/// The value of the user behind the first `:`, which names the holder to others. Without one, this is the token.
pub(crate) fn name(token: &str) -> &str {
    token.split_once(':').map_or(token, |(_, value)| value)
}

fn push_hex(text: &mut Text, number: u64, least: usize) {
    let digits = least.max((67 - number.leading_zeros() as usize) / 4);
    let digit = |place: usize| b"0123456789abcdef"[(number >> (4 * place) & 0xf) as usize];
    text.extend((0..digits).rev().map(digit));
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

    /// Reads exactly what [`write`](Self::write) writes.
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
            let (ttl, ending) = (ttl?, Ending::parse(rest)?);
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
            // There are few processes, and an id is used once by each.
            Self::Numbers { id, .. } => id.hash(state),
            Self::Text(text) => text.hash(state),
        }
    }
}

/// In the order of their texts, like in the store.
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

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, RandomState};
    use std::time::Duration;

    use super::*;

    const OWN: u64 = 0x0123_4567_89ab_cdef;

    fn token(text: &str) -> Token {
        text.into()
    }

    fn permit(weight: u32, limit: u32) -> Ending {
        Ending::Permit { weight, limit }
    }

    /// However the rest of the token is written.
    #[test]
    fn a_token_is_read_in_parts() {
        let ids = [
            ("-1f.a", Some(31), Some(10)),
            ("-0.a~3e8@b", Some(0), Some(10)),
            ("-a", Some(10), None),
        ];
        let others = [
            ("-01.0a", Some(1), Some(10)),
            ("-1.8000000000000000", Some(1), None),
            ("", None, None),
        ];
        let known = ids.into_iter().chain(others);
        let known = known.map(|(way, id, ttl)| (format!("0123456789abcdef{way}"), id, ttl));
        let nonsense = [
            "",
            "a",
            "0123456789abcdef-",
            "äääääääääääää",
            "billing-service--1.5",
            "0123456789abcdef:1.5",
        ];
        for (way, id, ttl) in known.chain(nonsense.map(|text| (text.to_owned(), None, None))) {
            for (text, ending) in [
                ("", Ok(Ending::Nothing)),
                ("/2/5", Ok(permit(2, 5))),
                ("/r", Ok(Ending::Reader)),
                ("/w4", Ok(Ending::Writer { row: 4 })),
                ("/", Err("")),
                ("/b/c", Err("b/c")),
                ("/02/5", Err("02/5")),
                ("/2/5/..f4240", Err("2/5/..f4240")),
                ("/idle", Err("idle")),
                ("/rgroup", Err("rgroup")),
                ("/w04", Err("w04")),
            ] {
                let token = token(&format!("{way}{text}"));
                let says = (
                    token.waiter().map(|(_, id)| id),
                    token.ttl(),
                    token.ending(),
                );
                assert_eq!(says, (id, ttl, ending), "{way}{text}");
            }
        }
        for (way, ms) in [
            ("-0.a~3e8@b~1/2/5", Some(1000)),
            ("-0~3e8", None),
            ("-0.a:0.a~3e8", None),
        ] {
            let text = format!("0123456789abcdef{way}");
            assert_eq!(
                Parsed::new(&text).and_then(|parsed| parsed.fence_ttl),
                ms,
                "{text}"
            );
        }
        // A token with a value is named by it.
        for (text, expected) in [
            ("-1f.a~3e9@app/w4", None),
            ("-1f.a:host-7:a/b", Some("host-7:a/b")),
        ] {
            let text = format!("0123456789abcdef{text}");
            assert_eq!(
                (name(&text), token(&text).has_value()),
                (expected.unwrap_or(&text), expected.is_some())
            );
        }
    }

    /// For at least 8 days, or as the token says, but never for less than the lease lasts, which Redis counts in whole ms.
    #[test]
    fn a_fence_is_kept_as_its_token_says() {
        const DAY: i64 = 86_400_000_000;
        let kept = |marks: &str, lasts| {
            token(&format!("0123456789abcdef-1{marks}")).kept_until(5 + lasts, 5)
        };
        assert_eq!(
            [".a", "", ".a@app"].map(|marks| kept(marks, 10 * DAY)),
            [5 + 8 * DAY; 3]
        );
        for (lasts, until) in [
            (0, 10_000),
            (9000, 10_000),
            (9001, 11_000),
            (10_000, 11_000),
            (10_001, 12_000),
        ] {
            assert_eq!(kept(".a~a", lasts), 5 + until, "{lasts}");
        }
    }

    /// Asserts that a token is that of a text.
    #[track_caller]
    fn assert_is(token: &Token, text: &str) {
        assert_eq!((token, &*token.text()), (&text.into(), text));
        assert_eq!(
            [format!("{token}"), format!("{token:?}")],
            [text.to_owned(), format!("{text:?}")]
        );
        let hasher = RandomState::new();
        assert_eq!(
            hasher.hash_one(token),
            hasher.hash_one(Token::from(text.to_owned())),
            "{text:?}"
        );
    }

    #[test]
    fn a_usual_token_is_numbers() {
        let processes = [
            ("0123456789abcdef", OWN),
            ("0000000000000000", 0),
            ("ffffffffffffffff", u64::MAX),
        ];
        let ids = [("0", 0), ("1f", 0x1f), ("ffffffffffffffff", u64::MAX)];
        let ttls = [
            ("0", 0),
            ("1c9c380", 30_000_000),
            ("7fffffffffffffff", i64::MAX),
        ];
        let most = u32::MAX;
        let endings = [
            ("", Ending::Nothing),
            ("/2/5", permit(2, 5)),
            ("/0/0", permit(0, 0)),
            ("/4294967295/4294967295", permit(most, most)),
            ("/r", Ending::Reader),
            ("/w4", Ending::Writer { row: 4 }),
            ("/w0", Ending::Writer { row: 0 }),
            ("/w4294967295", Ending::Writer { row: most }),
        ];
        for (process, id) in processes
            .into_iter()
            .flat_map(|process| ids.map(|id| (process, id)))
        {
            for (ttl, ending) in ttls
                .into_iter()
                .flat_map(|ttl| endings.map(|ending| (ttl, ending)))
            {
                let text = format!("{}-{}.{}{}", process.0, id.0, ttl.0, ending.0);
                let read = token(&text);
                assert!(matches!(read, Token::Numbers { .. }), "{text}");
                assert_is(&read, &text);
                let says = (read.waiter(), read.ttl(), read.ending());
                assert_eq!(
                    says,
                    (Some((process.1, id.1)), Some(ttl.1), Ok(ending.1)),
                    "{text}"
                );
                assert!(
                    !Token::written(process.1, id.1, ttl.1 as u64, ending.1).spilled(),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn what_numbers_would_write_in_another_way_is_text() {
        let usual = "0123456789abcdef-1f.1c9c380";
        let rest = "~3e8 ~3e8/r @app @app/2/5 ~3e8@app/w4 :host-7 :a/r /r:host-7 /2/5/..f4240 /2/5/ /idle /rgroup /R \
            /r/ / // //5 /2 /2/ /w /W4 /02/5 /2/05 /w04 /+2/5 /2/+5 /w+4 /-2/5 /2/-5 /w-4 /4294967296/5 \
            /2/4294967296 /w4294967296 /a/5 /wa \n \0 é + . - g";
        let of_process = "- -1f -1f/r -1f. -1f./r -.1c9c380 .1c9c380 -1F.1c9c380 -1f.1C9C380 -01f.1c9c380 -00.1c9c380 \
            -1f.01c9c380 -1f.00 -+1f.1c9c380 -1f.+1c9c380 -1f.8000000000000000 -1f.ffffffffffffffff \
            -1f.10000000000000000 -10000000000000000.1c9c380";
        let processes = "0123456789ABCDEF 123456789abcdef 00123456789abcdef +123456789abcdef é123456789abcde é g";
        let rest = rest.split(' ').map(|rest| format!("{usual}{rest}"));
        let of_process = of_process
            .split(' ')
            .map(|rest| format!("0123456789abcdef{rest}"));
        let of_others = processes
            .split(' ')
            .map(|process| format!("{process}-1f.1c9c380"));
        let others = [
            "",
            "a",
            "a/r",
            "/r",
            "0123456789abcdef",
            &format!(" {usual}"),
        ]
        .map(str::to_owned);
        for text in rest.chain(of_process).chain(of_others).chain(others) {
            let read = token(&text);
            assert!(matches!(read, Token::Text(_)), "{text:?}");
            assert_is(&read, &text);
            assert_ne!(read, token(usual), "{text:?}");
        }
    }

    #[test]
    fn a_new_token_is_that_of_its_text() {
        let endings = [
            ("", Ending::Nothing),
            ("/2/5", permit(2, 5)),
            ("/r", Ending::Reader),
            ("/w4", Ending::Writer { row: 4 }),
        ];
        let texts = [
            "",
            "/2/5",
            "/r",
            "/w4",
            ":host-7",
            ":r",
            "/2/5/..f4240",
            "/idle",
            "/rgroup",
        ];
        // Also values that are longer than usual.
        let texts: Vec<_> = texts
            .map(str::to_owned)
            .into_iter()
            .chain((90..130).map(|n| "x".repeat(n)))
            .collect();
        let marks = [
            ("", None, ""),
            ("~3e8", Some(1_000_000), ""),
            ("@app", None, "@app"),
        ];
        for (mark, micros, signature) in
            marks
                .into_iter()
                .chain([("~3e9@app", Some(1_000_500), "@app")])
        {
            let (fence_ttl, signature) = (micros.map(Duration::from_micros), signature.into());
            let marks = Marks::new(&LeaseOptions {
                fence_ttl,
                signature,
                ..LeaseOptions::default()
            });
            let endings = endings.map(|(text, ending)| (text, Suffix::from(ending)));
            let suffixes = endings
                .into_iter()
                .chain(texts.iter().map(|text| (&**text, text.clone().into())));
            for (text, suffix) in suffixes {
                assert_eq!(suffix.to_string(), text);
                for (process, id) in [(OWN, 0xf), (OWN, 0x10), (0, 0), (u64::MAX, u64::MAX)] {
                    let written = format!("{process:016x}-{id:x}.1c9c380{mark}{text}");
                    assert_is(&Token::new(process, id, &marks, &suffix), &written);
                }
            }
        }
    }
}
