//! The stored record of a handled request, and its key.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, request};
use sha2::{Digest as _, Sha256};

use crate::response::{Answer, AnswerCodec};
use crate::single_flight::Codec as _;
use crate::{Error, Key};

/// The name of the record's format. A record is the fingerprint of the request. If the response was stored, `1` and
/// the response in the format of [`AnswerCodec`] follow.
pub(super) const FORMAT: &str = "idempotency/2+http/2";

/// The maximum length of a key in bytes.
const LONGEST_KEY: usize = 255;

/// The digests of the [`PARTS`] of a request, each cut to its bytes.
pub(super) type Fingerprint = [u8; 32];

/// The parts by which two requests are the same, and the bytes of each.
const PARTS: [(&str, Range<usize>); 3] =
    [("method", 0..4), ("host, path or query", 4..16), ("Content-Type or body", 16..32)];

/// The result of reading a record.
pub(super) enum Record {
    /// The record of the same request, with its response. `None`: the response was not stored.
    Same(Option<Answer>),
    /// The record of another request. This part of it differs.
    Another(&'static str),
    /// The record cannot be read.
    Garbled,
}

/// Returns the digest of several texts. Each text is hashed with its length, so that no text can run into the next.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Returns the `Idempotency-Key` of a request: the text of a string (RFC 9651), or a value without quotes. Returns
/// an error if the value is not allowed, or is missing although it is required.
pub(super) fn idempotency_key(headers: &HeaderMap, is_required: bool) -> Result<Option<&[u8]>, Error> {
    let mut values = headers.get_all("idempotency-key").iter();
    let value = match (values.next(), values.next()) {
        (None, _) if is_required => return Err(Error::missing_part("Idempotency-Key is missing")),
        (None, _) => return Ok(None),
        (Some(value), None) => value,
        (Some(_), Some(_)) => return Err(Error::malformed("Idempotency-Key must be sent only once")),
    };
    let value = value.as_bytes().trim_ascii();
    let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    let visible = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\".contains(byte);
    if inner.is_empty() || inner.len() > LONGEST_KEY || !inner.iter().all(visible) {
        return Err(Error::malformed(
            "Idempotency-Key must be 1 to 255 visible ASCII characters, without quotes and backslashes",
        ));
    }
    Ok(Some(inner))
}

/// Returns the key of a record. It includes the principal, so that other principals cannot read the record.
pub(super) fn key(principal: &Key, idempotency_key: &[u8]) -> Key {
    let digest = digest(&[principal.as_bytes(), idempotency_key]);
    let mut key = String::with_capacity(76);
    key.push_str("idempotency:");
    for byte in digest {
        key.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
    }
    Key::from(key)
}

/// Returns the digests of the parts by which two requests are the same.
pub(super) fn fingerprint(parts: &request::Parts, body: &Bytes) -> Fingerprint {
    #[cfg(feature = "axum")]
    let uri = parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0);
    #[cfg(not(feature = "axum"))]
    let uri = &parts.uri;
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let field = |name| parts.headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    let host = parts.uri.authority().map_or(field(HOST), |authority| authority.as_str().as_bytes());
    let texts: [&[&[u8]]; 3] =
        [&[parts.method.as_str().as_bytes()], &[host, target.as_bytes()], &[field(CONTENT_TYPE), body]];
    let mut fingerprint = [0; 32];
    for ((_, bytes), texts) in PARTS.into_iter().zip(texts) {
        fingerprint[bytes.clone()].copy_from_slice(&digest(texts)[bytes]);
    }
    fingerprint
}

/// Encodes a record. A response that the codec cannot encode is left out.
pub(super) fn encode(fingerprint: &Fingerprint, answer: Option<&Answer>) -> Arc<[u8]> {
    let answer = answer.and_then(|answer| AnswerCodec.encode(answer).ok());
    let mut bytes = fingerprint.to_vec();
    if let Some(answer) = answer {
        bytes.push(b'1');
        bytes.extend_from_slice(&answer);
    }
    bytes.into()
}

pub(super) fn decode(fingerprint: &Fingerprint, bytes: &[u8]) -> Record {
    let Some((kept, answer)) = bytes.split_first_chunk::<32>() else { return Record::Garbled };
    if let Some((part, _)) = PARTS.into_iter().find(|(_, at)| kept[at.clone()] != fingerprint[at.clone()]) {
        return Record::Another(part);
    }
    match answer.split_first() {
        None => Record::Same(None),
        Some((b'1', answer)) => {
            AnswerCodec.decode(answer).map_or(Record::Garbled, |answer| Record::Same(Some(answer)))
        }
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
        let key = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("idempotency-key", value.parse().unwrap());
            }
            idempotency_key(&headers, false).map(|key| key.map(<[u8]>::to_vec))
        };
        assert_eq!(key(&[]).unwrap(), None);
        assert!(idempotency_key(&HeaderMap::new(), true).unwrap_err().is_missing_part());
        for same in ["\"abc-1\"", "abc-1", " abc-1 "] {
            assert_eq!(key(&[same]).unwrap(), Some(b"abc-1".to_vec()));
        }
        let longest = "x".repeat(255);
        assert_eq!(key(&[&longest]).unwrap(), Some(longest.clone().into_bytes()));
        let longer = longest + "x";
        for bad in [&["a", "b"][..], &[""], &["\"\""], &["a b"], &["\"a"], &["a\\"], &[&longer]] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_first_part_that_differs_is_told() {
        let of = |method: &str, uri: &str, host: &str, content: &str, body: &'static str| {
            let request = http::Request::builder().method(method).uri(uri);
            let request = request.header(HOST, host).header(CONTENT_TYPE, content).body(()).unwrap();
            fingerprint(&request.into_parts().0, &Bytes::from_static(body.as_bytes()))
        };
        let first = of("POST", "/a?b", "x", "text/plain", "10 EUR");
        let differs = |other: Fingerprint| match decode(&other, &encode(&first, None)) {
            Record::Same(None) => None,
            Record::Another(part) => Some(part),
            _ => panic!("it can be read"),
        };
        assert_eq!(differs(of("POST", "/a?b", "x", "text/plain", "10 EUR")), None);
        assert_eq!(differs(of("PATCH", "/", "y", "", "")), Some("method"));
        for (uri, host) in [("/b?b", "x"), ("/a?c", "x"), ("/a?b", "y"), ("/a?", "bx")] {
            assert_eq!(differs(of("POST", uri, host, "", "")), Some("host, path or query"));
        }
        for (content, body) in [("text/html", "10 EUR"), ("text/plain", "11 EUR"), ("text/plain1", "0 EUR")] {
            let other = of("POST", "/a?b", "x", content, body);
            assert_eq!(differs(other), Some("Content-Type or body"));
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
