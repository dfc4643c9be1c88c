//! What came of a flight, kept for a while beside the lock that its leader held: the twin of `lua/lib/answer.lua`.

use std::sync::Arc;
use std::time::Duration;

use crate::primitive::lease::kind::{Kind, Scripts, scripts};
use crate::primitive::lease::outcome::{Entered, Look, Outcome};
use crate::primitive::mutex::holder::{Holder, Kept};
use crate::store::{Arguments, Field, Garbled};

/// One leads, and leaves an answer.
#[derive(Clone, Debug)]
pub(crate) enum Flight {}

impl Kind for Flight {
    type Holders = Holder<false, LastAnswer>;
    type Outcome = Answers;
    const PARTS: &'static [&'static str] = &["flight:lock", "flight:answer", "flight:queue", "flight:beats"];
    const SCRIPTS: Scripts = scripts!("lib/mutex", "lib/answer");
}

/// The answers of a codec.
#[derive(Debug)]
pub(crate) enum Answers {}

/// The answer to a key, in process.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastAnswer(Option<Answer>);

#[derive(Clone, Debug)]
struct Answer {
    /// Until when it is fresh, served stale, and kept, µs.
    fresh: i64,
    stale: i64,
    until: i64,
    codec: Arc<str>,
    bytes: Arc<[u8]>,
}

/// Who looks for an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asker {
    /// When it asked first, by the store's clock (µs); 0: now.
    pub(crate) since: i64,
    /// Whether a stale one will do while somebody makes a fresh one.
    pub(crate) takes_stale: bool,
}

/// What is found of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// For how long it is still fresh (µs; 0 or less: it is stale), until when it is served stale, and what it is.
    Answer { fresh: i64, stale: i64, bytes: Arc<[u8]> },
    /// Another codec has written it.
    Foreign,
}

impl Found {
    /// Of how many bytes it is.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Answer { bytes, .. } => bytes.len(),
            Self::Foreign => 0,
        }
    }

    /// For how long it is fresh.
    pub(crate) fn fresh(&self) -> Duration {
        self.span(|fresh, _| fresh)
    }

    /// For how long it may be served, while a fresh one is made.
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

    /// Whether it is the same as was found before. An answer only gets older: one of the same bytes that is fresher was
    /// entered since.
    pub(crate) fn is(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Answer { fresh, bytes, .. }, Self::Answer { fresh: was, bytes: others, .. }) => {
                fresh <= was && bytes == others
            }
            (one, other) => one == other,
        }
    }
}

/// An answer to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Zero: it is for those alone who wait now.
    pub(crate) fresh: Duration,
    /// Until when it is served stale, from now on; at least as long as it is fresh.
    pub(crate) stale: Duration,
    pub(crate) bytes: Arc<[u8]>,
}

impl Entry {
    /// Fresh for so long, and then stale for so long.
    pub(crate) fn of(bytes: Arc<[u8]>, fresh: Duration, stale: Duration) -> Self {
        Self { fresh, stale: fresh.saturating_add(stale), bytes }
    }
}

impl Kept for LastAnswer {
    fn is_idle(&self, now: i64) -> bool {
        self.0.as_ref().is_none_or(|answer| answer.until <= now)
    }
}

/// Larger answers are not told to those who wait: they read them.
const TOLD: usize = 8192;

/// For how long those who wait can read an answer, however short its time is.
const READABLE: Duration = Duration::from_secs(1);

impl Entry {
    /// For how long the store keeps it, where it is entered.
    pub(crate) fn kept(&self) -> Duration {
        self.stale.max(READABLE)
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}

impl Outcome<Holder<false, LastAnswer>> for Answers {
    const BULK: bool = true;
    // Answers are up to 64 MiB.
    const MOST_RUNS: usize = 8;
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

    fn needs_waiters(entry: &Entry) -> bool {
        entry.stale.is_zero()
    }

    fn write_query(asker: &Asker, call: &mut Arguments<'_>) {
        call.integer(asker.since);
        call.integer(asker.takes_stale.into());
    }

    fn write_entry(entry: &Entry, call: &mut Arguments<'_>) {
        call.integer(micros(entry.fresh));
        call.integer(micros(entry.stale));
        call.bytes(Arc::clone(&entry.bytes));
    }

    fn decode(field: Field<'_>) -> Result<Found, Garbled> {
        const GARBLED: Garbled = Garbled("a script answered something else where an answer belongs");
        let Field::Text(text) = field else { return Err(GARBLED) };
        if text == b"other" {
            return Ok(Found::Foreign);
        }
        let mut parts = text.splitn(3, |byte| *byte == b' ');
        let mut time = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let (fresh, stale) = (time().ok_or(GARBLED)?, time().ok_or(GARBLED)?);
        Ok(Found::Answer { fresh, stale, bytes: parts.next().ok_or(GARBLED)?.into() })
    }

    fn look(
        holders: &Holder<false, LastAnswer>,
        codec: &Arc<str>,
        asker: &Asker,
        bypass: bool,
        now: i64,
    ) -> Look<Found> {
        let Some(answer) = holders.outcome.0.as_ref().filter(|answer| answer.until > now) else {
            return Look::Open(None);
        };
        // It was fresh while the asker waited.
        let good = answer.fresh > if asker.since > 0 { now.min(asker.since) } else { now };
        if !good && (answer.stale <= now || !asker.takes_stale) {
            return Look::Open(None);
        }
        if answer.codec != *codec {
            return Look::Open(Some(Found::Foreign));
        }
        let (fresh, stale) = (answer.fresh - now, answer.stale - now);
        let found = Found::Answer { fresh, stale, bytes: Arc::clone(&answer.bytes) };
        match bypass {
            true => Look::Open(Some(found)),
            false if good => Look::Done(found),
            false => Look::Meanwhile(found),
        }
    }

    fn enter(
        holders: &mut Holder<false, LastAnswer>,
        codec: &Arc<str>,
        entry: &Entry,
        holding: bool,
        now: i64,
    ) -> Result<Entered, Found> {
        if !holding {
            return Ok(Entered::Nothing);
        }
        // Redis keeps it in whole ms.
        let until = now + (micros(entry.kept()) + 999) / 1000 * 1000;
        let (fresh, stale, bytes) = (micros(entry.fresh), micros(entry.stale), Arc::clone(&entry.bytes));
        holders.outcome.0 =
            Some(Answer { fresh: now + fresh, stale: now + stale, until, codec: Arc::clone(codec), bytes });
        if entry.bytes.len() > TOLD {
            return Ok(Entered::Something);
        }
        let head = format!("{codec} {fresh} {stale} ");
        Ok(Entered::Told([head.as_bytes(), &entry.bytes].concat().into()))
    }

    fn hear(codec: &Arc<str>, told: &[u8]) -> Option<Found> {
        let answer = told.strip_prefix(codec.as_bytes())?.strip_prefix(b" ")?;
        Self::decode(Field::Text(answer)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_fresher_than_before_is_another() {
        let found = |fresh| Found::Answer { fresh, stale: fresh, bytes: b"7"[..].into() };
        assert!(found(-1).is(&found(0)) && found(0).is(&found(0)));
        assert!(!found(40_000).is(&found(0)), "entered since");
        assert!(!found(0).is(&Found::Foreign) && Found::Foreign.is(&Found::Foreign));
    }
}
