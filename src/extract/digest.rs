//! Keys that do not show what they are made of.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::{Error, Extracted, Key};

/// Values longer than this are hashed even where they may be shown.
const LONGEST_PLAIN: usize = 256;

/// How values that a client sends become keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digest {
    pub(super) plain: bool,
}

impl Digest {
    /// The key of the one value of a part, such as the header field x-tenant. An error if there is none.
    ///
    /// Several values are an error: a service reads one of them, and it is not known which. A key of all of them would be
    /// another one for each value that a client adds.
    pub(super) fn key<'a>(
        self,
        part: &str,
        name: &str,
        mut values: impl Iterator<Item = &'a [u8]>,
    ) -> Extracted {
        match (values.next(), values.next()) {
            (None, _) => missing(format!("the {part} {name} is missing")),
            (Some(value), None) => self.of(value).into(),
            (Some(_), Some(_)) => {
                Extracted::Ready(Err(Error::malformed(format!("the {part} {name} must be sent only once"))))
            }
        }
    }

    fn of(self, value: &[u8]) -> Key {
        if self.plain && value.len() <= LONGEST_PLAIN {
            return value.into();
        }
        // 144 bits, which a key holds without an allocation.
        URL_SAFE_NO_PAD.encode(&Sha256::digest(value)[..18]).into()
    }
}

/// A request without a part of its key. The text names the part.
pub(super) fn missing(text: impl Into<String>) -> Extracted {
    Extracted::Ready(Err(Error::missing_part(text)))
}

/// Gives [`Digest::plain`] to an extractor that has a digest.
macro_rules! plain {
    ($extractor:ident) => {
        impl $extractor {
            /// Uses the value itself, up to 256 bytes, rather than its hash. It can be read in Redis, so use this for public
            /// values.
            #[must_use]
            pub fn plain(self) -> Self {
                Self { digest: $crate::extract::digest::Digest { plain: true }, ..self }
            }
        }
    };
}
pub(super) use plain;

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
