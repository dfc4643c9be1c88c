//! Keys that do not show what they are made of.

use sha2::{Digest as _, Sha256};

use crate::Key;

/// The URL-safe alphabet of RFC 4648, 5.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Values longer than this are hashed even where they may be shown.
const LONGEST_PLAIN: usize = 256;

/// How values that a client sends become keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digest {
    pub(super) plain: bool,
}

impl Digest {
    /// The key of the values of one name; `None` where there are none. Several values are one key: whoever adds another
    /// one has another key, whichever of them the service goes by.
    pub(super) fn key<'a>(self, mut values: impl Iterator<Item = &'a [u8]>) -> Option<Key> {
        let (first, second) = (values.next()?, values.next());
        if self.plain && second.is_none() && first.len() <= LONGEST_PLAIN {
            return Some(first.into());
        }
        let mut hash = Sha256::new();
        for value in [first].into_iter().chain(second).chain(values) {
            hash.update((value.len() as u64).to_be_bytes());
            hash.update(value);
        }
        let hash = hash.finalize();
        Some(text(&hash).as_slice().into())
    }
}

/// The first 144 bits, as text that a [`Key`] holds without an allocation.
fn text(hash: &[u8]) -> [u8; 24] {
    let mut text = [b'A'; 24];
    for (three, four) in hash.chunks(3).zip(text.chunks_mut(4)) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        for (place, letter) in four.iter_mut().enumerate() {
            *letter = ALPHABET[(bits >> (18 - 6 * place) & 63) as usize];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(plain: bool, values: &[&[u8]]) -> Option<Key> {
        Digest { plain }.key(values.iter().copied())
    }

    #[test]
    fn values_are_hashed_with_sha_256() {
        // The first 18 of printf '\0\0\0\0\0\0\0\3abc' | sha256sum, in base64url.
        assert_eq!(key(false, &[b"abc"]), Some("w0lMoaLPjuuKEd7TFvtVuDw7".into()));
        assert_eq!(key(false, &[]), None);
        assert_ne!(key(false, &[b"ab", b"c"]), key(false, &[b"a", b"bc"]));
    }

    #[test]
    fn one_short_value_may_be_shown() {
        assert_eq!(key(true, &[b"abc"]), Some("abc".into()));
        assert_eq!(key(true, &[b"abc", b"d"]), key(false, &[b"abc", b"d"]));
        assert_eq!(key(true, &[&[b'a'; 257]]), key(false, &[&[b'a'; 257]]));
    }
}
