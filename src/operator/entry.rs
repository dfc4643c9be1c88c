//! The entries of a listing: [`Entry`] and its [`Kind`].

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::key::{Key, bytes_of, is_digest, text_of};
use crate::store::inspect::Found;
use crate::store::redis::names::{Stem, check_name};

/// The kind of a stored state. Its [`Display`](fmt::Display) and [`FromStr`] use the names in the table.
///
/// ```
/// use tower_distributed::operator::Kind;
///
/// assert_eq!("rw_lock".parse::<Kind>()?, Kind::RwLock);
/// assert_eq!(Kind::ExactClaim.to_string(), "exact_claim");
/// let error = "lock".parse::<Kind>().unwrap_err();
/// assert!(error.is_invalid() && error.to_string().contains("mutex"));
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `token_bucket`: a bucket of a [`TokenBucket`](crate::TokenBucket).
    TokenBucket,
    /// `wait_group`: the permits of a [`WaitGroup`](crate::WaitGroup).
    WaitGroup,
    /// `mutex`: a lock of a [`Mutex`](crate::Mutex).
    Mutex,
    /// `rw_lock`: a lock of a [`RwLock`](crate::RwLock).
    RwLock,
    /// `single_flight`: a run or an answer of a [`SingleFlight`](crate::SingleFlight), or of an idempotency layer.
    SingleFlight,
    /// `dedupe`: a namespace of handled items of an exact [`Dedupe`](crate::Dedupe), or one item of it.
    Dedupe,
    /// `exact_claim`: a claim on an item of an exact [`Dedupe`](crate::Dedupe). The key is a digest of the item.
    ExactClaim,
    /// `bloom_filter`: a [`BloomFilter`](crate::BloomFilter).
    BloomFilter,
    /// `filter_claim`: a claim on an item of a filter. The key is a digest of the item.
    FilterClaim,
    /// `fleet_quotas`: quotas of the [fleet](crate::fleet).
    FleetQuotas,
    /// `fleet_table`: a table of quotas of the [fleet](crate::fleet).
    FleetTable,
    /// `fleet_limit`: a limit of permits of the [fleet](crate::fleet).
    FleetLimit,
    /// `refused_keys`: the keys that a process has refused most, counted by [`RefusedKeys`](crate::fleet::RefusedKeys).
    /// The key is the process.
    RefusedKeys,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::TokenBucket,
        Self::WaitGroup,
        Self::Mutex,
        Self::RwLock,
        Self::SingleFlight,
        Self::Dedupe,
        Self::ExactClaim,
        Self::BloomFilter,
        Self::FilterClaim,
        Self::FleetQuotas,
        Self::FleetTable,
        Self::FleetLimit,
        Self::RefusedKeys,
    ];

    /// Returns whether a state of this kind has holders, whose leases can be [revoked](super::Operator::revoke).
    #[must_use]
    pub fn has_holders(self) -> bool {
        !matches!(
            self,
            Self::TokenBucket | Self::Dedupe | Self::BloomFilter | Self::RefusedKeys
        ) && !self.is_setting()
    }

    /// Whether a listing shows a namespace of this kind as one entry.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::BloomFilter | Self::Dedupe) || self.is_setting()
    }

    /// Whether it is a setting of the fleet.
    fn is_setting(self) -> bool {
        matches!(
            self,
            Self::FleetQuotas | Self::FleetTable | Self::FleetLimit
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::WaitGroup => "wait_group",
            Self::Mutex => "mutex",
            Self::RwLock => "rw_lock",
            Self::SingleFlight => "single_flight",
            Self::Dedupe => "dedupe",
            Self::ExactClaim => "exact_claim",
            Self::BloomFilter => "bloom_filter",
            Self::FilterClaim => "filter_claim",
            Self::FleetQuotas => "fleet_quotas",
            Self::FleetTable => "fleet_table",
            Self::FleetLimit => "fleet_limit",
            Self::RefusedKeys => "refused_keys",
        }
    }

    /// The kind and the key of a state, from a part that exists while the state is in use; `None` for other parts.
    fn of_part(stem: Stem, part: &str) -> Option<(Self, Stem)> {
        let kind = match part {
            "tat" => Self::TokenBucket,
            "refused" => Self::RefusedKeys,
            "permits:holders" | "permits:waiters" | "permits:limit" => Self::WaitGroup,
            "lock" | "waiters" => Self::Mutex,
            "rw:holders" | "rw:waiters" => Self::RwLock,
            "flight:lock" | "flight:answer" | "flight:waiters" => Self::SingleFlight,
            "layout" => return is_key(&stem, b"layout").then_some((Self::Dedupe, stem)),
            "config" => return is_key(&stem, b"0").then_some((Self::BloomFilter, stem)),
            "setting:quotas" => return is_key(&stem, b"").then_some((Self::FleetQuotas, stem)),
            "setting:table" => return is_key(&stem, b"").then_some((Self::FleetTable, stem)),
            "setting:limit" => return is_key(&stem, b"").then_some((Self::FleetLimit, stem)),
            _ => return Self::of_claim(stem, part),
        };
        Some((kind, stem))
    }

    /// A claim on an item: the bucket or shard, then the digest of the item.
    fn of_claim(stem: Stem, part: &str) -> Option<(Self, Stem)> {
        let (digest, part) = part.split_once(':')?;
        let kind = match part {
            "claim" | "waiters" => Self::FilterClaim,
            "exact:claim" | "exact:waiters" => Self::ExactClaim,
            _ => return None,
        };
        let Stem::Key(place) = stem else { return None };
        let key = Key::from([place.as_bytes(), b":", digest.as_bytes()].concat());
        is_claim(&key).then_some((kind, Stem::Key(key)))
    }
}

fn is_key(stem: &Stem, key: &[u8]) -> bool {
    matches!(stem, Stem::Key(own) if own.as_bytes() == key)
}

/// Whether a key is a number and a digest of 32 hexadecimal digits.
fn is_claim(key: &Key) -> bool {
    let colon = key.as_bytes().iter().position(|byte| *byte == b':');
    let (place, digest) = key.as_bytes().split_at(colon.unwrap_or(0));
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_number = (1..=10).contains(&place.len()) && place.iter().all(u8::is_ascii_digit);
    is_number && digest.len() == 33 && digest[1..].iter().all(is_digit)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                Error::invalid(format!("a kind must be one of {names}, is {text:?}"))
            })
    }
}

/// A stored state: its kind, its namespace and its key.
///
/// ```
/// use tower_distributed::operator::{Entry, Kind};
///
/// let entry = Entry::new(Kind::Mutex, "reports", "2026-11\n")?;
/// assert_eq!((entry.kind(), entry.namespace()), (Kind::Mutex, "reports"));
/// assert_eq!(entry.key_text(), "2026-11%0a");
/// assert_eq!(Entry::parse(Kind::Mutex, "reports", "2026-11%0a")?, entry);
/// # Ok::<(), tower_distributed::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pub(super) namespace: String,
    pub(super) kind: Kind,
    pub(super) stem: Option<Stem>,
}

impl Entry {
    /// Returns the entry of a key. For [`Kind::Dedupe`], the key is an item.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the namespace is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`, if
    /// the key of a claim is not in the form of a listing, or if the kind is a filter or a setting, which have no keys.
    pub fn new(kind: Kind, namespace: &str, key: impl Into<Key>) -> Result<Self, Error> {
        check_name("the name of a namespace", namespace)?;
        let (namespace, key) = (namespace.to_owned(), key.into());
        if matches!(kind, Kind::ExactClaim | Kind::FilterClaim) && !is_claim(&key) {
            return Err(Error::invalid(format!(
                "the key of a claim must be a number, a colon and 32 hexadecimal digits, as listed, is \"{}\"",
                text_of(key.as_bytes())
            )));
        }
        if kind == Kind::BloomFilter || kind.is_setting() {
            return Err(Error::invalid(format!(
                "a {kind} has no keys: name only its namespace"
            )));
        }
        Ok(Self {
            namespace,
            kind,
            stem: Some(Stem::Key(key)),
        })
    }

    /// Returns the entry of a whole namespace: a filter, all handled items of a `Dedupe`, or a setting.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if [`new`](Self::new) does not allow the name of the namespace, or if entries
    /// of this kind have keys.
    pub fn whole(kind: Kind, namespace: &str) -> Result<Self, Error> {
        check_name("the name of a namespace", namespace)?;
        if !kind.is_whole() {
            return Err(Error::invalid(format!(
                "a {kind} has a key: name its namespace and its key"
            )));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            kind,
            stem: None,
        })
    }

    /// Returns the entry of a key in the form of [`key_text`](Self::key_text).
    ///
    /// # Errors
    ///
    /// The same as [`new`](Self::new), and [`is_invalid`](Error::is_invalid) if `text` is not in this form, or is a
    /// digest for [`Kind::Dedupe`], whose items cannot be found by such a digest.
    pub fn parse(kind: Kind, namespace: &str, text: &str) -> Result<Self, Error> {
        if let Some(digest) = text.strip_prefix("%#") {
            let entry = Self::new(kind, namespace, "")?;
            if kind == Kind::Dedupe {
                return Err(Error::invalid(format!(
                    "a dedupe has no item with the name {text:?}: name the item itself"
                )));
            }
            if is_digest(digest) {
                return Ok(Self {
                    stem: Some(Stem::Digest(Key::from(digest))),
                    ..entry
                });
            }
        }
        let key = bytes_of(text).ok_or_else(|| {
            Error::invalid(format!(
                "a key must have % only before two hexadecimal digits, or before # and 64 of them, is {text:?}"
            ))
        })?;
        Self::new(kind, namespace, key)
    }

    /// Returns the entry of a part of a state in Redis. Several parts have the same entry, and most have none.
    pub(super) fn of(
        Found {
            namespace,
            stem,
            part,
        }: Found,
    ) -> Option<Self> {
        let (kind, stem) = Kind::of_part(stem, &part)?;
        Some(Self {
            namespace,
            kind,
            stem: (!kind.is_whole()).then_some(stem),
        })
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the key. `None` for keys of more than 256 bytes, which are stored in Redis as digests only, and for
    /// entries of a whole namespace: filters, settings, and the handled items of a `Dedupe`.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match &self.stem {
            Some(Stem::Key(key)) => Some(key),
            _ => None,
        }
    }

    /// Returns the key as printable text: `%`, control characters, invisible characters, spaces at the ends and bytes
    /// that are not UTF-8 are written as `%` and two hexadecimal digits. For a long key, returns `%#` and its SHA-256
    /// digest. Empty for entries of a whole namespace.
    #[must_use]
    pub fn key_text(&self) -> String {
        match &self.stem {
            Some(Stem::Key(key)) => text_of(key.as_bytes()),
            Some(Stem::Digest(digest)) => format!("%#{}", text_of(digest.as_bytes())),
            None => String::new(),
        }
    }
}

/// Writes `kind namespace key`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.namespace)?;
        if self.stem.is_some() {
            write!(f, " {}", self.key_text())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::chosen::QuotaTable;
    use crate::bucket::quotas::Quotas;
    use crate::fleet::value::Sealed as _;

    #[test]
    fn kinds_are_read_by_their_names() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
        }
        let error = "nothing".parse::<Kind>().unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains("\"nothing\""),
            "{error}"
        );
    }

    #[test]
    fn any_key_can_be_printed_and_read_again() {
        let printed = [
            (&b"user-7"[..], "user-7"),
            ("kündigung \"ß\"".as_bytes(), "kündigung \"ß\""),
            (b"a%b", "a%25b"),
            (b" a b  ", "%20a b%20%20"),
            (b"  ", "%20%20"),
            (b"", ""),
            (b"\x1b[2J\0\n", "%1b[2J%00%0a"),
            (b"\xff\xc3", "%ff%c3"),
            ("a\u{202e}b\u{200b}".as_bytes(), "a%e2%80%aeb%e2%80%8b"),
        ];
        for (key, text) in printed {
            let entry = Entry::new(Kind::Mutex, "x", key).unwrap();
            assert_eq!(entry.key_text(), text);
            assert_eq!(Entry::parse(Kind::Mutex, "x", text).unwrap(), entry);
        }
        let digest = format!("%#{}", "0a".repeat(32));
        let entry = Entry::parse(Kind::Mutex, "x", &digest).unwrap();
        assert_eq!((entry.key(), entry.key_text()), (None, digest.clone()));
        for bad in ["%", "%2", "%zz", "%#0a", "%+1"] {
            let error = Entry::parse(Kind::Mutex, "x", bad).unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains(bad),
                "{error}"
            );
        }
        assert!(
            Entry::new(Kind::FilterClaim, "x", "order-7")
                .unwrap_err()
                .is_invalid()
        );
        // Otherwise it would be the entry of the whole namespace.
        assert!(
            Entry::parse(Kind::Dedupe, "x", &digest)
                .unwrap_err()
                .is_invalid()
        );
    }

    /// The parts of leases: `suite::operators`.
    #[test]
    fn parts_have_their_kinds() {
        let claim = format!("{}:claim", "0123456789abcdef".repeat(2));
        let kind_of = |place: &str, part: &str| {
            let (namespace, part) = ("x".to_owned(), part.to_owned());
            Entry::of(Found {
                namespace,
                stem: Stem::Key(place.into()),
                part,
            })
            .map(|entry| entry.kind)
        };
        for (place, part, kind) in [
            ("k", "permits:limit", Some(Kind::WaitGroup)),
            ("k", "refused", Some(Kind::RefusedKeys)),
            ("", Quotas::PARTS[0], Some(Kind::FleetQuotas)),
            ("", QuotaTable::PARTS[0], Some(Kind::FleetTable)),
            ("", u32::PARTS[0], Some(Kind::FleetLimit)),
            ("k", Quotas::PARTS[0], None),
            ("k", QuotaTable::PARTS[0], None),
            ("k", u32::PARTS[0], None),
            ("1", "config", None),
            ("k", "layout", None),
            ("k", "x", None),
            ("k", &claim, None),
        ] {
            assert_eq!(kind_of(place, part), kind, "{place} {part}");
        }
    }
}
