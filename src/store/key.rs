//! Keys: the [`Key`] of a caller, and its names in Redis.

pub(super) mod names;
mod text;

use std::fmt;

use smallvec::SmallVec;

use self::names::push_part;
pub(crate) use self::names::*;
pub(crate) use self::text::{bytes_of, digest_text, is_digest, text_of};

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
        // Mostly up to four digits and a colon for each part.
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
        Self::new(self)
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
                Self::new(bytes)
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

impl From<std::net::Ipv6Addr> for Key {
    fn from(addr: std::net::Ipv6Addr) -> Self {
        Self::new(addr.to_string())
    }
}

impl From<std::net::Ipv4Addr> for Key {
    fn from(addr: std::net::Ipv4Addr) -> Self {
        // Written by hand for speed: every request of a layer keyed by address comes through here.
        let (mut text, mut length) = ([0; 24], 0);
        for octet in addr.octets() {
            let (octet, digits) = OCTETS[usize::from(octet)];
            text[length..length + 4].copy_from_slice(&octet);
            length += digits + 1;
        }
        Self(SmallVec::from_buf_and_len(text, length - 1))
    }
}

/// The octets of addresses with a dot behind each, and how many digits they have.
static OCTETS: [([u8; 4], usize); 256] = {
    let (mut octets, mut octet) = ([([b'.'; 4], 0); 256], 0);
    while octet < 256 {
        let (text, digits) = &mut octets[octet];
        *digits = 1 + (octet > 9) as usize + (octet > 99) as usize;
        let (mut at, mut rest) = (*digits, octet);
        while at > 0 {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        octet += 1;
    }
    octets
};

impl From<std::net::IpAddr> for Key {
    fn from(addr: std::net::IpAddr) -> Self {
        match addr {
            std::net::IpAddr::V4(addr) => addr.into(),
            std::net::IpAddr::V6(addr) => addr.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of these parts of a state. Of both, each is a word.
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
}
