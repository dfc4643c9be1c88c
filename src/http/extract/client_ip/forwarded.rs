//! The entries of a forwarding header, read from the right: of `X-Forwarded-For`, of `Forwarded` with its grammar (RFC
//! 7239), and of fields with one address.

use std::iter::Rev;
use std::net::IpAddr;

use http::header::{FORWARDED, ValueIter};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http::extract::client_ip::address::{MAX_NODE_LEN, parse_node};
use crate::http::extract::parameter::unquoted;

#[cfg(test)]
mod tests;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_NAME: HeaderName = FORWARDED;

/// The header that the proxies write.
#[derive(Clone, Debug)]
pub(super) enum ForwardingHeader {
    XForwardedFor,
    Forwarded,
    /// A field that contains only the address of the client.
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

    /// The only address in the only field with this name. `None` if it is another header, or if the field is missing,
    /// sent several times, or not one address.
    pub(super) fn one_address(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let Self::OneAddress(name) = self else {
            return None;
        };
        let mut fields = headers.get_all(name).iter();
        let field = fields.next().filter(|_| fields.next().is_none())?;
        parse_node(field.as_bytes().trim_ascii())
    }

    /// The entries of all fields with this name, from right to left.
    pub(super) fn entries<'a>(&'a self, headers: &'a HeaderMap) -> Entries<'a> {
        Entries {
            header: self,
            fields: Some(headers.get_all(self.name()).iter().rev()),
            unread: None,
        }
    }

    /// The last entry of a field, and the part to the left of the comma before it. `None` if the end of the field
    /// cannot be divided into entries.
    fn split_last<'a>(&self, field: &'a [u8]) -> Option<Split<'a>> {
        match self {
            Self::XForwardedFor | Self::OneAddress(_) => {
                Some(match field.iter().rposition(|&byte| byte == b',') {
                    Some(comma) => (Some(&field[..comma]), &field[comma + 1..]),
                    None => (None, field),
                })
            }
            Self::Forwarded => split_last(field),
        }
    }

    fn parse(&self, entry: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor | Self::OneAddress(_) => parse_node(unquoted(entry)),
            Self::Forwarded => parse_element(entry),
        }
    }
}

/// The parts to the left and to the right of the last comma.
type Split<'a> = (Option<&'a [u8]>, &'a [u8]);

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
                // The number of entries in this field is unknown, so entries further left can neither be counted nor
                // trusted.
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

/// The last element of a field `Forwarded` (RFC 7239), and the part to the left of the comma before it. `None` if the
/// quoted string at the end of the field has no opening quote.
///
/// ```text
/// Forwarded         = #forwarded-element
/// forwarded-element = [ forwarded-pair ] *( ";" [ forwarded-pair ] )
/// forwarded-pair    = token "=" ( token / quoted-string )
/// ```
///
/// Quoted strings may contain commas, and a client may send an unclosed quote: `for="6.6.6.6`. If a proxy appends
/// `, for=1.1.1.1` to that field, a parser that starts on the left takes the proxy's element for a part of the quoted
/// string. A parser that splits at each comma is misled by `host="a, for=6.6.6.6"`, where the host comes from the
/// client and the proxy has quoted it correctly.
///
/// This parser therefore divides a field into elements from the right. It finds the boundaries of well-formed elements
/// without reading the part to their left:
///
/// * The end of the field is outside of quoted strings, since the last element is well-formed.
/// * The first quote to the left of such a place closes a quoted string. Within the string each quote follows an odd
///   number of backslashes. The quote that opens it follows `=`, hence an even number (0).
/// * A comma outside of quoted strings ends the element before it. The position to the left of that comma is again the
///   end of an element.
///
/// So the elements that honest proxies have appended are divided the same way, whatever bytes are to the left of them.
/// If a quote is closed but never opened, the division ends. Each element is then parsed from the left, with the
/// grammar.
fn split_last(field: &[u8]) -> Option<Split<'_>> {
    let mut end = field.len();
    loop {
        match field[..end]
            .iter()
            .rposition(|byte| matches!(byte, b',' | b'"'))
        {
            None => return Some((None, field)),
            Some(comma) if field[comma] == b',' => {
                return Some((Some(&field[..comma]), &field[comma + 1..]));
            }
            Some(closing) => end = opening_quote(&field[..closing])?,
        }
    }
}

/// The position of the quote that opens the quoted string at the end of the text.
fn opening_quote(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    loop {
        let quote = text[..end].iter().rposition(|&byte| byte == b'"')?;
        let backslashes = text[..quote]
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'\\')
            .count();
        if backslashes % 2 == 0 {
            return Some(quote);
        }
        end = quote;
    }
}

/// The address of the parameter `for` of an element. `None` if there is no such parameter or more than one, if its
/// value is not an address, or if the element is malformed.
///
/// Deviations from the grammar are accepted if they are common and unambiguous: white space around `;`, and any visible
/// characters but `"`, `\`, `,` and `;` in a value without quotes, as in `for=[2001:db8::1]:80`. Such a value may also
/// be empty, as in `host=`: otherwise a client that sends no host could be counted as the proxy.
fn parse_element(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element;
    loop {
        rest = rest.trim_ascii_start();
        if !matches!(rest.first(), None | Some(b';')) {
            let (name, value, after) = pair(rest)?;
            // With a second `for`, parsers would disagree about the address.
            if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
                return None;
            }
            rest = after.trim_ascii_start();
        }
        match rest.split_first() {
            Some((b';', after)) => rest = after,
            Some(_) => return None,
            None => return node_of(found?),
        }
    }
}

/// The name of a parameter, its value (the text between the quotes, with its backslashes), and the rest.
fn pair(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = text.split_at(text.iter().position(|byte| !is_token(*byte))?);
    let value = rest.strip_prefix(b"=").filter(|_| !name.is_empty())?;
    let (value, after) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            let closing = closing_quote(quoted)?;
            (&quoted[..closing], &quoted[closing + 1..])
        }
        None => {
            let is_end = |byte: &u8| !byte.is_ascii_graphic() || b"\"\\,;".contains(byte);
            value.split_at(value.iter().position(is_end).unwrap_or(value.len()))
        }
    };
    Some((name, value, after))
}

/// `tchar` of RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The position of the quote that closes a quoted string. `text` begins after the opening quote.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += text
            .get(at..)?
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\'))?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// The address of a value. A value without quotes has no backslashes.
fn node_of(value: &[u8]) -> Option<IpAddr> {
    if !value.contains(&b'\\') {
        return parse_node(value);
    }
    let mut unescaped = [0; MAX_NODE_LEN];
    let mut len = 0;
    let mut bytes = value.iter();
    while let Some(&byte) = bytes.next() {
        let byte = if byte == b'\\' { *bytes.next()? } else { byte };
        *unescaped.get_mut(len)? = byte;
        len += 1;
    }
    parse_node(&unescaped[..len])
}
