//! The versions of a setting, and their stored form.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// One version of a [`FleetSetting`](super::FleetSetting): its value, who set it, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingVersion {
    /// 1 for the first version. Each later one is higher by 1.
    pub number: u64,
    /// The value as text. `None`: the first version was undone, so each process uses its default.
    pub text: Option<Arc<str>>,
    /// Who set it, as given by the caller.
    pub who: Arc<str>,
    /// When it was set, by the clock of the store. A later version has a later time.
    pub at: SystemTime,
}

/// The upper bound of numbers and times that are recognised: larger ones are not exact in Lua.
pub(crate) const END: u64 = 1 << 53;

/// A version whose number or time has reached this value is the last one, so that all versions that are written are
/// recognised.
pub(super) const LAST: u64 = 1 << 52;

impl SettingVersion {
    /// Parses a stored version: `number at id`, who, and `+text` or `-`, separated by line feeds.
    pub(super) fn parse(stored: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(stored).ok()?.splitn(3, '\n');
        let (head, who, value) = (lines.next()?, lines.next()?, lines.next()?);
        let mut words = head.splitn(3, ' ');
        let (number, at, id) = (
            number(words.next()?)?,
            number(words.next()?)?,
            words.next()?,
        );
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let text = match value.strip_prefix('+') {
            Some(text) => Some(text.into()),
            None => value.starts_with('-').then_some(None)?,
        };
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(at))?;
        is_id.then(|| Self {
            number,
            text,
            who: who.into(),
            at,
        })
    }

    /// When it was set, µs.
    pub(super) fn micros(&self) -> u64 {
        let since = self.at.duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(END))
    }
}

/// Writes a version in its stored form. `value`: `+text` or `-`.
pub(super) fn written(number: u64, at: u64, id: &str, who: &str, value: &str) -> Arc<[u8]> {
    format!("{number} {at} {id}\n{who}\n{value}")
        .into_bytes()
        .into()
}

/// Returns the id of the call that wrote a version.
pub(super) fn id(stored: &[u8]) -> Option<&str> {
    let head = stored.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(head).ok()?.splitn(3, ' ').nth(2)
}

/// Returns the value of a stored version: `+text` or `-`.
pub(super) fn value(stored: &[u8]) -> Option<&str> {
    let value = std::str::from_utf8(stored.splitn(3, |byte| *byte == b'\n').nth(2)?).ok()?;
    value.starts_with(['+', '-']).then_some(value)
}

/// Parses a number that consists of digits only.
pub(crate) fn number(digits: &str) -> Option<u64> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .parse()
        .ok()
        .filter(|number| is_number && *number < END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_are_read() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(77);
        let version = |text: Option<&str>| SettingVersion {
            number: 3,
            text: text.map(Into::into),
            who: "ann b".into(),
            at,
        };
        let read = |stored: &str| SettingVersion::parse(stored.as_bytes());
        assert_eq!(read("3 77 0af\nann b\n+10/s"), Some(version(Some("10/s"))));
        assert_eq!(read("3 77 0af\nann b\n+a\nb"), Some(version(Some("a\nb"))));
        assert_eq!(read("3 77 0af\nann b\n-"), Some(version(None)));
        assert_eq!(
            read("3 77 0af\nann b\n+10/s").map(|version| version.micros()),
            Some(77)
        );
        let heads = "3 77|3 77 |3 77 0ag|3 77 0af 1|+3 77 0af|3 -77 0af|9007199254740992 77 0af|\
             99999999999999999999999999999999 77 0af";
        let heads = heads.split('|').map(|head| format!("{head}\nann\n+10/s"));
        let others = "|10/s|3 77 0af\nann|3 77 0af\nann\n10/s"
            .split('|')
            .map(str::to_owned);
        for nonsense in heads.chain(others) {
            assert_eq!(read(&nonsense), None, "{nonsense:?}");
        }
        assert_eq!(SettingVersion::parse(b"3 77 0af\nann\n+\xff"), None);
    }
}
