//! The names of keys in Redis.

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::Key;
use crate::Error;

/// Builds the names of a namespace's keys in Redis.
#[derive(Clone, Debug)]
pub(crate) enum KeySpace {
    /// `prefix:{namespace:`, the beginning of all names.
    Named(Box<[u8]>),
    /// `:prefix:`. The first part of a state has the key itself as its name. Each other part has the name
    /// `{key}:prefix:part`, or `key:prefix:=part` if the key has a hash tag. See [`check_exact`].
    Exact(Box<[u8]>),
    /// Keys are `place:rest`. Their state is in the same slot as the key `place` of the same namespace:
    /// `prefix:{namespace:place}:rest:part`. A part that begins with `@` belongs to the place itself:
    /// `prefix:{namespace:place}:part`.
    Placed(Box<[u8]>),
    /// `prefix:{namespace:`. Keys are the digests of long keys, in hexadecimal digits.
    Digests(Box<[u8]>),
    /// Several states at once. A key is made by [`Key::of`], with one part for each of these.
    Joined(Box<[KeySpace]>),
    /// Several states of one of these at once. A key is made by [`Key::of`], with one part for each state.
    Each(Box<KeySpace>),
}

/// The Redis key of one state without its last part: `prefix:{namespace:key}:`.
pub(crate) type RedisKey = SmallVec<[u8; 128]>;

/// A longer key is replaced by its digest, so that no caller fills the memory of the server with names.
pub(crate) const LONGEST: usize = 256;

impl KeySpace {
    /// The names of a namespace, of the kind `of`.
    pub(crate) fn new(prefix: &str, namespace: &str, of: fn(Box<[u8]>) -> Self) -> Self {
        of(format!("{prefix}:{{{namespace}:").into_bytes().into())
    }

    pub(crate) fn exact(prefix: &str) -> Self {
        Self::Exact(format!(":{prefix}:").into_bytes().into())
    }

    /// The number of Redis keys for a key, if one state has `width` parts.
    pub(crate) fn width(&self, key: &[u8], width: usize) -> usize {
        match self {
            Self::Joined(spaces) => spaces.len() * width,
            Self::Each(_) => parts(key).count() * width,
            Self::Named(_) | Self::Exact(_) | Self::Placed(_) | Self::Digests(_) => width,
        }
    }

    /// The beginning of the names of a key's state; with several states, of the first.
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
            // The `=` distinguishes the name from those of the tag itself.
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

pub(super) fn push_part(bytes: &mut SmallVec<[u8; 24]>, part: &[u8]) {
    bytes.extend_from_slice(itoa::Buffer::new().format(part.len()).as_bytes());
    bytes.push(b':');
    bytes.extend_from_slice(part);
}

/// Returns the parts of a key made by [`Key::of`] or [`Key::of_some`], `None` for an absent part. Ends early if the
/// key was made otherwise.
pub(crate) fn parts(mut rest: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        if let Some(after) = rest.strip_prefix(b"-") {
            rest = after;
            return Some(None);
        }
        let colon = rest.iter().position(|byte| *byte == b':')?;
        let length: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
        let (part, after) = rest[colon + 1..].split_at_checked(length)?;
        rest = after;
        Some(Some(part))
    })
}

/// Splits a key into its place and the rest.
fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match key.iter().position(|byte| *byte == b':') {
        Some(colon) => (&key[..colon], &key[colon + 1..]),
        None => (key, b""),
    }
}

/// Returns a name that differs for any two keys: `%`, `{` and `}` are escaped. A long key is replaced by its
/// SHA-256 digest after `%#`, which no escape produces.
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

/// Returns the part of a key that decides its slot on a Cluster, or `None` if the whole key decides (Redis Cluster
/// specification, "hash tags").
pub(crate) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let rest = &key[key.iter().position(|&byte| byte == b'{')? + 1..];
    let tag = &rest[..rest.iter().position(|&byte| byte == b'}')?];
    (!tag.is_empty()).then_some(tag)
}

/// Checks a key that is used as the name of a Redis key without change. Names beside it must be possible in its
/// slot, and it must not contain `:prefix:`, which marks such names.
pub(crate) fn check_exact(key: &Key, prefix: &str) -> Result<(), Error> {
    let (key, end) = (key.as_bytes(), format!(":{prefix}:"));
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
