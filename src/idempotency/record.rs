//! The stored record of a handled request, and its key.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use crate::error::Error;
use crate::http::answer::{Answer, AnswerCodec};
use crate::idempotency::fingerprint::{Fingerprint, digest};
use crate::key::Key;
use crate::single_flight::outcome::Codec as _;

/// The name of the record's format. A record is the kind and the digests of the fingerprint of the request. If the
/// response was stored, `1` and the response in the format of [`AnswerCodec`] follow.
pub(super) const FORMAT: &str = "idempotency/3+http/3";

/// The maximum length of a key in bytes.
const LONGEST_KEY: usize = 255;

/// The result of reading a record.
pub(super) enum Record {
    /// The record of the same request, with its response. `None`: the response was not stored.
    Same(Option<Box<Answer>>),
    /// The record of another request, which differs in this part.
    Another(&'static str),
    /// The record of a request with another kind of comparison.
    Incomparable,
    /// The record cannot be read.
    Garbled,
}

/// The header field with the key of a request.
#[derive(Debug)]
pub(super) struct KeyField {
    name: HeaderName,
    /// The name in error texts.
    text: String,
}

impl KeyField {
    /// Fails if the text is not a name of a header field.
    pub(super) fn new(text: String) -> Result<Self, Error> {
        let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
            Error::invalid(format!(
                "the header field of the key must have a name of HTTP, is {text:?}"
            ))
        })?;
        Ok(Self { name, text })
    }

    /// Returns the key of a request: the text of a string (RFC 9651), or a value without quotes. Returns an error if
    /// the value is not allowed, or if a required key is missing.
    pub(super) fn key<'a>(
        &self,
        headers: &'a HeaderMap,
        is_required: bool,
    ) -> Result<Option<&'a [u8]>, Error> {
        let Self { name, text } = self;
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) if is_required => Err(Error::missing_part(format!("{text} is missing"))),
            (None, _) => Ok(None),
            (Some(value), None) => self.read(value.as_bytes()).map(Some),
            (Some(_), Some(_)) => Err(Error::malformed(format!("{text} must be sent only once"))),
        }
    }

    fn read<'a>(&self, value: &'a [u8]) -> Result<&'a [u8], Error> {
        let value = value.trim_ascii();
        let inner = value
            .strip_prefix(b"\"")
            .and_then(|value| value.strip_suffix(b"\""))
            .unwrap_or(value);
        let visible = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\".contains(byte);
        if inner.is_empty() || inner.len() > LONGEST_KEY || !inner.iter().all(visible) {
            return Err(Error::malformed(format!(
                "{} must be 1 to {LONGEST_KEY} visible ASCII characters, without quotes and backslashes",
                self.text
            )));
        }
        Ok(inner)
    }
}

/// Returns the key of a record. It includes the principal, so that other principals cannot read the record.
pub(super) fn key(principal: &Key, idempotency_key: &[u8]) -> Key {
    let digest = digest([principal.as_bytes(), idempotency_key]);
    let mut key = String::with_capacity(76);
    key.push_str("idempotency:");
    for byte in digest {
        key.extend(
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])),
        );
    }
    Key::from(key)
}

/// Encodes a record. A response that the codec cannot encode is left out.
pub(super) fn encode(fingerprint: &Fingerprint, answer: Option<&Answer>) -> Arc<[u8]> {
    let answer = answer.and_then(|answer| AnswerCodec.encode(answer).ok());
    let mut bytes = vec![fingerprint.kind];
    bytes.extend_from_slice(&fingerprint.digests);
    if let Some(answer) = answer {
        bytes.push(b'1');
        bytes.extend_from_slice(&answer);
    }
    bytes.into()
}

pub(super) fn decode(fingerprint: &Fingerprint, bytes: &[u8]) -> Record {
    let Some((kind, bytes)) = bytes.split_first() else {
        return Record::Garbled;
    };
    let Some((recorded, answer)) = bytes.split_first_chunk::<32>() else {
        return Record::Garbled;
    };
    if *kind != fingerprint.kind {
        return Record::Incomparable;
    }
    if let Some(part) = fingerprint.differs(recorded) {
        return Record::Another(part);
    }
    match answer.split_first() {
        None => Record::Same(None),
        Some((b'1', answer)) => AnswerCodec
            .decode(answer)
            .map_or(Record::Garbled, |answer| {
                Record::Same(Some(Box::new(answer)))
            }),
        Some(_) => Record::Garbled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_that_of_the_codec() {
        assert!(FORMAT.ends_with(AnswerCodec.name()), "{FORMAT}");
    }

    #[test]
    fn keys_are_strings_or_bare_and_bounded() {
        let field = KeyField::new("Idempotency-Key".to_owned()).unwrap();
        let key = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("idempotency-key", value.parse().unwrap());
            }
            field
                .key(&headers, false)
                .map(|key| key.map(<[u8]>::to_vec))
        };
        assert_eq!(key(&[]).unwrap(), None);
        assert!(
            field
                .key(&HeaderMap::new(), true)
                .unwrap_err()
                .is_missing_part()
        );
        assert!(
            KeyField::new("a key".to_owned())
                .unwrap_err()
                .to_string()
                .contains("\"a key\"")
        );
        for same in ["\"abc-1\"", "abc-1", " abc-1 "] {
            assert_eq!(key(&[same]).unwrap(), Some(b"abc-1".to_vec()));
        }
        let longest = "x".repeat(255);
        assert_eq!(
            key(&[&longest]).unwrap(),
            Some(longest.clone().into_bytes())
        );
        let longer = longest + "x";
        for bad in [
            &["a", "b"][..],
            &[""],
            &["\"\""],
            &["a b"],
            &["\"a"],
            &["a\\"],
            &[&longer],
        ] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn principals_and_keys_do_not_reach_over() {
        let of = |principal: &str, id: &str| key(&principal.into(), id.as_bytes());
        assert_ne!(of("a", "bc"), of("ab", "c"));
        assert_ne!(of("", "abc"), of("abc", ""));
        assert_eq!(of("a", "b"), of("a", "b"));
    }
}
