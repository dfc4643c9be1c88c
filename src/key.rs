//! The [`Key`] of a caller: made of addresses, numbers or text, joined from several parts, and written as printable
//! text. The names of keys in Redis are in `store/redis/names.rs`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use crate::error::Error;

/// The bytes that identify a caller, tenant, host or job.
///
/// All bytes are valid, in any number: empty, with NUL, a megabyte. A key of up to 24 bytes needs no allocation.
///
/// ```
/// use tower_distributed::Key;
///
/// assert_eq!(Key::from("user-7").as_bytes(), b"user-7");
/// assert_eq!(Key::from(7_u64), Key::from("7"));
/// ```
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[u8; Key::INLINE]>);

impl Key {
    /// Longer keys are allocated.
    pub(crate) const INLINE: usize = 24;

    /// Returns the bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Creates a key of several parts, such as a sender and the id of a message. Different parts always make
    /// different keys: each part is written with its length before it, as in `6:github5:evt_1`.
    ///
    /// ```
    /// use tower_distributed::Key;
    ///
    /// assert_ne!(Key::of(["a", "b:c"]), Key::of(["a:b", "c"]));
    /// assert_eq!(Key::of(["github", "evt_1"]).as_bytes(), b"6:github5:evt_1");
    /// ```
    pub fn of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Self {
        let parts = parts.into_iter();
        Self::written(|bytes| parts.for_each(|part| push_part(bytes, part.as_ref())))
    }

    /// Creates a key of several parts, some of which may be absent. An absent part is written as `-`; no present
    /// part begins with it.
    pub(crate) fn of_some<'a>(parts: impl IntoIterator<Item = Option<&'a Key>>) -> Self {
        let parts: SmallVec<[Option<&Key>; 8]> = parts.into_iter().collect();
        // Most parts need at most four digits and a colon.
        let length = |part: &Option<&Key>| 5 + part.map_or(0, |part| part.as_bytes().len());
        Self::written(|bytes| {
            bytes.reserve(parts.iter().map(length).sum());
            parts.iter().for_each(|part| match part {
                Some(part) => push_part(bytes, part.as_bytes()),
                None => bytes.push(b'-'),
            });
        })
    }

    /// Moves the key out and leaves an empty key.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self(SmallVec::new()))
    }

    /// Creates a key of the bytes that a closure writes.
    pub(crate) fn written(write: impl FnOnce(&mut SmallVec<[u8; 24]>)) -> Self {
        let mut bytes = SmallVec::new();
        write(&mut bytes);
        Self(bytes)
    }

    pub(crate) fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(SmallVec::from_slice(bytes.as_ref()))
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        // Much faster than `SmallVec::clone`, which copies byte by byte.
        Self(SmallVec::from_slice(&self.0))
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0.escape_ascii())
    }
}

macro_rules! from_bytes {
    ($($bytes:ty),*) => {$(
        impl From<$bytes> for Key {
            fn from(bytes: $bytes) -> Self {
                Self(SmallVec::from_slice(bytes.as_ref()))
            }
        }
    )*};
}
from_bytes!(&str, &String, String, &[u8], Vec<u8>, &Vec<u8>);

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Self {
        Self::new(bytes)
    }
}

macro_rules! from_number {
    ($($number:ty),*) => {$(
        impl From<$number> for Key {
            fn from(number: $number) -> Self {
                Self::new(itoa::Buffer::new().format(number))
            }
        }
    )*};
}
from_number!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize
);

impl From<Ipv6Addr> for Key {
    fn from(addr: Ipv6Addr) -> Self {
        Self::new(addr.to_string())
    }
}

impl From<Ipv4Addr> for Key {
    fn from(addr: Ipv4Addr) -> Self {
        // Written by hand for speed: every request of a layer keyed by address comes through here.
        let mut text = [0; 24];
        let mut length = 0;
        for octet in addr.octets() {
            let (octet, digits) = OCTETS[usize::from(octet)];
            text[length..length + 4].copy_from_slice(&octet);
            length += digits + 1;
        }
        Self(SmallVec::from_buf_and_len(text, length - 1))
    }
}

/// For each octet: its decimal digits with a dot after them, and the number of digits.
static OCTETS: [([u8; 4], usize); 256] = {
    let mut octets = [([b'.'; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let (text, digits) = &mut octets[octet];
        *digits = 1 + (octet > 9) as usize + (octet > 99) as usize;
        let mut at = *digits;
        let mut rest = octet;
        while at > 0 {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        octet += 1;
    }
    octets
};

impl From<IpAddr> for Key {
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => addr.into(),
            IpAddr::V6(addr) => addr.into(),
        }
    }
}

/// Writes a part of a joined key, with its length before it.
fn push_part(bytes: &mut SmallVec<[u8; 24]>, part: &[u8]) {
    bytes.extend_from_slice(itoa::Buffer::new().format(part.len()).as_bytes());
    bytes.push(b':');
    bytes.extend_from_slice(part);
}

/// Returns the parts of a key made by [`Key::of`] or [`Key::of_some`], `None` for an absent part. Ends early if the key
/// was made in another way.
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

/// Splits a key at its first `:`.
pub(crate) fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match key.iter().position(|byte| *byte == b':') {
        Some(colon) => (&key[..colon], &key[colon + 1..]),
        None => (key, b""),
    }
}

/// Writes bytes as printable text.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |text: &mut String, bytes: &[u8]| {
        bytes
            .iter()
            .for_each(|byte| text.push_str(&format!("%{byte:02x}")));
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Quotes and backslashes can be printed, but `escape_debug` escapes them.
            let is_printable = "'\"\\".contains(c) || c.escape_debug().len() == 1;
            if is_printable && c != '%' {
                text.push(c)
            } else {
                escape(&mut text, c.to_string().as_bytes())
            }
        }
        escape(&mut text, chunk.invalid());
    }
    let inner = text.trim_matches(' ');
    if inner.len() == text.len() {
        return text;
    }
    let before = text.len() - text.trim_start_matches(' ').len();
    let after = if inner.is_empty() {
        0
    } else {
        text.len() - before - inner.len()
    };
    format!("{}{inner}{}", "%20".repeat(before), "%20".repeat(after))
}

/// Returns the bytes that a text stands for, whether [`text_of`] wrote it or it is escaped in another way.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(digits[0])? * 16 + digit(digits[1])?) as u8
            }
            byte => byte,
        });
    }
    Some(bytes)
}

/// Whether a text is the 64 hexadecimal digits of a SHA-256 digest.
pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Writes `%#` and the SHA-256 digest of a key, which replace a long key in names.
pub(crate) fn digest_text(key: &[u8]) -> String {
    let mut text = "%#".to_owned();
    Sha256::digest(key)
        .iter()
        .for_each(|byte| text.push_str(&format!("{byte:02x}")));
    text
}

/// Types that convert into a key: strings, bytes, numbers, IP addresses, an `Option` of these, or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a key cannot be made of `{Self}`",
    label = "not a key",
    note = "keys are made of strings, bytes, numbers and IP addresses, an `Option` of these, or a `Result<_, tower_distributed::Error>`",
    note = "make one of several parts with `Key::of([..])`"
)]
pub trait IntoKey {
    /// The key; `None` lets the request pass without being limited, an error refuses it.
    fn into_key(self) -> Result<Option<Key>, Error>;
}

impl<T: Into<Key>> IntoKey for T {
    fn into_key(self) -> Result<Option<Key>, Error> {
        Ok(Some(self.into()))
    }
}

impl<T: Into<Key>> IntoKey for Option<T> {
    fn into_key(self) -> Result<Option<Key>, Error> {
        Ok(self.map(Into::into))
    }
}

impl<T: IntoKey> IntoKey for Result<T, Error> {
    fn into_key(self) -> Result<Option<Key>, Error> {
        self?.into_key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_bytes() {
        let keys = std::collections::HashSet::from([Key::from("a"), Key::from("")]);
        assert!(
            [&b"a"[..], b""]
                .into_iter()
                .all(|bytes| keys.contains(bytes))
        );
        assert!(
            [&b"\0"[..], b"\x01"]
                .into_iter()
                .all(|bytes| !keys.contains(bytes))
        );
    }

    #[test]
    fn addresses_are_written_as_usual() {
        for octet in 0..=255 {
            let addr = std::net::Ipv4Addr::new(octet, 0, 10, 255 - octet);
            assert_eq!(Key::from(addr), Key::from(addr.to_string()));
        }
        assert_eq!(Key::from(std::net::IpAddr::from([0; 16])), "::".into());
    }

    #[test]
    fn other_parts_make_another_key() {
        let texts = [
            "", " ", "a b:c", "a:b c", "a b c", "a:b:c", "1:a3:b:c", "1:a b:c", "a 3:b:c",
        ];
        let mut keys = std::collections::HashSet::from([Key::of([""; 0])]);
        for text in texts {
            let (key, parts) = (
                Key::of(text.split(' ')),
                text.split(' ').map(|part| Some(part.as_bytes())),
            );
            assert!(super::parts(key.as_bytes()).eq(parts), "{text:?}");
            assert!(keys.insert(key), "{text:?}");
        }
        for other in ["", "a", "9:a", ":", "18446744073709551616:a"] {
            assert_eq!(super::parts(other.as_bytes()).count(), 0, "{other}");
        }
        let long = "x".repeat(1000).into();
        let some = Key::of_some([None, Some(&"-".into()), None, Some(&long)]);
        assert!(
            super::parts(some.as_bytes()).eq([None, Some(&b"-"[..]), None, Some(long.as_ref())]),
            "{some:?}"
        );
    }
}
