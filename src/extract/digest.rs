//! Keys that do not show what they are made of.

use sha2::{Digest as _, Sha256};

use crate::{Error, Extracted, Key};

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
    /// The key of the one value of a name. No key if there is none.
    ///
    /// Several values are an error: a service reads one of them, and it is not known which. A key of all of them would be
    /// another one for each value that a client adds.
    pub(super) fn key<'a>(self, name: &str, mut values: impl Iterator<Item = &'a [u8]>) -> Extracted {
        match (values.next(), values.next()) {
            (None, _) => Extracted::NONE,
            (Some(value), None) => self.of(value).into(),
            (Some(_), Some(_)) => {
                Extracted::Ready(Err(Error::bad_request(format!("{name} must be sent only once"))))
            }
        }
    }

    fn of(self, value: &[u8]) -> Key {
        if self.plain && value.len() <= LONGEST_PLAIN {
            return value.into();
        }
        // 144 bits, which a key holds without an allocation.
        base64::<24>(&Sha256::digest(value), FOR_NAMES).into()
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

    #[test]
    fn values_are_hashed_with_sha_256() {
        // The first 18 bytes of printf abc | sha256sum, in base64url.
        assert_eq!(Digest { plain: false }.of(b"abc"), "ungWv48Bz-pBQUDeXa4iI7AD".into());
    }

    #[test]
    fn short_values_may_be_shown() {
        let (shown, hashed) = (Digest { plain: true }, Digest { plain: false });
        assert_eq!(shown.of(b"abc"), "abc".into());
        assert_eq!(shown.of(&[b'a'; 257]), hashed.of(&[b'a'; 257]));
    }
}
