//! Names of keys in Redis, taken apart: the inverse of [`KeySpace`](super::key::KeySpace).

use super::key::names::LONGEST;
use super::key::{Key, check_name};

/// The key in a name in Redis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stem {
    Key(Key),
    /// The SHA-256 digest of a long key, in hexadecimal digits.
    Digest(Key),
}

/// Takes the name of a key in Redis apart: the namespace, the key, and the rest. `None` if no store with this prefix
/// writes such a name.
pub(crate) fn parse<'a>(prefix: &str, name: &'a [u8]) -> Option<(&'a str, Stem, &'a str)> {
    let tagged = name.strip_prefix(prefix.as_bytes())?.strip_prefix(b":{")?;
    let end = tagged.iter().position(|byte| *byte == b'}')?;
    let (tag, rest) = (&tagged[..end], tagged[end..].strip_prefix(b"}:")?);
    let colon = tag.iter().position(|byte| *byte == b':')?;
    let (namespace, escaped) = (std::str::from_utf8(&tag[..colon]).ok()?, &tag[colon + 1..]);
    check_name("a namespace", namespace).ok()?;
    let stem = match escaped.strip_prefix(b"%#") {
        Some(digest) => {
            let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            Stem::Digest(
                (digest.len() == 64 && digest.iter().all(is_digit)).then(|| Key::new(digest))?,
            )
        }
        None => Stem::Key(unescaped(escaped)?),
    };
    Some((namespace, stem, std::str::from_utf8(rest).ok()?))
}

/// Returns the key that is escaped in a name; `None` if no key is escaped like this.
fn unescaped(mut rest: &[u8]) -> Option<Key> {
    let mut key = Vec::with_capacity(rest.len());
    while let Some((byte, after)) = rest.split_first() {
        let (byte, after) = match (byte, after) {
            (b'%', [b'2', b'5', after @ ..]) => (b'%', after),
            (b'%', [b'7', b'b', after @ ..]) => (b'{', after),
            (b'%', [b'7', b'd', after @ ..]) => (b'}', after),
            (b'%' | b'{', _) => return None,
            (byte, after) => (*byte, after),
        };
        key.push(byte);
        rest = after;
    }
    (key.len() <= LONGEST).then(|| Key::from(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::key::KeySpace;

    #[test]
    fn names_are_taken_apart_again() {
        for key in [
            &b""[..],
            b"user-7",
            b"a:b}:{c%25%#",
            b"\xff\0",
            &[b'%'; 256],
        ] {
            let name = bucket_name(key);
            let parsed = parse("td", &name);
            assert_eq!(
                parsed,
                Some(("api", Stem::Key(Key::new(key)), "tat")),
                "{}",
                key.escape_ascii()
            );
        }
        let long = bucket_name(&[b'x'; 257]);
        let Some(("api", Stem::Digest(digest), "tat")) = parse("td", &long) else {
            panic!("{long:?}")
        };
        let mut again = Vec::new();
        KeySpace::new("td", "api", KeySpace::Digests).keys(
            digest.as_bytes(),
            &["tat"],
            &mut |name| again = name.to_vec(),
        );
        assert_eq!(again, long);
        let many = [&b"td:{api:"[..], &[b'x'; 257], b"}:tat"].concat();
        let foreign = b"td:{api}:tat|td:{api:a|td:{api:a}tat|td:{a b:a}:tat|td:{:a}:tat|td:{api:%7B}:tat|\
              td:{api:%41}:tat|td:{api:%}:tat|td:{api:{a}:tat|td:{api:%#ab}:tat|td:api:a}:tat|other:{api:a}:tat|\
              td:{api:a}:\xff";
        for foreign in foreign.split(|byte| *byte == b'|').chain([&*many]) {
            assert_eq!(parse("td", foreign), None, "{}", foreign.escape_ascii());
        }
    }

    fn bucket_name(key: &[u8]) -> Vec<u8> {
        let mut name = Vec::new();
        KeySpace::new("td", "api", KeySpace::Named)
            .keys(key, &["tat"], &mut |part| name = part.to_vec());
        name
    }
}
