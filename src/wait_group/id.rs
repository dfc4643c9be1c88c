//! The id of a permit, with which another task or process can release the permit.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::lease::percent;
use crate::lease::token::Token;
use crate::{Error, Key};

/// The id of a permit that is no longer renewed.
///
/// [`Permit::into_id`](super::Permit::into_id) returns it. Convert it to a string to send it to another task or
/// process, which parses it and passes it to [`WaitGroup::done`](super::WaitGroup::done).
///
/// Everyone who knows the id can release the permit.
///
/// ```
/// use tower_distributed::wait_group::PermitId;
/// use tower_distributed::{Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let id = exports.add("acme").await?.into_id();
/// assert_eq!(id.key().as_bytes(), b"acme");
/// assert_eq!(id.to_string().parse::<PermitId>()?, id);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermitId {
    pub(super) name: Arc<str>,
    pub(super) key: Key,
    pub(super) token: Token,
}

impl PermitId {
    /// Returns the key of the permit.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }
}

/// Writes `name:key:token`, in letters, digits and `% - . / _ :`.
impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}",
            self.name,
            percent::encode(self.key.as_bytes()),
            self.token
        )
    }
}

impl FromStr for PermitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut parts = text.split(':');
            let (name, key, token) = (
                parts.next()?,
                percent::decode(parts.next()?)?,
                parts.next()?,
            );
            let is_whole = parts.next().is_none() && !name.is_empty() && token.len() <= 128;
            let token = Token::from(token);
            let is_permit = token.ttl().is_some() && super::holders::size(&token).is_some();
            (is_permit && is_whole).then(|| Self {
                name: name.into(),
                key: Key::from(key),
                token,
            })
        };
        parsed().ok_or_else(|| {
            Error::invalid(format!(
                "a permit id must have the format of Permit::into_id, is {text:?}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let token = "0123456789abcdef-1f.1c9c380/2/5";
        let id = PermitId {
            name: "exports".into(),
            key: Key::from("acme:1/ä"),
            token: token.into(),
        };
        assert_eq!(id.to_string(), format!("exports:acme%3a1%2f%c3%a4:{token}"));
        assert_eq!(id.to_string().parse::<PermitId>().unwrap(), id);
        for other in [
            "",
            "a",
            "a:b:c",
            "a:%:0123456789abcdef-1f.1c9c380/2/5",
            &format!("a:b:{token}:d"),
        ] {
            let error = other.parse::<PermitId>().unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains(&format!("{other:?}")),
                "{error}"
            );
        }
    }
}
