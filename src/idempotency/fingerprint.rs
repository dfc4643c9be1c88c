//! The comparison of two requests.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::request;
use sha2::{Digest as _, Sha256};

use crate::idempotency::content;

/// The parts of requests that are compared.
#[derive(Clone)]
pub(super) enum Compare {
    /// The [`PARTS`].
    Parts,
    /// The result of the user's closure.
    By(CompareBy),
}

pub(super) type CompareBy = Arc<dyn Fn(&request::Parts, &Bytes) -> Vec<u8> + Send + Sync>;

/// The digests of the parts of a request, each cut to its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// The kind of comparison. Records of different kinds cannot be compared.
    pub(super) kind: u8,
    pub(super) digests: [u8; 32],
}

pub(super) type Part = (&'static str, Range<usize>);

/// The compared parts of a request, and the bytes of each in the digests.
const PARTS: &[Part] = &[
    ("method", 0..4),
    ("host, path or query", 4..16),
    ("Content-Type or body", 16..32),
];
const CHOSEN: &[Part] = &[("content, as this service compares it", 0..32)];

/// Returns the digest of several texts. Each text is hashed with its length, so that the boundaries of texts are
/// unambiguous.
pub(super) fn digest<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

impl Compare {
    pub(super) fn fingerprint(&self, parts: &request::Parts, body: &Bytes) -> Fingerprint {
        match self {
            Self::Parts => Fingerprint {
                kind: b'p',
                digests: digests(parts, body),
            },
            Self::By(chosen) => Fingerprint {
                kind: b'c',
                digests: digest([chosen(parts, body).as_slice()]),
            },
        }
    }
}

impl Fingerprint {
    /// Returns the first part that differs from a record of the same kind.
    pub(super) fn differs(&self, recorded: &[u8; 32]) -> Option<&'static str> {
        let parts = if self.kind == b'p' { PARTS } else { CHOSEN };
        let mut differ = parts
            .iter()
            .filter(|(_, at)| self.digests[at.clone()] != recorded[at.clone()]);
        differ.next().map(|(part, _)| *part)
    }
}

/// Returns the digests of the [`PARTS`].
fn digests(parts: &request::Parts, body: &Bytes) -> [u8; 32] {
    #[cfg(feature = "axum")]
    let uri = parts
        .extensions
        .get::<axum::extract::OriginalUri>()
        .map_or(&parts.uri, |original| &original.0);
    #[cfg(not(feature = "axum"))]
    let uri = &parts.uri;
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let field = |name| {
        parts
            .headers
            .get(name)
            .map_or(&b""[..], |value| value.as_bytes())
    };
    let host = parts
        .uri
        .authority()
        .map_or(field(HOST), |authority| authority.as_str().as_bytes());
    let (content_type, contents) = content::compared(field(CONTENT_TYPE), body);
    let texts = [
        digest([parts.method.as_str().as_bytes()]),
        digest([&plain_host(host), target.as_bytes()]),
        digest([content_type.as_slice()].into_iter().chain(contents)),
    ];
    let mut digests = [0; 32];
    for ((_, bytes), digest) in PARTS.iter().zip(texts) {
        digests[bytes.clone()].copy_from_slice(&digest[bytes.clone()]);
    }
    digests
}

/// Returns a host in lower case, without the port of HTTP or HTTPS.
fn plain_host(host: &[u8]) -> Vec<u8> {
    let host = host.to_ascii_lowercase();
    let name = [&b":443"[..], b":80"]
        .into_iter()
        .find_map(|port| host.strip_suffix(port))
        .unwrap_or(&host);
    name.strip_suffix(b".").unwrap_or(name).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method, URI, host, media type and body, divided by bars.
    const FIRST: &str = "POST|/a?b|x|text/plain|10 EUR";

    fn differs(one: &str, other: &str) -> Option<&'static str> {
        let [one, other] = [one, other].map(|sent| {
            let [method, uri, host, media, body] = sent.split('|').collect::<Vec<_>>()[..] else {
                panic!("{sent}")
            };
            let request = http::Request::builder().method(method).uri(uri);
            let request = request
                .header(HOST, host)
                .header(CONTENT_TYPE, media)
                .body(())
                .unwrap();
            Compare::Parts.fingerprint(
                &request.into_parts().0,
                &Bytes::copy_from_slice(body.as_bytes()),
            )
        });
        one.differs(&other.digests)
    }

    #[test]
    fn the_first_part_that_differs_is_told() {
        for (other, told) in [
            (FIRST, None),
            ("PATCH|/|y||", Some("method")),
            ("POST|/b?b|x|text/plain|10 EUR", Some("host, path or query")),
            ("POST|/a?c|x|text/plain|10 EUR", Some("host, path or query")),
            ("POST|/a?b|y|text/plain|10 EUR", Some("host, path or query")),
            ("POST|/a?|bx|text/plain|10 EUR", Some("host, path or query")),
            (
                "POST|/a?b|x:8080|text/plain|10 EUR",
                Some("host, path or query"),
            ),
            ("POST|/a?b|x|text/html|10 EUR", Some("Content-Type or body")),
            (
                "POST|/a?b|x|text/plain|11 EUR",
                Some("Content-Type or body"),
            ),
            (
                "POST|/a?b|x|text/plain1|0 EUR",
                Some("Content-Type or body"),
            ),
        ] {
            assert_eq!(differs(FIRST, other), told, "{other}");
        }
    }

    #[test]
    fn what_means_the_same_is_the_same() {
        let of = |target: &str| {
            differs(
                "POST|https://Shop.Example/a|x|a/b|",
                &format!("POST|{target}|a/b|"),
            )
        };
        for target in [
            "/a|SHOP.example",
            "/a|shop.example:443",
            "/a|shop.example:80",
            "/a|shop.example.:443",
            "https://shop.example:443/a|shop.example",
            "http://SHOP.EXAMPLE:80/a|",
        ] {
            assert_eq!(of(target), None, "{target}");
        }
        for target in [
            "/a|shop.example:8443",
            "/a|shop.example:4430",
            "/a|a.shop.example",
        ] {
            assert!(of(target).is_some(), "{target}");
        }
    }
}
