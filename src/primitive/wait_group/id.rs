//! A permit in the hands of nobody: named, so that another task or process can give it back.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::primitive::lease::GiveBack;
use crate::primitive::percent;
use crate::store::ttl_of;
use crate::{Error, Key};

/// Names a permit that nobody renews any more. Made by [`Permit::into_id`](super::Permit::into_id), for
/// [`WaitGroup::done`](super::WaitGroup::done) in another task or process, to which it travels as text.
///
/// It is as good as the permit: whoever has it can give the permit back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermitId {
    pub(super) name: Arc<str>,
    pub(super) key: Key,
    pub(super) token: Arc<str>,
}

impl PermitId {
    /// What it is a permit of.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn give_back(&self) -> GiveBack {
        let (key, token) = (self.key.clone(), Arc::clone(&self.token));
        // Whatever it is, for a release.
        let ttl = 0;
        GiveBack { key, token, withdrawn: false, ttl, left: Duration::ZERO }
    }
}

/// `name:key:token`, of letters, digits and `% - . / _ :`.
impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.name, percent::encode(self.key.as_bytes()), self.token)
    }
}

impl FromStr for PermitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut parts = text.split(':');
            let (name, key, token) = (parts.next()?, percent::decode(parts.next()?)?, parts.next()?);
            let is_permit = ttl_of(token).is_some() && super::holders::size(token).is_some();
            let is_whole = parts.next().is_none() && !name.is_empty() && token.len() <= 128;
            (is_permit && is_whole).then(|| Self {
                name: name.into(),
                key: Key::from(key),
                token: token.into(),
            })
        };
        parsed().ok_or_else(|| {
            Error::invalid(format!("the id of a permit must be as Permit::into_id gave it, is {text:?}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let token = "0123456789abcdef-1f.1c9c380/2/5";
        let id = PermitId { name: "exports".into(), key: Key::from("acme:1/ä"), token: token.into() };
        assert_eq!(id.to_string(), format!("exports:acme%3a1%2f%c3%a4:{token}"));
        assert_eq!(id.to_string().parse::<PermitId>().unwrap(), id);
        for other in ["", "a", "a:b:c", "a:%:0123456789abcdef-1f.1c9c380/2/5", &format!("a:b:{token}:d")] {
            let error = other.parse::<PermitId>().unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(&format!("{other:?}")), "{error}");
        }
    }
}
