//! The entries of a forwarding header, from the right.

use std::iter::Rev;
use std::net::IpAddr;

use http::header::{FORWARDED, ValueIter};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{forwarded, node};
use crate::extract::request::parameter::unquoted;

#[cfg(test)]
mod tests;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_NAME: HeaderName = FORWARDED;

/// The header that the proxies write.
#[derive(Clone, Debug)]
pub(super) enum ForwardingHeader {
    XForwardedFor,
    Forwarded,
    /// A field with the address of the client alone.
    OneAddress(HeaderName),
}

impl ForwardingHeader {
    pub(super) const ALL: [Self; 2] = [Self::XForwardedFor, Self::Forwarded];

    pub(super) fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED_NAME,
            Self::OneAddress(name) => name,
        }
    }

    /// The only address in the only field with this name. `None` if it is another header, or if the field is missing, sent
    /// several times, or not one address.
    pub(super) fn one_address(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let Self::OneAddress(name) = self else {
            return None;
        };
        let mut fields = headers.get_all(name).iter();
        let field = fields.next().filter(|_| fields.next().is_none())?;
        node::parse(field.as_bytes().trim_ascii())
    }

    /// The entries of all fields with this name, from right to left.
    pub(super) fn entries<'a>(&'a self, headers: &'a HeaderMap) -> Entries<'a> {
        Entries {
            header: self,
            fields: Some(headers.get_all(self.name()).iter().rev()),
            unread: None,
        }
    }

    /// The last entry of a field, and what is left of the comma before it. `None` if the text that ends the field
    /// cannot be divided into entries.
    fn split_last<'a>(&self, field: &'a [u8]) -> Option<Split<'a>> {
        match self {
            Self::XForwardedFor | Self::OneAddress(_) => {
                Some(match field.iter().rposition(|&byte| byte == b',') {
                    Some(comma) => (Some(&field[..comma]), &field[comma + 1..]),
                    None => (None, field),
                })
            }
            Self::Forwarded => forwarded::split_last(field),
        }
    }

    fn parse(&self, entry: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor | Self::OneAddress(_) => node::parse(unquoted(entry)),
            Self::Forwarded => forwarded::parse(entry),
        }
    }
}

/// What is left of the last comma, and what is right of it.
pub(super) type Split<'a> = (Option<&'a [u8]>, &'a [u8]);

/// The addresses of the entries from right to left. `None` is an entry that is not an address.
///
/// Each step reads the bytes of one entry, and no byte is read more than a fixed number of times. Empty entries are
/// skipped (RFC 9110, 5.6.1).
#[derive(Debug)]
pub(super) struct Entries<'a> {
    header: &'a ForwardingHeader,
    /// The fields that are not read yet. `None` after a malformed one.
    fields: Option<Rev<ValueIter<'a, HeaderValue>>>,
    /// The left part of the current field.
    unread: Option<&'a [u8]>,
}

impl Iterator for Entries<'_> {
    type Item = Option<IpAddr>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let field = match self.unread.take() {
                Some(unread) => unread,
                None => self.fields.as_mut()?.next()?.as_bytes(),
            };
            let Some((left, entry)) = self.header.split_last(field) else {
                // How many entries there are here is not known, so nothing further left can be counted or believed.
                self.fields = None;
                return Some(None);
            };
            self.unread = left;
            let entry = entry.trim_ascii();
            if !entry.is_empty() {
                return Some(self.header.parse(entry));
            }
        }
    }
}
