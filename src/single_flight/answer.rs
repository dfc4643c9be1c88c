//! The stored answer of a flight, kept beside the leader's lock: the in-memory equivalent of `lua/answer.lua`.

use std::sync::Arc;
use std::time::Duration;

use crate::lease::holders::{Holder, Kept};
use crate::lease::kind::{Completing, Entered, Kind, Look, Outcome};
use crate::single_flight::outcome::ANSWER;
use crate::store::operation::{Arguments, Field, Garbled};

/// The kind of lease of a flight: one holder, the leader, which stores an answer.
#[derive(Clone, Debug)]
pub(crate) enum Flight {}

impl Kind for Flight {
    type Holders = Holder<false, LastAnswer>;
    type Outcome = Answers;
    const PARTS: &'static [&'static str] = &[
        "flight:lock",
        "flight:answer",
        "flight:waiters",
        "flight:beats",
    ];
    const NAME: &'static str = "flight";
    const PIECES: &'static [&'static str] = &["mutex", "answer"];
    const FENCED: bool = false;
}

/// The outcomes of flights: answers.
#[derive(Debug)]
pub(crate) enum Answers {}

/// The answer to a key in the in-memory store.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastAnswer(Option<Answer>);

#[derive(Clone, Debug)]
struct Answer {
    /// When the answer was stored. If this is later than now, the clock was set back, and the answer is not served.
    entered: i64,
    /// How long it is fresh and served stale (µs).
    fresh: i64,
    stale: i64,
    /// When it is removed.
    until: i64,
    codec: Arc<str>,
    bytes: Arc<[u8]>,
}

/// The query of a caller for an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asker {
    /// When the caller first sent a query, by the store's clock (µs); 0: now.
    pub(crate) since: i64,
    /// Whether it accepts a stale answer while another caller makes a fresh one.
    pub(crate) takes_stale: bool,
    /// An answer that is fresh for no longer than this (µs) counts as stale, and is accepted. Failures, and records
    /// that nothing is shared, do not count as stale.
    pub(crate) ahead: i64,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// How long the answer is still fresh (0 or less: it is stale) and served stale, in µs from now, and its bytes.
    Answer {
        fresh: i64,
        stale: i64,
        bytes: Arc<[u8]>,
    },
    /// Another codec wrote the answer.
    Foreign,
}

impl Found {
    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Answer { bytes, .. } => bytes.len(),
            Self::Foreign => 0,
        }
    }

    /// Returns how long the answer is still fresh.
    pub(crate) fn fresh(&self) -> Duration {
        self.span(|fresh, _| fresh)
    }

    /// Returns how long the answer may still be served while a fresh one is made.
    pub(crate) fn left(&self) -> Duration {
        self.span(|_, stale| stale)
    }

    fn span(&self, which: impl FnOnce(i64, i64) -> i64) -> Duration {
        let micros = match self {
            Self::Answer { fresh, stale, .. } => which(*fresh, *stale),
            Self::Foreign => 0,
        };
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Returns whether this is the same answer as `before`. An answer only gets older: if the bytes are equal but the
    /// remaining time is longer, it was stored again.
    pub(crate) fn is(&self, before: &Self) -> bool {
        match (self, before) {
            (
                Self::Answer { fresh, bytes, .. },
                Self::Answer {
                    fresh: was,
                    bytes: others,
                    ..
                },
            ) => fresh <= was && bytes == others,
            (one, other) => one == other,
        }
    }
}

/// An answer to store.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// How long the answer is fresh. Zero: only the callers that are waiting when it is stored get it.
    pub(crate) fresh: Duration,
    /// How long from now it is served stale; at least `fresh`.
    pub(crate) stale: Duration,
    pub(crate) bytes: Arc<[u8]>,
}

impl Entry {
    /// Creates an entry that is fresh for `fresh`, and then stale for `stale`.
    pub(crate) fn of(bytes: Arc<[u8]>, fresh: Duration, stale: Duration) -> Self {
        Self {
            fresh,
            stale: fresh.saturating_add(stale),
            bytes,
        }
    }
}

impl LastAnswer {
    /// Returns the public state of the answer.
    pub(super) fn look(&self, now: i64) -> Option<StoredAnswer> {
        let Answer {
            entered,
            fresh,
            until,
            codec,
            bytes,
            ..
        } = self.0.as_ref().filter(|answer| answer.until > now)?;
        let codec = Some(Arc::clone(codec));
        Some(StoredAnswer::new(
            fresh_for(*entered, *fresh, now),
            until - now,
            codec,
            bytes.len(),
        ))
    }

    /// Returns whether there is an answer.
    pub(crate) fn is_some(&self, now: i64) -> bool {
        self.look(now).is_some()
    }
}

/// The state of a stored answer. [`Operator`](crate::operator) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredAnswer {
    /// How long the answer is still fresh; zero if it is stale.
    pub fresh_for: Duration,
    /// How long the store still keeps the answer.
    pub kept_for: Duration,
    /// The name and version of the codec that encoded the answer.
    pub codec: Option<Arc<str>>,
    /// The number of encoded bytes.
    pub bytes: u64,
}

impl StoredAnswer {
    pub(crate) fn new(fresh: i64, kept: i64, codec: Option<Arc<str>>, bytes: usize) -> Self {
        let span = |micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Self {
            fresh_for: span(fresh),
            kept_for: span(kept),
            codec,
            bytes: bytes as u64,
        }
    }
}

/// How long an answer is still fresh.
pub(super) fn fresh_for(entered: i64, fresh: i64, now: i64) -> i64 {
    if entered > now {
        0
    } else {
        entered.saturating_add(fresh).saturating_sub(now)
    }
}

impl Kept for LastAnswer {
    fn is_idle(&self, now: i64) -> bool {
        self.0.as_ref().is_none_or(|answer| answer.until <= now)
    }

    fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |answer| answer.bytes.len())
    }
}

/// Larger answers are not part of the message that wakes waiters: the waiters read them from the store.
const TOLD: usize = 8192;

/// The minimum time for which waiters can read an answer.
const READABLE: Duration = Duration::from_secs(1);

impl Entry {
    /// Returns how long the store keeps the entry.
    pub(crate) fn kept(&self) -> Duration {
        self.stale.max(READABLE)
    }

    /// Redis expires keys in whole ms.
    fn kept_millis(&self) -> i64 {
        (micros(self.kept()) + 999) / 1000
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}

impl Outcome<Holder<false, LastAnswer>> for Answers {
    const BULK: bool = true;
    // The answers that a call writes are bounded by its payload; the answers that it reads are bounded only by this: 16
    // MiB by default.
    const MOST_RUNS: usize = 16;
    /// The name of the codec.
    type Scope = Arc<str>;
    type Query = Asker;
    type Found = Found;
    type Entry = Entry;

    fn write_scope(codec: &Arc<str>, call: &mut Arguments<'_>) {
        call.text(Arc::clone(codec));
    }

    fn payload(entry: &Entry) -> usize {
        entry.bytes.len()
    }

    fn asked_at(asker: &mut Asker, now: i64) {
        if asker.since == 0 {
            asker.since = now;
        }
    }

    fn write_query(asker: &Asker, call: &mut Arguments<'_>) {
        let Asker {
            since,
            takes_stale,
            ahead,
        } = *asker;
        match (since, takes_stale, ahead) {
            (0, false, 0) => call.word("0 0 0"),
            (0, true, 0) => call.word("0 1 0"),
            _ => call.text(format!("{since} {} {ahead}", u8::from(takes_stale)).into()),
        }
    }

    fn write_entry(entry: &Entry, call: &mut Arguments<'_>) {
        call.text(format!("{} {}", micros(entry.fresh), micros(entry.stale)).into());
        call.integer(entry.kept_millis());
        call.bytes(Arc::clone(&entry.bytes));
    }

    fn decode(field: Field<'_>) -> Result<Found, Garbled> {
        const GARBLED: Garbled =
            Garbled("a script did not reply with an answer where one was expected");
        let Field::Text(text) = field else {
            return Err(GARBLED);
        };
        if text == b"other" {
            return Ok(Found::Foreign);
        }
        let mut parts = text.splitn(3, |byte| *byte == b' ');
        let mut time = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let fresh = time().ok_or(GARBLED)?;
        let stale = time().ok_or(GARBLED)?;
        Ok(Found::Answer {
            fresh,
            stale,
            bytes: parts.next().ok_or(GARBLED)?.into(),
        })
    }

    fn look(
        holders: &Holder<false, LastAnswer>,
        codec: &Arc<str>,
        asker: &Asker,
        bypass: bool,
        now: i64,
    ) -> Look<Found> {
        let is_kept = |answer: &&Answer| answer.until > now && answer.entered <= now;
        let Some(answer) = holders.outcome.0.as_ref().filter(is_kept) else {
            return Look::Open(None);
        };
        let fresh = answer.entered + answer.fresh;
        let stale = answer.entered + answer.stale;
        // The answer is valid if it was fresh at any time since the first query.
        let good = fresh
            > if asker.since > 0 {
                now.min(asker.since)
            } else {
                now
            };
        if !good && (stale <= now || !asker.takes_stale) {
            return Look::Open(None);
        }
        if answer.codec != *codec {
            return Look::Open(Some(Found::Foreign));
        }
        let bytes = Arc::clone(&answer.bytes);
        let early = (1..=asker.ahead).contains(&(fresh - now)) && bytes.first() == Some(&ANSWER);
        let found = Found::Answer {
            fresh: fresh - now,
            stale: stale - now,
            bytes,
        };
        match bypass {
            true => Look::Open(Some(found)),
            false if good && !early => Look::Done(found),
            false => Look::Meanwhile(found),
        }
    }

    fn enter(
        holders: &mut Holder<false, LastAnswer>,
        codec: &Arc<str>,
        entry: &Entry,
        of: Completing,
        now: i64,
    ) -> Result<Entered, Found> {
        // An answer whose fresh time is zero is only for the callers that wait when it is stored.
        if !of.is_held || entry.stale.is_zero() && !of.has_waiters {
            return Ok(Entered::Nothing);
        }
        let until = now + entry.kept_millis() * 1000;
        let fresh = micros(entry.fresh);
        let stale = micros(entry.stale);
        let bytes = Arc::clone(&entry.bytes);
        let answer = Answer {
            entered: now,
            fresh,
            stale,
            until,
            codec: Arc::clone(codec),
            bytes,
        };
        holders.outcome.0 = Some(answer);
        if entry.bytes.len() > TOLD || !of.has_waiters {
            return Ok(Entered::Something);
        }
        let head = format!("{codec} {fresh} {stale} ");
        Ok(Entered::Message(
            [head.as_bytes(), &entry.bytes].concat().into(),
        ))
    }

    fn hear(codec: &Arc<str>, told: &[u8]) -> Option<Found> {
        let answer = told.strip_prefix(codec.as_bytes())?.strip_prefix(b" ")?;
        Self::decode(Field::Text(answer)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiters read a large answer from the store.
    #[test]
    fn those_who_wait_are_told_a_small_answer() {
        let second = Duration::from_secs(1);
        for (length, has_waiters, is_told) in [
            (TOLD, true, true),
            (TOLD + 1, true, false),
            (1, false, false),
            (TOLD + 1, false, false),
        ] {
            let (mut holders, codec) = (Holder::default(), "codec".into());
            let entry = Entry::of(vec![7; length].into(), second, second);
            let of = Completing {
                is_held: true,
                has_waiters,
            };
            let entered =
                <Answers as Outcome<_>>::enter(&mut holders, &codec, &entry, of, 1).unwrap();
            assert!(holders.outcome.look(1).is_some(), "{length}");
            match entered {
                Entered::Message(told) => {
                    assert!(is_told, "{length}");
                    assert!(
                        matches!(<Answers as Outcome<_>>::hear(&codec, &told), Some(Found::Answer { bytes, .. }) if bytes == entry.bytes)
                    );
                }
                _ => assert!(!is_told, "{length}"),
            }
        }
    }

    #[test]
    fn an_answer_that_is_fresher_than_before_is_another() {
        let found = |fresh| Found::Answer {
            fresh,
            stale: fresh,
            bytes: b"7"[..].into(),
        };
        assert!(found(-1).is(&found(0)) && found(0).is(&found(0)));
        assert!(!found(40_000).is(&found(0)), "entered since");
        assert!(!found(0).is(&Found::Foreign) && Found::Foreign.is(&Found::Foreign));
    }
}
