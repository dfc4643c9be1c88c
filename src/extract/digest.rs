//! Keys that do not show what they are made of.

use sha2::{Digest as _, Sha256};

use crate::Key;

/// An alphabet of base64.
pub(crate) type Alphabet = [u8; 64];

/// That of RFC 4648, 4.
pub(crate) const STANDARD: &Alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// That of RFC 4648, 5, for URLs and names.
const FOR_NAMES: &Alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

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
        // 144 bits, which a key holds without an allocation.
        Some(base64::<24>(&hash, FOR_NAMES).into())
    }
}

/// The first `LETTERS` letters of the base64 of some bytes: a multiple of four, so without padding.
pub(crate) fn base64<const LETTERS: usize>(bytes: &[u8], alphabet: &Alphabet) -> String {
    let letters = bytes.chunks(3).flat_map(|three| {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(alphabet[(bits >> shift & 63) as usize]))
    });
    letters.take(LETTERS).collect()
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
