//! The names of keys in Redis: [`KeySpace`] builds them, [`parse`] parses them. It also checks the names that users
//! choose.

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::error::Error;
use crate::key::{Key, parts, split};

/// Builds the names of a namespace's keys in Redis.
#[derive(Clone, Debug)]
pub(crate) enum KeySpace {
    /// `prefix:{namespace:`, the beginning of all names.
    Named(Box<[u8]>),
    /// `:prefix:`. The first part of a state is named by the key itself. Each other part has the name
    /// `{key}:prefix:part`, or `key:prefix:=part` if the key has a hash tag. See [`check_exact`].
    Exact(Box<[u8]>),
    /// Keys are `place:rest`. Their state is in the same slot as the key `place` of the same namespace:
    /// `prefix:{namespace:place}:rest:part`. A part that begins with `@` belongs to the place itself:
    /// `prefix:{namespace:place}:part`.
    Placed(Box<[u8]>),
    /// `prefix:{namespace:`. Keys are the digests of long keys, in hexadecimal digits.
    Digests(Box<[u8]>),
    /// Several states at once. [`Key::of`] makes a key, with one part for each of these.
    Joined(Box<[KeySpace]>),
    /// Several states of one space at once. [`Key::of`] makes a key, with one part for each state.
    Each(Box<KeySpace>),
}

/// The Redis key of one state without its last part: `prefix:{namespace:key}:`.
pub(crate) type RedisKey = SmallVec<[u8; 128]>;

/// A longer key is replaced by its digest, so that no caller can fill the memory of the server with names.
pub(crate) const LONGEST: usize = 256;

impl KeySpace {
    /// Returns the names of a namespace, of the kind `of`.
    pub(crate) fn new(prefix: &str, namespace: &str, of: fn(Box<[u8]>) -> Self) -> Self {
        of(format!("{prefix}:{{{namespace}:").into_bytes().into())
    }

    pub(crate) fn exact(prefix: &str) -> Self {
        Self::Exact(format!(":{prefix}:").into_bytes().into())
    }

    /// Returns the number of Redis keys for a key, if one state has `width` parts.
    pub(crate) fn width(&self, key: &[u8], width: usize) -> usize {
        match self {
            Self::Joined(spaces) => spaces.len() * width,
            Self::Each(_) => parts(key).count() * width,
            Self::Named(_) | Self::Exact(_) | Self::Placed(_) | Self::Digests(_) => width,
        }
    }

    /// Returns the beginning of the names of a key's state; with several states, that of the first.
    pub(crate) fn key(&self, key: &[u8]) -> RedisKey {
        match self {
            Self::Joined(spaces) => {
                let first = spaces.iter().zip(parts(key).flatten()).next();
                first.map_or_else(RedisKey::new, |(space, key)| space.key(key))
            }
            Self::Each(space) => parts(key)
                .flatten()
                .next()
                .map_or_else(RedisKey::new, |key| space.key(key)),
            Self::Named(beginning) => named(beginning, key),
            Self::Digests(beginning) => [beginning, &b"%#"[..], key, b"}:"].concat().into(),
            // The `=` distinguishes the name from those of the hash tag itself.
            Self::Exact(end) if hash_tag(key).is_some() => [key, end, b"="].concat().into(),
            Self::Exact(end) => [b"{", key, b"}", end].concat().into(),
            Self::Placed(beginning) => {
                let (place, rest) = split(key);
                let mut name = named(beginning, place);
                name.extend_from_slice(rest);
                name.push(b':');
                name
            }
        }
    }

    /// Calls `give` with the name of each part of a key's state.
    pub(crate) fn keys(&self, key: &[u8], names: &[&str], give: &mut dyn FnMut(&[u8])) {
        if let Self::Joined(spaces) = self {
            spaces
                .iter()
                .zip(parts(key).flatten())
                .for_each(|(space, key)| space.keys(key, names, give));
            return;
        }
        if let Self::Each(space) = self {
            parts(key)
                .flatten()
                .for_each(|key| space.keys(key, names, give));
            return;
        }
        let mut name = self.key(key);
        let stem = name.len();
        for (position, part) in names.iter().enumerate() {
            if position == 0 && matches!(self, Self::Exact(_)) {
                give(key);
                continue;
            }
            if let (Self::Placed(beginning), Some(part)) = (self, part.strip_prefix('@')) {
                let mut name = named(beginning, split(key).0);
                name.extend_from_slice(part.as_bytes());
                give(&name);
                continue;
            }
            name.extend_from_slice(part.as_bytes());
            give(&name);
            name.truncate(stem);
        }
    }
}

/// Returns a name that differs for any two keys: `%`, `{` and `}` are escaped. A long key is replaced by its SHA-256
/// digest after `%#`, which no escape produces.
fn named(beginning: &[u8], key: &[u8]) -> RedisKey {
    let mut name = RedisKey::from_slice(beginning);
    if key.len() > LONGEST {
        name.extend_from_slice(b"%#");
        for byte in Sha256::digest(key) {
            push_hex(&mut name, byte);
        }
    } else if key.iter().any(|byte| b"%{}".contains(byte)) {
        for &byte in key {
            if b"%{}".contains(&byte) {
                name.push(b'%');
                push_hex(&mut name, byte);
            } else {
                name.push(byte);
            }
        }
    } else {
        name.extend_from_slice(key);
    }
    name.extend_from_slice(b"}:");
    name
}

/// Returns the part of a key that determines its slot on a Cluster, or `None` if the whole key does (Redis Cluster
/// specification, "hash tags").
pub(crate) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let rest = &key[key.iter().position(|&byte| byte == b'{')? + 1..];
    let tag = &rest[..rest.iter().position(|&byte| byte == b'}')?];
    (!tag.is_empty()).then_some(tag)
}

/// Checks a key that is used unchanged as the name of a Redis key. It must allow names beside it in its slot, and it
/// must not contain `:prefix:`, which marks such names.
pub(crate) fn check_exact(key: &Key, prefix: &str) -> Result<(), Error> {
    let key = key.as_bytes();
    let end = format!(":{prefix}:");
    let is_beside = key.windows(end.len()).any(|part| part == end.as_bytes());
    if key.is_empty() || is_beside || (hash_tag(key).is_none() && key.contains(&b'}')) {
        return Err(Error::invalid(format!(
            "an exact key must not be empty, must have }} only as the end of a {{hash tag}}, and must not contain \
             \"{end}\", is \"{}\"",
            key.escape_ascii()
        )));
    }
    Ok(())
}

fn push_hex(name: &mut RedisKey, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    name.extend_from_slice(&[
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
    ]);
}

/// Checks the name of a namespace or a prefix. It may contain only characters that need no escape in a key.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
        return Err(Error::invalid(format!(
            "{what} must be 1 to 64 of the characters A-Z a-z 0-9 - _ . /, is {name:?}"
        )));
    }
    Ok(())
}

/// The key in a name in Redis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stem {
    Key(Key),
    /// The SHA-256 digest of a long key, in hexadecimal digits.
    Digest(Key),
}

/// Parses the name of a key in Redis: the namespace, the key, and the rest. `None` if no store with this prefix writes
/// such a name.
pub(crate) fn parse<'a>(prefix: &str, name: &'a [u8]) -> Option<(&'a str, Stem, &'a str)> {
    let tagged = name.strip_prefix(prefix.as_bytes())?.strip_prefix(b":{")?;
    let end = tagged.iter().position(|byte| *byte == b'}')?;
    let tag = &tagged[..end];
    let rest = tagged[end..].strip_prefix(b"}:")?;
    let colon = tag.iter().position(|byte| *byte == b':')?;
    let namespace = std::str::from_utf8(&tag[..colon]).ok()?;
    let escaped = &tag[colon + 1..];
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

    /// Returns the names of these parts of a state. Parts and names are separated by spaces.
    fn names(space: &KeySpace, key: &str, parts: &str) -> String {
        let (mut names, parts) = (Vec::new(), parts.split(' ').collect::<Vec<_>>());
        space.keys(key.as_bytes(), &parts, &mut |name| {
            names.push(String::from_utf8_lossy(name).into_owned());
        });
        names.join(" ")
    }

    fn named(name: &str) -> KeySpace {
        KeySpace::new("td", name, KeySpace::Named)
    }

    /// Braces cannot leave the hash tag.
    #[test]
    fn keys_have_the_names_of_their_space() {
        let joined = KeySpace::Joined(["a", "b"].map(named).into());
        let each = KeySpace::Each(Box::new(named("a")));
        let placed = KeySpace::new("td", "a", KeySpace::Placed);
        let (api, exact) = (named("api"), KeySpace::exact("td"));
        for (space, key, parts, expected) in [
            (&api, "user-7", "t", "td:{api:user-7}:t"),
            (&api, "", "t", "td:{api:}:t"),
            (&api, "a:b c\0", "t", "td:{api:a:b c\0}:t"),
            (&api, "}:x{", "t", "td:{api:%7d:x%7b}:t"),
            (&api, "%7d", "t", "td:{api:%257d}:t"),
            (&joined, "1:x1:y", "t", "td:{a:x}:t td:{b:y}:t"),
            (
                &each,
                "1:x0:",
                "t u",
                "td:{a:x}:t td:{a:x}:u td:{a:}:t td:{a:}:u",
            ),
            (&each, "2:y}", "t", "td:{a:y%7d}:t"),
            (&placed, "x}:lock:1", "@all", "td:{a:x%7d}:all"),
            (&placed, "x}:lock:1", "holds", "td:{a:x%7d}:lock:1:holds"),
            (&placed, "x", "holds @all", "td:{a:x}::holds td:{a:x}:all"),
            (&exact, "no-42", "lock q", "no-42 {no-42}:td:q"),
            (&exact, "{shop}:42", "lock q", "{shop}:42 {shop}:42:td:=q"),
        ] {
            assert_eq!(names(space, key, parts), expected);
        }
        assert_eq!((joined.width(b"", 2), each.width(b"1:x0:", 2)), (4, 4));
        for space in [&joined, &each] {
            assert_eq!(&space.key(b"1:x1:y")[..], b"td:{a:x}:");
        }
    }

    #[test]
    fn long_keys_go_by_their_digest() {
        let name = |key: &str| names(&named("api"), key, "t");
        let long = name(&"x".repeat(1 << 20));
        assert_eq!(long.len(), "td:{api:%#}:t".len() + 64);
        assert_ne!(long, name(&"x".repeat((1 << 20) - 1)));
        assert_ne!(
            long,
            name(long.trim_start_matches("td:{api:").trim_end_matches("}:t"))
        );
    }

    #[test]
    fn exact_names_are_checked() {
        for bad in ["", "a}b", "{}x", "{a}:td:queue", "{a}:td:=queue"] {
            let error = check_exact(&bad.into(), "td").unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains(bad),
                "{error}"
            );
        }
        assert!(
            check_exact(&"a{b:td".into(), "td").is_ok()
                && check_exact(&"{a}}".into(), "td").is_ok()
        );
    }

    #[test]
    fn names_are_checked() {
        assert!(
            ["shop-1.eu/x_y", &"x".repeat(64)]
                .iter()
                .all(|name| check_name("a prefix", name).is_ok())
        );
        for bad in ["", "a b", "a:b", "{a}", "ä", &"x".repeat(65)] {
            let error = check_name("a prefix", bad).unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains(&format!("{bad:?}")),
                "{error}"
            );
        }
    }

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
